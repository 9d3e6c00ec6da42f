"""MuxWise: both phases at once on disjoint parts of one device (arXiv 2504.14489, section 3.4).

Decode gets the smallest part whose worst-case estimate keeps its objective, prefill the rest, by
layers, as many as fill one decode iteration. A phase that is alone has the whole device. Short
prompts may overtake a long one that can spare the time.
"""

from collections.abc import Callable
from typing import Annotated, ClassVar

from msgspec import Meta, Struct

from protocol.control_link import WHOLE, DecodePlan, PrefillPlan
from scheduler.batching import BatchBook
from scheduler.estimator.base import Estimator
from scheduler.estimator.loads import DecodeLoad, PrefillLoad
from scheduler.estimator.table import SplitTable
from scheduler.outlook import Outlook
from scheduler.policy import Objectives, PolicyPlan
from scheduler.preemption import ShortFirst
from scheduler.splitting import Choice, Quanta, Splitter, explain, sharing
from scheduler.view import WorkerView


class MuxWiseOptions(Struct, frozen=True, kw_only=True):
    """Options of `muxwise`."""

    guard: Annotated[
        float,
        Meta(ge=0, le=10, description="worst slowdown over predicted decode; 0: the estimator's"),
    ] = 0.0
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
    layer_wise: Annotated[
        bool, Meta(description="false: a prefill in one quantum (the ablation of section 4.4.2)")
    ] = True
    preempt: Annotated[
        bool, Meta(description="let short prompts overtake a long one that can spare the time")
    ] = True
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
        self._short_first = ShortFirst(self._book, options.token_cap)
        self._splitter = Splitter(options.margin, options.hold_s, options.split)
        self._quanta = Quanta(layer_wise=options.layer_wise, least=options.min_layers)

    def plan(self, view: WorkerView, now: float) -> PolicyPlan:
        """Return both lanes on the chosen split; a lane that is alone gets the whole device."""
        self._estimator.learn(view, now)
        self._book.update(view)
        load = DecodeLoad(len(view.decoding), view.decode_context)
        head = self._book.head(view)
        choice = self._choose(view, load, head, now)
        where = choice.split.index if choice and load.rows else WHOLE
        outlook = Outlook(view, self._estimator, self._objectives, where, now)
        preempts = self._preempt(outlook)
        alone_s = self._objectives.tbt_of(view)
        if preempts:
            head = self._book.head(view)
        layers = self._quanta.layers(outlook, head, load, alone_s)
        batches = self._book.listed()
        return PolicyPlan(
            sharing=sharing(choice),
            alone=WHOLE,
            decode=DecodePlan(depth=self._options.depth),
            prefill=PrefillPlan(batches, layers_per_quantum=layers),
            reason=_reason(load.rows, choice, view, layers, len(batches), preempts),
        )

    def _choose(
        self, view: WorkerView, load: DecodeLoad, head: PrefillLoad, now: float
    ) -> Choice | None:
        """Return the split; None where the device has none."""
        if not view.splits:
            return None
        worst = self._worst(view, load, head, now)
        return self._splitter.choose(view.splits, worst, self._objectives.tbt_of(view), now)

    def _worst(
        self, view: WorkerView, load: DecodeLoad, head: PrefillLoad, now: float
    ) -> dict[int, float]:
        """Return the worst-case time of an iteration on each split (section 3.3.2)."""
        estimator, guard = self._estimator, self._options.guard
        if guard:
            return {
                p.index: guard * estimator.decode_s(view, p.index, load, now) for p in view.splits
            }
        return estimator.worst_decode_s(view, load, head, now)

    def _preempt(self, outlook: Outlook) -> str:
        """Let short prompts overtake, if any may; return what to say about it."""
        if not self._options.preempt:
            return ""
        urgent = self._short_first.find(outlook)
        if not urgent:
            return ""
        self._book.overtake(urgent)
        return f"; {len(urgent)} short prompts overtake"


def _reason(
    rows: int, choice: Choice | None, view: WorkerView, layers: int, batches: int, preempts: str
) -> Callable[[], str]:
    splits, unit = view.splits, view.unit
    return lambda: (
        f"muxwise: {rows} rows; {explain(choice, splits, unit)}; "
        f"{layers or 'all'} layers a quantum, {batches} batches{preempts}"
    )
