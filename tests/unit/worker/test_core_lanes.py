"""Queue to prefill to decode, by every way of sharing the device: what is launched, and when."""

import pytest

from protocol.control_link import (
    DecodePlan,
    Disjoint,
    Exclusive,
    FusedChunks,
    Lane,
    Plan,
    PrefillBatch,
    PrefillItem,
    PrefillPlan,
    RequestState,
    Shared,
)
from protocol.data_link import Abort
from tests.unit.worker.world import World, device

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


# --- depth, quanta, chunks ---


@pytest.mark.parametrize("depth", [0, 1, 4])
def test_at_most_depth_plus_one_iterations_are_in_flight_the_running_one_counted(depth):
    world = World()
    ref = world.submit("r", 4, max_tokens=20)
    world.attach()
    world.plan([[ref]], decode=DecodePlan(depth=depth))
    most = 0
    while world.run.step():
        most = max(most, world.core.in_flight(Lane.DECODE))
    assert most == depth + 1
    world.expect_right(ref)


def test_a_request_never_draws_more_than_its_limit_whatever_the_depth():
    world = World()
    ref = world.submit("r", 4, max_tokens=6)
    world.attach()
    world.plan([[ref]], decode=DecodePlan(depth=10))
    world.run.run_idle()
    assert len(world.iterations()) == 5


def test_what_overran_an_end_of_sequence_is_discarded_and_never_cached():
    stop = World(device(page_size=1, num_pages=128))
    plain = stop.submit("plain", [1, 2], max_tokens=8)
    stop.attach()
    stop.plan([[plain]])
    stop.run.run_idle()
    drawn = stop.sent(plain).tokens
    world = World(device(page_size=1, num_pages=128))
    ref = world.submit("r", [1, 2], max_tokens=8, stop_token_ids=(drawn[3],))
    world.attach()
    world.plan([[ref]], decode=DecodePlan(depth=3))
    world.run.run_idle()
    world.expect_right(ref)
    assert len(world.iterations()) > 3, "some ran over"
    assert world.core.load().pages_cached == 2 + 3, "prompt and the output that was fed"


def test_at_most_two_quanta_are_in_flight_and_layers_go_in_order():
    world = World()
    ref = world.submit("r", 30)
    world.attach()
    world.plan([[ref]], layers=1)
    assert world.core.in_flight(Lane.PREFILL) == 2
    world.run.run_idle()
    assert [(q.layer_start, q.layer_end) for q in world.quanta()] == [
        (0, 1),
        (1, 2),
        (2, 3),
        (3, 4),
    ]
    assert len({q.batch for q in world.quanta()}) == 1
    assert len({q.rows for q in world.quanta()}) == 1
    world.expect_right(ref)


def test_a_token_chunk_goes_through_all_layers_before_the_next_and_fills_up_in_order():
    world = World()
    refs = [world.submit("a", 10), world.submit("b", 5)]
    world.attach()
    world.plan([refs], chunk=6)
    world.run.run_idle()
    rows = [[(row.start, len(row.token_ids), row.sample) for row in q.rows] for q in world.quanta()]
    assert rows == [[(0, 6, False)], [(6, 4, True), (0, 2, False)], [(2, 3, True)]]
    world.expect_right(*refs)


def test_no_plan_exceeds_what_the_device_takes_at_once():
    world = World(device(max_prefill_tokens=7))
    refs = [world.submit("a", 10), world.submit("b", 5)]
    world.attach()
    world.plan([refs], chunk=100)
    world.run.run_idle()
    assert max(sum(len(r.token_ids) for r in q.rows) for q in world.quanta()) == 7
    world.expect_right(*refs)


def test_upto_stops_a_prefill_and_a_later_batch_goes_on():
    world = World()
    ref = world.submit("r", 20)
    world.attach()
    prefill = PrefillPlan((PrefillBatch((PrefillItem(ref, 8),)),))
    world.run.scheduler(Plan(epoch=world.epoch, seq=1, sharing=Disjoint(2), prefill=prefill))
    world.run.run_idle()
    assert world.state(ref) is RequestState.SUSPENDED
    assert world.core.snapshot(0.0).requests[0].computed == 8
    world.seq = 1
    world.plan([[ref]])
    world.run.run_idle()
    world.expect_right(ref)


def test_the_next_batch_follows_a_finished_one_without_a_round_trip():
    world = World()
    refs = [world.submit(f"r{i}", 8) for i in range(3)]
    world.attach()
    world.plan([[ref] for ref in refs])
    world.run.run_idle()
    assert len(world.quanta()) == 3
    world.expect_right(*refs)


def test_a_first_token_is_sent_at_once_and_the_request_decodes_in_the_next_iteration():
    world = World()
    ref = world.submit("r", 8)
    world.attach()
    world.plan([[ref]])
    world.run.step()
    assert len(world.sent(ref).tokens) == 1
    assert world.iterations()[0].positions == (8,)


def test_not_wanted_requests_pause_and_keep_their_pages():
    world = World()
    refs = [world.submit(f"r{i}", 8, max_tokens=20) for i in range(2)]
    world.attach()
    world.plan([refs])
    world.run.run_until(0.05)
    world.plan([], decode=DecodePlan(wanted=refs[:1]))
    paused = world.core.snapshot(0.0).requests[1]
    world.run.run_idle()
    world.expect_right(refs[0])
    assert world.state(refs[1]) is RequestState.DECODING
    [left] = world.core.snapshot(0.0).requests
    assert left.output_tokens <= paused.output_tokens + 2, "what was in flight, and no more"
    assert world.core.referenced_pages > 0
    world.plan([])
    world.run.run_idle()
    world.expect_right(*refs)
    assert world.core.retractions == 0


