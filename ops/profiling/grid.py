"""What a profile measures, and in which order: the cells that say most come first.

A dimension's ends come before its middle and that before its quarters, so whenever the budget ends
the samples span the range. Solo runs of both lanes and pairs take turns by how fine they are.
"""

from collections.abc import Iterable, Sequence
from itertools import product
from typing import NamedTuple, TypeVar

from worker.executors.base import DeviceInfo

T = TypeVar("T")

FIRST_PREFILL, FIRST_DECODE, FIRST_PAIR = 32, 128, 2048
"""Smallest new tokens and contexts of the solo grids, and sizes of the pairs (MuxWise 3.3.2)."""
STEP = 4
PAIR_ROWS = 4
"""Steps of the batch sizes of pairs."""


class PrefillCell(NamedTuple):
    """A solo prefill of equal prompts on a partition's prefill side; sizes of each."""

    partition: int
    new: int
    reused: int
    prompts: int


class DecodeCell(NamedTuple):
    """A solo iteration on a partition's decode side; `context`: of each row."""

    partition: int
    rows: int
    context: int


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


def cells(info: DeviceInfo, limits: Limits) -> list[Cell]:
    """Return all cells that the device has room for, the most informative ones first."""
    ranked = [*_prefill(info, limits), *_decode(info, limits), *_pairs(info, limits)]
    return [cell for _, cell in sorted(ranked, key=lambda item: item[0])]


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
    new = coarse_first(sizes(FIRST_PREFILL, limits.new, 2))
    reused = coarse_first([0, *sizes(FIRST_PAIR, limits.length - 1)])
    sides = _each_soon(_sides(info, "prefill_units"))
    for (p, side), (a, n), (b, r), (c, count) in product(sides, new, reused, ((0, 1), (1, 4))):
        share = n // count
        fits = share and share + r < limits.length
        if fits and count * pages(share + r, limits) <= limits.pages:
            yield (p + a + b + c, 0, p), PrefillCell(side, share, r, count)


def _decode(info: DeviceInfo, limits: Limits) -> Ranked:
    rows = coarse_first(sizes(1, limits.rows, 2))
    contexts = coarse_first(sizes(FIRST_DECODE, limits.length - 1))
    sides = _each_soon(_sides(info, "decode_units"))
    for (p, side), (a, count), (b, context) in product(sides, rows, contexts):
        if count * pages(context, limits) <= limits.pages:
            yield (p + a + b, 1, p), DecodeCell(side, count, context)


def _pairs(info: DeviceInfo, limits: Limits) -> Ranked:
    new = coarse_first(sizes(FIRST_PAIR, limits.new))
    reused = coarse_first([0, *sizes(FIRST_PAIR, limits.length - 1)])
    rows = coarse_first(sizes(1, limits.rows, PAIR_ROWS))
    contexts = coarse_first(sizes(FIRST_PAIR, limits.length - 1))
    splits = [p.index for p in info.partitions if p.index and p.decode_units and p.prefill_units]
    grid = product(_each_soon(splits), new, reused, rows, contexts)
    for (p, split), (a, n), (b, r), (c, count), (d, context) in grid:
        need = 2 * pages(n + r, limits) + count * pages(context, limits)
        if n + r < limits.length and need <= limits.pages:
            # A pair costs more than a solo run and says less where no solo run is known yet.
            yield (1 + p + a + b + c + d, 2, p), PairCell(split, n, r, count, context)


def pages(tokens: int, limits: Limits) -> int:
    """Return the pages of a sequence and the token after it."""
    return -(-(tokens + 1) // limits.page_size)
