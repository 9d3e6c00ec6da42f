"""Steady work for both lanes of an executor, and what its completions say about it.

The load plays the worker's core: it keeps a decode iteration queued behind the one that runs (depth
1) and two prefill quanta in flight, and finds completions by polling. Rates and gaps come from
device times, so a slow poll does not flatter them.
"""

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from protocol.control_link import Lane
from protocol.sampling import Sampling
from worker.executors.base import (
    Completion,
    DecodeBatch,
    DeviceInfo,
    Executor,
    Launch,
    PrefillQuantum,
    PrefillRow,
    SlotInit,
    TableUpdate,
)

GREEDY = Sampling(max_tokens=1_000_000, seed=0, temperature=0.0, ignore_eos=True)
QUANTA = 2
"""Prefill quanta in flight."""
PROMPT_SLOTS = 3
"""Prompts that own pages: two of the prefill lane in turn, one for fused chunks."""


@dataclass(frozen=True, slots=True)
class Case:
    """What both lanes are given."""

    new: int
    """Tokens of a prompt that are computed."""
    reused: int
    """Tokens of a prompt that are in the pool already."""
    batch: int
    """Decode rows."""
    context: int
    """Tokens that each row attends to."""


@dataclass(frozen=True, slots=True)
class Mode:
    """How the lanes share the device."""

    partition: int
    decode: bool = True
    prefill: bool = True
    chunk: int = 0
    """Prompt tokens fused into each decode iteration."""
    in_turn: bool = False
    """One launch at a time, the lanes alternating."""
    then: int | None = None
    """Partition after `switch_at` iterations; nothing is awaited in between."""
    switch_at: int = 0

    def partition_at(self, iterations: int) -> int:
        """Return where the lanes run once so many iterations are done."""
        return self.partition if self.then is None or iterations < self.switch_at else self.then


@dataclass(slots=True)
class Trace:
    """What one run launched and what became of it."""

    decode: list[Completion] = field(default_factory=list)
    prefill: list[tuple[Completion, int]] = field(default_factory=list)
    """With the layers of each quantum."""


