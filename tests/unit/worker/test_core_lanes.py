"""Queue to prefill to decode, by every way of sharing the device: what is launched, and when."""

import pytest

from protocol.control_link import (
    DecodePlan,
    Disjoint,
    Exclusive,
    FusedChunks,
    Lane,
    Shared,
)
from tests.unit.worker.world import World

SHARINGS = [
    Disjoint(1),
    Shared(),
    Exclusive(Lane.PREFILL, 1, 1),
    Exclusive(Lane.PREFILL),
    Exclusive(Lane.DECODE),
    Exclusive(Lane.DECODE, 2, 3),
]


@pytest.mark.parametrize("sharing", SHARINGS, ids=str)
@pytest.mark.parametrize("depth", [0, 1, 3])
def test_streams_are_right_however_the_lanes_share_the_device(sharing, depth):
    world = World()
    refs = [world.submit(f"r{i}", 3 + 9 * i, max_tokens=5 + i) for i in range(6)]
    world.attach()
    fused = FusedChunks((refs[5],), 16, 8)
    world.plan(
        [refs[:2], refs[2:5]],
        sharing=sharing,
        decode=DecodePlan(depth=depth, fused=fused),
        layers=1,
        chunk=24,
    )
    world.run.run_idle()
    world.expect_right(*refs)
    world.expect_empty()
