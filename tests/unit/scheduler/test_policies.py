"""Each policy's plans on hand-written views, and what must hold for every policy on any view."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.control_link import (
    WHOLE,
    Disjoint,
    Exclusive,
    FusedChunks,
    Lane,
    RequestState,
    StartedBatch,
)
from scheduler.policies.chunked import Chunked
from scheduler.policies.drift import Drift
from scheduler.policies.muxwise import MuxWise
from scheduler.policies.prefill_first import PrefillFirst
from scheduler.policy import Objectives, check
from scheduler.view import WorkerView, to_prefill
from tests.unit.scheduler.test_baselines import static, streams, temporal
from tests.unit.scheduler.world import (
    H200,
    LAYERS,
    ONE_CORE,
    TWO_CORES,
    SmallWorker,
    decoding,
    quantum,
    queued,
    request,
    stepped,
    view,
)

OBJECTIVES = Objectives(tbt_s=0.05, ttft_s=1.0)


def chunked(**options):
    return Chunked(OBJECTIVES, Chunked.Options(**options))


def muxwise(tbt_s=0.05, **options):
    objectives = Objectives(tbt_s=tbt_s, ttft_s=1.0)
    return MuxWise(objectives, MuxWise.Options(**({"guard": 1.0} | options)))


def prefill_first(**options):
    return PrefillFirst(OBJECTIVES, PrefillFirst.Options(**options))


def drift(tbt_s=0.05, **options):
    return Drift(Objectives(tbt_s=tbt_s, ttft_s=1.0), Drift.Options(**options))


def batch_names(plan):
    return [[item.ref.request for item in batch.items] for batch in plan.prefill.batches]


def measured(mirror, seconds, rows):
    """Let each partition's decode iteration be seen to take `seconds[partition]`."""
    for partition, time in seconds.items():
        mirror.apply(stepped(mirror.event + 1, partition, time, rows))
    return mirror


MEASURED = {1: 0.041, 2: 0.0236, 3: 0.0176, 4: 0.0139}
"""Llama-3.1-8B on an H200, 64 rows, beside prefill."""


# --- chunked ---


def test_chunked_fuses_the_oldest_prompts_into_the_decode_lane():
    plan = chunked(token_budget=64).plan(view(*decoding(3), *queued(5, prompt=100)), 0.0)
    assert plan.sharing == Exclusive(Lane.DECODE)
    assert plan.decode.wanted is None
    assert [r.request for r in plan.decode.fused.requests] == ["q000", "q001", "q002"]
    assert (plan.decode.fused.token_budget, plan.decode.fused.max_chunk) == (64, 64)
    assert plan.prefill.batches == ()


def test_chunked_with_no_prompt_waiting_has_no_chunk():
    assert chunked().plan(view(*decoding(3)), 0.0).decode.fused == FusedChunks()


def test_chunked_goes_on_with_what_it_began_before_older_arrivals():
    half = request("half", RequestState.PREFILLING, computed=10, arrival=50.0)
    plan = chunked(token_budget=64).plan(view(half, *queued(1)), 0.0)
    assert [r.request for r in plan.decode.fused.requests] == ["half", "q000"]


def test_chunked_admits_by_the_pool_and_by_rows():
    mirror = view(*decoding(2, max_tokens=1), *queued(5, prompt=10), max_num_seqs=4)
    assert len(chunked().plan(mirror, 0.0).decode.fused.requests) == 2
    mirror = view(*decoding(2, max_tokens=1), *queued(5, prompt=16, max_tokens=1), pages=3)
    assert len(chunked().plan(mirror, 0.0).decode.fused.requests) == 1


def test_chunked_lets_a_batch_that_was_begun_by_layers_finish_by_layers():
    a, b = (request(n, RequestState.SUSPENDED) for n in "ab")
    mirror = view(*decoding(1), a, b, *queued(1), batches=(StartedBatch((a.ref, b.ref), 8, 32),))
    plan = chunked().plan(mirror, 0.0)
    assert plan.sharing == Exclusive(Lane.PREFILL, quanta=1, iterations=1)
    assert batch_names(plan) == [["a", "b"]]
    assert [r.request for r in plan.decode.fused.requests] == ["q000"]


# --- prefill first ---


def test_prefill_first_runs_whole_batches_before_decode_on_the_whole_device():
    plan = prefill_first(token_cap=200).plan(view(*decoding(3), *queued(3, prompt=100)), 0.0)
    assert plan.sharing == Exclusive(Lane.PREFILL, quanta=1, iterations=0)
    assert plan.alone == WHOLE
    assert batch_names(plan) == [["q000", "q001"], ["q002"]]
    assert plan.prefill.layers_per_quantum == 0


# --- muxwise ---


