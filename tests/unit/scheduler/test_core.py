import pytest
from msgspec.structs import replace

from protocol.control_link import (
    Arrived,
    Attach,
    Detach,
    Disjoint,
    Exclusive,
    Fenced,
    Observe,
    Plan,
    PlanRejected,
    PrefillBatch,
    PrefillItem,
    PrefillPlan,
    RefusedScheduler,
)
from protocol.ids import Epoch, RequestRef
from protocol.lifecycle import EXIT_CONFIG
from scheduler.core import (
    MAX_REASON,
    CoreConfig,
    Exit,
    Link,
    SchedulerCore,
    Stage,
    Terminate,
    Tick,
)
from scheduler.policy import PolicyPlan
from tests.unit.scheduler.world import request, snapshot

OBSERVE = Observe("sched-1", "scripted", 1)
ATTACH = Attach("sched-1", "scripted", 1)


class Scripted:
    """Plans what it is told to, or raises it; and counts how often it was asked."""

    def __init__(self, plan=None):
        self.next = plan or PolicyPlan(sharing=Disjoint(1), reason="first")
        self.asked = 0

    def plan(self, view, now):
        self.asked += 1
        if isinstance(self.next, Exception):
            raise self.next
        return self.next


def core_with(policy, **config):
    given = {"peer": "sched-1", "policy": "scripted", "version": 1, "max_failures": 3}
    return SchedulerCore(policy, CoreConfig(**(given | config)))


def acting(policy, *requests, n=1, event=0):
    """Return a core that acts in epoch n, its first plan sent."""
    core = core_with(policy)
    core.on(Link.UP, 0.0)
    core.on(snapshot(*requests, epoch=n - 1, event=event), 0.0)
    core.on(snapshot(*requests, epoch=n, acting=True, event=event), 0.0)
    assert core.stage is Stage.ACTING
    return core


def the_plan(messages):
    (plan,) = messages
    assert isinstance(plan, Plan)
    return plan


def arrived(number, name="new"):
    return Arrived(number, request(name))


# --- observe, plan dry, attach, act ---


def test_it_observes_plans_dry_attaches_and_only_then_acts():
    policy = Scripted()
    core = core_with(policy)
    assert core.on(Link.UP, 0.0) == [OBSERVE]
    assert policy.asked == 0
    assert core.on(snapshot(epoch=4), 0.0) == [ATTACH]
    assert policy.asked == 1
    assert not core.ready
    plan = the_plan(core.on(snapshot(epoch=5, acting=True), 0.1))
    assert plan == Plan(epoch=Epoch("boot", 5), seq=1, sharing=Disjoint(1), reason="first")
    assert core.ready


def test_a_policy_that_fails_dry_never_attaches_and_ends_the_process():
    core = core_with(Scripted(ValueError("broken")))
    core.on(Link.UP, 0.0)
    assert core.on(snapshot(), 0.0) == []
    assert core.on(Tick(), 0.1) == []
    (end,) = core.on(arrived(1), 0.2)
    assert end.status == 1
    assert "broken" in end.reason
    assert core.on(snapshot(acting=True), 0.3) == []


@pytest.mark.parametrize(
    "bad",
    [
        PolicyPlan(sharing=Disjoint(9)),
        PolicyPlan(sharing=Exclusive(), alone=9),
        PolicyPlan(sharing=Exclusive(), victims=(RequestRef("ghost"),)),
        PolicyPlan(
            sharing=Exclusive(),
            prefill=PrefillPlan((PrefillBatch((PrefillItem(RequestRef("a")),)),) * 2),
        ),
    ],
)
def test_an_invalid_dry_plan_counts_as_a_failure(bad):
    core = core_with(Scripted(bad), max_failures=1)
    core.on(Link.UP, 0.0)
    (end,) = core.on(snapshot(request("a")), 0.0)
    assert end.status == 1
    assert "InvalidPlanError" in end.reason


def test_a_policy_with_no_plan_at_all_cannot_attach():
    policy = Scripted()
    policy.next = None
    core = core_with(policy)
    core.on(Link.UP, 0.0)
    assert core.on(snapshot(), 0.0) == []
    assert core.stage is Stage.OBSERVING


