"""The data link: what a gateway says, what it is answered, and what becomes of the request."""

from typing import Any

import pytest

from protocol import PROTOCOL_VERSION
from protocol.control_link import RequestState
from protocol.data_link import (
    Abort,
    Accepted,
    Credits,
    Delivered,
    FailCode,
    Failed,
    FinishReason,
    Hello,
    Refused,
    Resync,
    Submit,
    Tokens,
    Welcome,
)
from protocol.ids import RequestRef, pack_tokens, unpack_tokens
from protocol.sampling import LogitBias, Sampling
from protocol.slo import Deadlines
from tests.unit.worker.world import BOOT, ROOT, World, answers, device, prompt_of, served
from worker.core.config import CoreConfig
from worker.core.events import Drain, PeerDown, Tick

GATEWAY = b"gw-1"


def a_submit(**changes: Any) -> Submit:
    """A small request."""
    fields: dict[str, Any] = {
        "ref": RequestRef("r", 0),
        "model": "m",
        "token_ids": pack_tokens([1, 2, 3]),
        "sampling": Sampling(max_tokens=4, seed=1, ignore_eos=True),
    }
    return Submit(**(fields | changes))


# --- hello ---


def test_a_hello_is_welcomed_with_boot_models_limits_and_credits():
    world = World(config=CoreConfig(max_queued_requests=5, max_queued_tokens=100))
    [welcome] = answers(world.run.gateway(Hello("g", PROTOCOL_VERSION)))
    assert isinstance(welcome, Welcome)
    assert welcome.boot == BOOT
    assert [model.name for model in welcome.models] == ["m"]
    assert welcome.models[0].page_size == 4
    assert welcome.credits == Credits(5, 100)


def test_a_gateway_of_another_version_is_refused_and_its_submits_fail():
    world = World()
    [refused] = answers(world.run.gateway(Hello("g", PROTOCOL_VERSION + 1), b"old"))
    assert refused.version == PROTOCOL_VERSION
    assert isinstance(refused, Refused)
    [failed] = answers(world.run.gateway(a_submit(), b"old"))
    assert failed.code is FailCode.INVALID
    assert world.state(RequestRef("r", 0)) is None


# --- submits that are refused ---

REFUSALS = {
    "unknown model": (FailCode.UNKNOWN_MODEL, "'x'", {"model": "x"}),
    "empty prompt": (FailCode.INVALID, "0 tokens", {"token_ids": b""}),
    "cut int32": (FailCode.INVALID, "5 bytes", {"token_ids": b"12345"}),
    "token beyond the vocabulary": (
        FailCode.INVALID,
        "1000",
        {"token_ids": pack_tokens([999, 1000])},
    ),
    "negative token": (FailCode.INVALID, "-1", {"token_ids": pack_tokens([-1])}),
    "stop id beyond the vocabulary": (
        FailCode.INVALID,
        "4000",
        {"sampling": Sampling(max_tokens=1, seed=0, stop_token_ids=(4000,))},
    ),
    "bias beyond the vocabulary": (
        FailCode.INVALID,
        "5000",
        {"sampling": Sampling(max_tokens=1, seed=0, logit_bias=(LogitBias(5000, 1.0),))},
    ),
    "wrong number of hashes": (FailCode.INVALID, "64 bytes, 0", {"page_hashes": b"h" * 64}),
    "cut root": (FailCode.INVALID, "3 bytes, 32", {"root_hash": b"abc"}),
    "as long as the context": (
        FailCode.TOO_LONG,
        "128 tokens, the context is 128",
        {"token_ids": pack_tokens([1] * 128)},
    ),
}


@pytest.mark.parametrize(("code", "says", "changes"), REFUSALS.values(), ids=REFUSALS)
def test_a_submit_that_can_never_work_fails_and_says_why(code, says, changes):
    world = World()
    [failed] = answers(world.run.gateway(a_submit(**changes)))
    assert failed == Failed(RequestRef("r", 0), code, failed.message)
    assert says in failed.message
    assert world.core.idle


def test_a_request_that_the_whole_pool_cannot_hold_fails_at_once_and_others_flow():
    world = World(device(num_pages=4, page_size=4))
    fits = world.submit("fits", 10, max_tokens=7)  # 10 + 7 - 1 = 16 positions: all of the pool
    over = world.submit("over", 10, max_tokens=8)
    assert world.sent(over).terminal.code is FailCode.TOO_LONG
    assert "need 5 pages, the pool has 4" in world.sent(over).terminal.message
    world.attach()
    world.plan([[fits]])
    world.run.run_idle()
    world.expect_right(fits)
    world.expect_empty()


