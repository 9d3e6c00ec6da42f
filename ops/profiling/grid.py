"""What a profile measures, and in which order: the cells that say most come first.

A dimension's ends come before its middle and that before its quarters, so whenever the budget ends
the samples span the range. Solo runs of both lanes and pairs take turns by how fine they are, and
with them come points off the grid: what the fit is measured by and never sees.
"""

import math
import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise, product
from typing import NamedTuple, TypeVar

from worker.executors.base import DeviceInfo

T = TypeVar("T")

FIRST_PREFILL, FIRST_DECODE, FIRST_PAIR = 64, 128, 2048
"""Smallest new tokens and contexts of the solo grids, and sizes of the pairs (MuxWise 3.3.2)."""
STEP = 4
PAIR_ROWS = 4
"""Steps of the batch sizes of pairs."""
NEW = (*range(64, 512, 64), *range(512, 1536, 128), *range(1536, 2560, 256),
       *range(2560, 4096, 512), 4096, 5120, 6144, 7168, 8192)  # fmt: skip
"""New tokens of prompts that reuse nothing: matrix products go up in steps of their tiles, so the
line is close where a step is much of the whole."""
HELD_OUT = 8
"""Points off the grid for each lane and size of its side."""
UNEVEN = 3
"""Iterations over rows of very different contexts, for each size of decode's side."""
LARGE = 16384
"""Token equivalents (see `weight`) from which on a prefill comes later the longer it takes."""
TOO_LARGE = 160_000
"""Token equivalents beyond which a prefill is not measured: 4 s on the whole of an H200."""
SEED = 0


class PrefillCell(NamedTuple):
    """A solo prefill on a partition's prefill side."""

    partition: int
    prompts: tuple[tuple[int, int], ...]
    """(new, reused) tokens of each."""
    held_out: bool = False


class DecodeCell(NamedTuple):
    """A solo iteration on a partition's decode side."""

    partition: int
    rows: int
    context: int
    """Of each row, or their mean when they are uneven."""
    held_out: bool = False
    uneven: bool = False


class PairCell(NamedTuple):
    """Both at once."""

    partition: int
    new: int
    reused: int
    rows: int
    context: int


Cell = PrefillCell | DecodeCell | PairCell


class Limits(NamedTuple):
    """What the device takes."""

    new: int
    """Tokens of a prefill."""
    length: int
    """Tokens of a sequence."""
    rows: int
    pages: int
    page_size: int


def limits_of(info: DeviceInfo, spare_slots: int) -> Limits:
    """Return the limits of an executor, `spare_slots` kept for prompts."""
    return Limits(
        new=min(info.max_prefill_tokens, info.models[0].max_model_len - 1),
        length=info.models[0].max_model_len,
        rows=max(1, info.max_slots - spare_slots),
        pages=info.num_pages,
        page_size=info.page_size,
    )


def sizes(first: int, last: int, step: int = STEP) -> list[int]:
    """Return first, first × step, … and `last` itself, ascending."""
    found = []
    while first < last:
        found.append(first)
        first *= step
    return [*found, max(1, last)]


def coarse_first(values: Sequence[T]) -> list[tuple[int, T]]:
    """Return the values with the round in which each comes: ends 0, middle 1, quarters 2, …"""
    rounds = {0: 0, len(values) - 1: 0} if values else {}
    spans, number = [(0, len(values) - 1)], 1
    while len(rounds) < len(values):
        halves = []
        for low, high in spans:
            middle = (low + high) // 2
            if middle not in rounds:
                rounds[middle] = number
            halves += [(low, middle), (middle, high)]
        spans = [(low, high) for low, high in halves if high - low > 1]
        number += 1
    return [(rounds[i], value) for i, value in enumerate(values)]


def lines(known: Sequence[int], last: int) -> list[int]:
    """Return those of `known` below `last`, doublings of their last one, and `last` itself."""
    found = [value for value in known if value < last]
    if found and known[-1] < last:
        found += sizes(2 * known[-1], last, 2)
    return sorted({*found, max(1, last)})


