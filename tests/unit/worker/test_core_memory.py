"""Pool pressure, prefix reuse and device errors, as the whole core handles them."""

from typing import Any

import pytest

from protocol.control_link import DecodePlan, Exclusive, FusedChunks, Lane, RequestState
from protocol.data_link import Abort, FailCode, Failed
from protocol.ids import RequestRef
from protocol.prefix import page_hashes
from tests.unit.worker.world import ROOT, World, device
from worker.core.config import CoreConfig
from worker.core.events import Completed, Tick
from worker.executors.base import Completion, DecodeBatch, PrefillQuantum

# --- pool full ---


def crowd(world: World, **plan: Any) -> list[RequestRef]:
    """Three requests in a pool that holds their prompts and not their outputs."""
    refs = [world.submit(f"r{i}", 12, max_tokens=24) for i in range(3)]
    world.attach()
    world.plan([[ref] for ref in refs], **plan)
    return refs


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_a_full_pool_retracts_the_newest_and_every_stream_is_still_right(depth):
    world = World(device(num_pages=12, page_size=4))
    refs = crowd(world, decode=DecodePlan(depth=depth))
    while not world.core.retractions:
        assert world.run.step()
    assert world.state(refs[2]) is RequestState.QUEUED
    assert world.state(refs[0]) is RequestState.DECODING
    world.run.run_idle()
    world.expect_right(*refs)
    world.expect_empty()


def test_the_plans_victims_go_first_but_never_the_oldest():
    world = World(device(num_pages=12, page_size=4))
    refs = crowd(world, victims=(RequestRef("r0", 0), RequestRef("r1", 0)))
    while not world.core.retractions:
        assert world.run.step()
    assert world.state(refs[1]) is RequestState.QUEUED
    assert world.state(refs[0]) is RequestState.DECODING
    world.run.run_idle()
    world.expect_right(*refs)


def test_a_retracted_request_prefills_its_output_too_and_goes_on_with_the_next_index():
    world = World(device(num_pages=12, page_size=4))
    refs = crowd(world)
    while not world.core.retractions:
        world.run.step()
    view = next(r for r in world.core.snapshot(0.0).requests if r.ref == refs[2])
    assert view.prompt_tokens == 12 + view.output_tokens
    assert view.output_tokens > 0
    before = len(world.quanta())
    world.run.run_idle()
    outputs = [len(init.output) for quantum in world.quanta()[before:] for init in quantum.inits]
    assert view.output_tokens in outputs
    world.expect_right(*refs)


def test_pages_behind_a_fence_are_waited_for_before_anybody_else_is_retracted():
    world = World(device(num_pages=12, page_size=4))
    refs = crowd(world, decode=DecodePlan(depth=4))
    while not world.core.retractions:
        world.run.step()
    behind = world.core.in_flight(Lane.DECODE)
    assert behind > 1
    for _ in range(behind):
        assert world.core.retractions == 1
        world.run.step()
    assert world.state(refs[0]) is RequestState.DECODING
    world.run.run_idle()
    world.expect_right(*refs)


@pytest.mark.parametrize("sharing", [None, Exclusive(Lane.PREFILL, 1, 1)])
def test_with_a_pool_for_one_fifty_requests_finish_one_after_the_other(sharing):
    world = World(device(num_pages=5, page_size=4))
    refs = [world.submit(f"r{i}", 12, max_tokens=8) for i in range(50)]
    world.attach()
    world.plan([refs[:20], *([ref] for ref in refs[20:])], sharing=sharing)
    world.run.run_idle()
    world.expect_right(*refs)
    world.expect_empty()


@pytest.mark.parametrize("tokens", [3, 4, 5, 7, 8, 9])
@pytest.mark.parametrize("output", [1, 2, 4, 5])
def test_page_borders_lose_no_token(tokens, output):
    world = World(device(num_pages=4, page_size=4))
    ref = world.submit("r", tokens, max_tokens=output)
    world.attach()
    world.plan([[ref]])
    world.run.run_idle()
    world.expect_right(ref)
    world.expect_empty()


