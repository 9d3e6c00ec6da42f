"""A6, A7, A8 and A10: cases that take more than one fault at an exact place."""

from dataclasses import replace

import pytest

from protocol.data_link import FailCode
from scheduler.core import Stage
from tests.simulation.faults import Fault
from tests.simulation.setting import POLICIES, steady
from tests.simulation.world import World
from tokenizer_service.events import Broken, Done
from worker.core.config import CoreConfig

RECKLESS = tuple(i for i, (name, _) in enumerate(POLICIES) if name == "reckless")


def fault(at: float, kind: str, **numbers) -> Fault:
    """A fault; numbers that are not given are 0."""
    return Fault(at, kind, **({"which": 0, "span": 0.0, "keep": 0, "back": 0} | numbers))


def expect_all_done(world: World) -> None:
    """Every client has its whole output; the oracles have looked at its tokens."""
    broken = [call.end for call in world.history.calls if not isinstance(call.end, Done)]
    assert not broken


@pytest.mark.parametrize("apart", range(0, 41, 2))
def test_a6_of_two_swaps_within_a_round_trip_one_acts_and_the_others_are_fenced(apart):
    """They start from 0 to 4 latencies apart, so that their attaches cross in every way."""
    latency = 0.005
    setting = steady(calls=10, over_s=0.2, latency_s=latency, policies=(0, 2, 4))
    world = World(setting)
    world.after(0.1, world.start_scheduler)
    world.after(0.1 + apart / 10 * latency, world.start_scheduler)
    world.live()
    expect_all_done(world)
    (survivor,) = world.schedulers
    assert survivor.core.stage is Stage.ACTING
    assert sorted(name for name, _, fenced, _ in world.history.exits if fenced) == sorted(
        {"sched-1", "sched-4", "sched-5"} - {survivor.name}
    )


@pytest.mark.parametrize("moment", [0.03 + 0.011 * i for i in range(10)])
def test_a7_a_scheduler_that_slept_through_a_swap_wakes_without_effect_and_leaves(moment):
    """30 s later there is work again, its plans are 30 s old, and another one acts."""
    setting = steady(calls=10, over_s=0.2)
    late = tuple(replace(call, at=30.0 + 0.9 * call.at) for call in setting.calls)
    setting = replace(setting, calls=(*setting.calls, *late), chaos_s=31.0)
    world = World(setting)

    def stop_and_replace() -> None:
        world.schedulers[0].paused_until = world.now + 30.0
        world.start_scheduler()

    world.after(moment, stop_and_replace)
    world.live()
    expect_all_done(world)
    assert [exit_[0] for exit_ in world.history.exits] == ["sched-1"]
    assert world.worker.core.snapshot(0.0).epoch.n == 2


def in_flight(which: int, at: float) -> int:
    """Frames in flight on one connector's connection at a time, both directions."""
    world = World(A8)
    lost: list[int] = []
    cut = lambda: lost.append(world.network.cut(victims(world)[which].transport, 0, 0))  # noqa: E731
    world.after(at, cut)
    world.live()
    return lost[0]


def victims(world: World) -> list:
    """Whoever connects to the worker."""
    return [*world.gateways, *world.schedulers]


A8 = steady(calls=12, over_s=0.1, latency_s=0.02)


@pytest.mark.parametrize("at", [0.05, 0.09, 0.13])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_a8_a_break_may_lose_any_suffix_in_either_direction_and_nothing_is_lost(which, at):
    most = in_flight(which, at)
    assert most > 0
    for keep, back in {(k, b) for k in range(most + 1) for b in (0, 1, most)} | {
        (k, b) for b in range(most + 1) for k in (0, 1, most)
    }:
        world = World(A8)

        def cut(world=world, keep=keep, back=back) -> None:
            world.network.cut(victims(world)[which].transport, keep, back)

        world.after(at, cut)
        world.live()
        expect_all_done(world)
        assert world.history.prefilled == sum(len(call.prompt) for call in world.history.calls)


def test_a10_pages_of_a_request_retracted_in_flight_are_not_reused_before_it_has_landed():
    """The simulated pages are verified at each read and write, at begin and end of each launch."""
    retracted = 0
    for seed in range(40):
        setting = steady(calls=8, over_s=0.02, policies=RECKLESS, seed=seed, num_pages=6, output=12)
        world = World(setting)
        world.live()
        expect_all_done(world)
        retracted += world.history.retracted_in_flight
    assert retracted > 10


def test_a_worker_that_ran_more_than_its_queue_takes_loses_none_of_it_in_a_crash():
    setting = steady(calls=8, over_s=0.001)
    setting = replace(setting, core=CoreConfig(max_queued_requests=8))
    tight = replace(setting, core=CoreConfig(max_queued_requests=2))
    world = World(setting)

    def crash() -> None:
        world.setting = tight
        world.kill_worker("killed", keep=0, restart_s=0.05)

    world.after(0.02, crash)
    world.live()
    expect_all_done(world)


@pytest.mark.parametrize("kind", ["pause", "stuck_device", "clock_jump", "full", "stall"])
def test_a_worker_that_stands_still_delays_and_costs_nobody_anything(kind):
    for which in range(4):
        trouble = fault(0.05, kind, span=0.4, which=which)
        world = World(steady(calls=10, over_s=0.2, faults=(trouble,)))
        world.live()
        expect_all_done(world)


def test_a_request_that_runs_in_two_deaths_is_failed_and_those_that_waited_are_served():
    """B6's second half in virtual time: one row runs at a time, so exactly one is the suspect."""
    setting = steady(calls=6, over_s=0.001, output=8)
    setting = replace(setting, device=replace(setting.device, max_slots=1), chaos_s=2.0)
    world = World(setting)

    def kill_while_running() -> None:
        running = world.worker.core.on_device() if world.worker else []
        if [ref.request for ref in running] == ["r0"]:
            world.kill_worker("killed", keep=100, restart_s=0.05)
        if len(world.history.deaths) < 2:
            world.after(0.002, kill_while_running)

    world.after(0.01, kill_while_running)
    world.live()
    first, *others = world.history.calls
    assert isinstance(first.end, Broken)
    assert first.end.code is FailCode.SUSPECT
    assert all(isinstance(call.end, Done) for call in others)
