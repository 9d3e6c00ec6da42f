"""Whatever is dropped, restarted, paused or cut: in order, once, and nothing lost in silence."""

from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.endpoint import Down, Lost, Up
from tests.unit.protocol.world import CONFIG, World, judge

HEAL_S = 4 * CONFIG.silence_s

pairs = st.sampled_from([("worker", "a"), ("a", "worker"), ("worker", "b"), ("b", "worker")])
clients = st.sampled_from(["a", "b"])
roles = st.sampled_from(["worker", "a", "b"])
keeps = st.integers(0, 10)

talk = st.tuples(st.just("say"), pairs, st.integers(1, 20))
wait = st.tuples(st.just("run"), st.floats(0.01, 0.5))
cut = st.tuples(st.just("cut"), clients, keeps, keeps)
stall = st.tuples(st.just("stall"), clients, st.floats(0.01, 3.0))
restart = st.tuples(st.just("restart"), roles)
pause = st.tuples(st.just("pause"), roles)
resume = st.tuples(st.just("resume"), roles)


def carry_out(world: World, action: tuple) -> None:
    kind, *args = action
    processes, network = world.processes, world.network
    if kind == "say":
        world.say(*args[0], times=args[1])
    elif kind == "run":
        world.run(args[0])
    elif kind == "cut":
        network.cut(processes[args[0]].transport, args[1], args[2])
    elif kind == "stall":
        network.stall(processes[args[0]].transport, network.now + args[1])
    elif kind == "restart":
        world.start(args[0])
    else:
        processes[args[0]].paused = kind == "pause"


def heal(world: World) -> None:
    """End all faults, let everybody talk once more."""
    for process in world.processes.values():
        process.paused = False
    world.run(HEAL_S)
    for client in ("a", "b"):
        assert world.say("worker", client) == 1
        assert world.say(client, "worker") == 1
    world.run(HEAL_S)


def judge_all(world: World) -> None:
    for client in ("a", "b"):
        judge(world, "worker", client)
        judge(world, client, "worker")


@settings(max_examples=150)
@given(st.lists(st.one_of(talk, talk, wait, wait, cut, stall, restart, pause, resume), max_size=40))
def test_everything_said_is_delivered_in_order_once_or_reported_to_both(actions):
    world = World("a", "b")
    for action in actions:
        carry_out(world, action)
    heal(world)
    judge_all(world)


@settings(max_examples=60)
@given(st.lists(st.one_of(talk, wait, cut, stall, restart, pause, resume), max_size=40))
def test_a_healed_link_comes_to_rest(actions):
    world = World("a", "b")
    for action in actions:
        carry_out(world, action)
    heal(world)
    assert world.run(5 * CONFIG.silence_s) == 0


@settings(max_examples=100)
@given(st.lists(st.one_of(talk, talk, wait, cut), max_size=40))
def test_each_loss_is_told_to_both_sides_and_only_once(actions):
    world = World("a", "b")
    world.run(0.2)
    for action in actions:
        carry_out(world, action)
    heal(world)
    worker = world.processes["worker"].endpoint.statistics()
    for client in ("a", "b"):
        mine = world.processes[client].endpoint.statistics()
        lost_here, lost_there = (
            world.count(Lost, client, "worker"),
            world.count(Lost, "worker", client),
        )
        assert (lost_here > 0) == (lost_there > 0)
        assert lost_here <= mine.gaps + worker.gaps
        assert (mine.gaps + mine.reported > 0) == (lost_here > 0)
        assert world.count(Up, client, "worker") == 1
        assert world.count(Down, client, "worker") == 0


@settings(max_examples=50)
@given(st.lists(st.one_of(st.tuples(st.just("say"), pairs, st.integers(1, 2)), wait), max_size=40))
def test_without_faults_and_within_the_window_nothing_is_lost(actions):
    world = World("a", "b")
    world.run(0.2)
    for action in actions:
        carry_out(world, action)
        world.run(0.05)
    judge_all(world)
    for role, about in [("worker", "a"), ("a", "worker"), ("worker", "b"), ("b", "worker")]:
        assert world.count(Lost, role, about) == 0
        assert world.processes[role].endpoint.statistics().refused == 0
