"""Who may overtake whom, on the predictions of a profile: 8,192 tokens take about 0.2 s."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from protocol.control_link import (
    Arrived,
    Lane,
    PoolState,
    PrefillDone,
    PrefillStarted,
    Progress,
    QuantumDone,
    RequestState,
    StartedBatch,
)
from protocol.slo import Slo
from scheduler.estimator.fitted import FittedEstimator
from scheduler.policies.drift import Drift
from scheduler.policies.muxwise import MuxWise
from scheduler.policy import Objectives
from scheduler.view import WorkerView
from tests.unit.scheduler.profiles import profile
from tests.unit.scheduler.world import LAYERS, SmallWorker, request, view, work

PROFILE = profile()
POOL = PoolState(10**6, 10**6, 0)


def muxwise(ttft_s=10.0, **options):
    objectives = Objectives(tbt_s=0.05, ttft_s=ttft_s)
    return MuxWise(objectives, MuxWise.Options(**options), estimator=FittedEstimator(PROFILE))


def drift(**options):
    objectives = Objectives(tbt_s=0.05, ttft_s=1.0)
    return Drift(objectives, Drift.Options(**options), estimator=FittedEstimator(PROFILE))


def running(name="long", prompt=30_000, arrival=0.0, layers=0, **more):
    one = request(name, RequestState.PREFILLING, prompt=prompt, arrival=arrival, **more)
    return one, StartedBatch((one.ref,), layers, LAYERS)


def world(*waiting, layers=0, **more):
    """A long prompt runs, others wait."""
    long, batch = running(layers=layers, **more)
    return view(long, *waiting, batches=(batch,), pages=10**6)


def names(plan):
    return [[item.ref.request for item in batch.items] for batch in plan.prefill.batches]


def short(name="short", prompt=200, arrival=1.0, **more):
    return request(name, prompt=prompt, arrival=arrival, **more)


@pytest.mark.parametrize("make", [muxwise, drift])
def test_a_short_prompt_overtakes_a_long_one_that_can_spare_the_time(make):
    plan = make().plan(world(short()), 1.0)
    assert names(plan) == [["short"], ["long"]]
    assert "overtake" in plan.why or "preempts" in plan.why


@pytest.mark.parametrize(("make", "late"), [(muxwise, 9.9), (drift, 29.9)])
def test_not_one_that_would_miss_its_own_objective_by_it(make, late):
    assert names(make().plan(world(short()), late)) == [["long"], ["short"]]


def test_not_when_it_is_switched_off():
    assert names(muxwise(preempt=False).plan(world(short()), 1.0)) == [["long"], ["short"]]


def test_muxwise_lets_no_longer_prompt_overtake():
    mirror = world(short(prompt=30_001))
    assert names(muxwise().plan(mirror, 1.0)) == [["long"], ["short"]]


def test_what_is_nearly_done_is_not_worth_overtaking():
    mirror = world(short(prompt=2000), prompt=8000, layers=31)
    assert names(muxwise().plan(mirror, 1.0)) == [["long"], ["short"]]


def test_short_ones_are_found_behind_a_long_one_that_waits():
    waiting = (short("other", 30_000, 0.5), short("a", arrival=1.0), short("b", arrival=2.0))
    plan = muxwise(ahead=2).plan(world(*waiting), 2.0)
    assert names(plan) == [["a", "b"], ["long"], ["other"]]


def test_nobody_overtakes_a_waiting_one_that_would_miss_its_objective_by_it():
    tight = replace(short("tight", 21_000, 0.5), slo=Slo(ttft_s=1.25))
    late = replace(tight, slo=Slo(ttft_s=0.1))
    new = short("a", 4000, arrival=1.0)
    assert names(muxwise(ahead=2).plan(world(tight, new, prompt=20_000), 0.6))[0] == ["long"]
    assert names(muxwise(ahead=2).plan(world(late, new, prompt=20_000), 0.6))[0] == ["a"], (
        "who is late already has no say"
    )


def test_a_request_of_its_own_objective_is_judged_by_it():
    own = Slo(ttft_s=1.2)
    long, batch = running()
    mirror = view(replace(long, slo=own), short(), batches=(batch,), pages=10**6)
    assert names(muxwise().plan(mirror, 0.5)) == [["long"], ["short"]]


def test_who_has_its_first_token_already_has_all_the_time():
    mirror = world(short(), output=5)
    assert names(muxwise(ttft_s=0.1).plan(mirror, 50.0)) == [["short"], ["long"]]


@pytest.mark.parametrize("make", [muxwise, drift])
def test_preemption_is_never_recursive_and_the_overtaken_goes_on(make):
    policy, mirror = make(), world(short("s1", 4000))
    assert names(policy.plan(mirror, 1.0)) == [["s1"], ["long"]]
    mirror.apply(Arrived(1, short("s2", 100, 1.1)))
    assert names(policy.plan(mirror, 1.1)) == [["s1"], ["long"], ["s2"]], "s1 waits to begin"
    first = replace(mirror.requests[short("s1").ref], state=RequestState.PREFILLING)
    park = work(Lane.PREFILL, 1, 0.01, new_tokens=30_000, layers=8)
    long = running()[0].ref
    mirror.apply(QuantumDone(2, (long,), 8, LAYERS, park, (), suspended=True))
    mirror.apply(PrefillStarted(3, Lane.PREFILL, (first,), POOL))
    assert names(policy.plan(mirror, 1.2)) == [["s1"], ["long"], ["s2"]], "s1 runs"
    mirror.apply(PrefillDone(4, (Progress(first.ref, 4000, 1),), POOL))
    plan = policy.plan(mirror, 1.3)
    assert names(plan) == [["s2"], ["long"]], "it waits alone again, and can spare that too"


def test_another_scheduler_takes_a_preemption_over_as_it_is():
    long, parked = running(layers=8)
    one, runs = running("s1", 4000, 1.0)
    parked_long = replace(long, state=RequestState.SUSPENDED)
    mirror = view(parked_long, one, short("s2", 100, 1.1), batches=(runs, parked), pages=10**6)
    assert names(muxwise().plan(mirror, 1.2)) == [["s1"], ["long"], ["s2"]]


def test_a_batch_in_the_making_takes_whoever_is_short_and_fits():
    mirror = view(
        running()[0],
        *(short(f"s{i}", 3000, 1.0 + i) for i in range(5)),
        batches=(running()[1],),
        pages=10**6,
    )
    plan = muxwise(ahead=1, token_cap=8192).plan(mirror, 6.0)
    assert names(plan)[0] == ["s0", "s1"], "up to the cap"


@pytest.mark.parametrize("make", [muxwise, drift])
@given(st.integers(0, 2**32))
@settings(max_examples=20, deadline=None)
def test_along_any_history_only_one_batch_overtakes_and_none_while_another_waits(make, seed):
    worker = SmallWorker(random.Random(seed))
    mirror, policy = WorkerView(worker.snapshot()), make()
    for step in range(100):
        if (event := worker.happen()) is None:
            continue
        mirror.apply(event)
        before = policy._book._urgent
        plan = policy.plan(mirror, step * 0.01)
        after = policy._book._urgent
        started = [set(b.batch) for b in mirror.batches]
        listed = [{item.ref for item in batch.items} for batch in plan.prefill.batches]
        places = [i for i, members in enumerate(listed) if members in started]
        if after - before:
            assert len(started) == 1, "nobody overtakes while an overtaken batch waits"
            assert not any(members <= before for members in listed), "nor one that is to overtake"
        for place, members in enumerate(listed):
            if place not in places and any(p > place for p in places):
                assert members <= after, "only the batch that overtook is before a started one"
