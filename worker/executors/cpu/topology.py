"""Which cores each lane gets: the CPU's partition table. No torch here, so that a process can set
its thread environment before torch is imported.

The table is nested as a GPU's is: decode takes cores from one end, prefill the rest from the other.
"""

import os
import platform
from dataclasses import dataclass
from pathlib import Path

from protocol.control_link import WHOLE, Partition

MAX_SPLITS = 8
"""Disjoint splits at most: each holds two threads and their teams for the life of the process."""


@dataclass(frozen=True, slots=True)
class Split:
    """The cores of both lanes in one row of the partition table."""

    index: int
    prefill: tuple[int, ...]
    decode: tuple[int, ...]

    @property
    def partition(self) -> Partition:
        """The row as the scheduler sees it."""
        return Partition(self.index, len(self.prefill), len(self.decode))


def available_cores() -> tuple[int, ...]:
    """Return the cores that this process may run on, in order."""
    return tuple(sorted(os.sched_getaffinity(0)))


def processor_name() -> str:
    """Return the processor's name, or its architecture where the system does not say."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def splits(cores: tuple[int, ...]) -> tuple[Split, ...]:
    """Return the table for these cores: the whole device, then at most MAX_SPLITS disjoint rows.

    Raises ValueError without a core. One core cannot be split: the table is WHOLE alone.
    """
    if not cores:
        raise ValueError("no core to run on")
    count = len(cores)
    sizes = range(1, count)
    if len(sizes) > MAX_SPLITS:
        sizes_taken = {1 + round(i * (count - 2) / (MAX_SPLITS - 1)) for i in range(MAX_SPLITS)}
    else:
        sizes_taken = set(sizes)
    table = [Split(WHOLE, cores, cores)]
    for decode in sorted(sizes_taken):
        table.append(Split(len(table), prefill=cores[decode:], decode=cores[:decode]))
    return tuple(table)


def notes(cores: tuple[int, ...]) -> tuple[str, ...]:
    """Return what an operator should know about these cores."""
    if len(cores) > 1:
        return ()
    return ("one core: prefill and decode share it in time, and cannot be partitioned",)


def thread_environment() -> dict[str, str]:
    """Return variables to set before torch is imported, where they are not set already.

    A lane's idle OpenMP workers must not spin on cores that the other lane computes on: they wait
    in the kernel, after about a microsecond.
    """
    return {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "1000", "KMP_BLOCKTIME": "0"}