def test_nothing_new_starts_past_a_prompt_that_does_not_fit():
    world = World(device(num_pages=10, page_size=4))
    running = world.submit("running", 16, max_tokens=12)
    large, small = world.submit("large", 24), world.submit("small", 4)
    world.attach()
    world.plan([[running], [large], [small]])
    world.run.step()
    world.run.step()
    assert world.state(small) is RequestState.QUEUED
    world.run.run_idle()
    first = [quantum.rows[0].token_ids for quantum in world.quanta()]
    assert [len(tokens) for tokens in first[:3]] == [16, 24, 4]
    world.expect_right(running, large, small)


def test_started_requests_that_block_the_oldest_make_room_when_nothing_runs():
    world = World(device(num_pages=8, page_size=4))
    old, new = world.submit("old", 24), world.submit("new", 24)
    world.attach()
    world.plan([[new]], decode=DecodePlan(wanted=()))
    world.run.run_idle()
    assert world.state(new) is RequestState.DECODING, "paused, with its pages"
    world.plan([[old], [new]], decode=DecodePlan(wanted=(old,)))
    world.run.run_idle()
    world.expect_right(old)


# --- prefix cache ---


def test_a_full_hit_still_computes_the_last_token():
    world = World()
    first = world.submit("a", range(1, 17), max_tokens=2)
    world.attach()
    world.plan([[first]])
    world.run.run_idle()
    second = world.submit("b", range(1, 17), max_tokens=2)
    world.plan([[second]])
    world.run.run_idle()
    assert [(q.rows[0].start, len(q.rows[0].token_ids)) for q in world.quanta()] == [
        (0, 16),
        (12, 4),
    ]
    assert world.sent(second).terminal.usage.cached_tokens == 12
    world.expect_right(first, second)


def test_generated_tokens_are_found_by_the_next_turn_of_a_conversation():
    world = World()
    first = world.submit("a", range(1, 9), max_tokens=9)
    world.attach()
    world.plan([[first]])
    world.run.run_idle()
    longer = [*range(1, 9), *world.sent(first).tokens, 77, 78]
    second = world.submit("b", longer)
    world.plan([[second]])
    world.run.run_idle()
    assert world.quanta()[-1].rows[0].start == 16
    world.expect_right(first, second)


def test_gateways_hashes_and_the_workers_are_one_chain():
    world = World()
    prompt = list(range(1, 19))
    hashes = b"".join(page_hashes(ROOT, prompt, 4))
    first = world.submit("a", prompt, extra={"page_hashes": hashes})
    world.attach()
    world.plan([[first]])
    world.run.run_idle()
    second = world.submit("b", prompt)  # hashed by the worker
    world.plan([[second]])
    world.run.run_idle()
    assert world.quanta()[-1].rows[0].start == 16
    world.expect_right(first, second)


def test_no_page_is_shared_across_roots_nor_without_one():
    world = World()
    roots: list[dict[str, bytes]] = [{}, {"root_hash": b"t" * 32}, {"root_hash": b""}]
    world.attach()
    refs = []
    for number, extra in enumerate(roots):
        refs.append(world.submit(f"r{number}", range(1, 18), extra=extra))
        world.plan([refs[-1:]])
        world.run.run_idle()
    assert [quantum.rows[0].start for quantum in world.quanta()] == [0, 0, 0]
    world.expect_right(*refs)


def test_sharers_outlive_the_owner_of_a_prefix():
    world = World()
    prefix = list(range(1, 17))
    owner = world.submit("owner", [*prefix, 50], max_tokens=60)
    world.attach()
    world.plan([[owner]])
    world.run.run_until(0.05)
    sharer = world.submit("sharer", [*prefix, 60], max_tokens=20)
    world.plan([[sharer]])
    world.run.step()
    world.run.gateway(Abort(owner))
    others = [world.submit(f"o{i}", 30) for i in range(6)]
    world.plan([others])
    world.run.run_idle()
    world.expect_right(sharer, *others)
    world.expect_empty()


