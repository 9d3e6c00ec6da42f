"""The control link: who observes, who acts, which plan stands, and what goes on without one."""

from typing import Any

import pytest

from protocol import PROTOCOL_VERSION
from protocol.control_link import (
    Arrived,
    Attach,
    DecodePlan,
    Detach,
    Disjoint,
    Event,
    Exclusive,
    Fenced,
    FusedChunks,
    Lane,
    Left,
    Observe,
    Plan,
    PlanRejected,
    PrefillDone,
    PrefillPlan,
    PrefillStarted,
    QuantumDone,
    RefusedScheduler,
    RequestState,
    Snapshot,
    StepDone,
)
from protocol.ids import Epoch, RequestRef
from tests.unit.worker.world import BOOT, PARTITIONS, World, batches, device
from worker.core.events import PeerDown, SendControl

ONE, TWO = b"sched-1", b"sched-2"


def told(effects: list[Any], peer: bytes) -> list[Any]:
    """Messages to one scheduler."""
    return [e.message for e in effects if isinstance(e, SendControl) and e.peer == peer]


def a_plan(epoch: Epoch, seq: int, **fields: Any) -> Plan:
    """A plan for a split."""
    return Plan(**({"epoch": epoch, "seq": seq, "sharing": Disjoint(2)} | fields))


def attach(world: World, peer: bytes) -> Snapshot:
    """Attach and return the snapshot."""
    return told(world.run.scheduler(Attach("s", "p", PROTOCOL_VERSION), peer), peer)[-1]


# --- observe and attach ---


def test_observing_gives_a_snapshot_without_the_right_to_act_and_then_events():
    world = World()
    waiting = world.submit("waiting", 9)
    [snapshot] = told(world.run.scheduler(Observe("s", "p", PROTOCOL_VERSION), ONE), ONE)
    assert not snapshot.acting
    assert snapshot.epoch == Epoch(BOOT, 0)
    assert snapshot.partitions == PARTITIONS
    assert [(r.ref, r.prompt_tokens, r.state) for r in snapshot.requests] == [
        (waiting, 9, RequestState.QUEUED)
    ]
    world.submit("next")
    arrived = world.run.control[ONE][-1]
    assert isinstance(arrived, Arrived)
    assert arrived.event == snapshot.event + 1


def test_events_have_the_same_numbers_for_all_who_observe_and_leave_no_gap():
    world = World()
    world.run.scheduler(Observe("s", "p", PROTOCOL_VERSION), TWO)
    ref = world.submit("r")
    world.attach(ONE)
    world.plan([[ref]])
    world.run.scheduler(a_plan(Epoch(BOOT, 0), 1), TWO)  # answered to TWO alone
    world.run.run_idle()
    events = [m for m in world.run.control[ONE] if isinstance(m, Event)]
    numbers = [event.event for event in events]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    kinds = {type(event) for event in events}
    assert kinds == {PrefillStarted, QuantumDone, PrefillDone, StepDone, Left}
    others = [m for m in world.run.control[TWO] if isinstance(m, Event) and m.event >= numbers[0]]
    assert [m for m in others if not isinstance(m, Fenced)] == events


def test_a_scheduler_of_another_version_is_refused():
    world = World()
    for message in (Observe("s", "p", 99), Attach("s", "p", 99)):
        [refused] = told(world.run.scheduler(message, ONE), ONE)
        assert refused == RefusedScheduler(PROTOCOL_VERSION, refused.message)
    assert world.core.observers == []


def test_attaching_takes_the_next_epoch_and_fences_who_held_the_one_before():
    world = World()
    first = attach(world, ONE)
    assert (first.acting, first.epoch) == (True, Epoch(BOOT, 1))
    effects = world.run.scheduler(Attach("s", "p", PROTOCOL_VERSION), TWO)
    assert told(effects, TWO)[-1].epoch == Epoch(BOOT, 2)
    assert told(effects, ONE) == [Fenced(first.event, Epoch(BOOT, 2))]
    assert world.core.observers == [TWO]


def test_who_acts_and_observes_again_still_acts():
    world = World()
    epoch = attach(world, ONE).epoch
    [snapshot] = told(world.run.scheduler(Observe("s", "p", PROTOCOL_VERSION), ONE), ONE)
    assert (snapshot.acting, snapshot.epoch) == (True, epoch)


