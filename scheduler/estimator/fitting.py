"""Makes the lines and coefficients of `solo.py` from samples. Offline only, with numpy.

For each partition size: a rising line over the sizes that were measured in their simplest form
(prompts that reuse nothing, the shortest contexts) and the coefficients of the other terms, all
together by non-negative least squares of relative errors.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from scheduler.estimator import solo
from scheduler.estimator.profile import (
    DecodeSample,
    Deviation,
    Fit,
    Line,
    PrefillSample,
    Profile,
    UnitsFit,
)

Array = NDArray[np.float64]
S = TypeVar("S", PrefillSample, DecodeSample)

GOOD = 0.003
"""Largest relative error at which a fit is not polished further."""
POLISH = 12
"""Rounds that weigh the worst samples more: the largest error counts, not the mean alone."""
HEAVIEST = 20.0
"""Weight of a sample at most, times the mean."""
LEAST = 4
"""Samples for a fit, and for a line half of them."""
TILE = {"SM": 128, "core": 1}
"""Rows of a tile of matrix products."""
HELD_OUT = 5
"""Where no sample is off the grid, one of so many is held out."""


class TooFewSamplesError(ValueError):
    """There is nothing to fit. The message names the lane and the count."""


def fit(found: Profile) -> Fit:
    """Return both lanes' predictors, with their errors on the samples that were held out.

    What was held out stays out, so that the errors are those of the fit that is used. Raises
    TooFewSamplesError.
    """
    prefill, prefill_held = split_samples(found.prefill)
    decode, decode_held = split_samples([s for s in found.decode if not s.longest])
    tile = TILE.get(found.hardware.unit, 1)
    heads = found.model.num_heads if tile > 1 else 0
    sizes = found.row_sizes
    none = Deviation(0.0, 0.0, 0)
    made = Fit(
        prefill=_by_units("prefill", prefill, lambda units, group: _prefill(units, group, heads)),
        decode=_by_units("decode", decode, lambda units, group: _decode(units, group, sizes)),
        tile=tile,
        heads=heads,
        most_new=max(_new(sample) for sample in prefill),
        row_sizes=sizes,
        prefill_deviation=none,
        decode_deviation=none,
    )
    return measured(made, prefill_held, decode_held, [s for s in found.decode if s.longest])


def measured(
    made: Fit,
    prefill: Sequence[PrefillSample],
    decode: Sequence[DecodeSample],
    uneven: Sequence[DecodeSample],
) -> Fit:
    """Return the fit with its errors on samples that it has not seen."""
    prefills, iterations = solo.PrefillLane(made), solo.DecodeLane(made)
    known = {each.units for each in made.prefill}, {each.units for each in made.decode}
    return Fit(
        prefill=made.prefill,
        decode=made.decode,
        tile=made.tile,
        heads=made.heads,
        most_new=made.most_new,
        row_sizes=made.row_sizes,
        prefill_deviation=deviation(
            [_off(prefills.seconds(s.units, s.load), s.seconds) for s in prefill
             if s.units in known[0]]
        ),
        decode_deviation=deviation(_iterations_off(iterations, decode, known[1])),
        uneven_deviation=deviation(_iterations_off(iterations, uneven, known[1])),
    )  # fmt: skip


def split_samples(samples: Sequence[S]) -> tuple[list[S], list[S]]:
    """Return (to fit, held out): those off the grid are held out; without any, every fifth."""
    if any(sample.held_out for sample in samples):
        return [s for s in samples if not s.held_out], [s for s in samples if s.held_out]
    held = [s for number, s in enumerate(samples) if number % HELD_OUT == HELD_OUT - 1]
    return [s for number, s in enumerate(samples) if number % HELD_OUT != HELD_OUT - 1], held


def _by_units(
    lane: str, samples: Sequence[S], make: Callable[[int, list[S]], UnitsFit]
) -> tuple[UnitsFit, ...]:
    groups: dict[int, list[S]] = defaultdict(list)
    for sample in samples:
        groups[sample.units].append(sample)
    fits = tuple(make(u, group) for u, group in sorted(groups.items()) if len(group) >= LEAST)
    if not fits:
        raise TooFewSamplesError(
            f"{lane}: {len(samples)} samples on {len(groups)} partition sizes, "
            f"at least {LEAST} on one are needed"
        )
    return fits


# --- one lane on so many units ---


def _prefill(units: int, samples: list[PrefillSample], heads: int) -> UnitsFit:
    terms = np.array([solo.prefill_terms(s.load, units, heads) for s in samples], dtype=float)
    simplest = simplest_of(samples, _new, lambda s: (s.load.reused, len(s.prompts)))
    sizes = np.array([_new(sample) for sample in samples], dtype=float)
    return _line_and_rest(units, samples, terms, sizes, simplest)


def _decode(units: int, samples: list[DecodeSample], row_sizes: Sequence[int]) -> UnitsFit:
    terms = np.array([solo.decode_terms(s.load) for s in samples], dtype=float)

    def rows(sample: DecodeSample) -> int:
        return solo.row_size(row_sizes, sample.rows)

    simplest = simplest_of(samples, rows, lambda s: (s.context, 0))
    sizes = np.array([rows(sample) for sample in samples], dtype=float)
    return _line_and_rest(units, samples, terms, sizes, simplest)


def simplest_of(
    samples: Sequence[S], size: Callable[[S], int], order: Callable[[S], tuple[int, int]]
) -> list[int]:
    """Return the index of the simplest sample of each size, by ascending size. A size whose
    simplest sample is not as simple as the others' is left out: most of it is attention.
    """
    best: dict[int, int] = {}
    for index, sample in enumerate(samples):
        known = best.get(size(sample))
        if known is None or order(sample) < order(samples[known]):
            best[size(sample)] = index
    found = [best[each] for each in sorted(best)]
    plain = [i for i in found if isinstance(samples[i], DecodeSample) or not order(samples[i])[0]]
    return plain if len(plain) >= LEAST // 2 else found


def _line_and_rest(
    units: int, samples: Sequence[S], terms: Array, sizes: Array, simplest: list[int]
) -> UnitsFit:
    """Fit the line over the sizes of the simplest samples, and the coefficients of `terms`."""
    seconds = np.array([sample.seconds for sample in samples])
    knots = sizes[simplest]
    found = relative(np.hstack([rises(sizes, knots), terms]), seconds)
    heights, theta = np.cumsum(found[: len(knots)]), found[len(knots) :]
    heights = np.maximum(heights, 1e-9)
    return UnitsFit(
        units, Line(tuple(knots.tolist()), tuple(heights.tolist())), tuple(theta.tolist())
    )


def rises(sizes: Array, knots: Array) -> Array:
    """Return how much of the height at the first knot, and of the rise to each of the others, is in
    a size: what makes a line that never falls of coefficients that are never negative. The last
    rise goes on. sizes [samples], knots [knots], ascending → [samples, knots].
    """
    columns = [np.ones(len(sizes))]
    for low, high in pairwise(knots.tolist()):
        share = np.maximum((sizes - low) / (high - low), 0.0)
        columns.append(share if high == knots[-1] else np.minimum(share, 1.0))
    return np.stack(columns, axis=1)


def relative(terms: Array, seconds: Array) -> Array:
    """Return non-negative coefficients by which `terms` make `seconds`, with small relative errors,
    the largest one above all: each round weighs a sample by the error that it has (Lawson).
    terms [samples, terms], seconds [samples] → [terms].
    """
    matrix = terms / seconds[:, None]
    scale = np.abs(matrix).max(axis=0)
    scale[scale == 0] = 1.0
    matrix = matrix / scale
    weights = np.ones(len(seconds))
    best, least = np.zeros(terms.shape[1]), np.inf
    for _ in range(POLISH):
        root = np.sqrt(weights)
        found = nonnegative(matrix * root[:, None], root)
        errors = np.abs(matrix @ found - 1)
        worst = float(errors.max())
        if worst / 2 + float(errors.mean()) < least:
            best, least = found, worst / 2 + float(errors.mean())
        if worst < GOOD:
            break
        weights = weights * (errors + 0.3 * worst) / worst
        weights = np.minimum(weights / weights.mean(), HEAVIEST)
    solution: Array = best / scale
    return solution


def nonnegative(matrix: Array, target: Array) -> Array:
    """Return the non-negative least-squares solution of matrix @ x = target (Lawson and Hanson).

    matrix [samples, terms], target [samples] → [terms].
    """
    gram, aim = matrix.T @ matrix, matrix.T @ target
    tiny = 1e-11 * max(1.0, float(np.abs(aim).max(initial=0.0)))
    used = np.zeros(len(aim), dtype=bool)
    x: Array = np.zeros(len(aim))
    for _ in range(3 * len(aim)):
        gain = np.where(used, -np.inf, aim - gram @ x)
        if gain.max() <= tiny:
            break
        used[int(gain.argmax())] = True
        x = _inner(gram, aim, used, x)
    return x


def _inner(gram: Array, aim: Array, used: NDArray[np.bool_], x: Array) -> Array:
    """Solve for the terms in use, and drop those that would turn negative."""
    while used.any():
        at = np.flatnonzero(used)
        wanted: Array = np.zeros(len(aim))
        wanted[at] = np.linalg.lstsq(gram[np.ix_(at, at)], aim[at], rcond=None)[0]
        if wanted[at].min() > 0:
            return wanted
        falling = at[wanted[at] <= 0]
        step = float((x[falling] / (x[falling] - wanted[falling] + 1e-300)).min())
        x = np.where(used, x + step * (wanted - x), 0.0)
        used &= x > 1e-13 * max(float(x.max()), 1e-300)
        x = np.where(used, x, 0.0)
    return np.zeros(len(aim))


# --- errors ---


def deviation(errors: Sequence[float]) -> Deviation:
    """Sum up absolute relative errors."""
    return Deviation(
        max(errors, default=0.0), sum(errors) / len(errors) if errors else 0.0, len(errors)
    )


def _iterations_off(
    lane: solo.DecodeLane, samples: Sequence[DecodeSample], known: set[int]
) -> list[float]:
    inside = [s for s in samples if s.units in known]
    return [_off(lane.seconds(s.units, s.load), s.seconds) for s in inside]


def _off(predicted: float, measured: float) -> float:
    return abs(predicted / measured - 1)


def _new(sample: PrefillSample) -> int:
    return sum(new for new, _ in sample.prompts)