def test_a_full_queue_refuses_by_requests_and_by_tokens_and_credits_say_so():
    world = World(config=CoreConfig(max_queued_requests=2, max_queued_tokens=20))
    world.submit("a", 10)
    tokens = world.submit("b", 11)
    assert world.sent(tokens).terminal.code is FailCode.OVERLOADED
    assert "10 tokens more (limit 20), this has 11" in world.sent(tokens).terminal.message
    world.submit("c", 4)
    full = world.submit("d", 1)
    assert "limit 2 requests" in world.sent(full).terminal.message
    assert world.client().statuses[-1].credits == Credits(0, 6)


def test_what_comes_again_is_taken_by_a_full_queue():
    """After a crash a worker gets at once all that its predecessor ran and held in its queue."""
    world = World(config=CoreConfig(max_queued_requests=2, max_queued_tokens=20))
    refs = [world.submit(f"r{i}", 6, incarnation=1) for i in range(5)]
    assert all(world.sent(ref).accepted for ref in refs)
    assert world.client().statuses[-1].credits == Credits(0, 0)
    new = world.submit("new", 1)
    assert world.sent(new).terminal.code is FailCode.OVERLOADED


# --- acceptance and idempotence ---


def test_a_request_is_accepted_and_waits_while_no_plan_names_it():
    world = World()
    ref = world.submit("r")
    assert answers(world.run.gateway(Hello("g", PROTOCOL_VERSION)))  # still there
    assert world.sent(ref).accepted
    assert world.state(ref) is RequestState.QUEUED
    assert world.run.launches == []


def test_accepted_says_how_much_of_the_prompt_is_cached_now():
    world = World()
    first = served(world, "r1", prompt=range(1, 18))
    world.run.run_idle()
    world.expect_right(first)
    effects = world.run.gateway(
        a_submit(ref=RequestRef("r2", 0), token_ids=pack_tokens(range(1, 18)), root_hash=ROOT)
    )
    assert Accepted(RequestRef("r2", 0), 16) in answers(effects)


def test_the_same_submit_twice_is_one_request_and_what_was_missed_is_said_again():
    world = World()
    ref = served(world)
    client = world.client()
    again = client.again(ref)
    missed = Submit(
        ref=ref,
        model="m",
        token_ids=again.token_ids,
        sampling=again.sampling,
        output_so_far=b"",
    )
    accepted, tokens = answers(world.run.gateway(missed))
    assert isinstance(accepted, Accepted)
    assert unpack_tokens(tokens.runs[0].ids) == client.requests[ref].tokens
    world.run.run_idle()
    world.expect_right(ref)
    accepted, tokens, finished = answers(world.run.gateway(missed))
    assert finished == world.terminal[ref]
    world.expect_empty()


def test_a_higher_incarnation_replaces_a_lower_one_and_never_the_other_way_round():
    world = World()
    old = served(world)
    new = world.submit("r", prompt_of("r", 8), incarnation=1)
    assert world.sent(old).terminal.code is FailCode.ABORTED
    assert "incarnation 1" in world.sent(old).terminal.message
    stale = world.run.gateway(world.sent(old).submit)
    assert answers(stale)[0].code is FailCode.ABORTED
    world.plan([[new]])
    world.run.run_idle()
    world.expect_right(new)
    world.expect_empty()


def test_a_resubmit_after_a_crash_goes_on_after_the_output_so_far():
    before = World()
    ref = served(before)
    client = before.client()
    before.run.step()
    seen = list(client.requests[ref].tokens)
    assert 0 < len(seen) < 8
    after = World()
    after.client().requests[ref] = client.requests[ref]
    after.run.gateway(client.again(ref))
    after.attach()
    after.plan([[ref]])
    after.run.run_idle()
    after.expect_right(ref)
    first = next(m for m in after.run.data[GATEWAY] if isinstance(m, Tokens))
    assert first.runs[0].first == len(seen)


def test_a_resubmit_whose_output_is_complete_finishes_without_the_device():
    world = World()
    effects = world.run.gateway(a_submit(output_so_far=pack_tokens([5, 6, 7, 8])))
    accepted, finished = answers(effects)
    assert isinstance(accepted, Accepted)
    assert finished.reason is FinishReason.LENGTH
    assert finished.usage.output_tokens == 4
    assert world.run.launches == []


# --- resync and silence ---


def test_a_resync_says_again_what_was_lost_and_aborts_what_is_not_named():
    world = World()
    kept, gone = world.submit("kept", max_tokens=30), world.submit("gone", max_tokens=30)
    world.attach()
    world.plan([[kept, gone]])
    client = world.client()
    client.deaf = True
    world.run.run_until(0.1)
    assert world.sent(kept).tokens == []
    del client.requests[gone]
    world.run.gateway(client.resync())
    assert len(world.sent(kept).tokens) > 3
    assert world.terminal[gone].code is FailCode.ABORTED
    client.requests[gone] = client.requests[kept]
    world.run.run_idle()
    world.expect_right(kept)
    world.expect_empty()


