"""Which lane runs, and where: partitions, a change of the split, and one lane at a time."""

from protocol.control_link import DecodePlan, Disjoint, Exclusive, Lane
from tests.unit.worker.world import World

# --- partitions ---


def partitions(world: World, lane: Lane) -> list[int]:
    """Partition of each launch of a lane."""
    return [work.partition for work in world.run.launches if work.lane is lane]


def test_a_lane_alone_takes_the_partition_for_that_and_shares_when_it_is_not():
    world = World()
    first, second = world.submit("first", 40, max_tokens=60), world.submit("second", 40)
    world.attach()
    world.plan([[first]], sharing=Disjoint(1), layers=1)
    world.run.run_until(0.2)
    assert set(partitions(world, Lane.PREFILL)) == {0}
    assert set(partitions(world, Lane.DECODE)) == {0}
    both = len(world.quanta())
    world.plan([[second]], sharing=Disjoint(1), layers=1)
    world.run.run_idle()
    assert set(partitions(world, Lane.PREFILL)[both:]) == {1}
    assert 1 in partitions(world, Lane.DECODE)
    assert partitions(world, Lane.DECODE)[-1] == 0
    world.expect_right(first, second)


def test_of_two_lanes_the_one_that_shrinks_switches_first_and_nothing_is_drained():
    world = World()
    stream = world.submit("stream", 4, max_tokens=100)
    prompts = [world.submit(f"p{i}", 60) for i in range(2)]
    world.attach()
    world.plan([[stream], prompts], sharing=Disjoint(1), layers=1, chunk=30)
    while not (partitions(world, Lane.DECODE)[-1:] == [1] and world.core.in_flight(Lane.PREFILL)):
        world.run.step()
    launched = len(world.run.launches)
    world.plan([[stream], prompts], sharing=Disjoint(3), layers=1, chunk=30)
    assert len(world.run.launches) == launched, "nothing is launched because of the change"
    while partitions(world, Lane.DECODE)[-1] == 1:
        world.run.step()
        assert world.core.in_flight(Lane.DECODE) == 2, "decode goes on with its old share"
    works = world.run.launches[launched:]
    shrunk = next(i for i, w in enumerate(works) if (w.lane, w.partition) == (Lane.PREFILL, 3))
    grown = next(i for i, w in enumerate(works) if (w.lane, w.partition) == (Lane.DECODE, 3))
    assert shrunk < grown
    assert [w.partition for w in works if w.lane is Lane.PREFILL][:1] == [3]
    world.run.run_idle()
    world.expect_right(stream, *prompts)


def test_decode_grows_at_once_when_prefill_has_nothing_in_flight():
    world = World()
    stream = world.submit("stream", 4, max_tokens=60)
    world.attach()
    world.plan([[stream]], sharing=Disjoint(1), alone=1)
    world.run.run_until(0.05)
    launched = len(world.iterations())
    world.plan([], sharing=Disjoint(3), alone=3)
    world.run.step()
    assert partitions(world, Lane.DECODE)[launched:] == [3]


# --- one lane at a time ---


def lanes(world: World) -> str:
    """The launches by lane, in order: p and d."""
    return "".join("p" if work.lane is Lane.PREFILL else "d" for work in world.run.launches)


def never_both(world: World) -> None:
    """Go to the end; at no time both lanes run."""
    while world.run.step():
        assert not (world.core.in_flight(Lane.PREFILL) and world.core.in_flight(Lane.DECODE))


def contested(first: Lane, quanta: int, iterations: int) -> World:
    """A stream and two prompts of four quanta each, one lane at a time, on the whole device."""
    world = World()
    stream = world.submit("stream", 4, max_tokens=12)
    prompts = [world.submit(f"p{i}", 8, max_tokens=1) for i in range(2)]
    world.attach()
    world.plan([[stream]])
    world.run.step()
    world.run.launches.clear()
    world.plan(
        [[prompt] for prompt in prompts],
        sharing=Exclusive(first, quanta, iterations),
        layers=1,
        decode=DecodePlan(depth=0),
    )
    never_both(world)
    assert {work.partition for work in world.run.launches} == {0}
    world.expect_right(stream, *prompts)
    return world


def test_prefill_first_lets_decode_wait_until_no_prompt_is_left():
    assert lanes(contested(Lane.PREFILL, 1, 0)).startswith("pppppppp")


def test_decode_first_lets_prompts_wait_until_no_row_is_left():
    assert lanes(contested(Lane.DECODE, 1, 0)).endswith("pppppppp")


def test_turns_follow_the_ratio_of_quanta_to_iterations():
    assert lanes(contested(Lane.PREFILL, 2, 3)).startswith("ppdddppdddppdddpp")
    assert lanes(contested(Lane.DECODE, 1, 2)).startswith("ddpddpddp")
