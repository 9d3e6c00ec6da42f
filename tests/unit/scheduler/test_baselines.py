"""The plans of static, streams and temporal are what their papers say."""

import pytest

from protocol.control_link import WHOLE, Disjoint, Exclusive, Lane, Shared
from scheduler.policies.static import Static
from scheduler.policies.streams import Streams
from scheduler.policies.temporal import Temporal
from scheduler.policy import Objectives
from scheduler.view import WorkerView
from tests.unit.scheduler.world import (
    LAYERS,
    ONE_CORE,
    TWO_CORES,
    decoding,
    quantum,
    queued,
    stepped,
    view,
)


def objectives(tbt_s: float) -> Objectives:
    return Objectives(tbt_s=tbt_s, ttft_s=1.0)


def static(**options) -> Static:
    return Static(objectives(0.05), Static.Options(**options))


def streams(**options) -> Streams:
    return Streams(objectives(0.05), Streams.Options(**options))


def temporal(tbt_s=0.05, **options) -> Temporal:
    return Temporal(objectives(tbt_s), Temporal.Options(**({"margin": 0.0} | options)))


def timed(mirror: WorkerView, *, decode_s: float, rows: int, layer_s: float) -> WorkerView:
    """Let the whole device be seen to need so much for an iteration and for a layer of 8,192."""
    mirror.apply(stepped(mirror.event + 1, WHOLE, decode_s, rows))
    whole = quantum(mirror.event + 1, WHOLE, layer_s * LAYERS, tokens=8192, layers=LAYERS)
    mirror.apply(whole)
    return mirror


# --- static ---


def test_static_keeps_its_split_whatever_the_load():
    policy = static(split=3)
    loads = [
        [],
        decoding(1),
        decoding(200, prompt=8000),
        queued(30, prompt=8000),
        [*decoding(64), *queued(9)],
    ]
    for requests in loads:
        plan = policy.plan(view(*requests), 0.0)
        assert plan.sharing == Disjoint(3)
        assert plan.alone == 3


def test_static_does_not_choose_by_what_it_measures():
    mirror = view(*decoding(64), *queued(2))
    before = static().plan(mirror, 0.0)
    for _ in range(20):
        mirror.apply(stepped(mirror.event + 1, before.sharing.partition, 9.9, 64))
    assert static().plan(mirror, 1.0).sharing == before.sharing


def test_static_runs_whole_prefills_on_its_side():
    plan = static().plan(view(*decoding(4), *queued(2, prompt=4000)), 0.0)
    assert plan.prefill.layers_per_quantum == 0
    assert [len(batch.items) for batch in plan.prefill.batches] == [2]


def test_static_without_a_choice_takes_the_split_nearest_to_half():
    assert static().plan(view(), 0.0).sharing == Disjoint(4)  # 68 and 64 SMs
    assert static().plan(view(partitions=TWO_CORES), 0.0).sharing == Disjoint(1)


def test_static_can_let_a_lonely_lane_have_everything():
    plan = static(split=2, widen=True).plan(view(*decoding(4)), 0.0)
    assert (plan.sharing, plan.alone) == (Disjoint(2), WHOLE)


def test_static_refuses_a_split_that_is_not_there_and_names_those_that_are():
    with pytest.raises(ValueError, match=r"no split 9 here; there are \[1, 2, 3, 4\]"):
        static(split=9).plan(view(), 0.0)


def test_static_takes_turns_where_nothing_can_be_split():
    plan = static(split=3).plan(view(*decoding(1), *queued(1), partitions=ONE_CORE), 0.0)
    assert plan.sharing == Exclusive(Lane.PREFILL, quanta=1, iterations=1)


# --- streams ---


def test_streams_share_the_whole_device_and_stop_at_no_layer():
    plan = streams().plan(view(*decoding(64), *queued(3, prompt=4000)), 0.0)
    assert plan.sharing == Shared()
    assert plan.alone == WHOLE
    assert plan.prefill.layers_per_quantum == 0
    assert [len(batch.items) for batch in plan.prefill.batches] == [2, 1]


@pytest.mark.parametrize("requests", [[], decoding(3), queued(3)])
def test_streams_never_partition(requests):
    assert streams().plan(view(*requests), 0.0).sharing == Shared()


def test_streams_pass_the_chunk_on():
    assert streams(token_chunk=512).plan(view(*queued(1)), 0.0).prefill.token_chunk == 512


# --- temporal ---


def test_temporal_runs_one_phase_at_a_time_on_the_whole_device():
    plan = temporal().plan(view(*decoding(8), *queued(3)), 0.0)
    assert plan.sharing == Exclusive(Lane.PREFILL, quanta=1, iterations=1)
    assert plan.alone == WHOLE


@pytest.mark.parametrize(
    ("tbt_s", "layers"),
    [(0.050, 6), (0.030, 3), (0.020, 1), (0.5, LAYERS)],
)
def test_temporal_fits_as_many_layers_as_end_before_the_next_token_is_due(tbt_s, layers):
    mirror = view(*decoding(64), *queued(1, prompt=8192))
    timed(mirror, decode_s=0.010, rows=64, layer_s=0.0065)
    assert temporal(tbt_s).plan(mirror, 0.0).prefill.layers_per_quantum == layers


def test_temporal_leaves_the_margin_unused():
    mirror = view(*decoding(64), *queued(1, prompt=8192))
    timed(mirror, decode_s=0.010, rows=64, layer_s=0.0065)
    plan = temporal(0.050, margin=0.2).plan(mirror, 0.0)
    assert plan.prefill.layers_per_quantum == 4  # 30 ms instead of 40


def test_temporal_starves_no_prompt_when_nothing_fits():
    mirror = view(*decoding(64), *queued(1, prompt=8192))
    timed(mirror, decode_s=0.060, rows=64, layer_s=0.0065)
    assert temporal(0.050).plan(mirror, 0.0).prefill.layers_per_quantum == 1
    assert temporal(0.050, min_layers=4).plan(mirror, 0.0).prefill.layers_per_quantum == 4


def test_temporal_with_nothing_to_decode_uses_the_whole_objective():
    mirror = view(*queued(1, prompt=8192))
    timed(mirror, decode_s=0.010, rows=64, layer_s=0.0065)
    assert temporal(0.050).plan(mirror, 0.0).prefill.layers_per_quantum == 7


def test_temporal_counts_only_the_chunk_that_goes_through_a_layer():
    mirror = view(*decoding(64), *queued(1, prompt=8192))
    timed(mirror, decode_s=0.010, rows=64, layer_s=0.0065)
    plan = temporal(0.050, token_chunk=2048).plan(mirror, 0.0)
    assert plan.prefill.layers_per_quantum == 24
    assert plan.prefill.token_chunk == 2048


def test_temporal_obeys_less_slack_at_once_and_ignores_a_little_more():
    policy = temporal(0.050)
    mirror = view(*decoding(64), *queued(1, prompt=8192))
    timed(mirror, decode_s=0.010, rows=64, layer_s=0.0040)
    assert policy.plan(mirror, 0.0).prefill.layers_per_quantum == 10
    for _ in range(30):
        mirror.apply(stepped(mirror.event + 1, WHOLE, 0.003, 64))
        policy.plan(mirror, 0.1)
    assert policy.plan(mirror, 0.2).prefill.layers_per_quantum == 10  # 11 would fit
    for _ in range(30):
        mirror.apply(stepped(mirror.event + 1, WHOLE, 0.018, 64))
        policy.plan(mirror, 0.3)
    assert policy.plan(mirror, 0.4).prefill.layers_per_quantum in (7, 8)
