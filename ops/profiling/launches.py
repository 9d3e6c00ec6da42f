"""Launches of any size for an executor, without a worker's core: prefills, iterations, both.

What is in the pages does not matter for time, so contexts are taken as written. Prompts have slots
and pages of their own, apart from those of decode rows. Every slot is started once: what a start
costs is no part of an iteration, and 256 of them take a while.
"""

import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import pairwise

from protocol.control_link import Lane
from protocol.sampling import Sampling
from worker.executors.base import (
    Completion,
    DecodeBatch,
    Executor,
    Launch,
    PrefillQuantum,
    PrefillRow,
    SlotInit,
    TableUpdate,
)

GREEDY = Sampling(max_tokens=1_000_000, seed=0, temperature=0.0, ignore_eos=True)
QUANTA = 4
"""A prefill that runs alone is launched in so many quanta."""
PAIR_LAYERS = 2
"""Layers of a quantum beside decode: as multiplexing does it, and what is left at the end of a pair
is soon done."""
IN_FLIGHT = 2
PROMPTS = 8
"""Slots kept for prompts: two batches of up to four."""
PATIENCE_S = 60.0
"""For launches that must still complete after one has failed."""


class LaunchFailed(RuntimeError):
    """The device could not do a launch. The message says which, and why."""


class Driver:
    """Runs launches on an executor. `wait` lets time pass until something may have completed."""

    def __init__(self, executor: Executor, wait: Callable[[], None]) -> None:
        self._executor, self._wait = executor, wait
        info = executor.info
        self._model = info.models[0]
        self._page_size = info.page_size
        self._first_prompt_slot = max(1, info.max_slots - PROMPTS)
        self._ticket, self._batch = 0, 0
        rng = random.Random(0)
        self._pages = rng.sample(range(info.num_pages), info.num_pages)
        """The pool's pages in no order, as a server that has run for a while hands them out."""
        self._ids = tuple(rng.choices(range(self._model.vocab_size), k=info.max_prefill_tokens))
        self._started: set[int] = set()
        self._flying: dict[int, Lane] = {}

    # --- runs ---

    def prefills(
        self, partition: int, prompts: Sequence[tuple[int, int]], count: int
    ) -> list[float]:
        """Return device seconds of `count` prefills of `prompts`, (new, reused) each, in a row.

        Raises LaunchFailed.
        """
        per_quantum = -(-self._model.num_layers // QUANTA)
        batches = [self._quanta(partition, prompts, 0, per_quantum) for _ in range(count)]
        done = iter(self._run(deque(launch for batch in batches for launch in batch)))
        return [sum(_seconds(next(done)) for _ in batch) for batch in batches]

    def iterations(self, partition: int, contexts: Sequence[int], count: int) -> list[float]:
        """Return device seconds of `count` iterations over rows of `contexts` tokens.

        Raises LaunchFailed.
        """
        work = deque(self._steps(partition, contexts, count))
        return [_seconds(each) for each in self._run(work)]

    def both(
        self, partition: int, prompt: tuple[int, int], contexts: Sequence[int], count: int
    ) -> list[Completion]:
        """Return at least `count` iterations beside prefills that follow one another.

        Raises LaunchFailed.
        """
        steps = deque(self._steps(partition, contexts, count))
        quanta: deque[Launch] = deque()
        flying = self._flying
        done: list[Completion] = []
        turn = 0
        while steps or flying:
            if not quanta and steps:
                turn += 1
                first = turn % 2 * (PROMPTS // 2)
                quanta.extend(self._quanta(partition, [prompt], first, PAIR_LAYERS))
            self._launch(steps, Lane.DECODE)
            self._launch(quanta, Lane.PREFILL)
            if not steps and Lane.DECODE not in flying.values():
                quanta.clear()  # what is left of the prompt need not run
            done += [c for c in self._completed() if c.lane is Lane.DECODE]
        self._executor.discard(self._batch)
        return done

    def settle(self) -> None:
        """Wait for what a failed run has left on the device. Raises LaunchFailed if it stays."""
        until = time.monotonic() + PATIENCE_S
        while self._flying:
            for each in self._executor.poll():
                self._flying.pop(each.ticket, None)
            if time.monotonic() > until:
                raise LaunchFailed(f"{len(self._flying)} launches have not completed")
            self._wait()
        for batch in range(self._batch - IN_FLIGHT, self._batch + 1):
            self._executor.discard(batch)

    def _run(self, work: deque[Launch]) -> list[Completion]:
        done: list[Completion] = []
        while work or self._flying:
            self._launch(work, None)
            done += self._completed()
        return done

    def _launch(self, work: deque[Launch], lane: Lane | None) -> None:
        """Launch what may be in flight together, of one lane (None: the only one)."""
        flying = self._flying
        while work and sum(each is lane or lane is None for each in flying.values()) < IN_FLIGHT:
            launch = work.popleft()
            self._executor.launch(launch)
            flying[launch.ticket] = launch.lane

    def _completed(self) -> list[Completion]:
        done = self._executor.poll()
        for each in done:
            self._flying.pop(each.ticket, None)
        for each in done:
            if each.error:
                raise LaunchFailed(f"launch {each.ticket}: {each.error}")
        if not done and self._flying:
            self._wait()
        return done

    # --- launches ---

    def _steps(self, partition: int, contexts: Sequence[int], count: int) -> list[Launch]:
        slots = tuple(range(len(contexts)))
        inits = self._inits(slots)
        tables = self._tables(slots, [context + 1 for context in contexts], 0)
        return [
            DecodeBatch(
                ticket=self._next_ticket(),
                model=self._model.name,
                partition=partition,
                slots=slots,
                positions=tuple(contexts),
                inits=() if index else inits,
                tables=() if index else tables,
            )
            for index in range(count)
        ]

    def _quanta(
        self, partition: int, prompts: Sequence[tuple[int, int]], first: int, per_quantum: int
    ) -> list[Launch]:
        """Return a prefill's quanta. `first`: of the slots for prompts."""
        self._batch += 1
        slots = [self._first_prompt_slot + first + i for i in range(len(prompts))]
        rows = tuple(
            PrefillRow(slot, reused, self._ids[:new], sample=True)
            for slot, (new, reused) in zip(slots, prompts, strict=True)
        )
        inits = self._inits(slots)
        lengths = [new + reused + 1 for new, reused in prompts]
        tables = self._tables(slots, lengths, len(self._pages) // 2)
        layers = self._model.num_layers
        borders = [*range(0, layers, per_quantum), layers]
        return [
            PrefillQuantum(
                ticket=self._next_ticket(),
                model=self._model.name,
                partition=partition,
                batch=self._batch,
                layer_start=start,
                layer_end=end,
                rows=rows,
                inits=() if start else inits,
                tables=() if start else tables,
            )
            for start, end in pairwise(borders)
        ]

    def _inits(self, slots: Sequence[int]) -> tuple[SlotInit, ...]:
        """Start those of `slots` that have not been."""
        fresh = [slot for slot in slots if slot not in self._started]
        self._started.update(fresh)
        return tuple(SlotInit(slot, self._model.name, GREEDY, ()) for slot in fresh)

    def _tables(
        self, slots: Sequence[int], lengths: Sequence[int], offset: int
    ) -> tuple[TableUpdate, ...]:
        """Give each slot pages of its own, from `offset` on and round the pool."""
        updates = []
        at = offset
        for slot, length in zip(slots, lengths, strict=True):
            at %= len(self._pages)
            count = -(-length // self._page_size)
            pages = self._pages[at : at + count]
            pages += self._pages[: count - len(pages)]
            updates.append(TableUpdate(slot, 0, tuple(pages)))
            at += count
        return tuple(updates)

    def _next_ticket(self) -> int:
        self._ticket += 1
        return self._ticket


def _seconds(done: Completion) -> float:
    return done.finished - done.started
