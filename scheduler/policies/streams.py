"""Plain streams: both phases at once on the whole device, and the hardware decides who gets what.

WindServe's multiplexing as MuxWise's section 6 describes it: a prefill goes to a stream of its own
beside decode, with no partition between them and no layers to stop at, so that the contention is
uncontrolled. The baseline that tells what partitions are worth.
"""

from typing import Annotated, ClassVar

from msgspec import Meta, Struct

from protocol.control_link import WHOLE, DecodePlan, PrefillPlan, Shared
from scheduler.batching import BatchBook
from scheduler.policy import Objectives, PolicyPlan
from scheduler.view import WorkerView

AHEAD = 2
"""Batches listed, so that one follows the other without a round trip."""


class StreamsOptions(Struct, frozen=True, kw_only=True):
    """Options of `streams`."""

    token_cap: Annotated[int, Meta(ge=1, description="prompt tokens of a prefill batch")] = 8192
    token_chunk: Annotated[
        int, Meta(ge=0, description="tokens through all layers at a time; 0: the worker's limit")
    ] = 0
    depth: Annotated[int, Meta(ge=0, le=64, description="iterations launched ahead")] = 1


class Streams:
    """Two lanes that share everything."""

    Options: ClassVar[type[Struct]] = StreamsOptions

    def __init__(self, objectives: Objectives, options: StreamsOptions) -> None:
        self._objectives = objectives
        self._options = options
        self._book = BatchBook(options.token_cap, AHEAD)

    def plan(self, view: WorkerView, now: float) -> PolicyPlan:
        """Return the batches in order of arrival, beside decode."""
        batches = self._book.update(view)
        return PolicyPlan(
            sharing=Shared(),
            alone=WHOLE,
            decode=DecodePlan(depth=self._options.depth),
            prefill=PrefillPlan(batches, token_chunk=self._options.token_chunk),
            reason=f"streams: both lanes on all {view.units} {view.unit}s, {len(batches)} batches "
            f"beside {len(view.decoding)} decode rows; "
            f"allowed {1e3 * self._objectives.tbt_s:.1f} ms, not predicted",
        )
