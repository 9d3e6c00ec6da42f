"""The standing plan, and the order that the lanes follow: the plan, or autopilot.

An order is absolute and is looked up anew at every boundary, so a plan that names a request which
has gone, or one that is done, costs nothing but a look. Without an acting scheduler the plan goes
on (DESIGN 3, autopilot): all decode, and after the listed batches those that had started or were
retracted are prefilled, oldest first.
"""

from dataclasses import dataclass
from functools import cached_property

from protocol.control_link import (
    DecodePlan,
    Disjoint,
    Exclusive,
    Lane,
    Partition,
    Plan,
    PrefillPlan,
    Shared,
)
from protocol.ids import RequestRef


@dataclass(frozen=True)
class Order:
    """What should be so."""

    sharing: Disjoint | Shared | Exclusive
    alone: int
    decode: DecodePlan
    prefill: PrefillPlan
    victims: tuple[RequestRef, ...]
    autopilot: bool

    @cached_property
    def wanted(self) -> frozenset[RequestRef] | None:
        """The wanted running set; None: all."""
        wanted = self.decode.wanted
        return None if wanted is None or self.autopilot else frozenset(wanted)


INITIAL = Order(
    sharing=Exclusive(first=Lane.DECODE),
    alone=0,
    decode=DecodePlan(depth=0),
    prefill=PrefillPlan(),
    victims=(),
    autopilot=True,
)
"""Before the first plan: decode would go on, nothing starts."""


def order_of(plan: Plan, *, autopilot: bool) -> Order:
    """Return a plan as an order."""
    return Order(
        sharing=plan.sharing,
        alone=plan.alone,
        decode=plan.decode,
        prefill=plan.prefill,
        victims=plan.victims,
        autopilot=autopilot,
    )


def reject(plan: Plan, partitions: tuple[Partition, ...]) -> str | None:
    """Return why `plan` can never be right on this device; None when it can."""
    known = {partition.index for partition in partitions}
    named = {"alone": plan.alone}
    if isinstance(plan.sharing, Disjoint):
        named["disjoint"] = plan.sharing.partition
    for what, index in named.items():
        if index not in known:
            return f"{what}: partition {index} is not one of {sorted(known)}"
    if isinstance(plan.sharing, Exclusive) and plan.sharing.quanta < 1:
        return f"exclusive: quanta is {plan.sharing.quanta}, at least 1 is needed"
    return None
