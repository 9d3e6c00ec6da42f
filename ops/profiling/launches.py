"""Launches of any size for an executor, without a worker's core: prefills, iterations, both.

What is in the pages does not matter for time, so contexts are taken as written. Prompts have slots
and pages of their own, apart from those of decode rows.
"""

import random
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
"""A prefill is launched in so many quanta, as multiplexing does it."""
IN_FLIGHT = 2
PROMPTS = 8
"""Slots kept for prompts: two batches of up to four."""


class LaunchFailed(RuntimeError):
    """The device could not do a launch. The message says which, and why."""


class Driver:
    """Runs launches on an executor. `wait` lets time pass until something may have completed."""

    def __init__(self, executor: Executor, wait: Callable[[], None]) -> None:
        self._executor, self._wait = executor, wait
        info = executor.info
        self._model = info.models[0]
        self._page_size, self._num_pages = info.page_size, info.num_pages
        self._first_prompt_slot = max(1, info.max_slots - PROMPTS)
        self._ticket, self._batch = 0, 0
        self._random = random.Random(0)

    # --- runs ---

    def prefills(
        self, partition: int, prompts: Sequence[tuple[int, int]], count: int
    ) -> list[float]:
        """Return device seconds of `count` prefills of `prompts`, (new, reused) each, one by one.

        Raises LaunchFailed.
        """
        times = []
        for _ in range(count):
            done = self._run(deque(self._quanta(partition, prompts, 0)))
            times.append(sum(c.finished - c.started for c in done))
        return times

    def iterations(self, partition: int, rows: int, context: int, count: int) -> list[float]:
        """Return device seconds of `count` iterations. Raises LaunchFailed."""
        work = deque(self._steps(partition, rows, context, count))
        return [c.finished - c.started for c in self._run(work)]

    def both(
        self, partition: int, prompt: tuple[int, int], rows: int, context: int, count: int
    ) -> list[Completion]:
        """Return at least `count` iterations beside prefills that follow one another.

        Raises LaunchFailed.
        """
        steps = deque(self._steps(partition, rows, context, count))
        quanta: deque[Launch] = deque()
        flying: dict[int, Lane] = {}
        done: list[Completion] = []
        turn = 0
        while steps or flying:
            if not quanta and steps:
                turn += 1
                quanta.extend(self._quanta(partition, [prompt], turn % 2 * (PROMPTS // 2)))
            self._launch(steps, flying, Lane.DECODE)
            self._launch(quanta, flying, Lane.PREFILL)
            if not steps and Lane.DECODE not in flying.values():
                quanta.clear()  # what is left of the prompt need not run
            done += [c for c in self._completed(flying) if c.lane is Lane.DECODE]
        self._executor.discard(self._batch)
        return done

    def _run(self, work: deque[Launch]) -> list[Completion]:
        flying: dict[int, Lane] = {}
        done: list[Completion] = []
        while work or flying:
            self._launch(work, flying, None)
            done += self._completed(flying)
        return done

    def _launch(self, work: deque[Launch], flying: dict[int, Lane], lane: Lane | None) -> None:
        """Launch what may be in flight together, of one lane (None: the only one)."""
        while work and sum(each is lane or lane is None for each in flying.values()) < IN_FLIGHT:
            launch = work.popleft()
            flying[launch.ticket] = launch.lane
            self._executor.launch(launch)

    def _completed(self, flying: dict[int, Lane]) -> list[Completion]:
        done = self._executor.poll()
        for each in done:
            if each.error:
                raise LaunchFailed(f"launch {each.ticket}: {each.error}")
            del flying[each.ticket]
        if not done and flying:
            self._wait()
        return done

    # --- launches ---

    def _steps(self, partition: int, rows: int, context: int, count: int) -> list[Launch]:
        slots = tuple(range(rows))
        inits = tuple(SlotInit(slot, self._model.name, GREEDY, ()) for slot in slots)
        tables = self._tables(slots, [context + 1] * rows, 0)
        return [
            DecodeBatch(
                ticket=self._next_ticket(),
                model=self._model.name,
                partition=partition,
                slots=slots,
                positions=(context,) * rows,
                inits=() if index else inits,
                tables=() if index else tables,
            )
            for index in range(count)
        ]

    def _quanta(
        self, partition: int, prompts: Sequence[tuple[int, int]], first: int
    ) -> list[Launch]:
        """Return a prefill's quanta. `first`: of the slots for prompts."""
        self._batch += 1
        slots = [self._first_prompt_slot + first + i for i in range(len(prompts))]
        rows = tuple(
            PrefillRow(slot, reused, self._tokens(new), sample=True)
            for slot, (new, reused) in zip(slots, prompts, strict=True)
        )
        inits = tuple(SlotInit(slot, self._model.name, GREEDY, ()) for slot in slots)
        lengths = [new + reused + 1 for new, reused in prompts]
        tables = self._tables(slots, lengths, self._num_pages // 2)
        layers = self._model.num_layers
        borders = sorted({layers * i // QUANTA for i in range(QUANTA + 1)})
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

    def _tables(
        self, slots: Sequence[int], lengths: Sequence[int], offset: int
    ) -> tuple[TableUpdate, ...]:
        """Give each slot pages of its own, from `offset` on and round the pool."""
        updates = []
        at = offset
        for slot, length in zip(slots, lengths, strict=True):
            count = -(-length // self._page_size)
            pages = tuple((at + i) % self._num_pages for i in range(count))
            updates.append(TableUpdate(slot, 0, pages))
            at += count
        return tuple(updates)

    def _tokens(self, count: int) -> tuple[int, ...]:
        return tuple(self._random.choices(range(self._model.vocab_size), k=count))

    def _next_ticket(self) -> int:
        self._ticket += 1
        return self._ticket
