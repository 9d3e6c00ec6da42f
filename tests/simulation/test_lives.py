"""A1 and A2: whatever happens to whom, clients get the right tokens once, and all comes to rest."""

import pytest

from tests.simulation.faults import KINDS
from tests.simulation.run import live, shrink, story
from tests.simulation.setting import draw
from tests.simulation.world import World

SEEDS = 1000
GROUPS = 20


@pytest.mark.parametrize("group", range(GROUPS))
def test_a1_every_call_ends_once_with_the_right_tokens_and_nothing_is_left(group):
    for seed in range(group, SEEDS, GROUPS):
        outcome = live(draw(seed))
        if outcome.error:
            pytest.fail(story(outcome))


@pytest.mark.parametrize("seed", range(0, SEEDS, 40))
def test_a2_the_same_seed_is_the_same_life_frame_by_frame(seed):
    assert live(draw(seed)).trace == live(draw(seed)).trace


def test_a2_another_seed_is_another_life():
    assert len({live(draw(seed)).trace for seed in range(10)}) == 10


def test_the_seeds_know_every_kind_of_fault_and_serve_most_calls():
    kinds, ends = set(), {"Done": 0, "Broken": 0}
    for seed in range(60):
        setting = draw(seed)
        kinds |= {fault.kind for fault in setting.faults}
        world = World(setting)
        world.live()
        for call in world.history.calls:
            if call.end is not None:
                ends[type(call.end).__name__] += 1
    assert kinds == set(KINDS)
    assert ends["Done"] > 5 * ends["Broken"] > 0


def test_a_failing_life_shrinks_to_what_it_needs(monkeypatch):
    """A worker that cannot be started again after its death fails with that one fault alone."""
    monkeypatch.setattr(World, "start_worker", _only_once(World.start_worker))
    seed = next(s for s in range(1000) if _deadly(draw(s)) and len(draw(s).faults) > 3)
    least = shrink(draw(seed))
    assert [fault.kind for fault in least.faults] == ["crash_worker"]
    assert least.calls == ()
    text = story(live(draw(seed)))
    assert f"--seeds {seed}:{seed + 1}" in text
    assert "not at rest" in text


def _deadly(setting):
    return any(fault.kind == "crash_worker" for fault in setting.faults) and not any(
        fault.kind in ("drain", "device_error", "stuck_device") for fault in setting.faults
    )


def _only_once(start):
    def started(world):
        if not world.history.boots:
            start(world)

    return started
