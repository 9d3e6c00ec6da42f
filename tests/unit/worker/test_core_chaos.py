"""Random lives of a worker: every stream is right, every request ends once, nothing is left.

Invariants are checked after every event by `World`, contents of pages at every read by the
simulated executor.
"""

import pytest

from tests.unit.worker.chaos import Chaos

SEEDS = 300
GROUPS = 10


@pytest.mark.parametrize("group", range(GROUPS))
def test_every_stream_is_right_and_ends_once_whatever_happens(group):
    for seed in range(group, SEEDS, GROUPS):
        try:
            Chaos(seed).live()
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


def test_a_life_is_a_pure_function_of_its_seed():
    first, second = Chaos(11), Chaos(11)
    first.live()
    second.live()
    assert first.trace() == second.trace()
    assert len(first.world.run.launches) > 20
