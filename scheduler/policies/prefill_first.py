"""Prefill first: a new prompt runs before any decode iteration, on the whole device.

What Orca-style engines and SGLang do by default: the best throughput and time to first token, and
decode stalls for as long as prompts keep coming. MuxWise's section 2.2 shows why that misses a TBT
objective; here it is the other end of the scale from `chunked`.
"""

from typing import Annotated, ClassVar

from msgspec import Meta, Struct

from protocol.control_link import DecodePlan, Exclusive, Lane, PrefillPlan
from scheduler.batching import BatchBook
from scheduler.policy import Objectives, PolicyPlan
from scheduler.view import WorkerView

AHEAD = 2
"""Batches listed, so that one follows the other without a round trip."""


class PrefillFirstOptions(Struct, frozen=True, kw_only=True):
    """Options of `prefill_first`."""

    token_cap: Annotated[int, Meta(ge=1, description="prompt tokens of a batch")] = 8192
    token_chunk: Annotated[
        int, Meta(ge=0, description="tokens through all layers at a time; 0: the worker's limit")
    ] = 0
    depth: Annotated[int, Meta(ge=0, le=64, description="iterations launched ahead")] = 1


class PrefillFirst:
    """One lane at a time, prefill with precedence, whole prompts."""

    Options: ClassVar[type[Struct]] = PrefillFirstOptions

    def __init__(self, objectives: Objectives, options: PrefillFirstOptions) -> None:
        self._objectives = objectives
        self._options = options
        self._book = BatchBook(options.token_cap, AHEAD)

    def plan(self, view: WorkerView, now: float) -> PolicyPlan:
        """Return the batches in order of arrival; decode runs when there is none."""
        batches = self._book.update(view)
        rows = len(view.decoding)
        return PolicyPlan(
            sharing=Exclusive(Lane.PREFILL, quanta=1, iterations=0),
            decode=DecodePlan(depth=self._options.depth),
            prefill=PrefillPlan(batches, token_chunk=self._options.token_chunk),
            reason=f"prefill first: whole device ({view.units} {view.unit}s), "
            f"{len(batches)} batches before {rows} decode rows; "
            f"allowed {1e3 * self._objectives.tbt_s:.1f} ms, not predicted",
        )
