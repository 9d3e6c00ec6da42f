"""Chunked prefill: aggregated serving with stall-free batches (Sarathi-Serve, OSDI '24, section 4).

Every iteration is one forward on the whole device: all decode rows, and the next chunk of the
oldest prompts in what they leave of a fixed token budget. The baseline of MuxWise (section 2.3.2).
"""

from collections.abc import Sequence
from itertools import chain
from typing import Annotated, ClassVar

from msgspec import Meta, Struct

from protocol.control_link import (
    DecodePlan,
    Exclusive,
    FusedChunks,
    Lane,
    PrefillBatch,
    PrefillItem,
    PrefillPlan,
    RequestState,
    RequestView,
)
from protocol.ids import RequestRef
from scheduler.admission import Room
from scheduler.policy import Objectives, PolicyPlan
from scheduler.view import WorkerView, to_prefill

AHEAD = 4
"""Iterations' worth of prompt tokens listed, so that the worker never waits for the next plan."""


class ChunkedOptions(Struct, frozen=True, kw_only=True):
    """Options of `chunked`."""

    token_budget: Annotated[
        int, Meta(ge=1, le=1 << 20, description="tokens of one forward, decode rows counted")
    ] = 256
    depth: Annotated[int, Meta(ge=0, le=64, description="iterations launched ahead")] = 1


class Chunked:
    """Decode first, prompt chunks in what is left of the budget, oldest first."""

    Options: ClassVar[type[Struct]] = ChunkedOptions

    def __init__(self, objectives: Objectives, options: ChunkedOptions) -> None:
        self._objectives = objectives
        self._options = options

    def plan(self, view: WorkerView, now: float) -> PolicyPlan:
        """Return the decode lane with fused chunks.

        A batch that another policy has started layer by layer is finished that way, in turns with
        the iterations: its hidden states are worth more than the order.
        """
        budget = self._options.token_budget
        layered = tuple(batch.batch for batch in view.batches)
        taken = {ref for batch in layered for ref in batch}
        chunks = self._oldest([r for r in view.started if r.ref not in taken], view)
        fused = FusedChunks(chunks, budget, budget) if chunks else FusedChunks()
        turns = Exclusive(Lane.PREFILL, quanta=1, iterations=1)
        return PolicyPlan(
            sharing=turns if layered else Exclusive(Lane.DECODE),
            decode=DecodePlan(depth=self._options.depth, fused=fused),
            prefill=PrefillPlan(
                tuple(PrefillBatch(tuple(map(PrefillItem, batch))) for batch in layered)
            ),
            reason=f"chunked: whole device ({view.units} {view.unit}s), budget {budget} tokens, "
            f"{len(view.decoding)} decode rows, {len(chunks)} prompts in line; "
            f"allowed {1e3 * self._objectives.tbt_s:.1f} ms, not predicted",
        )

    def _oldest(self, started: Sequence[RequestView], view: WorkerView) -> tuple[RequestRef, ...]:
        """Return the prompts of the next iterations: the started ones, then the queue's oldest."""
        room = Room(view)
        chosen: list[RequestRef] = []
        tokens = 0
        for request in chain(started, view.queued):
            if tokens >= AHEAD * self._options.token_budget:
                break
            if request.state is RequestState.QUEUED and not room.take(request):
                break
            chosen.append(request.ref)
            tokens += max(1, to_prefill(request))
        return tuple(chosen)