def test_a_resync_gets_the_last_tokens_and_the_end_of_a_request_that_ended_unheard():
    world = World()
    ref = world.submit("r")
    world.attach()
    world.plan([[ref]])
    world.client().deaf = True
    world.run.run_idle()
    assert world.core.idle
    world.run.gateway(world.client().resync())
    world.expect_right(ref)


def test_a_resync_of_the_unknown_is_answered_so_that_the_gateway_submits_it_again():
    world = World()
    ref = RequestRef("lost", 0)
    [failed] = answers(world.run.gateway(Resync((Delivered(ref, 3),))))
    assert failed.code is FailCode.UNKNOWN_REQUEST
    assert answers(world.run.gateway(a_submit(ref=ref)))[0] == Accepted(ref, 0)


def test_the_memory_of_terminal_requests_is_bounded():
    world = World(config=CoreConfig(ended_requests=2))
    refs = [world.submit(f"r{i}") for i in range(3)]
    for ref in refs:
        world.run.gateway(Abort(ref))
    named = Resync(tuple(Delivered(ref, 0) for ref in refs))
    world.client().requests.clear()
    codes = [m.code for m in answers(world.run.gateway(named)) if isinstance(m, Failed)]
    assert codes == [FailCode.UNKNOWN_REQUEST, FailCode.ABORTED, FailCode.ABORTED]


def test_a_gateway_that_comes_back_within_the_grace_keeps_its_requests():
    world = World()
    ref = world.submit("r")
    world.run.feed(PeerDown("data", GATEWAY))
    world.run.run_until(4.9)
    world.run.feed(Tick())
    world.run.gateway(world.client().resync())
    world.run.run_until(20.0)
    world.run.feed(Tick())
    assert world.state(ref) is RequestState.QUEUED


def test_a_gateway_that_stays_away_loses_its_requests_after_the_grace():
    world = World()
    ref = served(world, max_tokens=100)
    world.run.feed(PeerDown("data", GATEWAY))
    world.run.run_until(world.run.now + 0.1)
    assert world.state(ref) is RequestState.DECODING
    world.run.now += 5.1
    world.run.feed(Tick())
    assert world.terminal[ref].code is FailCode.ABORTED
    world.run.run_idle()
    world.expect_empty()


# --- deadlines, status, drain ---


@pytest.mark.parametrize(
    ("deadlines", "what"),
    [
        (Deadlines(queue_s=1.0), "queue"),
        (Deadlines(ttft_s=1.0), "ttft"),
        (Deadlines(total_s=1.0), "total"),
    ],
)
def test_a_deadline_from_arrival_ends_a_request_that_waits(deadlines, what):
    world = World()
    ref = world.submit("r", extra={"deadlines": deadlines, "age_s": 0.5})
    world.run.run_until(0.4)
    world.run.feed(Tick())
    assert world.state(ref) is RequestState.QUEUED
    world.run.run_until(0.6)
    world.run.feed(Tick())
    assert world.terminal[ref].code is FailCode.DEADLINE
    assert f"{what} deadline of 1 s" in world.terminal[ref].message


def test_a_met_deadline_is_none_and_the_total_one_ends_a_stream():
    world = World()
    limits = Deadlines(queue_s=0.01, ttft_s=0.5, total_s=0.6)
    ref = served(world, max_tokens=118, extra={"deadlines": limits})
    world.run.run_until(0.55)
    assert world.state(ref) is RequestState.DECODING
    world.run.run_until(0.7)
    assert "total" in world.terminal[ref].message
    assert len(world.sent(ref).tokens) > 10
    world.run.run_idle()
    world.expect_empty()


def test_every_tick_sends_status_with_load():
    world = World()
    ref = served(world, max_tokens=50)
    world.run.feed(Tick())
    load = world.client().statuses[-1].load
    assert (load.queued, load.running, load.scheduler) == (0, 1, "test")
    assert load.pages_referenced == len(prompt_of("r", 8)) // 4 + 1
    before = load.iterations
    world.run.run_until(world.run.now + 0.05)
    world.run.feed(Tick())
    assert world.client().statuses[-1].load.iterations > before
    assert world.state(ref) is RequestState.DECODING


def test_a_draining_worker_takes_nothing_new_and_finishes_what_it_has():
    world = World()
    ref = served(world)
    world.run.feed(Drain())
    assert world.client().statuses[-1].load.draining
    late = world.submit("late")
    assert world.sent(late).terminal.code is FailCode.SHUTDOWN
    world.run.run_idle()
    world.expect_right(ref)
    assert world.core.idle


def test_a_final_drain_ends_all_with_shutdown():
    world = World()
    ref = served(world, max_tokens=100)
    waiting = world.submit("waiting")
    world.run.feed(Drain(final=True))
    assert {world.terminal[r].code for r in (ref, waiting)} == {FailCode.SHUTDOWN}
    world.run.run_idle()
    world.expect_empty()