@pytest.mark.parametrize(
    ("objective_ms", "guard", "split"),
    [
        (50, 1.0, 1),
        (40, 1.0, 2),
        (50, 1.25, 2),
        (20, 1.0, 3),
        (14, 1.0, 4),
        (5, 1.0, 4),
    ],
)
def test_muxwise_gives_decode_the_smallest_part_that_keeps_the_objective(
    objective_ms, guard, split
):
    mirror = measured(view(*decoding(64), *queued(3)), MEASURED, 64)
    plan = muxwise(tbt_s=objective_ms / 1e3, guard=guard).plan(mirror, 0.0)
    assert plan.sharing == Disjoint(split)
    assert plan.alone == WHOLE


def test_muxwise_says_what_it_chose_predicted_and_allowed():
    mirror = measured(view(*decoding(64), *queued(3)), MEASURED, 64)
    reason = muxwise(guard=1.1).plan(mirror, 0.0).why
    assert "decode 16, prefill 116 SMs" in reason
    assert "predicted 45.1 ms" in reason
    assert "allowed 50.0 ms" in reason


def test_muxwise_obeys_the_strictest_objective_of_those_that_decode():
    strict = request("strict", RequestState.DECODING, tbt_s=0.015, output=1)
    mirror = measured(view(*decoding(63), strict, *queued(1)), MEASURED, 64)
    assert muxwise().plan(mirror, 0.0).sharing == Disjoint(4)


def test_muxwise_grows_decode_at_once_and_shrinks_it_later_and_with_margin():
    policy = muxwise(tbt_s=0.040, hold_s=1.0, margin=0.1)
    mirror = measured(view(*decoding(64), *queued(1)), {1: 0.038, 2: 0.02, 3: 0.018, 4: 0.014}, 64)
    assert policy.plan(mirror, 0.0).sharing == Disjoint(1)
    measured(mirror, {1: 0.09}, 64)
    assert policy.plan(mirror, 0.1).sharing == Disjoint(2)
    for _ in range(20):  # just below the objective, but not by the margin
        measured(mirror, {1: 0.0385, 2: 0.02}, 64)
        policy.plan(mirror, 0.2)
    assert policy.plan(mirror, 5.0).sharing == Disjoint(2)
    for _ in range(20):
        measured(mirror, {1: 0.03, 2: 0.02}, 64)
        policy.plan(mirror, 5.1)
    assert policy.plan(mirror, 5.2).sharing == Disjoint(1)


def test_muxwise_holds_a_new_split_for_a_while_before_it_shrinks():
    policy = muxwise(tbt_s=0.040, hold_s=1.0)
    mirror = measured(view(*decoding(64)), {1: 0.09, 2: 0.02}, 64)
    assert policy.plan(mirror, 10.0).sharing == Disjoint(2)
    for _ in range(20):
        measured(mirror, {1: 0.01}, 64)
        assert policy.plan(mirror, 10.5).sharing == Disjoint(2)
    assert policy.plan(mirror, 11.0).sharing == Disjoint(1)


def test_muxwise_names_what_it_did_not_choose_and_why():
    mirror = measured(view(*decoding(64), *queued(3)), MEASURED, 64)
    reason = muxwise(tbt_s=0.02, guard=1.0).plan(mirror, 0.0).why
    assert "rejected for decode: 16 (41.0 ms: too slow), 32 (23.6 ms: too slow)" in reason
    assert "64 (13.9 ms: leaves less to prefill)" in reason


def test_muxwise_with_layers_off_runs_whole_prefills():
    mirror = measured(view(*decoding(64), *queued(1, prompt=8192)), MEASURED, 64)
    assert muxwise(layer_wise=False).plan(mirror, 0.0).prefill.layers_per_quantum == 0


def test_muxwise_keeps_a_fixed_split():
    mirror = measured(view(*decoding(64), *queued(1)), MEASURED, 64)
    assert muxwise(split=3).plan(mirror, 0.0).sharing == Disjoint(3)


def test_muxwise_works_with_one_split():
    mirror = view(*decoding(8), *queued(3), partitions=TWO_CORES)
    plan = muxwise().plan(mirror, 0.0)
    assert plan.sharing == Disjoint(1)
    assert len(plan.prefill.batches) == 1


def test_muxwise_takes_turns_where_nothing_can_be_split():
    plan = muxwise().plan(view(*decoding(1), *queued(1), partitions=ONE_CORE), 0.0)
    assert plan.sharing == Exclusive(Lane.PREFILL, quanta=1, iterations=1)


def test_a_quantum_is_as_many_layers_as_fill_a_decode_iteration():
    mirror = measured(view(*decoding(64), *queued(1, prompt=8192)), MEASURED, 64)
    mirror.apply(quantum(mirror.event + 1, 1, 0.2, tokens=8192, layers=32))
    plan = muxwise().plan(mirror, 0.0)
    assert plan.sharing == Disjoint(1)
    assert plan.prefill.layers_per_quantum == 7  # ceil(0.041 * 32 / 0.2)


@pytest.mark.parametrize(("tokens", "layers"), [(1, LAYERS), (10_000_000, 2)])
def test_a_quantum_stays_within_its_bounds(tokens, layers):
    mirror = view(*decoding(4), *queued(1, prompt=tokens), pages=10**7)
    assert muxwise(min_layers=2).plan(mirror, 0.0).prefill.layers_per_quantum == layers


