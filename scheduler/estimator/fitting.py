"""Makes the coefficients of `solo.py` from samples: non-negative least squares of relative errors.

Offline only, with numpy. One fit per partition size; where it misses, it is split into pieces by
size as long as that helps (MuxWise has one piece: kernels that change with the shape want more).
"""

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from scheduler.estimator import solo
from scheduler.estimator.loads import DecodeLoad, PrefillLoad
from scheduler.estimator.profile import (
    DecodeSample,
    Deviation,
    Fit,
    Piece,
    PrefillSample,
    UnitsFit,
)

Array = NDArray[np.float64]
S = TypeVar("S", PrefillSample, DecodeSample)
Terms = Callable[[S], tuple[float, ...]]

HELD_OUT = 5
"""One sample of so many is kept from the fit, to measure it by."""
GOOD = 0.03
"""Largest relative error at which a fit is not split further."""
MOST_PIECES = 4
WORTH = 0.85
"""A split must bring the largest error down to this share of it."""
POLISH = 20
"""Rounds that weigh the worst samples more: the largest error counts, not the mean alone."""
SEED = 0


class TooFewSamplesError(ValueError):
    """There is nothing to fit. The message names the lane and the count."""


def nonnegative(matrix: Array, target: Array) -> Array:
    """Return the non-negative least-squares solution of matrix @ x = target.

    The few columns allow the exact way: the best of all subsets whose solution has no negative.
    matrix [samples, terms], target [samples] → [terms].
    """
    terms = matrix.shape[1]
    scale = np.maximum(np.abs(matrix).max(axis=0), 1e-300)
    scaled = matrix / scale
    best, best_x = float(np.square(target).sum()), np.zeros(terms)
    for size in range(1, terms + 1):
        for chosen in combinations(range(terms), size):
            columns = scaled[:, chosen]
            part = np.linalg.lstsq(columns, target, rcond=None)[0]
            rest = float(np.square(columns @ part - target).sum())
            if part.min() >= 0 and rest < best:
                best, best_x = rest, np.zeros(terms)
                best_x[list(chosen)] = part
    solution: Array = best_x / scale
    return solution


def relative(matrix: Array, seconds: Array) -> Array:
    """Return non-negative coefficients of small relative errors, the largest one above all.

    Lawson's weights: each round weighs a sample by the error that it has.
    """
    weights = np.ones(len(seconds))
    best, best_error = None, np.inf
    for _ in range(POLISH):
        root = np.sqrt(weights / weights.sum())
        theta = nonnegative(matrix / seconds[:, None] * root[:, None], root)
        errors = np.abs(matrix @ theta / seconds - 1)
        if errors.max() < best_error:
            best, best_error = theta, float(errors.max())
        if best_error < GOOD:
            break
        weights = weights * (errors + 0.1 * errors.max()) / max(errors.max(), 1e-12)
    assert best is not None
    return best


class _Pieces(Generic[S]):
    """Samples of one partition size, by ascending size, and the spans that are fitted apart."""

    def __init__(self, samples: Sequence[S], size: Callable[[S], int], terms: Terms[S]) -> None:
        ordered = sorted(samples, key=size)
        self.sizes = [size(sample) for sample in ordered]
        self.spans: list[tuple[int, int]] = [(0, len(ordered))]
        self._matrix = np.array([terms(sample) for sample in ordered], dtype=float)
        self._seconds = np.array([sample.seconds for sample in ordered])
        self._least = 2 * self._matrix.shape[1]

    def theta(self, span: tuple[int, int]) -> Array:
        """Return the coefficients of a span."""
        part = slice(*span)
        return relative(self._matrix[part], self._seconds[part])

    def error(self, span: tuple[int, int]) -> float:
        """Return the largest relative error of a span's own fit."""
        part = slice(*span)
        fitted = self._matrix[part] @ self.theta(span)
        return float(np.abs(fitted / self._seconds[part] - 1).max())

    def split(self) -> bool:
        """Split the worst span where that helps most; False when nothing pays."""
        errors = [self.error(span) for span in self.spans]
        worst = int(np.argmax(errors))
        first, last = self.spans[worst]
        middle = range(first + self._least, last - self._least + 1)
        borders = [at for at in middle if self.sizes[at - 1] < self.sizes[at]]
        if errors[worst] <= GOOD or not borders:
            return False

        def left(at: int) -> float:
            return max(self.error((first, at)), self.error((at, last)))

        border = min(borders, key=left)
        if left(border) > WORTH * errors[worst]:
            return False
        self.spans[worst : worst + 1] = [(first, border), (border, last)]
        return True


