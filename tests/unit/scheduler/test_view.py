import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.control_link import (
    Arrived,
    Lane,
    Left,
    PlanRejected,
    PoolState,
    PrefillDone,
    PrefillStarted,
    Progress,
    QuantumDone,
    RequestState,
    Retracted,
    StartedBatch,
    StepDone,
)
from protocol.ids import RequestRef
from scheduler.ordered import age_order
from scheduler.requests import context_tokens
from scheduler.view import RECENT_WORKS, Fold, WorkerView, to_prefill
from tests.unit.scheduler.world import (
    H200,
    LAYERS,
    SmallWorker,
    decoding,
    queued,
    request,
    snapshot,
    stepped,
    view,
    work,
)

DECODING = RequestState.DECODING
POOL = PoolState(100_000, 99_000, 7)


@given(st.integers(0, 2**32), st.integers(1, 150), st.data())
@settings(max_examples=120, deadline=None)
def test_a_snapshot_and_the_events_after_it_equal_a_later_snapshot(seed, length, data):
    worker = SmallWorker(random.Random(seed))
    history = [(worker.snapshot(), None)]
    for _ in range(length):
        if (event := worker.happen()) is not None:
            history.append((worker.snapshot(), event))
    start = data.draw(st.integers(0, len(history) - 1))
    mirror = WorkerView(history[start][0])
    for later, event in history[start + 1 :]:
        assert mirror.apply(event) is Fold.DONE
        fresh = WorkerView(later)
        assert mirror.facts() == fresh.facts()
        for name in ("queued", "started", "decoding"):
            kept = getattr(mirror, name)
            assert kept == getattr(fresh, name)
            assert list(kept) == sorted(kept, key=age_order)
        assert mirror.decode_tbt == fresh.decode_tbt
        assert (
            mirror.decode_context
            == fresh.decode_context
            == sum(context_tokens(r) for r in mirror.requests.values() if r.state is DECODING)
        )


@given(st.integers(0, 2**32))
@settings(max_examples=30, deadline=None)
def test_events_that_a_snapshot_contains_change_nothing(seed):
    worker = SmallWorker(random.Random(seed))
    events = [event for _ in range(60) if (event := worker.happen()) is not None]
    mirror = WorkerView(worker.snapshot())
    before = mirror.facts()
    assert {mirror.apply(event) for event in events} <= {Fold.OLD}
    assert mirror.facts() == before


def test_a_gap_is_said_and_changes_nothing():
    mirror = view(event=4)
    before = mirror.facts()
    assert mirror.apply(Arrived(6, request("a"))) is Fold.GAP
    assert mirror.facts() == before
    assert mirror.apply(Arrived(5, request("a"))) is Fold.DONE
    assert mirror.event == 5


def test_a_request_goes_through_its_states_by_events_alone():
    mirror = view()
    a = request("a", prompt=100)
    running = request("a", RequestState.PREFILLING, prompt=100, cached=32, computed=32)
    mirror.apply(Arrived(1, a))
    assert mirror.queued == [a]
    mirror.apply(PrefillStarted(2, Lane.PREFILL, (running,), POOL))
    assert mirror.started == [running]
    assert mirror.pool == POOL
    assert mirror.batches == (StartedBatch((a.ref,), 0, LAYERS),)
    step = work(Lane.PREFILL, 2, 0.01, new_tokens=68, layers=8)
    mirror.apply(QuantumDone(3, (a.ref,), 8, LAYERS, step, (), suspended=True))
    assert mirror.requests[a.ref].state is RequestState.SUSPENDED
    assert mirror.batches[0].layers_done == 8
    assert mirror.last_work[Lane.PREFILL, 2] == step
    mirror.apply(PrefillDone(4, (Progress(a.ref, 100, 1),), POOL))
    assert mirror.batches == ()
    assert [r.output_tokens for r in mirror.decoding] == [1]
    mirror.apply(StepDone(5, work(Lane.DECODE, 2, 0.02), (Progress(a.ref, 101, 2),), POOL))
    assert mirror.decoding[0].computed == 101
    back = request("a", prompt=102)
    mirror.apply(Retracted(6, back, POOL))
    assert mirror.queued == [back]
    mirror.apply(Left(7, a.ref, "stop", POOL))
    assert mirror.requests == {}