def test_eviction_under_pressure_takes_only_idle_pages_and_hits_go_on():
    world = World(device(num_pages=24, page_size=4))
    world.attach()
    refs = []
    for number in range(200):
        prefix = list(range(1, 13)) if number % 2 else list(range(100, 112))
        refs.append(world.submit(f"r{number}", [*prefix, 200 + number], max_tokens=6))
    world.plan([[ref] for ref in refs])
    world.run.run_idle()
    world.expect_right(*refs)
    hits = sum(world.sent(ref).terminal.usage.cached_tokens > 0 for ref in refs)
    assert hits > 150
    world.expect_empty()


# --- errors ---


def test_a_failed_launch_fails_its_requests_alone():
    failing = {"tickets": {2}}

    def fault(work: DecodeBatch | PrefillQuantum) -> str | None:
        return "bad page" if work.ticket in failing["tickets"] else None

    world = World(fault=fault)
    poison, good = world.submit("poison"), world.submit("good")
    world.attach()
    world.plan([[good]])  # ticket 1
    world.plan([[good], [poison]])  # ticket 2
    world.run.run_idle()
    assert world.sent(poison).terminal.code is FailCode.INTERNAL
    assert "ticket 2" in world.sent(poison).terminal.message
    assert "bad page" not in world.sent(poison).terminal.message, "the device's words stay here"
    world.expect_right(good)
    world.expect_empty()


def test_errors_in_a_row_are_fatal_and_single_ones_are_not():
    for every, fatal in ((1, True), (2, False)):
        world = World(
            config=CoreConfig(max_launch_errors=3),
            fault=lambda work, every=every: "broken" if work.ticket % every == 0 else None,
        )
        world.attach()
        for number in range(8):
            ref = world.submit(f"r{number}", max_tokens=1)
            world.plan([[ref]])
            world.run.run_idle()
        assert (world.run.fatal is not None) is fatal
        if fatal:
            assert "limit 3; the last: broken" in world.run.fatal
            assert len(world.run.launches) == 3, "a dead core launches nothing"


def test_missing_tokens_are_an_error_of_the_launch():
    world = World()
    ref = world.submit("r")
    world.attach()
    world.plan([[ref]])
    world.core.on(Completed(Completion(1, Lane.PREFILL, 0.0, 0.1, 16)), 0.1)
    assert world.core.load().running == 0


def test_a_completion_that_nothing_explains_is_fatal():
    world = World()
    world.run.feed(Completed(Completion(7, Lane.DECODE, 0.0, 0.1, 16)))
    assert "completed ticket 7, the oldest is none" in world.run.fatal


def wait(world: World, seconds: float, step: float) -> None:
    """Ticks, and no completion."""
    for _ in range(int(seconds / step)):
        world.run.now += step
        world.run.feed(Tick())


def test_a_wedged_lane_is_fatal_and_a_worker_that_stood_still_itself_is_not():
    world = World(config=CoreConfig(ticket_deadline_s=10.0))
    ref = world.submit("r")
    world.attach()
    world.plan([[ref]])
    wait(world, 9.0, 0.5)
    wait(world, 600.0, 600.0)  # stopped, and continued
    assert world.run.fatal is None
    wait(world, 3.0, 0.5)
    assert "limit 10.0 s" in world.run.fatal


def test_fused_chunks_of_a_request_that_fails_leave_nothing():
    world = World(fault=lambda work: "broken" if work.ticket == 2 else None)
    ref = world.submit("r", 30)
    world.attach()
    world.plan([], decode=DecodePlan(depth=2, fused=FusedChunks((ref,), 8, 8)))
    world.run.run_idle()
    assert isinstance(world.sent(ref).terminal, Failed)
    world.expect_empty()


def test_a_broken_device_holds_no_pages_of_a_started_batch():
    """Its first quantum fails and is the last that may: the batch is parked and nobody wants it."""
    world = World(
        device(),
        CoreConfig(max_launch_errors=1),
        fault=lambda work: "broken",
    )
    ref = world.submit("r0", 12)
    world.attach()
    world.plan([[ref]], layers=1)
    world.run.run_idle()
    assert world.core.dead
    assert world.core.idle
    assert world.core.referenced_pages == 0
