"""DRIFT: gang scheduling of prefill blocks and decode graphs on a few partitions (section 3.5).

Algorithm 1 with its contention-free predictions: GeneratePB picks the prefill batch, with a
preemption stack of one; Partition gives decode just enough of the device. The forerunner of
MuxWise: no guard, no hysteresis, few partition groups, an objective for the first token that goes
with the new tokens.
"""

from collections.abc import Callable
from itertools import combinations
from typing import Annotated, ClassVar, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace

from protocol.control_link import WHOLE, DecodePlan, Partition, PrefillPlan
from scheduler.batching import BatchBook
from scheduler.estimator.base import Estimator
from scheduler.estimator.loads import DecodeLoad
from scheduler.estimator.table import SplitTable
from scheduler.outlook import Outlook
from scheduler.policy import Objectives, PolicyPlan
from scheduler.preemption import generate_pb
from scheduler.splitting import Choice, Quanta, Splitter, explain, sharing
from scheduler.view import WorkerView

GROUPS = {
    3: (28 / 108,),
    4: (24 / 108, 36 / 108),
    5: (24 / 108, 28 / 108, 36 / 108),
}
"""Decode's share of the device in each disjoint group of sections 4 and 5.3.2, where the device has
108 SMs (A100). Two groups more are the whole device for either phase."""

LONGEST_BLOCK_S = 1.0
"""With neither rows nor an objective: how long a newcomer waits for the end of a block."""


class DriftOptions(Struct, frozen=True, kw_only=True):
    """Options of `drift`."""

    groups: Annotated[
        Literal[3, 4, 5], Meta(description="partition groups, the whole device for either lane too")
    ] = 4
    ttft_ms_per_token: Annotated[
        float, Meta(ge=0, description="objective for the first token for each new token, ms")
    ] = 1.0
    tbt: Annotated[
        bool, Meta(description="false: no objective for the time between tokens (section 5.2.4)")
    ] = True
    token_cap: Annotated[int, Meta(ge=1, description="prompt tokens of a prefill batch")] = 8192
    block_wise: Annotated[
        bool, Meta(description="false: a prefill in one block (the ablation of section 5.3.1)")
    ] = True
    ahead: Annotated[int, Meta(ge=2, le=64, description="prefill batches listed ahead")] = 3
    depth: Annotated[int, Meta(ge=0, le=64, description="iterations launched ahead")] = 1


class Drift:
    """Algorithm 1, as a standing plan."""

    Options: ClassVar[type[Struct]] = DriftOptions

    def __init__(
        self,
        objectives: Objectives,
        options: DriftOptions,
        estimator: Estimator | None = None,
    ) -> None:
        self._objectives = replace(
            objectives,
            ttft_s=0.0,
            ttft_per_token_s=options.ttft_ms_per_token / 1e3,
            tbt_s=objectives.tbt_s if options.tbt else float("inf"),
        )
        self._options = options
        self._estimator: Estimator = estimator or SplitTable()
        self._book = BatchBook(options.token_cap, options.ahead)
        self._splitter = Splitter(margin=0.0, hold_s=0.0)
        self._groups: tuple[Partition, ...] = ()
        self._groups_of: tuple[Partition, ...] | None = None
        self._blocks = Quanta(layer_wise=options.block_wise, least=1)

    def plan(self, view: WorkerView, now: float) -> PolicyPlan:
        """Return the batch that GeneratePB picks and the split that Partition finds."""
        self._estimator.learn(view, now)
        self._book.update(view)
        load = DecodeLoad(len(view.decoding), view.decode_context)
        choice = self._partition(view, load, now)
        where = choice.split.index if choice and load.rows else WHOLE
        outlook = Outlook(view, self._estimator, self._objectives, where, now)
        preempts = self._generate_pb(outlook)
        alone_s = min(self._objectives.tbt_of(view), LONGEST_BLOCK_S)
        blocks = self._blocks.layers(outlook, self._book.head(view), load, alone_s)
        batches = self._book.listed()
        return PolicyPlan(
            sharing=sharing(choice),
            alone=WHOLE,
            decode=DecodePlan(depth=self._options.depth),
            prefill=PrefillPlan(batches, layers_per_quantum=blocks),
            reason=self._reason(load.rows, choice, view.unit, blocks, len(batches), preempts),
        )

    def _reason(
        self, rows: int, choice: Choice | None, unit: str, blocks: int, batches: int, preempts: str
    ) -> Callable[[], str]:
        groups = self._groups
        return lambda: (
            f"drift: {rows} rows; {explain(choice, groups, unit)}; "
            f"{blocks or 'all'} blocks at a time, {batches} batches{preempts}"
        )

    def _generate_pb(self, outlook: Outlook) -> str:
        """Let the next batch preempt, if it may; return what to say about it."""
        new = generate_pb(self._book, outlook, self._options.token_cap)
        if not new:
            return ""
        self._book.overtake(new)
        return f"; the next batch ({len(new)} prompts) preempts"

    def _partition(self, view: WorkerView, load: DecodeLoad, now: float) -> Choice | None:
        """Return C_DB and C_PB (lines 21 to 24); None where the device cannot be split."""
        if self._groups_of is not view.partitions:
            self._groups_of = view.partitions
            self._groups = groups(view.splits, view.units, GROUPS[self._options.groups])
        if not self._groups:
            return None
        solo = {p.index: self._estimator.decode_s(view, p.index, load, now) for p in self._groups}
        return self._splitter.choose(self._groups, solo, self._objectives.tbt_of(view), now)


def groups(
    splits: tuple[Partition, ...], units: int, shares: tuple[float, ...]
) -> tuple[Partition, ...]:
    """Return the splits that come closest to `shares` of the device for decode, all different.

    `splits` are in ascending order; where they are too few, all of them.
    """
    if len(splits) <= len(shares):
        return splits
    wanted = [share * units for share in sorted(shares)]

    def off(chosen: tuple[Partition, ...]) -> float:
        return sum(abs(p.decode_units - want) for p, want in zip(chosen, wanted, strict=True))

    return min(combinations(splits, len(wanted)), key=off)
