"""Spans of requests: the conventions' names, parts in order, the caller's trace, no text."""

import asyncio
import sys
import time
from itertools import pairwise
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from protocol.data_link import FailCode
from tokenizer_service.tracing import Tracing, TracingUnavailableError, exporting

from .conftest import Stack

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def told(stack: Stack) -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    stack.gateway.tracing = Tracing(provider, time.monotonic)
    return exporter


async def ended(stack: Stack, told: InMemorySpanExporter, kind: SpanKind) -> ReadableSpan:
    def servers() -> list[ReadableSpan]:
        return [span for span in told.get_finished_spans() if span.kind is kind]

    await stack.when(lambda: bool(servers()))
    return servers()[0]


async def answered(stack: Stack, told: InMemorySpanExporter, **fields: Any) -> ReadableSpan:
    working = asyncio.create_task(stack.worker.answer(stack.ids("abc")))
    headers = {"traceparent": PARENT}
    body = {
        "model": "tiny-model",
        "messages": [{"role": "user", "content": "my secret"}],
        "temperature": 0.5,
        "seed": 7,
        "max_tokens": 9,
    }
    async with stack.client.post(
        "/v1/chat/completions", json=body | fields, headers=headers
    ) as response:
        assert response.status == 200
        await response.read()
    await working
    return await ended(stack, told, SpanKind.SERVER)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_is_a_span_with_the_conventions_names(
    stack: Stack, told: InMemorySpanExporter, stream: bool
) -> None:
    span = await answered(stack, told, stream=stream)
    assert span.name == "chat tiny-model"
    attributes = dict(span.attributes)
    assert attributes.pop("gen_ai.response.id")
    assert attributes.pop("gen_ai.usage.input_tokens") > 0
    assert attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "tandem",
        "gen_ai.request.model": "tiny-model",
        "gen_ai.response.model": "tiny-model",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.seed": 7,
        "gen_ai.request.max_tokens": 9,
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.output_tokens": 3,
    }
    assert span.status.status_code is StatusCode.UNSET


async def test_its_parts_follow_one_another_inside_it(
    stack: Stack, told: InMemorySpanExporter
) -> None:
    span = await answered(stack, told)
    parts = [each for each in told.get_finished_spans() if each.kind is SpanKind.INTERNAL]
    assert [part.name for part in parts] == ["admission", "prefill", "decode"]
    assert all(part.parent.span_id == span.context.span_id for part in parts)
    for earlier, later in pairwise(parts):
        assert earlier.end_time == pytest.approx(later.start_time, abs=1e6)
    assert parts[-1].end_time <= span.end_time + 1e6


async def test_it_belongs_to_the_callers_trace_and_tells_no_text(
    stack: Stack, told: InMemorySpanExporter
) -> None:
    span = await answered(stack, told)
    assert f"{span.context.trace_id:032x}" in PARENT
    assert f"{span.parent.span_id:016x}" in PARENT
    assert "secret" not in "".join(each.to_json() for each in told.get_finished_spans())


async def test_a_refusal_and_a_failure_are_errors_of_their_kind(
    stack: Stack, told: InMemorySpanExporter
) -> None:
    response = await stack.complete([999])
    assert response.status == 400
    refused = await ended(stack, told, SpanKind.SERVER)
    assert refused.attributes["error.type"] == "400"
    assert refused.status.status_code is StatusCode.ERROR
    told.clear()

    async def fail() -> None:
        submit = await stack.worker.submit()
        stack.worker.tokens(submit.ref, 0, stack.ids("a"))
        stack.worker.fail(submit.ref, FailCode.INTERNAL)

    failing = asyncio.create_task(fail())
    response = await stack.complete("hi", stream=True)
    await response.read()
    await failing
    failed = await ended(stack, told, SpanKind.SERVER)
    assert failed.attributes["error.type"] == "incomplete"


def test_without_opentelemetry_the_flag_says_what_to_install(monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(TracingUnavailableError, match=r"tandem-serve\[otel\]"):
        exporting("http://127.0.0.1:1", time.monotonic)
