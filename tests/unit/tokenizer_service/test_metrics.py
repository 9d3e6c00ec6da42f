"""What Prometheus reads is what clients saw and what the worker reported."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from protocol.activity import Activity, LaneActivity, PlanInForce, Sharing
from protocol.data_link import FailCode, FinishReason, Load, Status, Usage
from protocol.slo import RequestObjectives
from tokenizer_service.events import Admitted, Broken, Done, NewTokens
from tokenizer_service.metrics import LATENCY_S, Compat, Metrics

from .conftest import MakeStack, Stack

PROMISED = RequestObjectives(tbt_s=0.001, ttft_s=0.1, ttft_per_token_s=0.1)

Samples = dict[tuple[str, frozenset[str]], float]
"""(name, values of the labels) → value"""


def samples(text: bytes) -> Samples:
    return {
        (sample.name, frozenset(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def measured(compat: Compat) -> Samples:
    metrics = Metrics("m", [], compat)
    meter = metrics.meter(10.0, PROMISED, prompt_tokens=7)
    meter.on(Admitted(3), 10.1)
    meter.on(NewTokens((1,)), 10.5)
    meter.on(NewTokens((2, 3)), 10.502)
    meter.on(Done(FinishReason.STOP, Usage(7, 4, 3)), 11.0)
    metrics.meter(10.0, PROMISED, 7).on(Broken(FailCode.OVERLOADED, "full"), 10.0)
    return samples(metrics.text())


@pytest.mark.parametrize("prefix", ["tandem_", "vllm:"])
def test_latencies_and_tokens_are_counted_under_each_prefix(prefix: str) -> None:
    read = measured(Compat.VLLM)

    def value(name: str, *labels: str) -> float:
        return read[prefix + name, frozenset({"m", "0", *labels})]

    assert value("time_to_first_token_seconds_sum") == pytest.approx(0.5)
    assert value("inter_token_latency_seconds_sum") == pytest.approx(0.002)
    assert value("inter_token_latency_seconds_bucket", "0.001") == 0
    assert value("inter_token_latency_seconds_bucket", "0.0025") == 1
    assert value("e2e_request_latency_seconds_sum") == pytest.approx(1.0)
    assert value("request_time_per_output_token_seconds_sum") == pytest.approx(0.5 / 3)
    assert value("prefix_cache_queries_total") == 7
    assert value("prefix_cache_hits_total") == 3
    assert value("prompt_tokens_total") == 7
    assert value("prompt_tokens_cached_total") == 3
    assert value("generation_tokens_total") == 3
    assert value("request_generation_tokens_sum") == 4
    assert value("request_success_total", "stop") == 1
    assert read["tandem_request_failure_total", frozenset({"overloaded"})] == 1


@pytest.mark.parametrize(("per_token_s", "met"), [(0.1, "true"), (0.09, "false")])
def test_a_first_token_is_measured_against_what_the_prompts_new_tokens_allow(
    per_token_s: float, met: str
) -> None:
    metrics = Metrics("m", [], Compat.NONE)
    promised = RequestObjectives(tbt_s=0.1, ttft_s=0.1, ttft_per_token_s=per_token_s)
    meter = metrics.meter(10.0, promised, prompt_tokens=7)
    meter.on(Admitted(3), 10.1)
    meter.on(NewTokens((1,)), 10.4999)
    read = samples(metrics.text())
    assert read["tandem_slo_attainment_total", frozenset({"ttft", met})] == 1
    assert metrics.objectives.recent.ttft.summary(10.5).within == (met == "true")


def test_gaps_are_counted_by_whether_they_kept_the_objective() -> None:
    metrics = Metrics("m", [], Compat.NONE)
    meter = metrics.meter(0.0, RequestObjectives(tbt_s=0.05, ttft_s=9.0, ttft_per_token_s=0), 1)
    for at in (1.0, 1.04, 1.2, 1.24):
        meter.on(NewTokens((1,)), at)
    read = samples(metrics.text())
    assert read["tandem_slo_attainment_total", frozenset({"tbt", "true"})] == 2
    assert read["tandem_slo_attainment_total", frozenset({"tbt", "false"})] == 1


def test_nobody_elses_names_are_there_unasked() -> None:
    assert not [name for name, _ in measured(Compat.NONE) if name.startswith("vllm")]


def test_buckets_begin_at_a_millisecond_and_rise() -> None:
    assert LATENCY_S[0] == 0.001
    assert list(LATENCY_S) == sorted(set(LATENCY_S))


async def read(stack: Stack) -> Samples:
    response = await stack.client.get("/metrics")
    assert response.status == 200
    assert response.headers["Content-Type"].startswith("text/plain; version=")
    return samples(await response.read())


async def test_queue_and_pool_are_the_workers(make_stack: MakeStack) -> None:
    stack = await make_stack(metrics_compat=Compat.VLLM)
    stack.worker.load = Load(scheduler="s", queued=2, running=3, pages_total=8, pages_referenced=2)
    stack.worker.report()
    await stack.when(lambda: stack.link.worker.load.queued == 2)
    told = await read(stack)
    for prefix in ("tandem_", "vllm:"):
        labels = frozenset({"tiny-model", "0"})
        assert told[f"{prefix}num_requests_running", labels] == 3
        assert told[f"{prefix}num_requests_waiting", labels] == 2
        assert told[f"{prefix}kv_cache_usage_perc", labels] == 0.25


async def test_answers_are_counted_by_route_not_by_what_clients_write(stack: Stack) -> None:
    for path in ("/v1/models/tiny-model", "/v1/models/gpt-9", "/nowhere", "/elsewhere"):
        await stack.client.get(path)
    told = await read(stack)
    assert told["tandem_http_responses_total", frozenset({"/v1/models/{model}", "200"})] == 1
    assert told["tandem_http_responses_total", frozenset({"/v1/models/{model}", "404"})] == 1
    assert told["tandem_http_responses_total", frozenset({"other", "404"})] == 2


async def test_lanes_split_and_preemptions_are_the_workers(make_stack: MakeStack) -> None:
    stack = await make_stack(metrics_compat=Compat.VLLM)
    plan = PlanInForce(seq=9, sharing=Sharing.DISJOINT, prefill_units=12, decode_units=4)
    activity = Activity(
        unit="SM",
        units=16,
        plan=plan,
        prefill=LaneActivity(busy_s=1.5, tokens=100, launches=3),
        decode=LaneActivity(busy_s=2.5, tokens=50, launches=40),
        both_s=1.25,
        retractions=2,
    )
    stack.worker.send(Status(stack.worker.credits, stack.worker.load, activity))
    await stack.when(lambda: stack.link.worker.activity is not None)
    told = await read(stack)

    def value(name: str, *labels: str) -> float:
        return told[name, frozenset({"tiny-model", "0", *labels})]

    assert value("tandem_partition_units", "prefill") == 12
    assert value("tandem_lane_busy_seconds_total", "decode") == 2.5
    assert value("tandem_lane_tokens_total", "prefill") == 100
    assert value("tandem_lane_launches_total", "decode") == 40
    assert value("tandem_lanes_both_busy_seconds_total") == 1.25
    assert value("tandem_plan_seq") == 9
    assert value("tandem_num_preemptions_total") == value("vllm:num_preemptions_total") == 2
