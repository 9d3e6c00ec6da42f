"""Drives a CpuExecutor by hand: one slot and page table per sequence, completions waited for.

What the worker's core does in the product, reduced to what a test of the executor needs.
"""

import itertools
import select
from collections.abc import Sequence as Many
from dataclasses import dataclass, field

from protocol.control_link import WHOLE
from protocol.sampling import Sampling
from worker.executors.base import (
    Completion,
    DecodeBatch,
    Launch,
    PrefillQuantum,
    PrefillRow,
    SlotInit,
    TableUpdate,
)
from worker.executors.cpu.executor import CpuExecutor

PATIENCE_S = 60.0
"""A completion that does not come is a failure, not a wait for ever."""


def greedy(max_tokens: int = 64) -> Sampling:
    return Sampling(max_tokens=max_tokens, seed=0, temperature=0.0)


@dataclass
class Sequence:
    slot: int
    prompt: tuple[int, ...]
    sampling: Sampling
    pages: tuple[int, ...]
    cached: int = 0
    """Positions below are in the pool already."""
    output: list[int] = field(default_factory=list)
    announced: bool = False

    @property
    def written(self) -> int:
        """Position of the next decode row."""
        return len(self.prompt) + len(self.output) - 1


class Driver:
    def __init__(self, executor: CpuExecutor, model: str) -> None:
        self.executor, self.model = executor, model
        self._free = list(range(executor.info.num_pages))
        self._size = executor.info.page_size
        self._layers = next(m.num_layers for m in executor.info.models if m.name == model)
        self._ticket = 0
        self._done: dict[int, Completion] = {}
        self._slots = 0

    def sequence(
        self, prompt: Many[int], sampling: Sampling, room: int, like: Sequence | None = None
    ) -> Sequence:
        """A sequence with pages for `room` more tokens, sharing full prompt pages of `like`."""
        shared: tuple[int, ...] = ()
        if like is not None:
            pairs = zip(prompt[:-1], like.prompt, strict=False)
            same = itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)
            shared = like.pages[: len(list(same)) // self._size]
        count = -(-(len(prompt) + room) // self._size)
        own = tuple(self._free.pop() for _ in range(count - len(shared)))
        self._slots += 1
        cached = len(shared) * self._size
        return Sequence(self._slots - 1, tuple(prompt), sampling, shared + own, cached)

    def reset(self) -> None:
        """Take every page and slot back."""
        self._free = list(range(self.executor.info.num_pages))
        self._slots = 0

    def next_ticket(self) -> int:
        self._ticket += 1
        return self._ticket

    def announce(self, sequences: Many[Sequence]) -> dict[str, tuple]:
        """Slot and table of sequences that run for the first time."""
        new = [s for s in sequences if not s.announced]
        for s in new:
            s.announced = True
        return {
            "inits": tuple(SlotInit(s.slot, self.model, s.sampling, s.prompt) for s in new),
            "tables": tuple(TableUpdate(s.slot, 0, s.pages) for s in new),
        }

    def row(self, s: Sequence, start: int, end: int) -> PrefillRow:
        return PrefillRow(s.slot, start, s.prompt[start:end], end == len(s.prompt))

    def wait(self, ticket: int) -> Completion:
        while ticket not in self._done:
            ready, _, _ = select.select([self.executor.fileno()], [], [], PATIENCE_S)
            assert ready, f"launch {ticket} has not completed in {PATIENCE_S} s"
            self._done.update((c.ticket, c) for c in self.executor.poll())
        return self._done.pop(ticket)

    def run(self, work: Launch) -> Completion:
        self.executor.launch(work)
        completion = self.wait(work.ticket)
        assert completion.error is None, completion.error
        return completion

    def quantum(
        self, sequences: Many[Sequence], rows: Many[PrefillRow], batch: int, first: int, end: int
    ) -> PrefillQuantum:
        ticket = self.next_ticket()
        return PrefillQuantum(
            ticket, self.model, WHOLE, batch, first, end, tuple(rows), **self.announce(sequences)
        )

    def prefill(self, sequences: Many[Sequence], layers: int = 0) -> None:
        """All prompts in one batch, by quanta of `layers` (0: all at once)."""
        rows = [self.row(s, s.cached, len(s.prompt)) for s in sequences]
        step, batch = layers or self._layers, self.next_ticket()
        for first in range(0, self._layers, step):
            end = min(first + step, self._layers)
            completion = self.run(self.quantum(sequences, rows, batch, first, end))
        self.take(sequences, completion)

    def prefill_chunks(self, s: Sequence, size: int) -> None:
        """One prompt, `size` tokens through all layers at a time."""
        for start in range(s.cached, len(s.prompt), size):
            row = self.row(s, start, min(start + size, len(s.prompt)))
            done = self.run(self.quantum([s], [row], self.next_ticket(), 0, self._layers))
        self.take([s], done)

    def decode(
        self, sequences: Many[Sequence], chunks: Many[tuple[Sequence, int, int]] = ()
    ) -> Completion:
        """One iteration; `chunks` are (sequence, start, end) that ride along."""
        riding = [s for s, _, _ in chunks]
        batch = DecodeBatch(
            self.next_ticket(),
            self.model,
            WHOLE,
            tuple(s.slot for s in sequences),
            tuple(s.written for s in sequences),
            chunks=tuple(self.row(*chunk) for chunk in chunks),
            **self.announce([*sequences, *riding]),
        )
        completion = self.run(batch)
        self.take([*sequences, *(s for s, _, end in chunks if end == len(s.prompt))], completion)
        return completion

    def take(self, sequences: Many[Sequence], completion: Completion) -> None:
        for s, sampled in zip(sequences, completion.tokens, strict=True):
            assert sampled.slot == s.slot
            s.output.append(sampled.token)
