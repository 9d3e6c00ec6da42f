"""MuxWise, first form: both phases at once on disjoint parts of one device (arXiv 2504.14489).

Section 3.4.2: decode gets the smallest part that is predicted to keep its objective, prefill the
rest. Section 3.2.3: prefill goes by layers, as many as fill one decode iteration. The worst case is
the prediction times a guard (section 3.3.2); the predictions come from a measured table here.
"""

from math import ceil
from typing import Annotated, ClassVar

from msgspec import Meta, Struct

from protocol.control_link import (
    WHOLE,
    DecodePlan,
    Disjoint,
    Exclusive,
    Lane,
    Partition,
    PrefillPlan,
)
from scheduler.batching import BatchBook, tokens_of
from scheduler.estimator.base import Estimator
from scheduler.estimator.loads import DecodeLoad, PrefillLoad
from scheduler.estimator.table import SplitTable
from scheduler.policy import Objectives, PolicyPlan
from scheduler.view import WorkerView, context_tokens

LAYER_SLACK = 0.25
"""Relative change of the layers per quantum that is not worth a new plan."""


class MuxWiseOptions(Struct, frozen=True, kw_only=True):
    """Options of `muxwise`."""

    guard: Annotated[
        float, Meta(ge=1, le=10, description="worst slowdown over the predicted decode time")
    ] = 1.2
    margin: Annotated[
        float, Meta(ge=0, lt=1, description="share of the objective to spare before decode shrinks")
    ] = 0.1
    hold_s: Annotated[
        float, Meta(ge=0, le=3600, description="seconds for which a split holds before it shrinks")
    ] = 0.5
    split: Annotated[
        int, Meta(ge=0, description="partition to keep, whatever is predicted; 0: choose")
    ] = 0
    token_cap: Annotated[int, Meta(ge=1, description="prompt tokens of a prefill batch")] = 8192
    min_layers: Annotated[int, Meta(ge=1, description="layers of a prefill quantum at least")] = 1
    ahead: Annotated[int, Meta(ge=1, le=64, description="prefill batches listed ahead")] = 3
    depth: Annotated[int, Meta(ge=0, le=64, description="iterations launched ahead")] = 1


class MuxWise:
    """The smallest decode part that keeps the objective; prefill by layers on the rest."""

    Options: ClassVar[type[Struct]] = MuxWiseOptions

    def __init__(
        self,
        objectives: Objectives,
        options: MuxWiseOptions,
        estimator: Estimator | None = None,
    ) -> None:
        self._objectives = objectives
        self._options = options
        self._estimator: Estimator = estimator or SplitTable()
        self._book = BatchBook(options.token_cap, options.ahead)
        self._split: Partition | None = None
        self._since = 0.0
        self._layers = 0

    def plan(self, view: WorkerView, now: float) -> PolicyPlan:
        """Return both lanes on the chosen split; a lane that is alone gets the whole device."""
        self._estimator.learn(view, now)
        batches = self._book.update(view)
        split, why = self._choose(view, now)
        tokens = tokens_of(batches[0], view) if batches else 0
        self._layers = self._quantum(view, split, tokens, now)
        return PolicyPlan(
            sharing=Disjoint(split.index) if split else Exclusive(Lane.PREFILL, 1, 1),
            alone=WHOLE,
            decode=DecodePlan(depth=self._options.depth),
            prefill=PrefillPlan(batches, layers_per_quantum=self._layers),
            reason=f"muxwise: {why}; {self._layers} layers a quantum, {len(batches)} batches",
        )

    def objective_s(self, view: WorkerView) -> float:
        """Return the strictest TBT objective of those that decode, else the service's, seconds."""
        own = [request.slo.tbt_s for request in view.decoding if request.slo.tbt_s is not None]
        return min(own, default=self._objectives.tbt_s)

    # --- the split (section 3.4.2) ---

    def _choose(self, view: WorkerView, now: float) -> tuple[Partition | None, str]:
        """Return the split and why; None where the device has none."""
        splits = view.splits
        if not splits:
            return None, "no disjoint partition here: lanes take turns"
        allowed = self.objective_s(view)
        rows = len(view.decoding)
        load = DecodeLoad(rows, sum(map(context_tokens, view.decoding)))
        worst = {
            p.index: self._estimator.decode_s(view, p.index, load, now) * self._options.guard
            for p in splits
        }
        fixed = next((p for p in splits if p.index == self._options.split), None)
        split = fixed or self._held(splits, worst, allowed, now)
        if self._split is None or split.index != self._split.index:
            self._since = now
        self._split = split
        verb = "fixed" if fixed else "kept" if worst[split.index] <= allowed else "best effort"
        return split, (
            f"decode {split.decode_units}, prefill {split.prefill_units} {view.unit}s (split "
            f"{split.index}): {rows} rows predicted {1e3 * worst[split.index]:.1f} ms with guard "
            f"{self._options.guard:g}, allowed {1e3 * allowed:.1f} ms: {verb}"
        )

    def _held(
        self, splits: tuple[Partition, ...], worst: dict[int, float], allowed: float, now: float
    ) -> Partition:
        """Grow decode's part at once, shrink it only with margin and after a while."""
        best = smallest(splits, worst, allowed)
        current = next((p for p in splits if self._split and p.index == self._split.index), None)
        if current is None or best.decode_units >= current.decode_units:
            return best
        spare = smallest(splits, worst, allowed * (1 - self._options.margin))
        rested = now - self._since >= self._options.hold_s
        return spare if rested and spare.decode_units < current.decode_units else current

    # --- the quantum (section 3.4.2: N_PL = ceil(T_d * N_T / T_P)) ---

    def _quantum(self, view: WorkerView, split: Partition | None, tokens: int, now: float) -> int:
        """Return layers per quantum: as long as one decode iteration, within bounds.

        With nothing to decode a quantum takes about the objective, so that a change of split or an
        abort never waits for longer.
        """
        total = max((model.num_layers for model in view.models.values()), default=1)
        rows = len(view.decoding)
        where = split.index if split and rows else WHOLE
        decode_s = self.objective_s(view)
        if rows:
            load = DecodeLoad(rows, sum(map(context_tokens, view.decoding)))
            decode_s = self._estimator.decode_s(view, where, load, now)
        if not tokens:
            return min(self._layers or total, total)
        new = PrefillLoad(tokens, 0, 0, 0)
        prefill_s = self._estimator.prefill_s(view, where, new, total, now)
        layers = ceil(decode_s * total / prefill_s) if prefill_s > 0 else total
        layers = min(max(layers, self._options.min_layers), total)
        near = abs(layers - self._layers) <= LAYER_SLACK * self._layers
        return min(self._layers, total) if near else layers


def smallest(splits: tuple[Partition, ...], worst: dict[int, float], allowed: float) -> Partition:
    """Return the split with the fewest decode units whose worst case, seconds, is within `allowed`.

    When none is: the fastest one, the largest of equals. `splits` are in ascending order.
    """
    for split in splits:
        if worst[split.index] <= allowed:
            return split
    return min(reversed(splits), key=lambda p: worst[p.index])