def test_a_plan_kept_from_the_dry_run_is_sent_when_the_policy_has_nothing_new():
    policy = Scripted()
    core = core_with(policy)
    core.on(Link.UP, 0.0)
    core.on(snapshot(), 0.0)
    policy.next = None
    assert the_plan(core.on(snapshot(epoch=1, acting=True), 0.0)).sharing == Disjoint(1)


def test_observe_only_plans_and_never_attaches():
    policy = Scripted()
    core = core_with(policy, observe_only=True)
    core.on(Link.UP, 0.0)
    assert core.on(snapshot(), 0.0) == []
    assert core.on(arrived(1), 0.0) == []
    assert policy.asked == 2
    assert core.ready


# --- acting ---


def test_a_plan_is_sent_only_when_it_differs_in_more_than_its_reason():
    policy = Scripted()
    core = acting(policy)
    policy.next = replace(policy.next, reason="other words")
    assert core.on(arrived(1, "a"), 0.0) == []
    policy.next = PolicyPlan(sharing=Disjoint(2))
    assert the_plan(core.on(arrived(2, "b"), 0.0)).seq == 2
    policy.next = None
    assert core.on(arrived(3, "c"), 0.0) == []


def test_a_long_reason_is_cut_to_what_the_wire_takes():
    core = acting(policy := Scripted())
    policy.next = PolicyPlan(sharing=Disjoint(2), reason="x" * 5000)
    assert len(the_plan(core.on(Tick(), 0.0)).reason) == MAX_REASON


def test_a_tick_lets_the_policy_plan_again():
    core = acting(policy := Scripted())
    policy.next = PolicyPlan(sharing=Disjoint(3))
    assert the_plan(core.on(Tick(), 1.0)).sharing == Disjoint(3)


def test_a_policy_that_raises_leaves_the_standing_plan_until_it_raised_too_often():
    core = acting(policy := Scripted())
    good, policy.next = policy.next, RuntimeError("oops")
    assert core.on(arrived(1, "a"), 0.0) == []
    assert core.on(arrived(2, "b"), 0.0) == []
    policy.next = good
    assert core.on(arrived(3, "c"), 0.0) == []
    policy.next = RuntimeError("oops")
    assert [core.on(arrived(n, str(n)), 0.0) for n in (4, 5)] == [[], []]
    detach, end = core.on(arrived(6, "f"), 0.0)
    assert detach == Detach(Epoch("boot", 1))
    assert end.status == 1
    assert not end.fenced


def test_rejected_plans_end_the_process_after_a_few():
    core = acting(Scripted())
    assert core.on(PlanRejected(1, 1, "no such partition"), 0.0) == []
    assert core.on(PlanRejected(2, 1, "no such partition"), 0.0) == []
    detach, end = core.on(PlanRejected(3, 1, "no such partition"), 0.0)
    assert isinstance(detach, Detach)
    assert end.status == 1
    assert "no such partition" in end.reason


def test_asked_to_stop_it_gives_the_epoch_back_and_exits_with_0():
    assert acting(Scripted(), n=7).on(Terminate(), 0.0) == [
        Detach(Epoch("boot", 7)),
        Exit("asked to stop"),
    ]
    assert core_with(Scripted()).on(Terminate(), 0.0) == [Exit("asked to stop")]


# --- losses ---


def test_a_gap_costs_a_snapshot_and_not_the_epoch():
    core = acting(policy := Scripted(), n=3)
    assert core.on(arrived(5), 1.0) == [OBSERVE]
    asked = policy.asked
    assert core.on(arrived(6), 1.0) == []
    assert policy.asked == asked, "planned on a view that misses events"
    assert core.on(snapshot(request("a"), event=6, epoch=3, acting=True, plan_seq=1), 1.1) == []
    assert core.stage is Stage.ACTING
    policy.next = PolicyPlan(sharing=Disjoint(2))
    plan = the_plan(core.on(arrived(7), 1.2))
    assert (plan.epoch.n, plan.seq) == (3, 2)


def test_a_plan_that_was_lost_is_sent_again_with_a_newer_number():
    core = acting(Scripted())
    assert core.on(Link.LOST, 0.0) == [OBSERVE]
    again = the_plan(core.on(snapshot(epoch=1, acting=True, plan_seq=0), 0.0))
    assert (again.seq, again.sharing) == (2, Disjoint(1))


