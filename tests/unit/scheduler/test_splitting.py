"""Best fit, hysteresis and quanta, and policies on predictions from a profile."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.control_link import Disjoint, Partition
from scheduler.estimator.fitted import FittedEstimator
from scheduler.estimator.loads import DecodeLoad, PrefillLoad
from scheduler.policies.drift import GROUPS, Drift, groups
from scheduler.policies.muxwise import MuxWise
from scheduler.policy import Objectives
from scheduler.splitting import Splitter, smallest
from tests.unit.scheduler.profiles import SLOWDOWN, decode_law, profile
from tests.unit.scheduler.world import H200, TWO_CORES, decoding, queued, request, view

SPLITS = H200[1:]
PROFILE = profile()


def test_of_equally_slow_parts_the_largest_is_the_best_effort():
    assert smallest(SPLITS, dict.fromkeys(range(1, 5), 1.0), 0.5) == H200[4]


times = st.lists(st.floats(0.001, 0.2), min_size=4, max_size=4)


@given(st.lists(st.tuples(times, st.floats(0.002, 0.2), st.floats(0, 2)), min_size=1, max_size=20))
@settings(deadline=None)
def test_whatever_came_before_no_split_misses_the_objective_while_one_keeps_it(history):
    splitter, now = Splitter(margin=0.1, hold_s=0.5), 0.0
    for seconds, allowed, later in history:
        now += later
        worst = dict(enumerate(seconds, 1))
        choice = splitter.choose(SPLITS, worst, allowed, now)
        if min(seconds) <= allowed:
            assert worst[choice.split.index] <= allowed
        else:
            assert worst[choice.split.index] == min(seconds)


def test_a_load_at_the_border_does_not_make_the_split_flap():
    splitter = Splitter(margin=0.1, hold_s=0.5)
    chosen = [
        splitter.choose(
            SPLITS, {1: 0.0505 if i % 2 else 0.0495, 2: 0.03, 3: 0.02, 4: 0.01}, 0.05, i
        ).split.index
        for i in range(20)
    ]
    assert chosen == [1] + [2] * 19


def test_the_choice_says_what_is_held():
    splitter = Splitter(margin=0.1, hold_s=0.5)
    splitter.choose(SPLITS, {1: 0.06, 2: 0.03, 3: 0.02, 4: 0.01}, 0.05, 0.0)
    choice = splitter.choose(SPLITS, {1: 0.04, 2: 0.03, 3: 0.02, 4: 0.01}, 0.05, 0.1)
    assert "rejected for decode: 16 (40.0 ms: held), 48/64" in choice.explain(SPLITS, "SM")


# --- DRIFT's groups ---


@pytest.mark.parametrize(
    ("count", "units"),
    [(3, [32]), (4, [32, 48]), (5, [16, 32, 48])],
)
def test_groups_are_the_splits_nearest_to_the_papers_shares(count, units):
    found = groups(SPLITS, 132, GROUPS[count])
    assert [p.decode_units for p in found] == units


def test_on_the_papers_device_they_are_the_papers_groups():
    table = tuple(Partition(i, 108 - 4 * i, 4 * i) for i in range(1, 20))
    assert [p.decode_units for p in groups(table, 108, GROUPS[3])] == [28]
    assert [p.decode_units for p in groups(table, 108, GROUPS[4])] == [24, 36]
    assert [p.decode_units for p in groups(table, 108, GROUPS[5])] == [24, 28, 36]


def test_where_there_are_too_few_splits_all_are_groups():
    assert groups(TWO_CORES[1:], 2, GROUPS[5]) == TWO_CORES[1:]


# --- policies on a profile ---


def muxwise(tbt_s):
    objectives = Objectives(tbt_s=tbt_s, ttft_s=1.0)
    return MuxWise(objectives, MuxWise.Options(), estimator=FittedEstimator(PROFILE))


def drift(tbt_s, **options):
    objectives = Objectives(tbt_s=tbt_s, ttft_s=1.0)
    return Drift(objectives, Drift.Options(**options), estimator=FittedEstimator(PROFILE))


@given(st.floats(0.002, 0.1), st.integers(1, 256), st.integers(1, 8000), st.integers(1, 30_000))
@settings(deadline=None, max_examples=60)
def test_muxwise_keeps_the_objective_in_the_worst_case_whenever_a_split_does(
    tbt_s, rows, context, prompt
):
    mirror = view(*decoding(rows, prompt=context), *queued(1, prompt=prompt), pages=10**7)
    plan = muxwise(tbt_s).plan(mirror, 0.0)
    assert isinstance(plan.sharing, Disjoint)
    estimator, load = FittedEstimator(PROFILE), DecodeLoad(rows, rows * context)
    beside = PrefillLoad.of_prompts([(prompt, 0)])
    worst = estimator.worst_decode_s(mirror, load, beside, 0.0)
    keeping = [index for index, seconds in worst.items() if seconds <= tbt_s]
    assert plan.sharing.partition == (keeping[0] if keeping else SPLITS[-1].index)


def test_drift_plans_without_the_guard_where_muxwise_plans_with_it():
    mirror = view(*decoding(64, prompt=2048), *queued(1))
    solo = decode_law(32, 64, 64 * 2048)
    between = solo * (1 + SLOWDOWN) / 2
    assert drift(between).plan(mirror, 0.0).sharing == Disjoint(2)
    assert muxwise(between).plan(mirror, 0.0).sharing == Disjoint(3)


def test_drift_without_an_objective_gives_decode_the_least():
    mirror = view(*decoding(64, prompt=2048), *queued(1))
    assert drift(0.001).plan(mirror, 0.0).sharing == Disjoint(3)
    lifted = drift(0.001, tbt=False, groups=5)
    assert lifted.plan(mirror, 0.0).sharing == Disjoint(1)
    assert lifted.plan(view(*queued(1, prompt=8192)), 1.0).prefill.layers_per_quantum == 32


def test_drift_obeys_a_requests_own_objective_even_without_one_of_the_service():
    strict = request("s", prompt=2048, tbt_s=0.01, state="decoding", output=1)
    mirror = view(*decoding(63, prompt=2048), strict, *queued(1))
    assert drift(0.05, tbt=False).plan(mirror, 0.0).sharing == Disjoint(3)


def test_drift_in_one_block_is_the_ablation():
    mirror = view(*decoding(4), *queued(1, prompt=8192))
    assert drift(0.05).plan(mirror, 0.0).prefill.layers_per_quantum in range(1, 32)
    assert drift(0.05, block_wise=False).plan(mirror, 0.0).prefill.layers_per_quantum == 0
