"""The contention guard: how much slower decode gets at worst beside a prefill.

MuxWise 3.3.2 and 3.4.1. A grid of five variables: new and reused tokens of the prefill, rows and
context of the iteration, and the partition. A cell starts from the profile's worst and then follows
real iterations: its worst is the second largest of the last one or two windows, so a lone outlier
changes nothing and no memory lasts. Cells without a sample take what heavier and lighter ones say.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from scheduler.estimator.loads import DecodeLoad, PrefillLoad

FIRST_LEVEL = 2048
STEP = 4
LEVELS = 4
"""Token counts go up to 2K, 8K, 32K, 128K, and beyond: powers of 4."""
WINDOW = 256
"""Iterations of a window. With the second largest of one to two windows as the worst, about one
iteration in 200 to 400 exceeds it when nothing changes."""
UNKNOWN = 1.3
"""Slowdown where nothing at all was measured: the largest that the paper saw, on H100 GPUs."""


class Cell(NamedTuple):
    """One cell of the grid."""

    units: int
    """Of decode."""
    new: int
    """Level of the prefill's new tokens."""
    reused: int
    rows: int
    """Batch size, rounded up to a power of two."""
    context: int
    """Level of the context per row."""


def level(tokens: float) -> int:
    """Return the level of a token count: 0 up to 2K, 1 up to 8K, …"""
    size = 0
    while size < LEVELS and tokens > FIRST_LEVEL * STEP**size:
        size += 1
    return size


def cell_of(units: int, load: DecodeLoad, beside: PrefillLoad) -> Cell:
    """Return the cell of an iteration on `units` beside a prefill."""
    return Cell(units, *shape_of(load, beside))


def shape_of(load: DecodeLoad, beside: PrefillLoad) -> tuple[int, int, int, int]:
    """Return all of a cell but the units."""
    rows = max(1, load.rows)
    return (
        level(beside.new),
        level(beside.reused),
        1 << (rows - 1).bit_length(),
        level(load.context / rows),
    )


class Recent(Struct):
    """What was seen in one cell lately. Slowdowns, at least 1."""

    count: int = 0
    """In the current window."""
    first: float = 1.0
    """The largest of the current window."""
    second: float = 1.0
    before: float = 0.0
    """The second largest of the window before; 0: there was none."""

    def note(self, slowdown: float) -> None:
        """Take one iteration."""
        if self.count == WINDOW:
            self.before = self.second
            self.count, self.first, self.second = 0, 1.0, 1.0
        self.count += 1
        if slowdown > self.first:
            self.first, self.second = slowdown, self.first
        elif slowdown > self.second:
            self.second = slowdown

    @property
    def worst(self) -> float:
        """Return the worst, lone outliers apart."""
        return max(1.0, self.second, self.before)


class Guard:
    """Worst slowdown by cell."""

    def __init__(self, samples: Iterable[tuple[Cell, float]]) -> None:
        self._profiled: dict[Cell, float] = {}
        for cell, slowdown in samples:
            self._profiled[cell] = max(1.0, slowdown, self._profiled.get(cell, 1.0))
        self._recent: dict[Cell, Recent] = {}
        self._filled: dict[Cell, float] = {}
        self._known: dict[Cell, float] = dict(self._profiled)
        """Cells with a value of their own: profiled, or seen for a whole window."""
        self._tables: dict[int, tuple[np.ndarray, np.ndarray]] | None = None

    def worst(self, cell: Cell) -> float:
        """Return the largest slowdown to reckon with, at least 1."""
        recent = self._recent.get(cell)
        if recent is not None and recent.before:
            return recent.worst
        prior = self._known.get(cell)
        if prior is None:
            prior = self._fill(cell)
        return prior if recent is None else max(prior, recent.worst)

    def note(self, cell: Cell, slowdown: float) -> None:
        """Learn from an iteration."""
        recent = self._recent.setdefault(cell, Recent())
        recent.note(slowdown)
        if recent.before and self._known.get(cell) != recent.worst:
            self._known[cell] = recent.worst
            self._tables = None
            self._filled.clear()

    def learnt(self) -> dict[Cell, Recent]:
        """Return what real iterations have taught, for the soft state."""
        return self._recent

    def restore(self, cells: Iterable[tuple[Cell, Recent]]) -> None:
        """Take back what an earlier scheduler has learnt."""
        for cell, recent in cells:
            self._recent[cell] = recent
            if recent.before:
                self._known[cell] = recent.worst
        self._tables = None
        self._filled.clear()

    # --- cells without a sample ---

    def _fill(self, cell: Cell) -> float:
        """Return the worst of lighter cells or the least of heavier ones, whichever is more.

        Both rise with the load, so of two empty cells the heavier one is never the better one. Only
        cells of the same partition count, and where it has none those of all.
        """
        if cell not in self._filled:
            self._filled[cell] = self._look_around(cell)
        return self._filled[cell]

    def _look_around(self, cell: Cell) -> float:
        if self._tables is None:
            self._tables = _by_units(self._known)
        at, values = self._tables.get(cell.units) or self._tables.get(0, _EMPTY)
        if not len(values):
            return UNKNOWN
        here = np.array(cell[1:])
        heavier = values[(at >= here).all(axis=1)]
        lighter = values[(at <= here).all(axis=1)]
        above = float(heavier.min()) if len(heavier) else float(values.max())
        return max(above, float(lighter.max())) if len(lighter) else above


_EMPTY = (np.zeros((0, 4)), np.zeros(0))


def _by_units(known: dict[Cell, float]) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """Return (load variables [cells, 4], slowdowns [cells]) by units; under 0 those of all units,
    the worst of each load.
    """
    grouped: dict[int, dict[tuple[int, ...], float]] = {}
    for cell, value in known.items():
        for units in (cell.units, 0):
            group = grouped.setdefault(units, {})
            group[cell[1:]] = max(value, group.get(cell[1:], value))
    return {
        units: (np.array(list(group)), np.array(list(group.values())))
        for units, group in grouped.items()
    }
