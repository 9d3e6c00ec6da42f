"""What a scheduling policy is: one object that looks at a view and says what should be so.

A policy knows nothing of epochs, sequence numbers and links: the core adds those, sends a plan only
when it differs from the standing one, and keeps the standing one when a policy fails.
"""

from collections.abc import Callable
from typing import Annotated, ClassVar, Protocol

from msgspec import Meta, Struct

from protocol.control_link import (
    WHOLE,
    DecodePlan,
    Disjoint,
    Exclusive,
    PrefillPlan,
    RequestView,
    Shared,
)
from protocol.ids import RequestRef
from protocol.slo import PositiveSeconds
from scheduler.view import WorkerView


class Objectives(Struct, frozen=True, kw_only=True):
    """Latency objectives of the service; a request's own objective goes before them."""

    tbt_s: Annotated[PositiveSeconds, Meta(description="time between tokens, seconds")]
    ttft_s: Annotated[float, Meta(ge=0, description="time to first token, seconds")]
    ttft_per_token_s: Annotated[
        float, Meta(ge=0, description="added to it for each prompt token to compute, seconds")
    ] = 0.0

    def ttft_of(self, request: RequestView) -> float:
        """Return the objective of one request, seconds from its arrival: its own, or the base and
        what its new tokens add. Cache hits lower it as far as they are known.
        """
        if request.slo.ttft_s is not None:
            return request.slo.ttft_s
        new = max(0, request.prompt_tokens - request.cached)
        return self.ttft_s + self.ttft_per_token_s * new

    def tbt_of(self, view: WorkerView) -> float:
        """Return the strictest own objective of those that decode, else the service's, seconds."""
        return min(view.decode_tbt.values(), default=self.tbt_s)


class PolicyPlan(Struct, frozen=True, kw_only=True):
    """A plan without epoch and number. The fields are those of `protocol.control_link.Plan`."""

    sharing: Disjoint | Shared | Exclusive
    alone: int = WHOLE
    decode: DecodePlan = DecodePlan()
    prefill: PrefillPlan = PrefillPlan()
    victims: tuple[RequestRef, ...] = ()
    reason: str | Callable[[], str] = ""
    """Chosen split, predicted and allowed times; not part of what makes two plans differ. A
    function is asked only when the plan is sent or explained: most plans say what stands already.
    """

    @property
    def why(self) -> str:
        """The reason, told."""
        return self.reason if isinstance(self.reason, str) else self.reason()


class Policy(Protocol):
    """A scheduling policy, made as `Class(objectives, options)`, options of type `Options`. One
    that predicts has a third parameter, `estimator`: that of the process, or None.
    """

    Options: ClassVar[type[Struct]]
    """A frozen struct: names, types, ranges and help of what `--option key=value` may set."""

    def plan(self, view: WorkerView, now: float) -> PolicyPlan | None:
        """Return what should be so, or None to leave what was planned last.

        Called after every event, also before the scheduler may act. `now` is monotonic, seconds.
        """
        ...


class InvalidPlanError(ValueError):
    """A policy planned what can never be right. The message names the limit and the value."""


def check(plan: PolicyPlan, view: WorkerView) -> None:
    """Raise InvalidPlanError if it names an unknown partition or request, or a request twice."""
    known = {partition.index for partition in view.partitions}
    indices = [plan.alone]
    if isinstance(plan.sharing, Disjoint):
        indices.append(plan.sharing.partition)
    for index in indices:
        if index not in known:
            raise InvalidPlanError(f"partition {index} is none of {sorted(known)}")
    fused = plan.decode.fused
    if fused.requests and not (fused.token_budget and fused.max_chunk):
        raise InvalidPlanError(f"fused requests need a budget and a chunk: {fused}")
    prefill = [item.ref for batch in plan.prefill.batches for item in batch.items]
    _check_refs("prefill", (*prefill, *fused.requests), view)
    _check_refs("decode", plan.decode.wanted or (), view)
    _check_refs("victims", plan.victims, view)


def _check_refs(where: str, refs: tuple[RequestRef, ...], view: WorkerView) -> None:
    seen: set[RequestRef] = set()
    for ref in refs:
        if ref not in view.requests:
            raise InvalidPlanError(f"{where} names {ref.request}, which the worker does not have")
        if ref in seen:
            raise InvalidPlanError(f"{where} names {ref.request} twice")
        seen.add(ref)