def fit_pieces(
    samples: Sequence[S], size: Callable[[S], int], terms: Terms[S]
) -> tuple[Piece, ...]:
    """Return coefficients, in as many pieces as pay. `samples` must not be empty."""
    pieces = _Pieces(samples, size, terms)
    while len(pieces.spans) < MOST_PIECES and pieces.split():
        pass
    return tuple(
        Piece(float(pieces.sizes[span[1] - 1]), tuple(map(float, pieces.theta(span))))
        for span in pieces.spans
    )


def split_samples(samples: Sequence[S], size: Callable[[S], int]) -> tuple[list[S], list[S]]:
    """Return (to fit, held out). Where the profiler has measured points to hold out, those; else
    some of all, the smallest and the largest of each partition size apart: an error beyond the
    profiled range says nothing about the fit within it.
    """
    if any(sample.held_out for sample in samples):
        return [s for s in samples if not s.held_out], [s for s in samples if s.held_out]
    rng = random.Random(SEED)
    by_units: dict[int, list[S]] = defaultdict(list)
    for sample in samples:
        by_units[sample.units].append(sample)
    used: list[S] = []
    held: list[S] = []
    for group in by_units.values():
        ends = {min(size(s) for s in group), max(size(s) for s in group)}
        inner = [s for s in group if size(s) not in ends]
        chosen = {id(s) for s in rng.sample(inner, len(inner) // HELD_OUT)}
        held += [s for s in group if id(s) in chosen]
        used += [s for s in group if id(s) not in chosen]
    return used, held


def fit_units(
    lane: str, samples: Sequence[S], size: Callable[[S], int], terms: Terms[S], least: int
) -> tuple[UnitsFit, ...]:
    """Return a fit per partition size of `least` samples or more. Raises TooFewSamplesError."""
    by_units: dict[int, list[S]] = defaultdict(list)
    for sample in samples:
        by_units[sample.units].append(sample)
    fits = tuple(
        UnitsFit(units, fit_pieces(group, size, terms))
        for units, group in sorted(by_units.items())
        if len(group) >= least
    )
    if not fits:
        raise TooFewSamplesError(
            f"{lane}: {len(samples)} samples on {len(by_units)} partition sizes, "
            f"at least {least} on one are needed"
        )
    return fits


def deviation(errors: Sequence[float]) -> Deviation:
    """Sum up absolute relative errors."""
    return Deviation(
        max(errors, default=0.0), sum(errors) / len(errors) if errors else 0.0, len(errors)
    )


def fit(prefill: Sequence[PrefillSample], decode: Sequence[DecodeSample]) -> Fit:
    """Return both lanes' predictors with their errors on held-out samples.

    What was held out stays out, so that the errors are those of the fit that is used. Raises
    TooFewSamplesError.
    """
    prefill_used, prefill_held = split_samples(prefill, _new)
    decode_used, decode_held = split_samples([s for s in decode if not s.longest], _rows)
    prefill_fits = fit_units(
        "prefill", prefill_used, _new, _prefill_terms, least=solo.PREFILL_TERMS
    )
    decode_fits = fit_units("decode", decode_used, _rows, _decode_terms, least=solo.DECODE_TERMS)
    prefill_lane, decode_lane = solo.prefill_lane(prefill_fits), solo.decode_lane(decode_fits)
    return Fit(
        prefill=prefill_fits,
        decode=decode_fits,
        prefill_deviation=deviation(
            [_off(prefill_lane.seconds(s.units, s.load), s.seconds) for s in prefill_held]
        ),
        decode_deviation=deviation(
            [_off(decode_lane.seconds(s.units, s.load), s.seconds) for s in decode_held]
        ),
    )


def _off(predicted: float, measured: float) -> float:
    return abs(predicted / measured - 1)


def _new(sample: PrefillSample) -> int:
    return sum(new for new, _ in sample.prompts)


def _rows(sample: DecodeSample) -> int:
    return sample.rows


def _prefill_terms(sample: PrefillSample) -> tuple[float, ...]:
    return solo.prefill_terms(PrefillLoad.of_prompts(sample.prompts))


def _decode_terms(sample: DecodeSample) -> tuple[float, ...]:
    return solo.decode_terms(DecodeLoad(sample.rows, sample.context))