def test_a_lost_attach_is_tried_again():
    core = core_with(Scripted())
    core.on(Link.UP, 0.0)
    assert core.on(snapshot(), 0.0) == [ATTACH]
    assert core.on(Link.LOST, 0.1) == [OBSERVE]
    assert core.on(snapshot(), 0.2) == [ATTACH]


def test_an_attach_whose_answer_was_lost_is_not_repeated():
    core = core_with(Scripted())
    core.on(Link.UP, 0.0)
    core.on(snapshot(), 0.0)
    core.on(Link.LOST, 0.1)
    assert isinstance(the_plan(core.on(snapshot(epoch=1, acting=True), 0.2)), Plan)


def test_a_late_answer_to_observe_does_not_attach_twice():
    core = core_with(Scripted())
    core.on(Link.UP, 0.0)
    core.on(snapshot(), 0.0)
    assert core.on(snapshot(), 0.0) == []
    assert core.stage is Stage.ATTACHING


def test_it_asks_again_when_no_answer_comes():
    core = core_with(Scripted(), reply_s=2.0)
    core.on(Link.UP, 0.0)
    assert core.on(Tick(), 1.9) == []
    assert core.on(Tick(), 2.0) == [OBSERVE]
    assert core.on(Tick(), 3.9) == []
    core.on(snapshot(), 3.9)
    assert core.on(Tick(), 5.9) == [OBSERVE]


def test_while_the_worker_is_down_nothing_is_asked_or_planned():
    core = acting(policy := Scripted())
    assert core.on(Link.DOWN, 0.0) == []
    asked = policy.asked
    assert core.on(Tick(), 100.0) == []
    assert policy.asked == asked
    assert core.on(Link.UP, 101.0) == [OBSERVE]
    assert core.on(snapshot(epoch=1, acting=True, plan_seq=1), 101.0) == []
    assert core.stage is Stage.ACTING


def test_an_epoch_that_the_worker_took_back_and_gave_to_nobody_is_asked_for_again():
    core = acting(Scripted(), n=3)
    core.on(Link.DOWN, 0.0)
    core.on(Link.UP, 1.0)
    assert core.on(snapshot(epoch=3), 1.0) == [ATTACH]


# --- restart and fencing ---


def test_a_restarted_worker_is_attached_to_again():
    core = acting(Scripted(), n=3)
    assert core.on(Link.UP, 1.0) == [OBSERVE]
    assert core.on(snapshot(boot="second"), 1.0) == [ATTACH]
    plan = the_plan(core.on(snapshot(boot="second", epoch=1, acting=True), 1.0))
    assert (plan.epoch, plan.seq) == (Epoch("second", 1), 1)


def test_fenced_it_exits_with_0_and_never_says_anything_again():
    core = acting(Scripted(), n=3)
    (end,) = core.on(Fenced(1, Epoch("boot", 4)), 0.0)
    assert (end.fenced, end.status) == (True, 0)
    for event in (Link.UP, snapshot(epoch=4), arrived(2), Tick(), Terminate()):
        assert core.on(event, 1.0) == []


def test_a_snapshot_can_tell_that_it_was_fenced():
    core = acting(Scripted(), n=3)
    core.on(Link.LOST, 0.0)
    (end,) = core.on(snapshot(epoch=4), 0.0)
    assert end.fenced


def test_news_of_its_own_epoch_do_not_fence_it():
    core = acting(Scripted(), n=3)
    assert core.on(Fenced(1, Epoch("boot", 3)), 0.0) == []
    assert core.stage is Stage.ACTING


def test_a_plan_for_a_boot_that_has_ended_does_not_end_the_scheduler():
    core = acting(Scripted(), n=3)
    assert core.on(Fenced(0, Epoch("second", 0)), 0.0) == [OBSERVE]
    assert core.on(snapshot(boot="second"), 0.0) == [ATTACH]


def test_somebody_else_acts_after_a_restart():
    core = acting(Scripted(), n=3)
    (end,) = core.on(Fenced(0, Epoch("second", 1)), 0.0)
    assert end.fenced


def test_another_version_is_a_configuration_error():
    core = core_with(Scripted())
    core.on(Link.UP, 0.0)
    (end,) = core.on(RefusedScheduler(2, "version 1, this is 2"), 0.0)
    assert end.status == EXIT_CONFIG
