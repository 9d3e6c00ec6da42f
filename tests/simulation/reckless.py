"""A policy that admits everything at once and changes its mind all the time; no plan is invalid.

The real policies reserve growth and keep their batches together, so they never fill a pool. This
one does: what it lists is retracted, suspended, taken from one lane to the other and back.
"""

from random import Random
from typing import ClassVar

from msgspec import Struct

from protocol.control_link import (
    DecodePlan,
    Disjoint,
    Exclusive,
    FusedChunks,
    Lane,
    PrefillBatch,
    PrefillItem,
    PrefillPlan,
    RequestState,
    Shared,
)
from protocol.ids import RequestRef
from scheduler.policy import Objectives, PolicyPlan
from scheduler.view import WorkerView


class RecklessOptions(Struct, frozen=True, kw_only=True):
    """Options of `Reckless`."""

    seed: int


class Reckless:
    """Any valid plan that names everybody who is not decoding."""

    Options: ClassVar[type[Struct]] = RecklessOptions

    def __init__(self, objectives: Objectives, options: RecklessOptions) -> None:
        del objectives
        self._dice = Random(options.seed)
        self._planned = False

    def plan(self, view: WorkerView, now: float) -> PolicyPlan | None:
        """Return something else, half of the time."""
        del now
        dice = self._dice
        if self._planned and dice.random() < 0.5:
            return None
        self._planned = True
        waiting = [r.ref for r in view.requests.values() if r.state is not RequestState.DECODING]
        dice.shuffle(waiting)
        split = dice.randint(0, len(waiting)) if dice.random() < 0.4 else 0
        fused = FusedChunks()
        if split:
            budget, chunk = dice.choice([12, 40]), dice.choice([1, 5, 40])
            fused = FusedChunks(tuple(waiting[:split]), budget, chunk)
        everybody = list(view.requests)
        dice.shuffle(everybody)
        return PolicyPlan(
            sharing=self._sharing(view),
            alone=dice.choice(view.partitions).index,
            decode=DecodePlan(depth=dice.choice([0, 1, 3]), fused=fused),
            prefill=PrefillPlan(
                self._batches(waiting[split:]), dice.choice([0, 1, 2]), dice.choice([0, 0, 1, 5])
            ),
            victims=tuple(everybody[: dice.choice([0, 0, 3])]),
        )

    def _sharing(self, view: WorkerView) -> Disjoint | Shared | Exclusive:
        dice = self._dice
        lane = dice.choice([Lane.PREFILL, Lane.DECODE])
        turns = Exclusive(lane, dice.choice([1, 3]), dice.choice([1, 4]))
        return dice.choice([Disjoint(dice.choice(view.partitions).index), Shared(), turns])

    def _batches(self, refs: list[RequestRef]) -> tuple[PrefillBatch, ...]:
        size = self._dice.choice([1, 2, 5])
        groups = (refs[first : first + size] for first in range(0, len(refs), size))
        return tuple(PrefillBatch(tuple(map(PrefillItem, group))) for group in groups)