def test_small_changes_of_the_quantum_are_no_new_plan():
    mirror = measured(view(*decoding(64), *queued(1, prompt=8192)), MEASURED, 64)
    mirror.apply(quantum(mirror.event + 1, 1, 0.2, tokens=8192, layers=32))
    policy = muxwise()
    before = policy.plan(mirror, 0.0).prefill.layers_per_quantum
    measured(mirror, {1: 0.046}, 64)
    assert policy.plan(mirror, 0.1).prefill.layers_per_quantum == before


def test_with_nothing_to_decode_a_quantum_lasts_about_the_objective():
    mirror = view(*queued(1, prompt=8192))
    mirror.apply(quantum(1, WHOLE, 0.2, tokens=8192, layers=32))
    assert muxwise().plan(mirror, 0.0).prefill.layers_per_quantum == 8  # 0.05 of 0.2 s


# --- all of them ---

MAKERS = [chunked, drift, muxwise, prefill_first, static, streams, temporal]
TABLES = [H200, TWO_CORES, ONE_CORE]

requests = st.builds(
    lambda name, state, prompt, done, arrival: request(
        f"r{name}",
        state,
        prompt=prompt,
        computed=prompt if state is RequestState.DECODING else min(done, prompt - 1),
        output=1 if state is RequestState.DECODING else 0,
        arrival=arrival,
    ),
    st.integers(0, 10**6),
    st.sampled_from(list(RequestState)),
    st.integers(1, 5000),
    st.integers(0, 5000),
    st.floats(0, 100),
)


@pytest.mark.parametrize("make", MAKERS)
@given(
    st.lists(requests, max_size=40, unique_by=lambda r: r.ref),
    st.sampled_from(TABLES),
    st.integers(1, 64),
    st.integers(1, 5000),
)
@settings(max_examples=60, deadline=None)
def test_any_view_gets_a_valid_plan_within_its_bounds(make, found, table, rows, pages):
    mirror = view(*found, partitions=table, max_num_seqs=rows, pages=pages)
    plan = make().plan(mirror, 0.0)
    check(plan, mirror)
    prefilled = [i.ref for b in plan.prefill.batches for i in b.items]
    named = [mirror.requests[ref] for ref in (*prefilled, *plan.decode.fused.requests)]
    assert RequestState.DECODING not in {r.state for r in named}
    starts = sum(r.state is RequestState.QUEUED for r in named)
    running = len(mirror.started) + len(mirror.decoding)
    assert starts <= max(0, rows - running) or (running == 0 and starts == 1)
    if not mirror.decoding and (mirror.started or mirror.queued):
        assert named, "nothing decodes and nothing would ever be prefilled"


@pytest.mark.parametrize("make", MAKERS)
@given(st.integers(0, 2**32))
@settings(max_examples=25, deadline=None)
def test_every_plan_along_a_history_is_valid_and_keeps_started_batches_together(make, seed):
    worker = SmallWorker(random.Random(seed))
    mirror, policy = WorkerView(worker.snapshot()), make()
    for step in range(120):
        event = worker.happen()
        if event is None:
            continue
        mirror.apply(event)
        plan = policy.plan(mirror, step * 0.01)
        check(plan, mirror)
        listed = [{i.ref for i in b.items} for b in plan.prefill.batches]
        assert all(set(b.batch) in listed for b in mirror.batches)


@given(st.integers(1, 512), st.lists(st.integers(1, 3000), min_size=1, max_size=20))
@settings(deadline=None)
def test_chunked_lists_enough_for_the_next_iterations_and_no_budget_but_its_own(budget, prompts):
    waiting = [request(f"r{i:02}", prompt=p, arrival=float(i)) for i, p in enumerate(prompts)]
    mirror = view(*waiting)
    fused = chunked(token_budget=budget).plan(mirror, 0.0).decode.fused
    assert (fused.token_budget, fused.max_chunk) == (budget, budget)
    tokens = sum(to_prefill(mirror.requests[ref]) for ref in fused.requests)
    assert tokens >= 4 * budget or len(fused.requests) == len(prompts)


@given(
    st.lists(st.floats(0.001, 0.2), min_size=4, max_size=4),
    st.floats(0.002, 0.2),
    st.floats(1.0, 2.0),
)
@settings(deadline=None)
def test_decode_gets_the_smallest_part_that_keeps_the_objective_when_one_does(
    times, objective, guard
):
    mirror = measured(view(*decoding(64), *queued(1)), dict(enumerate(times, 1)), 64)
    plan = muxwise(tbt_s=objective, guard=guard).plan(mirror, 0.0)
    assert isinstance(plan.sharing, Disjoint)
    within = [index for index, time in enumerate(times, 1) if time * guard <= objective]
    if within:
        assert plan.sharing.partition == within[0]
    else:
        assert times[plan.sharing.partition - 1] == min(times)
