"""Temporal multiplexing by layers: one phase at a time on the whole device, prefill in the slack.

Tropical launches a prefill only when decode has time to spare; the variant that MuxWise's section 6
compares with splits it into layers, so that small slacks can be used. Between two iterations there
are as many layers as end before the next token is due. What it cannot use is the part of the device
that decode leaves idle while it runs.
"""

from math import floor
from typing import Annotated, ClassVar

from msgspec import Meta, Struct

from protocol.control_link import WHOLE, DecodePlan, Exclusive, Lane, PrefillPlan
from scheduler.batching import BatchBook
from scheduler.estimator.base import Estimator
from scheduler.estimator.loads import DecodeLoad
from scheduler.estimator.table import SplitTable
from scheduler.outlook import Outlook
from scheduler.policy import Objectives, PolicyPlan
from scheduler.view import WorkerView

AHEAD = 2
"""Batches listed, so that one follows the other without a round trip."""
WORTH = 0.75
"""Fewer layers than this share of those that fit are worth a new plan; more than fit always are."""


class TemporalOptions(Struct, frozen=True, kw_only=True):
    """Options of `temporal`."""

    margin: Annotated[
        float, Meta(ge=0, lt=1, description="share of the objective that is left unused")
    ] = 0.1
    min_layers: Annotated[
        int, Meta(ge=1, description="layers of a quantum even where fewer fit; no prompt starves")
    ] = 1
    token_cap: Annotated[int, Meta(ge=1, description="prompt tokens of a prefill batch")] = 8192
    token_chunk: Annotated[
        int, Meta(ge=0, description="tokens through all layers at a time; 0: the worker's limit")
    ] = 0
    depth: Annotated[int, Meta(ge=0, le=64, description="iterations launched ahead")] = 1


class Temporal:
    """A quantum, an iteration, a quantum, …; the quantum is as long as the objective lets it be."""

    Options: ClassVar[type[Struct]] = TemporalOptions

    def __init__(
        self,
        objectives: Objectives,
        options: TemporalOptions,
        estimator: Estimator | None = None,
    ) -> None:
        self._objectives = objectives
        self._options = options
        self._estimator: Estimator = estimator or SplitTable()
        self._book = BatchBook(options.token_cap, AHEAD)
        self._layers = 0
        """Of the plan before; 0: none."""

    def plan(self, view: WorkerView, now: float) -> PolicyPlan:
        """Return turns of one quantum and one iteration, and the layers that fit into the slack."""
        self._estimator.learn(view, now)
        batches = self._book.update(view)
        outlook = Outlook(view, self._estimator, self._objectives, WHOLE, now)
        load = DecodeLoad(len(view.decoding), view.decode_context)
        allowed = self._objectives.tbt_of(view) * (1 - self._options.margin)
        decode_s = outlook.decode_s(load) if load.rows else 0.0
        layers = self._fitting(outlook, allowed - decode_s)
        return PolicyPlan(
            sharing=Exclusive(Lane.PREFILL, quanta=1, iterations=1),
            decode=DecodePlan(depth=self._options.depth),
            prefill=PrefillPlan(
                batches, layers_per_quantum=layers, token_chunk=self._options.token_chunk
            ),
            reason=f"temporal: whole device ({view.units} {view.unit}s) in turns; {load.rows} rows "
            f"predicted {1e3 * decode_s:.1f} of {1e3 * allowed:.1f} ms, {layers} layers in the "
            f"slack, {len(batches)} batches",
        )

    def _fitting(self, outlook: Outlook, slack_s: float) -> int:
        """Return the layers of the head batch that take at most `slack_s`, within bounds."""
        total = outlook.view.num_layers
        least = min(self._options.min_layers, total)
        head = self._book.head(outlook.view)
        layer_s = outlook.prefill_s(head) / total
        if self._options.token_chunk and head.new:
            layer_s *= min(1.0, self._options.token_chunk / head.new)
        fit = total if layer_s <= 0 else floor(max(0.0, slack_s) / layer_s)
        fit = min(max(fit, least), total)
        if not WORTH * fit <= self._layers <= fit:
            self._layers = fit
        return self._layers