# --- suspension ---


def test_a_started_batch_that_is_not_the_head_parks_at_its_boundary_and_resumes_where_it_was():
    world = World()
    long, short = world.submit("long", 40), world.submit("short", 4)
    world.attach()
    world.plan([[long]], layers=1)
    world.plan([[short], [long]], layers=1)
    world.run.run_idle()
    order = [(q.rows[0].start, len(q.rows[0].token_ids), q.layer_start) for q in world.quanta()]
    assert order == [
        (0, 40, 0),
        (0, 40, 1),
        *[(0, 4, layer) for layer in range(4)],
        (0, 40, 2),
        (0, 40, 3),
    ]
    world.expect_right(long, short)
    world.expect_empty()


def test_a_started_batch_is_continued_even_if_the_plan_shows_it_in_other_company():
    world = World()
    first, second = world.submit("first", 12), world.submit("second", 12)
    world.attach()
    world.plan([[first]], layers=1)
    world.plan([[second, first]], layers=2)
    world.run.run_idle()
    assert [len(q.rows) for q in world.quanta()] == [1, 1, 1, 1, 1]
    world.expect_right(first, second)


def test_a_batch_whose_requests_are_all_gone_is_discarded():
    world = World()
    refs = [world.submit(f"r{i}", 12) for i in range(2)]
    world.attach()
    world.plan([refs], layers=1)
    for ref in refs:
        world.run.gateway(Abort(ref))
    world.run.run_idle()
    assert len(world.quanta()) == 2, "what was launched, and no more"
    world.expect_empty()


def test_who_leaves_a_running_batch_goes_on_as_a_dead_row_and_keeps_its_pages_until_the_end():
    world = World()
    dead, alive, other = (world.submit(name, 12) for name in ("dead", "alive", "other"))
    world.attach()
    world.plan([[dead, alive]], layers=1)
    world.plan([[other], [dead, alive]], layers=1)
    world.run.step()
    world.run.step()
    world.run.step()  # parked, nothing of it in flight
    before = world.core.referenced_pages
    world.run.gateway(Abort(dead))
    assert world.core.referenced_pages == before
    world.run.run_idle()
    rows = {len(q.rows) for q in world.quanta() if q.batch == world.quanta()[0].batch}
    assert rows == {2}
    world.expect_right(alive, other)
    world.expect_empty()


# --- fused chunks ---


def test_chunks_take_what_the_rows_leave_of_the_budget():
    world = World()
    row, prompt = world.submit("row", 4, max_tokens=30), world.submit("prompt", 40)
    world.attach()
    world.plan([[row]])
    world.run.step()
    before = len(world.iterations())
    fused = FusedChunks((prompt,), token_budget=9, max_chunk=20)
    sharing = Exclusive(Lane.DECODE)
    world.plan([], sharing=sharing, decode=DecodePlan(depth=0, fused=fused))
    world.run.run_idle()
    mixed = [work for work in world.iterations()[before:] if work.chunks]
    assert [len(work.chunks[0].token_ids) for work in mixed] == [8] * 5
    assert all(len(work.slots) == 1 for work in mixed)
    assert world.quanta()[1:] == []
    world.expect_right(row, prompt)


def test_one_iteration_takes_chunks_of_several_prompts_in_order():
    world = World()
    refs = [world.submit("a", 6), world.submit("b", 6)]
    world.attach()
    fused = FusedChunks(tuple(refs), token_budget=8, max_chunk=8)
    world.plan([], sharing=Exclusive(Lane.DECODE), decode=DecodePlan(depth=0, fused=fused))
    world.run.run_idle()
    sizes = [[len(chunk.token_ids) for chunk in work.chunks] for work in world.iterations()]
    assert sizes[:2] == [[6, 2], [4]]
    assert world.iterations()[1].slots == (world.iterations()[0].chunks[0].slot,)
    world.expect_right(*refs)


@pytest.mark.parametrize("budget", [(0, 8), (8, 0)])
def test_a_budget_or_a_chunk_of_zero_fuses_nothing(budget):
    world = World()
    ref = world.submit("r")
    world.attach()
    world.plan([], decode=DecodePlan(fused=FusedChunks((ref,), *budget)))
    assert world.run.launches == []


def test_a_prompt_may_go_on_in_the_other_lane_once_it_has_landed():
    world = World()
    ref = world.submit("r", 40)
    world.attach()
    fused = FusedChunks((ref,), token_budget=4, max_chunk=4)
    world.plan([], decode=DecodePlan(depth=1, fused=fused))
    world.run.step()
    world.plan([[ref]], chunk=8)
    world.run.step()
    world.run.step()
    world.plan([], decode=DecodePlan(depth=1, fused=fused))
    world.run.run_idle()
    world.expect_right(ref)
    assert world.quanta()
    assert len(world.iterations()) > 9


def test_rows_and_the_chunks_beside_them_stay_within_what_the_device_reserved():
    world = World(device(max_prefill_tokens=7))
    running = [world.submit(f"r{i}", 4, max_tokens=40) for i in range(3)]
    rider = world.submit("rider", 50, max_tokens=4)
    world.attach()
    fused = FusedChunks((rider,), 100, 100)
    world.plan([[ref] for ref in running], decode=DecodePlan(fused=fused))
    world.run.run_idle()
    sizes = [
        len(batch.slots) + sum(len(row.token_ids) for row in batch.chunks)
        for batch in world.iterations()
    ]
    assert max(sizes) == 7
    world.expect_right(*running, rider)