# --- which plan stands ---


@pytest.mark.parametrize(
    "stale", [Epoch(BOOT, 1), Epoch(BOOT, 3), Epoch("another boot", 2)], ids=str
)
def test_a_plan_of_any_other_epoch_is_fenced_and_has_no_effect(stale):
    world = World()
    ref = world.submit("r")
    attach(world, ONE)
    attach(world, TWO)
    plan = a_plan(stale, 9, prefill=PrefillPlan(batches([ref])))
    [fenced] = told(world.run.scheduler(plan, ONE), ONE)
    assert fenced.epoch == Epoch(BOOT, 2)
    assert world.run.launches == []


def test_a_plan_that_is_not_newer_has_no_effect_and_carrying_one_out_twice_changes_nothing():
    world = World()
    ref = world.submit("r")
    world.attach()
    serve = a_plan(world.epoch, 5, prefill=PrefillPlan(batches([ref])))
    for seq in (5, 4):
        world.run.scheduler(a_plan(world.epoch, 5), ONE)
        assert world.run.scheduler(a_plan(world.epoch, seq, prefill=serve.prefill), ONE) == []
    world.run.scheduler(a_plan(world.epoch, 6, prefill=serve.prefill), ONE)
    launches = len(world.run.launches)
    assert launches == 1
    world.run.scheduler(a_plan(world.epoch, 6, prefill=serve.prefill), ONE)
    world.run.scheduler(a_plan(world.epoch, 7, prefill=serve.prefill), ONE)
    assert len(world.run.launches) == launches


def test_a_new_epochs_numbers_start_anew():
    world = World()
    ref = world.submit("r")
    world.attach(ONE)
    world.run.scheduler(a_plan(world.epoch, 100), ONE)
    world.attach(TWO)
    world.run.scheduler(a_plan(world.epoch, 1, prefill=PrefillPlan(batches([ref]))), TWO)
    world.run.run_idle()
    world.expect_right(ref)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"sharing": Disjoint(9)}, "disjoint: partition 9 is not one of [0, 1, 2, 3]"),
        ({"alone": 4}, "alone: partition 4"),
        ({"sharing": Exclusive(Lane.DECODE, 0, 1)}, "quanta is 0"),
    ],
)
def test_a_plan_that_can_never_be_right_is_rejected_and_the_one_before_stands(fields, says):
    world = World()
    ref = world.submit("r", max_tokens=30)
    world.attach()
    world.plan([[ref]])
    world.seq += 1
    effects = world.run.scheduler(a_plan(world.epoch, world.seq, **fields), ONE)
    [rejected] = told(effects, ONE)
    assert isinstance(rejected, PlanRejected)
    assert says in rejected.why
    assert world.core.snapshot(0.0).plan_seq == 1
    world.run.run_idle()
    world.expect_right(ref)


def test_a_plan_that_names_who_has_gone_serves_the_others():
    world = World()
    ref = world.submit("r")
    world.attach()
    gone = RequestRef("gone", 0)
    fused = DecodePlan(wanted=(gone, ref), fused=FusedChunks((gone,), 8, 8))
    world.plan([[gone], [gone, ref, ref]], victims=(gone,), decode=fused)
    assert world.core.skipped == 3
    world.run.run_idle()
    world.expect_right(ref)


# --- autopilot ---


def begun_and_waiting(world: World) -> tuple[RequestRef, ...]:
    """A decoding request, two listed ones, and one that the plan does not know."""
    refs = tuple(world.submit(f"r{i}", 20, max_tokens=20) for i in range(4))
    world.attach()
    world.plan([[refs[0]], [refs[1]], [refs[2]]], layers=1, decode=DecodePlan(wanted=refs[:1]))
    while world.state(refs[0]) is not RequestState.DECODING:
        world.run.step()
    return refs


