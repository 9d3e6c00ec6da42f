"""The partition table: pairs of disjoint SM groups, with a stream for each lane (MuxWise 3.2.1).

Made once at start and never rebuilt. Row 0 is the whole device on plain streams. In every other row
prefill is the *first* group of its split, because kernels that launch clusters fill a first group
and not a remainder; decode, bound by memory bandwidth, takes the remainder. First groups of larger
splits contain those of smaller ones, so the table is nested; a probe kernel verifies that, and that
the two sides share no SM (a driver may realize other counts than those asked for).
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from protocol.control_link import Lane, Partition
from worker.executors.cuda import driver
from worker.executors.cuda.nesting import PartitionError, fitting, verify

PROBE = """
extern "C" __global__ void read_sm_ids(unsigned int* seen, long long cycles) {
    unsigned int sm;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    if (threadIdx.x == 0) atomicAdd(seen + sm, 1u);
    long long until = clock64() + cycles;
    while (clock64() < until) { }
}
"""
PROBE_CYCLES = 20_000
"""Each block holds its SM for about 10 µs, so that the next one must go elsewhere."""


@dataclass(frozen=True, slots=True)
class Side:
    """One lane's part of a partition."""

    sms: int
    """As realized."""
    stream: torch.cuda.Stream
    context: Any = None
    """Green context that owns the SMs, kept alive with the stream; None on the whole device."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One row of the table."""

    prefill: Side
    decode: Side
    memory: int
    """Device bytes that the row took."""

    def side(self, lane: Lane) -> Side:
        """Return the side of a lane."""
        return self.prefill if lane is Lane.PREFILL else self.decode


@dataclass(frozen=True, slots=True)
class PartitionTable:
    """All rows; index 0 is the whole device, the others ascend by the SMs of decode."""

    pairs: tuple[Pair, ...]
    notes: tuple[str, ...] = ()

    def announced(self) -> tuple[Partition, ...]:
        """Return the table as schedulers see it."""
        return tuple(
            Partition(index=index, prefill_units=pair.prefill.sms, decode_units=pair.decode.sms)
            for index, pair in enumerate(self.pairs)
        )


def make_table(device: int, prefill_sms: Sequence[int], require: bool) -> PartitionTable:
    """Make and verify the table. Raises PartitionError when `require` and it cannot be made."""
    whole = _whole(device)
    if not prefill_sms:
        return PartitionTable((whole,))
    try:
        rows = [_split(device, count) for count in fitting(prefill_sms, whole.prefill.sms)]
        rows.sort(key=lambda pair: pair.decode.sms)
        probe = driver.compile_kernel(PROBE, "read_sm_ids", device)
        verify(
            [sm_ids(probe, device, pair.prefill) for pair in rows],
            [sm_ids(probe, device, pair.decode) for pair in rows],
        )
    except (driver.CudaError, PartitionError, AttributeError) as error:
        if require:
            raise PartitionError(f"this device cannot be partitioned: {error}") from error
        note = f"no partitions ({error}): both lanes share the whole device on plain streams"
        return PartitionTable((whole,), (note,))
    return PartitionTable((whole, *rows))


def sm_ids(probe: Any, device: int, side: Side) -> frozenset[int]:
    """Return the ids of the SMs that kernels of a side's stream run on.

    Raises PartitionError when they are not as many as the driver said.
    """
    seen = torch.zeros(1024, dtype=torch.int32, device=f"cuda:{device}")
    torch.cuda.synchronize(device)
    arguments = ((seen.data_ptr(), PROBE_CYCLES), (ctypes.c_void_p, ctypes.c_longlong))
    driver.launch(probe, side.sms * 64, 128, side.stream, arguments)
    side.stream.synchronize()
    found = frozenset(int(i) for i in seen.nonzero().flatten().tolist())
    if len(found) != side.sms:
        raise PartitionError(f"{side.sms} SMs were promised and {len(found)} seen")
    return found


def _priorities() -> tuple[int, int]:
    """Return stream priorities of (prefill, decode); the smaller number goes first."""
    low, high = torch.cuda.Stream.priority_range()
    return low, high


def _whole(device: int) -> Pair:
    """Both lanes on plain streams over the whole device."""
    sms = torch.cuda.get_device_properties(device).multi_processor_count
    low, high = _priorities()
    prefill = Side(sms, torch.cuda.Stream(device, priority=low))
    return Pair(prefill, Side(sms, torch.cuda.Stream(device, priority=high)), 0)


def _split(device: int, prefill_sms: int) -> Pair:
    before = torch.cuda.mem_get_info(device)[0]
    handle = driver.handle(device)
    low, high = _priorities()
    sides = []
    groups = driver.split_first(driver.sm_resource(handle), prefill_sms)
    for resource, priority in zip(groups, (low, high), strict=True):
        context = driver.green_context(handle, resource)
        stream = driver.green_stream(context, device, priority)
        sides.append(Side(resource.sm.smCount, stream, context))
    return Pair(sides[0], sides[1], before - torch.cuda.mem_get_info(device)[0])