def test_a_chunk_that_rides_along_counts_without_a_batch():
    mirror = view(request("a", prompt=100))
    running = request("a", RequestState.PREFILLING, prompt=100)
    mirror.apply(PrefillStarted(1, Lane.DECODE, (running,), POOL))
    done = work(Lane.DECODE, 0, 0.02, new_tokens=40)
    mirror.apply(StepDone(2, done, (Progress(running.ref, 40, 0),), POOL))
    assert mirror.batches == ()
    assert [to_prefill(r) for r in mirror.started] == [60]


def test_a_batch_member_that_goes_on_as_chunks_leaves_its_batch():
    a, b = (request(n, RequestState.SUSPENDED) for n in "ab")
    mirror = view(a, b, batches=(StartedBatch((a.ref, b.ref), 8, LAYERS),))
    mirror.apply(PrefillStarted(1, Lane.DECODE, (a,), POOL))
    assert mirror.batches == (StartedBatch((b.ref,), 8, LAYERS),)


def test_the_running_batch_is_first_and_a_resumed_one_keeps_its_layers():
    a, b = (request(n, RequestState.PREFILLING) for n in "ab")
    mirror = view(a, b, batches=(StartedBatch((a.ref,), 8, LAYERS),))
    mirror.apply(PrefillStarted(1, Lane.PREFILL, (b,), POOL))
    assert [batch.batch for batch in mirror.batches] == [(b.ref,), (a.ref,)]
    mirror.apply(PrefillStarted(2, Lane.PREFILL, (a,), POOL))
    assert mirror.batches[0] == StartedBatch((a.ref,), 8, LAYERS)


def test_the_end_of_a_chunk_begins_the_next_one_at_layer_0():
    a = request("a", RequestState.PREFILLING, prompt=1000)
    mirror = view(a, batches=(StartedBatch((a.ref,), 24, LAYERS),))
    end = work(Lane.PREFILL, 1, 0.01, new_tokens=512, layers=8)
    mirror.apply(QuantumDone(1, (a.ref,), LAYERS, LAYERS, end, (Progress(a.ref, 512, 0),)))
    assert mirror.batches == (StartedBatch((a.ref,), 0, LAYERS),)
    assert mirror.requests[a.ref].computed == 512


def test_order_is_by_priority_then_age():
    late, early = request("a", arrival=2.0), request("b", arrival=1.0)
    urgent = request("c", arrival=3.0, priority=-1)
    assert view(late, early, urgent).queued == [urgent, early, late]


def test_splits_are_the_disjoint_partitions_fewest_decode_units_first():
    assert view(partitions=H200[::-1]).splits == H200[1:]


@pytest.mark.parametrize(
    ("state", "computed", "left"),
    [
        (RequestState.QUEUED, 0, 36),
        (RequestState.SUSPENDED, 0, 100),
        (RequestState.PREFILLING, 80, 20),
        (RequestState.DECODING, 130, 0),
    ],
)
def test_tokens_to_prefill_count_cache_hits_only_as_far_as_they_are_known(state, computed, left):
    assert to_prefill(request("a", state, prompt=100, computed=computed, cached=64)) == left


def test_context_is_all_that_was_written():
    assert context_tokens(request("a", RequestState.DECODING, prompt=100, computed=130)) == 130


def test_measurements_outlive_a_resync_but_not_a_boot():
    mirror = view(*decoding(2), *queued(1))
    for number in range(1, RECENT_WORKS + 10):
        mirror.apply(stepped(number, 1, 0.01, 2))
    assert len(mirror.recent) == RECENT_WORKS
    mirror.restore(snapshot(event=500))
    assert len(mirror.recent) == RECENT_WORKS
    assert mirror.requests == {}
    mirror.restore(snapshot(boot="another"))
    assert not mirror.recent
    assert not mirror.last_work


def test_news_about_requests_that_have_gone_are_ignored():
    mirror = view()
    ghost = RequestRef("ghost")
    mirror.apply(StepDone(1, work(Lane.DECODE, 1, 0.01), (Progress(ghost, 5, 5),), POOL))
    mirror.apply(PrefillDone(2, (Progress(ghost, 5, 5),), POOL))
    mirror.apply(Left(3, ghost, "stop", POOL))
    quantum = QuantumDone(4, (ghost,), 1, 2, work(Lane.PREFILL, 1, 0.1, new_tokens=1), ())
    assert mirror.apply(quantum) is Fold.DONE
    assert mirror.apply(PlanRejected(5, 1, "no")) is Fold.DONE
    assert mirror.requests == {}
    assert mirror.batches == ()
