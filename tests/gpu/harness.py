"""Drives a CUDA executor over a few sequences and keeps the logits of every draw.

What the worker's core does, without its state: pages are handed out once, launches are awaited.
"""

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

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

GREEDY = Sampling(max_tokens=10_000, seed=0, temperature=0.0, ignore_eos=True)
PATIENCE_S = 60.0
NOISE_TOKENS = 2048


@dataclass
class Sequence_:
    """One request: its tokens, and the logits that each output token was drawn from."""

    slot: int
    prompt: tuple[int, ...]
    output: list[int] = field(default_factory=list)
    logits: list[Tensor] = field(default_factory=list)

    @property
    def tokens(self) -> tuple[int, ...]:
        return (*self.prompt, *self.output)


class Harness:
    """One executor of one model."""

    def __init__(self, executor: Any, name: str) -> None:
        self.executor, self.name = executor, name
        self.layers = executor.info.models[0].num_layers
        self._tickets, self._batches = itertools.count(1), itertools.count(1)
        self._seen: dict[int, list[tuple[int, Tensor]]] = {}
        self._drawing: list[tuple[int, Tensor]] = []
        self._noise = 0
        self._done: dict[int, Completion] = {}
        executor.slots.observe = self._observe
        self._next_page = 0
        self._started: set[int] = set()

    def _observe(self, slots: tuple[int, ...], logits: Tensor) -> None:
        kept = logits.clone()  # on the lane's stream: the buffer is written again by the next one
        self._drawing = [(slot, kept[row]) for row, slot in enumerate(slots)]

    def _launch(self, work: Launch) -> None:
        self._drawing = []
        self.executor.launch(work)
        self._seen[work.ticket] = self._drawing

    def wait(self, tickets: Sequence[int]) -> dict[int, Completion]:
        """Poll until all tickets are done."""
        found = self._done
        until = time.monotonic() + PATIENCE_S
        while not set(tickets) <= found.keys():
            assert time.monotonic() < until, f"tickets {tickets} did not complete"
            for done in self.executor.poll():
                assert done.error is None
                found[done.ticket] = done
        return found

    def pages(self, slot: int, count: int, shared: tuple[int, ...] = ()) -> TableUpdate:
        """Give a slot pages: `shared` ones first, then fresh ones."""
        fresh = tuple(range(self._next_page, self._next_page + count - len(shared)))
        self._next_page += len(fresh)
        assert self._next_page <= self.executor.info.num_pages
        return TableUpdate(slot, 0, (*shared, *fresh))

    def init(self, slot: int) -> SlotInit:
        return SlotInit(slot, self.name, GREEDY, ())

    def prefill(
        self,
        rows: Sequence[PrefillRow],
        tables: Sequence[TableUpdate],
        *,
        partition: int,
        layers: int,
    ) -> list[Completion]:
        """Run a whole prefill batch in quanta of `layers`, at most two in flight."""
        batch, done, flying = next(self._batches), [], []
        inits = tuple(self.init(row.slot) for row in rows)
        for start in range(0, self.layers, layers):
            work = PrefillQuantum(
                ticket=next(self._tickets),
                model=self.name,
                partition=partition,
                batch=batch,
                layer_start=start,
                layer_end=min(start + layers, self.layers),
                rows=tuple(rows),
                inits=inits if start == 0 else (),
                tables=tuple(tables) if start == 0 else (),
            )
            self._launch(work)
            flying.append(work.ticket)
            if len(flying) == 2:
                first = flying.pop(0)
                done.append(self.wait([first])[first])
        done += [self.wait([ticket])[ticket] for ticket in flying]
        return done

    def decode(
        self,
        sequences: Sequence[Sequence_],
        *,
        partition: int,
        chunks: Sequence[PrefillRow] = (),
        inits: Sequence[SlotInit] = (),
        tables: Sequence[TableUpdate] = (),
    ) -> int:
        """Launch one iteration and return its ticket; positions follow what was launched before."""
        work = DecodeBatch(
            ticket=next(self._tickets),
            model=self.name,
            partition=partition,
            slots=tuple(s.slot for s in sequences),
            positions=tuple(len(s.tokens) - 1 for s in sequences),
            chunks=tuple(chunks),
            inits=tuple(inits),
            tables=tuple(tables),
        )
        self._launch(work)
        return work.ticket

    def take(self, done: Completion, by_slot: dict[int, Sequence_]) -> None:
        """Add what a completion drew to its sequences."""
        for token, (slot, row) in zip(done.tokens, self._seen[done.ticket], strict=True):
            assert token.slot == slot
            if slot in by_slot:
                by_slot[slot].output.append(token.token)
                by_slot[slot].logits.append(row.float().cpu())

    def noise(self, partition: int) -> int:
        """Queue a long prefill in the other lane; it samples nothing."""
        slot = self.executor.info.max_slots - 1
        count = NOISE_TOKENS // self.executor.info.page_size
        work = PrefillQuantum(
            ticket=next(self._tickets),
            model=self.name,
            partition=partition,
            batch=next(self._batches),
            layer_start=0,
            layer_end=self.layers,
            rows=(PrefillRow(slot, 0, (1,) * NOISE_TOKENS, sample=False),),
            inits=(self.init(slot),),
            tables=() if self._noise else (self.pages(slot, count),),
        )
        self._noise += 1
        self._launch(work)
        return work.ticket

    def rewind(self) -> None:
        """Hand out pages from the beginning again: nothing that was computed is needed."""
        self._next_page = self._noise = 0
        torch.cuda.synchronize()

    def begin(self, sequence: Sequence_, output: int) -> PrefillQuantum:
        """Run the first layer of a prompt's prefill and leave it there."""
        size = self.executor.info.page_size
        work = PrefillQuantum(
            ticket=next(self._tickets),
            model=self.name,
            partition=0,
            batch=next(self._batches),
            layer_start=0,
            layer_end=1,
            rows=(PrefillRow(sequence.slot, 0, sequence.prompt, sample=True),),
            inits=(self.init(sequence.slot),),
            tables=(self.pages(sequence.slot, -(-(len(sequence.prompt) + output) // size)),),
        )
        self._launch(work)
        self.wait([work.ticket])
        return work

    def finish(self, begun: PrefillQuantum, partition: int) -> Completion:
        """Run the layers that `begin` left."""
        work = PrefillQuantum(
            ticket=next(self._tickets),
            model=self.name,
            partition=partition,
            batch=begun.batch,
            layer_start=1,
            layer_end=self.layers,
            rows=begun.rows,
        )
        self._launch(work)
        return self.wait([work.ticket])[work.ticket]
