"""One lane's launches: in order over whichever stream each partition has, found done by querying.

A launch on another partition waits, on the device, for the lane's launch before it: that keeps the
lane's order, lets it reuse its buffers, and drains neither lane when the split changes.
"""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from protocol.control_link import Lane
from worker.executors.base import Completion, SampledToken
from worker.executors.cuda.clock import DeviceClock, Overlap, Span
from worker.executors.cuda.partitions import PartitionTable, Side
from worker.executors.cuda.slots import Draw
from worker.executors.cuda.staging import HostBuffers


@dataclass(slots=True)
class Launched:
    """Work that is queued or runs on the device, and what must live until it is done."""

    ticket: int
    side: Side
    start: torch.cuda.Event
    finish: torch.cuda.Event
    staged: list[tuple[HostBuffers, Tensor]] = field(default_factory=list)
    """Host buffers that the device may not have read yet."""
    draw: Draw | None = None
    error: str | None = None

    def stage(self, buffers: HostBuffers) -> Tensor:
        """Take a host buffer until this launch has completed."""
        buffer = buffers.take()
        self.staged.append((buffers, buffer))
        return buffer

    def release(self) -> None:
        """Give the host buffers back."""
        for buffers, buffer in self.staged:
            buffers.give_back([buffer])
        self.staged.clear()

    def tokens(self) -> tuple[SampledToken, ...]:
        """Return what was drawn; the launch has completed."""
        return () if self.draw is None else self.draw.tokens()


class LaneQueue:
    """The launches of one lane, oldest first."""

    def __init__(self, lane: Lane, table: PartitionTable) -> None:
        self.lane = lane
        self._table = table
        self._pending: deque[Launched] = deque()
        self._last: Launched | None = None

    def __len__(self) -> int:
        return len(self._pending)

    def side(self, partition: int) -> Side:
        """Return where the lane runs in a partition. Raises ValueError for one that is not."""
        if not 0 <= partition < len(self._table.pairs):
            raise ValueError(f"partition {partition} of {len(self._table.pairs)}")
        return self._table.pairs[partition].side(self.lane)

    @contextmanager
    def launching(self, ticket: int, partition: int) -> Iterator[Launched]:
        """Queue work on the lane's stream in `partition`, behind the lane's earlier work.

        The body records `start` where its own work begins, after what it waits for.
        """
        side = self.side(partition)
        work = Launched(
            ticket,
            side,
            torch.cuda.Event(enable_timing=True),
            torch.cuda.Event(enable_timing=True),
        )
        with torch.cuda.stream(side.stream):
            if self._last is not None and self._last.side is not side:
                side.stream.wait_event(self._last.finish)
            try:
                yield work
            except torch.OutOfMemoryError as error:
                work.error = str(error)
                work.start.record(side.stream)
            work.finish.record(side.stream)
        self._last = work
        self._pending.append(work)

    def running(self, clock: DeviceClock) -> Span | None:
        """Return the span of the oldest launch if it has started; it has not ended."""
        if self._pending and self._pending[0].start.query():
            return Span(clock.read(self._pending[0].start), None)
        return None

    def done(self) -> list[Launched]:
        """Take the launches that have completed. Raises RuntimeError on a device error."""
        finished = []
        while self._pending and self._pending[0].finish.query():
            finished.append(self._pending.popleft())
        return finished


def completions(
    queues: tuple[LaneQueue, LaneQueue], clock: DeviceClock, overlap: Overlap
) -> list[Completion]:
    """Collect what both lanes have completed, with times on the host's clock."""
    found = [(queue, work) for queue in queues for work in queue.done()]
    spans = []
    for queue, work in found:
        spans.append(Span(clock.read(work.start), clock.read(work.finish)))
        overlap.add(queue.lane, spans[-1])
    if not found:
        return []
    running = {queue.lane: queue.running(clock) for queue in queues}
    result = []
    for (queue, work), span in zip(found, spans, strict=True):
        assert span.end is not None
        other = Lane.DECODE if queue.lane is Lane.PREFILL else Lane.PREFILL
        result.append(
            Completion(
                ticket=work.ticket,
                lane=queue.lane,
                started=span.start,
                finished=span.end,
                units=work.side.sms,
                overlap_s=overlap.beside(queue.lane, span, running[other]),
                tokens=() if work.error else work.tokens(),
                error=work.error,
            )
        )
        work.release()
    return result
