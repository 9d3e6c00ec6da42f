"""A fixed split: both phases at once, each on its own part of the device, whatever the load.

What engines do that partition the device when they start, such as Semi-PD over MPS (MuxWise 6). The
baseline that tells what choosing the split is worth.
"""

from typing import Annotated, ClassVar

from msgspec import Meta, Struct

from protocol.control_link import WHOLE, DecodePlan, Disjoint, Exclusive, Lane, PrefillPlan
from scheduler.batching import BatchBook
from scheduler.policy import Objectives, PolicyPlan
from scheduler.view import WorkerView

AHEAD = 2
"""Batches listed, so that one follows the other without a round trip."""


class StaticOptions(Struct, frozen=True, kw_only=True):
    """Options of `static`."""

    split: Annotated[
        int, Meta(ge=0, description="partition to use; 0: the one that is nearest to half and half")
    ] = 0
    widen: Annotated[
        bool, Meta(description="give a lane that is alone the whole device, which no MPS can")
    ] = False
    token_cap: Annotated[int, Meta(ge=1, description="prompt tokens of a prefill batch")] = 8192
    depth: Annotated[int, Meta(ge=0, le=64, description="iterations launched ahead")] = 1


class Static:
    """One split for ever; whole prefills on their side of it."""

    Options: ClassVar[type[Struct]] = StaticOptions

    def __init__(self, objectives: Objectives, options: StaticOptions) -> None:
        self._objectives = objectives
        self._options = options
        self._book = BatchBook(options.token_cap, AHEAD)

    def plan(self, view: WorkerView, now: float) -> PolicyPlan:
        """Return the split and the batches in order of arrival. Without any split lanes take turns.
        Raises ValueError for a split that this worker does not have.
        """
        sharing, alone, where = self._where(view)
        batches = self._book.update(view)
        return PolicyPlan(
            sharing=sharing,
            alone=alone,
            decode=DecodePlan(depth=self._options.depth),
            prefill=PrefillPlan(batches),
            reason=f"static: {where}, {len(batches)} batches, {len(view.decoding)} decode rows; "
            f"allowed {1e3 * self._objectives.tbt_s:.1f} ms, not predicted",
        )

    def _where(self, view: WorkerView) -> tuple[Disjoint | Exclusive, int, str]:
        """Return how lanes share the device, where one that is alone runs, and both in words."""
        if not view.splits:
            turns = Exclusive(Lane.PREFILL, quanta=1, iterations=1)
            return turns, WHOLE, "no disjoint partition here, lanes take turns"
        wanted = self._options.split
        known = {split.index: split for split in view.splits}
        if wanted and wanted not in known:
            raise ValueError(f"no split {wanted} here; there are {sorted(known)}")
        half = min(view.splits, key=lambda p: abs(p.decode_units - p.prefill_units))
        split = known.get(wanted, half)
        alone = WHOLE if self._options.widen else split.index
        words = f"decode {split.decode_units}, prefill {split.prefill_units} {view.unit}s for ever"
        return Disjoint(split.index), alone, words
