"""What a partition table must satisfy, checked on SM ids that a probe has seen. No device here."""

from collections.abc import Sequence

MIN_SIDE = 8
"""SMs of a side at least: the granularity of a split on compute capability 9."""


class PartitionError(ValueError):
    """The device cannot be partitioned as asked. The message says what was found."""


def fitting(prefill_sms: Sequence[int], total: int) -> list[int]:
    """Return the counts that leave each side at least MIN_SIDE SMs, each once."""
    return sorted({n for n in prefill_sms if MIN_SIDE <= n <= total - MIN_SIDE}, reverse=True)


def verify(prefill: Sequence[frozenset[int]], decode: Sequence[frozenset[int]]) -> None:
    """Check SM ids seen on each side, rows by ascending decode size. Raises PartitionError."""
    for row, (left, right) in enumerate(zip(prefill, decode, strict=True)):
        if shared := left & right:
            raise PartitionError(f"row {row + 1}: both sides run on SMs {sorted(shared)}")
    for row in range(1, len(prefill)):
        if not prefill[row] <= prefill[row - 1] or not decode[row - 1] <= decode[row]:
            raise PartitionError(f"row {row + 1} is not nested in row {row}")


def planning_notes(aware: bool, require: bool) -> tuple[str, ...]:
    """Return the warning that attention does not plan for a partition's SMs, if it does not.

    Raises PartitionError in place of the warning when partitions are required.
    """
    if aware:
        return ()
    note = (
        "attention plans for the whole device in every partition: a prebuilt flashinfer module "
        "(flashinfer/data/aot, or the package flashinfer-jit-cache) was not compiled by Tandem; "
        "remove it, and it is compiled at the next start"
    )
    if require:
        raise PartitionError(note)
    return (note,)
