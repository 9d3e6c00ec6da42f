"""A3, A4, A5 and A9, exhaustively: the same fault at every event of a run, one run for each.

An event is what a worker's core handles: a message, a completion, a tick. Before each of them the
fault happens once; then the rest of the run must go as if nothing had been, but for its times.
"""

from functools import partial

import pytest

from protocol.data_link import Abort
from protocol.ids import RequestRef
from tests.simulation.setting import Setting, steady
from tests.simulation.world import World
from tokenizer_service.events import Done

TWENTY = steady(calls=20, over_s=0.25)
EIGHT = steady(calls=8, over_s=0.1)
GROUPS = 8
KEEPS = (0, 1, 3, 100)
"""Frames in flight that survive a death, in turns."""


def run(setting: Setting, index: int = -1, action=None) -> World:
    """Live with `action(world)` before the worker's event `index`."""
    world = World(setting)
    if action is not None:
        world.at_event = (index, lambda: action(world))
    world.live()
    return world


def events_of(setting: Setting) -> int:
    """Events of the run without a fault, up to when all calls have ended."""
    world = run(setting)
    last = max(call.ended for call in world.history.calls)
    return sum(time <= last for time in world.history.times)


def expect_all_done(world: World) -> None:
    """Every client that stayed has its whole output; the oracles have looked at its tokens."""
    ends = {call.request: call.end for call in world.history.calls if not call.cancelled}
    broken = {request: end for request, end in ends.items() if not isinstance(end, Done)}
    assert not broken


def each(setting: Setting, group: int, action) -> list[World]:
    """Live once for every event of the run in this group of them."""
    worlds = []
    for index in range(group, events_of(setting), GROUPS):
        try:
            worlds.append(run(setting, index, action))
            expect_all_done(worlds[-1])
        except BaseException as error:
            error.add_note(f"the fault came before event {index}")
            raise
    assert len(worlds) >= 5
    return worlds


@pytest.mark.parametrize("group", range(GROUPS))
def test_a3_a_scheduler_killed_at_any_event_costs_no_request(group):
    def kill(world: World) -> None:
        for scheduler in list(world.schedulers):
            world.kill_scheduler(scheduler, KEEPS[world.history.events % 4], restart_s=0.05)

    for world in each(TWENTY, group, kill):
        assert world.history.deaths == []
        assert world.history.prefilled == sum(len(call.prompt) for call in world.history.calls)


@pytest.mark.parametrize("group", range(GROUPS))
def test_a4_a_worker_killed_at_any_event_costs_no_request(group):
    def kill(world: World) -> None:
        world.kill_worker("killed", KEEPS[world.history.events % 4], restart_s=0.05)

    for world in each(TWENTY, group, kill):
        assert world.history.deaths == ["killed"]


@pytest.mark.parametrize("group", range(GROUPS))
def test_a5_a_swap_at_any_event_changes_no_stream_and_computes_nothing_twice(group):
    for world in each(EIGHT, group, World.start_scheduler):
        assert [fenced for _, _, fenced, _ in world.history.exits] == [True]
        assert world.history.prefilled == sum(len(call.prompt) for call in world.history.calls)


@pytest.mark.parametrize("group", range(GROUPS))
def test_a9_an_abort_at_any_event_again_and_late_ends_the_request_once(group):
    def abort(world: World) -> None:
        for call in world.waiting(world.history.events):
            gateway = world.gateway_of(call)
            gateway.cancel(call)
            again = partial(gateway.endpoint.send, Abort(RequestRef(call.request, 0)))
            for seconds in (0.0, 0.001, 0.3):
                world.after(seconds, partial(again, gateway.clock() + seconds))

    worlds = each(EIGHT, group, abort)
    assert sum(call.cancelled for world in worlds for call in world.history.calls) >= 4
