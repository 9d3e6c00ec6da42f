"""What the worker says of its device: both lanes' shares, their work so far, the plan in force."""

import pytest

from protocol.activity import MAX_REASON_CHARS, PlanInForce, Sharing
from protocol.control_link import DecodePlan, Disjoint, Exclusive, FusedChunks, Shared
from protocol.data_link import Status
from tests.unit.worker.world import World, served
from worker.core.events import PeerDown, SendData, Tick


def test_each_lane_tells_its_part_of_the_device_while_it_runs_and_zero_when_it_does_not():
    world = World()
    running = served(world, "a", max_tokens=40)
    late = world.submit("b", 60)
    world.plan([[late]], sharing=Disjoint(1), layers=1)
    seen = set()
    while world.sent(late).tokens == []:
        world.run.step()
        told = world.core.activity()
        seen.add((told.prefill.units, told.decode.units))
    assert (12, 4) in seen
    world.run.run_idle()
    world.expect_right(running, late)
    told = world.core.activity()
    assert (told.prefill.units, told.decode.units) == (0, 0)


@pytest.mark.parametrize("chunk", [0, 16])
def test_tokens_are_prompts_computed_and_outputs_drawn_however_they_were_cut(chunk):
    world = World()
    refs = [world.submit(f"r{i}", 20, max_tokens=5) for i in range(3)]
    world.attach()
    fused = FusedChunks((refs[2],), 8, 8)
    world.plan([refs[:2]], decode=DecodePlan(fused=fused), layers=2, chunk=chunk)
    world.run.run_idle()
    world.expect_right(*refs)
    told = world.core.activity()
    assert told.prefill.tokens == 60
    assert told.decode.tokens == 15
    assert told.prefill.launches == len(world.quanta())
    assert told.decode.launches == len(world.iterations())


def test_both_lanes_time_is_no_more_than_either_lanes():
    world = World()
    served(world, "a", max_tokens=60)
    late = world.submit("b", 60)
    world.plan([[late]], layers=1)
    world.run.run_idle()
    told = world.core.activity()
    assert 0 < told.both_s <= min(told.prefill.busy_s, told.decode.busy_s) + 1e-9


@pytest.mark.parametrize(
    ("sharing", "kind", "units"),
    [
        (Disjoint(3), Sharing.DISJOINT, (4, 12)),
        (Shared(), Sharing.SHARED, (16, 16)),
        (Exclusive(), Sharing.EXCLUSIVE, (16, 16)),
    ],
)
def test_the_plan_in_force_is_told_with_its_split_and_its_reason(sharing, kind, units):
    world = World()
    world.attach()
    world.plan(sharing=sharing, decode=DecodePlan(depth=2), layers=3, reason="x" * 2000)
    assert world.core.activity().plan == PlanInForce(
        seq=1,
        sharing=kind,
        prefill_units=units[0],
        decode_units=units[1],
        depth=2,
        layers_per_quantum=3,
        reason="x" * MAX_REASON_CHARS,
    )


def test_before_any_plan_and_after_the_schedulers_death_it_says_autopilot():
    world = World()
    assert world.core.activity().plan.autopilot
    assert world.core.activity().plan.seq == 0
    world.attach()
    world.plan()
    assert not world.core.activity().plan.autopilot
    world.run.feed(PeerDown("control", b"sched-1"))
    assert world.core.activity().plan.autopilot
    assert world.core.activity().plan.seq == 1


def test_gateways_hear_of_it_with_every_tick():
    world = World()
    effects = world.run.feed(Tick())
    told = [e.message for e in effects if isinstance(e, SendData)]
    assert told == [Status(told[0].credits, world.core.load(), world.core.activity())]