class Load:
    """Makes launches for one case on one executor."""

    def __init__(self, info: DeviceInfo, case: Case, layers: int, seed: int) -> None:
        """`layers`: of a prefill quantum."""
        self._case, self._layers = case, layers
        self._all_layers, self._model = info.models[0].num_layers, info.models[0].name
        self._rng = random.Random(seed)
        self._vocab = info.models[0].vocab_size
        self._ticket = 0
        self._batch = 0
        self._decode_slots = tuple(range(case.batch))
        pages = self._rng.sample(range(info.num_pages), info.num_pages)
        self._tables = [
            TableUpdate(slot, 0, tuple(pages.pop() for _ in range(count)))
            for slot, count in self._page_counts(info.page_size)
        ]
        self._prompts = [self._prompt(info) for _ in range(PROMPT_SLOTS)]
        self._quanta = self._all_quanta()
        self._chunks: Iterator[tuple[PrefillRow, bool]] = iter(())

    def _page_counts(self, size: int) -> list[tuple[int, int]]:
        case = self._case
        rows = [(slot, -(-(case.context + 1) // size)) for slot in self._decode_slots]
        whole = -(-(case.new + case.reused) // size)
        return rows + [(case.batch + i, whole) for i in range(PROMPT_SLOTS)]

    def _prompt(self, info: DeviceInfo) -> tuple[int, ...]:
        vocab = info.models[0].vocab_size
        return tuple(self._rng.randrange(vocab) for _ in range(self._case.new))

    def setup(self) -> DecodeBatch:
        """Return the launch that starts every slot: one iteration of the whole batch."""
        inits = tuple(
            SlotInit(slot, self._model, GREEDY, ())
            for slot in range(self._case.batch + PROMPT_SLOTS)
        )
        return self._decode(0, (), inits, tuple(self._tables))

    def _next_ticket(self) -> int:
        self._ticket += 1
        return self._ticket

    def _decode(
        self,
        partition: int,
        chunks: tuple[PrefillRow, ...],
        inits: tuple[SlotInit, ...] = (),
        tables: tuple[TableUpdate, ...] = (),
    ) -> DecodeBatch:
        case = self._case
        return DecodeBatch(
            ticket=self._next_ticket(),
            model=self._model,
            partition=partition,
            slots=self._decode_slots,
            positions=(case.context - 1,) * case.batch,
            chunks=chunks,
            inits=inits,
            tables=tables,
        )

    def iteration(self, partition: int, chunk: int) -> DecodeBatch:
        """Return the next decode iteration, with the next `chunk` tokens of a prompt fused in."""
        if not chunk:
            return self._decode(partition, ())
        step = next(self._chunks, None)
        if step is None:
            self._chunks = self._all_chunks(chunk)
            step = next(self._chunks)
        row, is_first = step
        start = (SlotInit(row.slot, self._model, GREEDY, ()),) if is_first else ()
        return self._decode(partition, (row,), start)

    def close(self, executor: Executor) -> None:
        """Drop the prompt that is between two quanta; the next load numbers its batches anew."""
        executor.discard(self._batch)

    def restart(self) -> None:
        """Begin the next chunked prompt at its first token."""
        self._chunks = iter(())

    def _all_chunks(self, chunk: int) -> Iterator[tuple[PrefillRow, bool]]:
        case, prompt = self._case, self._prompts[-1]
        slot = case.batch + PROMPT_SLOTS - 1
        for at in range(0, case.new, chunk):
            part = prompt[at : at + chunk]
            is_last = at + chunk >= case.new
            yield PrefillRow(slot, case.reused + at, part, sample=is_last), at == 0

    def quantum(self, partition: int) -> PrefillQuantum:
        """Return the next quantum of an endless series of prompts."""
        batch, start, row = next(self._quanta)
        end = min(start + self._layers, self._all_layers)
        begins = start == 0
        return PrefillQuantum(
            ticket=self._next_ticket(),
            model=self._model,
            partition=partition,
            batch=batch,
            layer_start=start,
            layer_end=end,
            rows=(row,),
            inits=(SlotInit(row.slot, self._model, GREEDY, ()),) if begins else (),
        )

    def _all_quanta(self) -> Iterator[tuple[int, int, PrefillRow]]:
        case = self._case
        while True:
            which = self._batch % (PROMPT_SLOTS - 1)
            self._batch += 1
            row = PrefillRow(case.batch + which, case.reused, self._prompts[which], sample=True)
            for start in range(0, self._all_layers, self._layers):
                yield self._batch, start, row


def drive(executor: Executor, load: Load, mode: Mode, iterations: int, quanta: int) -> Trace:
    """Run both lanes until `iterations` and `quanta` have completed (0: that lane does not count).

    What is in flight then still completes, and is in the trace.
    """
    trace = Trace()
    flying: dict[int, int] = {}
    layers: dict[int, int] = {}
    turn = Lane.PREFILL
    load.restart()
    while len(trace.decode) < iterations or len(trace.prefill) < quanta or flying:
        more = len(trace.decode) < iterations or len(trace.prefill) < quanta
        due = _due(mode, flying, turn) if more else []
        partition = mode.partition_at(len(trace.decode))
        for lane in due:
            work: Launch
            if lane is Lane.DECODE:
                work = load.iteration(partition, mode.chunk)
            else:
                work = load.quantum(partition)
                layers[work.ticket] = work.layer_end - work.layer_start
            flying[work.ticket] = int(lane is Lane.DECODE)
            executor.launch(work)
            turn = Lane.PREFILL if lane is Lane.DECODE else Lane.DECODE
        for done in executor.poll():
            if done.error:
                raise RuntimeError(f"launch {done.ticket} failed: {done.error}")
            del flying[done.ticket]
            if done.lane is Lane.DECODE:
                trace.decode.append(done)
            else:
                trace.prefill.append((done, layers.pop(done.ticket)))
        if not due:
            time.sleep(2e-5)
    return trace


def _due(mode: Mode, flying: dict[int, int], turn: Lane) -> list[Lane]:
    """Return which lanes may launch now; decode goes first when both may."""
    if mode.in_turn:
        return [] if flying else [turn]
    decoding = sum(flying.values())
    due = []
    if mode.decode and decoding < 2:
        due.append(Lane.DECODE)
    if mode.prefill and len(flying) - decoding < QUANTA:
        due.append(Lane.PREFILL)
    return due
