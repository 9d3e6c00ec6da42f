"""How many SMs the kernels of this process plan for, set by the launching thread before each plan
and each launch.

One cell for all flashinfer modules (sm_count.h says why): a write costs well under a microsecond.
It is process-wide, so plans and launches come from one thread, as the executor's do. A plan and
its launches must see the same count: a persistent kernel launched with more CTAs than were planned
reads past its plan. `planned_for` is therefore used around both.
"""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

from worker.executors.cuda.kernels import build

_cell: ctypes.c_int | None = None


def load() -> None:
    """Load the cell, globally, before any flashinfer module. Idempotent; compiles it once."""
    global _cell
    if _cell is None:
        library = ctypes.CDLL(str(build.sm_count_library()), mode=os.RTLD_GLOBAL | os.RTLD_NOW)
        _cell = ctypes.c_int.in_dll(library, "tandem_sm_count")


def set_sm_count(count: int) -> None:
    """Let planners and launches see `count` SMs from now on; 0 restores the device's own number.

    Raises ValueError for a negative count and RuntimeError before `load`.
    """
    if count < 0:
        raise ValueError(f"SM count must be at least 0, got {count}")
    if _cell is None:
        raise RuntimeError("sm_count.load() has not been called")
    _cell.value = count


def sm_count() -> int:
    """Return what planners see; 0 when that is the device's own number."""
    return 0 if _cell is None else _cell.value


@contextmanager
def planned_for(count: int) -> Iterator[None]:
    """Plan or launch for `count` SMs inside the block, then restore what was set before."""
    before = sm_count()
    set_sm_count(count)
    try:
        yield
    finally:
        set_sm_count(before)