@pytest.mark.parametrize("how", ["down", "detach"])
def test_without_a_scheduler_the_plan_goes_on_and_nothing_new_starts(how):
    world = World()
    refs = begun_and_waiting(world)
    if how == "down":
        world.run.feed(PeerDown("control", ONE))
    else:
        world.run.scheduler(Detach(world.epoch), ONE)
    world.run.run_idle()
    world.expect_right(*refs[:3])
    assert world.state(refs[3]) is RequestState.QUEUED
    late = world.submit("late")
    world.run.run_idle()
    assert world.state(late) is RequestState.QUEUED
    world.attach(TWO)
    world.plan([[refs[3]], [late]], peer=TWO)
    world.run.run_idle()
    world.expect_right(*refs, late)
    world.expect_empty()


def test_without_a_scheduler_suspended_prefills_resume():
    world = World()
    first, second = world.submit("first", 24), world.submit("second", 24)
    world.attach()
    world.plan([[first]], layers=1)
    world.run.step()
    world.plan([[second]], layers=1)
    while world.state(first) is not RequestState.SUSPENDED:
        world.run.step()
    world.plan([], layers=1)
    world.run.feed(PeerDown("control", ONE))
    world.run.run_idle()
    world.expect_right(first, second)
    world.expect_empty()


def test_without_a_scheduler_retracted_requests_are_prefilled_again():
    world = World(device(num_pages=12, page_size=4))
    refs = [world.submit(f"r{i}", 12, max_tokens=24) for i in range(3)]
    world.attach()
    world.plan([[ref] for ref in refs])
    while not world.core.retractions:
        assert world.run.step()
    world.plan([])
    world.run.feed(PeerDown("control", ONE))
    world.run.run_idle()
    world.expect_right(*refs)
    world.expect_empty()


def test_after_a_detach_its_epoch_is_stale():
    world = World()
    world.attach()
    world.run.scheduler(Detach(world.epoch), ONE)
    assert isinstance(told(world.plan([]), ONE)[0], Fenced)


def test_a_scheduler_that_was_silent_and_not_replaced_may_go_on():
    world = World()
    ref = world.submit("r")
    world.attach()
    world.run.feed(PeerDown("control", ONE))
    assert told(world.plan([[ref]]), ONE) == []
    assert world.core.snapshot(0.0).epoch == world.epoch
    assert world.core.load().scheduler == "test"
    world.run.run_idle()
    world.expect_right(ref)


def test_a_swap_in_the_middle_recomputes_nothing():
    world = World()
    refs = [world.submit(f"r{i}", 20, max_tokens=30) for i in range(3)]
    world.attach(ONE)
    world.plan([refs], layers=1, decode=DecodePlan(depth=2))
    peers = [TWO, ONE]
    while not world.core.idle:
        world.run.step()
        peers.reverse()
        world.attach(peers[0])
        world.plan([refs], layers=1, decode=DecodePlan(depth=2), peer=peers[0])
    world.expect_right(*refs)
    assert world.core.retractions == 0
    assert sum(len(quantum.inits) for quantum in world.quanta()) == 3


# --- what events say ---


def test_a_step_says_what_ran_and_how_long():
    world = World()
    refs = [world.submit(f"r{i}", 8, max_tokens=3) for i in range(2)]
    world.attach()
    world.plan([refs])
    world.run.run_idle()
    step = next(m for m in world.run.control[ONE] if isinstance(m, StepDone))
    assert (step.work.batch_size, step.work.context_tokens) == (2, 16)
    assert step.work.seconds == pytest.approx(5e-3 + 2e-4 + 16e-6)
    assert [(p.computed, p.output_tokens) for p in step.progress] == [(9, 2), (9, 2)]


def test_a_quantum_says_new_and_reused_tokens_as_muxwise_counts_them():
    world = World()
    first = world.submit("first", range(1, 18), max_tokens=1)
    world.attach()
    world.plan([[first]])
    world.run.run_idle()
    hit, other = world.submit("hit", range(1, 21)), world.submit("other", 6)
    world.plan([[hit, other]])
    world.run.run_idle()
    work = [m for m in world.run.control[ONE] if isinstance(m, QuantumDone)][-1].work
    assert (work.new_tokens, work.reused_tokens) == (4 + 6, 16)
    assert (work.new_squared, work.new_times_reused) == (16 + 36, 4 * 16)
    assert (work.batch_size, work.layers) == (2, 4)