def halved(values: Sequence[int], least: int) -> list[int]:
    """Return the values with one more between two neighbours from `least` on."""
    found = [values[0]]
    for low, high in pairwise(values):
        if low >= least and high - low > 1:
            found.append((low + high) // 2)
        found.append(high)
    return found


def cells(info: DeviceInfo, limits: Limits) -> list[Cell]:
    """Return all cells that the device has room for, the most informative ones first."""
    ranked = [*_prefill(info, limits), *_decode(info, limits), *_pairs(info, limits)]
    first: dict[Cell, tuple[int, ...]] = {}
    for rank, cell in sorted(ranked, key=lambda item: item[0]):
        first.setdefault(cell, rank)
    return list(first)


def weight(prompts: Sequence[tuple[int, int]], stretch: float) -> float:
    """Return a prefill's cost in tokens of a short prompt on the whole device, about: attention to
    16K tokens costs as much as the matrix products (8B shapes).
    """
    return stretch * sum(new * (1 + (reused + new / 2) / 16384) for new, reused in prompts)


def _sides(info: DeviceInfo, lane: str) -> list[int]:
    """Return one partition for each size of a lane's side, the whole device among them."""
    by_units: dict[int, int] = {}
    for partition in info.partitions:
        units = getattr(partition, lane)
        if units:
            by_units.setdefault(units, partition.index)
    return [by_units[units] for units in sorted(by_units)]


def _each_soon(values: Sequence[int]) -> list[tuple[int, int]]:
    """Return partitions with their rounds: only two, since each needs samples for its own fit."""
    return [(min(number, 1), value) for number, value in coarse_first(values)]


Ranked = Iterable[tuple[tuple[int, ...], Cell]]


def _prefill(info: DeviceInfo, limits: Limits) -> Ranked:
    for p, side in _each_soon(_sides(info, "prefill_units")):
        stretch = info.units / info.partitions[side].prefill_units
        for rank, prompts, held_out in _prompts(limits, side):
            tokens = weight(prompts, stretch)
            if tokens <= TOO_LARGE and _fit(prompts, limits):
                late = max(0, int(math.log2(max(1.0, tokens) / LARGE)))
                yield (p + rank + late, 0, p), PrefillCell(side, prompts, held_out)


Prompts = tuple[tuple[int, int], ...]


def _prompts(limits: Limits, side: int) -> Iterator[tuple[int, Prompts, bool]]:
    """Yield batches with their rounds, on the grid and off it (True)."""
    powers = sizes(min(FIRST_PREFILL, limits.new), limits.new, 2)
    longest = max(1, limits.length - limits.new - 1)
    for a, n in coarse_first(lines(NEW, limits.new)):
        yield min(a, 2), ((n, 0),), False
    reused = coarse_first([0, *sizes(FIRST_PAIR, longest)])
    for (a, n), (b, r) in product(coarse_first(powers), reused):
        yield a + b, ((n, r),), False
        if n >= 4 * FIRST_PREFILL and r <= STEP * FIRST_PAIR:
            yield 1 + a + b, ((n // 4, r),) * 4, False
    rng = random.Random(SEED * 1000 + side)
    for index in range(HELD_OUT):
        yield 1 + index // 3, _any_prompts(rng, limits, longest), True


def _any_prompts(rng: random.Random, limits: Limits, longest: int) -> Prompts:
    """Return one prompt, sometimes several, of any size in the range: alike on a log scale."""
    count = rng.choice((1, 1, 1, 2, 4))
    least = min(FIRST_PREFILL, max(1, limits.new // count))
    return tuple(
        (
            _between(rng, least, max(1, limits.new // count)),
            rng.choice((0, 1, 1)) * _between(rng, min(FIRST_PAIR, longest), longest),
        )
        for _ in range(count)
    )


def _between(rng: random.Random, low: int, high: int) -> int:
    return round(math.exp(rng.uniform(math.log(low), math.log(high))))


def _fit(prompts: Prompts, limits: Limits) -> bool:
    """Whether sequences and pool have room."""
    if any(new < 1 or new + reused >= limits.length for new, reused in prompts):
        return False
    return sum(pages(new + reused, limits) for new, reused in prompts) <= limits.pages


def _decode(info: DeviceInfo, limits: Limits) -> Ranked:
    known = info.row_sizes or halved(sizes(1, limits.rows, 2), 8)
    rows = lines(known, limits.rows)
    coarse = sizes(1, limits.rows, PAIR_ROWS)
    for p, side in _each_soon(_sides(info, "decode_units")):
        for a, count in coarse_first(rows):
            shortest = min(FIRST_DECODE, _longest(count, limits))
            yield (p + min(a, 2), 1, p), DecodeCell(side, count, shortest)
        for a, count in coarse_first(coarse):
            longest = _longest(count, limits)
            for b, context in coarse_first(sizes(min(FIRST_DECODE, longest), longest)):
                yield (p + a + b, 1, p), DecodeCell(side, count, context)
        rng = random.Random(SEED * 1000 + 500 + side)
        for index in range(HELD_OUT + UNEVEN):
            count = _between(rng, 1, limits.rows)
            longest = _longest(count, limits)
            context = _between(rng, min(FIRST_DECODE, longest), longest)
            uneven = index >= HELD_OUT
            rank = 3 if uneven else 1 + index // 3
            yield (p + rank, 1, p), DecodeCell(side, count, context, True, uneven)


def _longest(rows: int, limits: Limits) -> int:
    """Return the longest context that so many rows can all have."""
    return max(1, min(limits.length - 1, limits.pages // rows * limits.page_size - 1))


def uneven(cell: DecodeCell, limits: Limits) -> tuple[int, ...]:
    """Return contexts of very different lengths (log-normal), about as long in the mean."""
    rng = random.Random(SEED + cell.rows * 1_000_003 + cell.context)
    drawn = [rng.lognormvariate(0, 1) for _ in range(cell.rows)]
    scale = cell.rows * cell.context / sum(drawn)
    most = limits.length - 1
    return tuple(max(1, min(most, int(scale * each))) for each in drawn)


def _pairs(info: DeviceInfo, limits: Limits) -> Ranked:
    new = coarse_first(sizes(min(FIRST_PAIR, limits.new), limits.new))
    reused = coarse_first([0, *sizes(FIRST_PAIR, max(1, limits.length - limits.new - 1))])
    rows = coarse_first(sizes(1, limits.rows, PAIR_ROWS))
    contexts = coarse_first(sizes(FIRST_PAIR, limits.length - 1))
    splits = [p.index for p in info.partitions if p.index and p.decode_units and p.prefill_units]
    grid = product(_each_soon(splits), new, reused, rows, contexts)
    for (p, split), (a, n), (b, r), (c, count), (d, context) in grid:
        need = 2 * pages(n + r, limits) + count * pages(context, limits)
        if n + r < limits.length and need <= limits.pages:
            # Solo runs come first: a pair costs more, and the guard is refined online anyway.
            yield (3 + p + a + b + c + d, 2, p), PairCell(split, n, r, count, context)


def pages(tokens: int, limits: Limits) -> int:
    """Return the pages of a sequence and the token after it."""
    return -(-(tokens + 1) // limits.page_size)
