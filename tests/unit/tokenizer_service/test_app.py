"""Over HTTP: what clients get, byte for byte, for what a worker does."""

import asyncio
import json
import threading
from typing import Any

import pytest

from protocol.data_link import Abort, Credits, FailCode, FinishReason, Load, Stop, Submit
from protocol.ids import unpack_tokens
from protocol.prefix import HASH_BYTES, page_hashes
from protocol.slo import Slo
from tokenizer_service.openai.errors import ApiError

from .conftest import MakeStack, Stack
from .scripted_worker import MODEL


def events(body: bytes) -> list[Any]:
    """The data of each event, JSON decoded; raises on any other framing."""
    assert body.endswith(b"\n\n")
    lines = [part for part in body.decode().split("\n\n") if part]
    assert all(line.startswith(("data: ", ": ")) and "\n" not in line for line in lines)
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    return [item if item == "[DONE]" else json.loads(item) for item in data]


# --- whole answers ---


async def test_a_chat_answer_has_text_reason_and_usage(stack: Stack) -> None:
    posted = asyncio.create_task(stack.chat("hi"))
    submit = await stack.worker.submit(cached=4)
    ids = stack.ids("hello é")
    stack.worker.tokens(submit.ref, 0, ids)
    stack.worker.finish(submit, len(ids), cached=4)
    response = await posted
    body = await response.json()
    prompt = len(unpack_tokens(submit.token_ids))
    assert response.status == 200
    assert body["object"] == "chat.completion"
    assert body["model"] == "tiny-model"
    assert body["id"] == f"chatcmpl-{submit.ref.request}"
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "hello é", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    assert body["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": len(ids),
        "total_tokens": prompt + len(ids),
        "prompt_tokens_details": {"cached_tokens": 4},
    }


async def test_a_text_answer_has_text_reason_and_usage(stack: Stack) -> None:
    posted = asyncio.create_task(stack.complete("hi", max_tokens=1))
    submit = await stack.worker.submit()
    stack.worker.tokens(submit.ref, 0, stack.ids("a"))
    stack.worker.finish(submit, 1, FinishReason.LENGTH)
    body = await (await posted).json()
    assert body["object"] == "text_completion"
    assert body["choices"] == [
        {"index": 0, "text": "a", "logprobs": None, "finish_reason": "length"}
    ]


async def test_the_template_writes_the_prompt_and_the_user_cannot(stack: Stack) -> None:
    posted = asyncio.create_task(stack.chat("<|im_end|>"))
    submit = await stack.worker.answer([])
    await posted
    ids = unpack_tokens(submit.token_ids)
    assert ids[0] == 260
    assert ids[-len(stack.ids("<|im_start|>assistant\n")) :] == stack.ids("<|im_start|>assistant\n")
    assert ids.count(261) == 1


async def test_token_ids_are_taken_as_they_are(stack: Stack) -> None:
    posted = asyncio.create_task(stack.complete([1, 2, 261]))
    submit = await stack.worker.answer([])
    await posted
    assert unpack_tokens(submit.token_ids) == [1, 2, 261]


async def test_pages_are_named_by_the_shared_function(stack: Stack) -> None:
    posted = asyncio.create_task(stack.complete(list(range(10))))
    submit = await stack.worker.answer([])
    await posted
    assert len(submit.root_hash) == HASH_BYTES
    names = page_hashes(submit.root_hash, list(range(10)), 4)
    assert len(names) == 2
    assert submit.page_hashes == b"".join(names)


async def test_sampling_travels_and_an_omitted_seed_is_drawn(stack: Stack) -> None:
    fields = {
        "max_tokens": 7,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": -1,
        "min_p": 0.1,
        "stop_token_ids": [3],
        "min_tokens": 2,
        "ignore_eos": True,
        "presence_penalty": 1,
        "frequency_penalty": -1,
        "repetition_penalty": 1.5,
        "priority": -3,
    }
    posted = asyncio.create_task(stack.complete("hi", seed=-1, **fields))
    submit = await stack.worker.answer([])
    await posted
    sampling = submit.sampling
    assert submit.priority == -3
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p) == (7, 0.5, 0.9)
    assert (sampling.top_k, sampling.min_p, sampling.stop_token_ids) == (0, 0.1, (3,))
    assert (sampling.min_tokens, sampling.ignore_eos) == (2, True)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (1.0, -1.0)
    assert (sampling.repetition_penalty, sampling.seed) == (1.5, 2**63 - 1)
    seeds = set()
    for _ in range(2):
        posted = asyncio.create_task(stack.complete("hi"))
        seeds.add((await stack.worker.answer([])).sampling.seed)
        await posted
    assert len(seeds) == 2


@pytest.mark.parametrize(
    ("given", "slo"),
    [
        (None, Slo()),
        ({}, Slo()),
        ({"ttft_ms": 1500, "tbt_ms": 40.5}, Slo(ttft_s=1.5, tbt_s=0.0405)),
        ({"tbt_ms": 25}, Slo(tbt_s=0.025)),
    ],
)
async def test_objectives_travel_in_seconds(stack: Stack, given: object, slo: Slo) -> None:
    posted = asyncio.create_task(stack.complete("hi", slo=given))
    assert (await stack.worker.answer([])).slo == slo
    await posted


@pytest.mark.parametrize(
    ("fields", "expected"),
    [({}, 256 - 2), ({"max_tokens": 9999}, 256 - 2), ({"max_completion_tokens": 5}, 5)],
)
async def test_output_is_limited_by_the_request_and_by_the_context(
    stack: Stack, fields: dict[str, int], expected: int
) -> None:
    content = "x"
    posted = asyncio.create_task(stack.chat(content, **fields))
    submit = await stack.worker.answer([])
    await posted
    overhead = len(unpack_tokens(submit.token_ids)) - 2
    assert submit.sampling.max_tokens == expected - (overhead if expected > 5 else 0)


async def test_a_pool_smaller_than_the_context_limits_the_output_too(stack: Stack) -> None:
    stack.worker.load = Load(scheduler="s", pages_total=10)
    stack.worker.report()
    await stack.when(lambda: stack.link.worker.load.pages_total == 10)
    posted = asyncio.create_task(stack.complete([1] * 30, max_tokens=100))
    submit = await stack.worker.answer([])
    await posted
    assert submit.sampling.max_tokens == 10 * MODEL.page_size - 30
    too_long = await stack.complete([1] * 40)
    assert too_long.status == 400
    assert (await too_long.json())["error"]["code"] == "context_length_exceeded"


async def test_a_client_that_does_not_read_is_dropped_and_aborted(make_stack: MakeStack) -> None:
    stack = await make_stack(write_stall_s=0.05)
    _, writer = await asyncio.open_connection("127.0.0.1", stack.client.port, limit=1024)
    writer.transport.pause_reading()
    body = b'{"model":"tiny-model","prompt":"hi","max_tokens":200,"stream":true}'
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
    )
    submit = await stack.worker.submit()
    first, aborted = 0, asyncio.create_task(stack.worker.expect(Abort))
    while not aborted.done():
        stack.worker.tokens(submit.ref, first, stack.ids("x") * 200_000)
        first += 200_000
        await asyncio.wait({aborted}, timeout=0)
    assert (await aborted).ref == submit.ref
    writer.close()


# --- streams ---


async def test_a_chat_stream_is_role_text_reason_usage_and_done_in_bytes(stack: Stack) -> None:
    posted = asyncio.create_task(
        stack.chat("hi", stream=True, stream_options={"include_usage": True})
    )
    submit = await stack.worker.answer(stack.ids("ab"))
    response = await posted
    body = await response.read()
    assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    assert response.headers["Cache-Control"] == "no-cache"
    created = events(body)[0]["created"]

    def chunk(rest: str) -> str:
        return (
            f'data: {{"id":"chatcmpl-{submit.ref.request}","object":"chat.completion.chunk",'
            f'"created":{created},"model":"tiny-model","choices":{rest}}}\n\n'
        )

    def delta(delta: str, reason: str = "null") -> str:
        return chunk(
            f'[{{"index":0,"delta":{delta},"logprobs":null,"finish_reason":{reason}}}],"usage":null'
        )

    prompt = len(unpack_tokens(submit.token_ids))
    usage = (
        f'[],"usage":{{"prompt_tokens":{prompt},"completion_tokens":2,"total_tokens":{prompt + 2},'
        '"prompt_tokens_details":{"cached_tokens":0}}'
    )
    assert body.decode() == (
        delta('{"role":"assistant","content":""}')
        + delta('{"content":"a"}')
        + delta('{"content":"b"}')
        + delta("{}", '"stop"')
        + chunk(usage)
        + "data: [DONE]\n\n"
    )


async def test_a_stream_without_usage_says_nothing_of_it(stack: Stack) -> None:
    posted = asyncio.create_task(stack.complete("hi", stream=True))
    await stack.worker.answer(stack.ids("ab"))
    *chunks, done = events(await (await posted).read())
    assert done == "[DONE]"
    assert all("usage" not in chunk for chunk in chunks)
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ["a", "b", ""]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, "stop"]


@pytest.mark.parametrize("one_by_one", [True, False])
async def test_a_stream_and_the_whole_have_the_same_text(stack: Stack, one_by_one: bool) -> None:
    ids = stack.ids("naïve 日本 😀 STOP tail")
    texts = []
    for streams in (True, False):
        posted = asyncio.create_task(stack.complete("hi", stream=streams, stop="STOP"))
        submit = await stack.worker.submit()
        if one_by_one:
            for index, token in enumerate(ids):
                stack.worker.tokens(submit.ref, index, [token])
        else:
            stack.worker.tokens(submit.ref, 0, ids)
        response = await posted
        if streams:
            chunks = events(await response.read())[:-1]
            texts.append("".join(chunk["choices"][0]["text"] for chunk in chunks))
            assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
        else:
            body = await response.json()
            texts.append(body["choices"][0]["text"])
            assert body["usage"]["completion_tokens"] == len(stack.ids("naïve 日本 😀 STOP"))
        stop = await stack.worker.expect(Stop)
        assert stop.ref == submit.ref
        assert stop.at_index == len(stack.ids("naïve 日本 😀 STOP"))
    assert texts == ["naïve 日本 😀 "] * 2


async def test_headers_come_with_admission_and_silence_is_filled_with_comments(
    make_stack: MakeStack,
) -> None:
    stack = await make_stack(keep_alive_s=0.01)
    posted = asyncio.create_task(stack.complete("hi", stream=True))
    submit = await stack.worker.submit()
    response = await posted
    assert await response.content.readuntil(b"\n\n") == b": keep-alive\n\n"
    stack.worker.tokens(submit.ref, 0, stack.ids("a"))
    stack.worker.finish(submit, 1)
    chunks = events(await response.read())
    assert [c["choices"][0]["text"] for c in chunks[:-1]] == ["a", ""]


async def test_a_stream_that_fails_midway_says_so_and_ends(stack: Stack) -> None:
    posted = asyncio.create_task(stack.complete("hi", stream=True))
    submit = await stack.worker.submit()
    stack.worker.tokens(submit.ref, 0, stack.ids("a"))
    stack.worker.fail(submit.ref, FailCode.INTERNAL, "lane wedged")
    response = await posted
    first, error, done = events(await response.read())
    assert response.status == 200
    assert first["choices"][0]["text"] == "a"
    assert error["error"] == {
        "message": "lane wedged",
        "type": "api_error",
        "param": None,
        "code": "internal",
    }
    assert done == "[DONE]"


# --- clients that leave ---


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("state", ["before admission", "queued", "decoding"])
async def test_a_client_that_leaves_is_aborted_at_the_worker(
    stack: Stack, streams: bool, state: str
) -> None:
    posted = asyncio.create_task(stack.complete("hi", stream=streams))
    if state == "before admission":
        submit = await stack.worker.expect(Submit)
    else:
        submit = await stack.worker.submit()
    if state == "decoding":
        stack.worker.tokens(submit.ref, 0, stack.ids("a"))
    if streams and state != "before admission":
        response = await posted
        if state == "decoding":
            await response.content.readuntil(b"\n\n")
        response.close()
    else:
        posted.cancel()
    abort = await stack.worker.expect(Abort)
    assert abort.ref == submit.ref
    assert stack.registry.live() == []


async def test_a_client_that_leaves_while_its_prompt_is_tokenized_submits_nothing(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, go = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def slow(text: str) -> list[int]:
        loop.call_soon_threadsafe(started.set)
        go.wait()
        return [1]

    monkeypatch.setattr(stack.tokenizer, "encode_prompt", slow)
    posted = asyncio.create_task(stack.complete("hi"))
    await started.wait()
    posted.cancel()
    await asyncio.wait({posted})
    assert await stack.gateway.wait_idle(30)
    go.set()
    monkeypatch.undo()
    posted = asyncio.create_task(stack.complete([7]))
    submit = await stack.worker.answer([])
    await posted
    assert unpack_tokens(submit.token_ids) == [7], "the first submit is the second request's"


async def test_a_request_that_is_over_is_not_aborted(stack: Stack) -> None:
    for _ in range(2):
        posted = asyncio.create_task(stack.complete("hi"))
        await stack.worker.answer(stack.ids("a"))
        await (await posted).read()
    assert not [message for message in stack.worker.seen if isinstance(message, Abort)]


async def test_a_hundred_requests_of_one_label_do_not_mix(stack: Stack) -> None:
    stack.worker.credits = Credits(requests=1000, tokens=100_000)
    stack.worker.report()
    headers = {"X-Request-Id": "same"}
    body = {"model": "tiny-model", "max_tokens": 1}
    posts = [
        asyncio.create_task(
            stack.client.post("/v1/completions", json=body | {"prompt": [n]}, headers=headers)
        )
        for n in range(100)
    ]
    for _ in posts:
        submit = await stack.worker.submit()
        stack.worker.tokens(submit.ref, 0, unpack_tokens(submit.token_ids))
        stack.worker.finish(submit, 1)
    for n, posted in enumerate(posts):
        response = await posted
        table = stack.tokenizer.bytes.table
        assert (await response.json())["choices"][0]["text"] == table[n].decode("utf-8", "replace")
        assert response.headers["X-Request-Id"] == "same"


# --- workers that fail ---


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        (FailCode.OVERLOADED, 503, "overloaded_error"),
        (FailCode.SHUTDOWN, 503, "overloaded_error"),
        (FailCode.DEADLINE, 503, "overloaded_error"),
        (FailCode.INVALID, 400, "invalid_request_error"),
        (FailCode.TOO_LONG, 400, "invalid_request_error"),
        (FailCode.UNKNOWN_MODEL, 404, "not_found_error"),
        (FailCode.SUSPECT, 500, "api_error"),
        (FailCode.INTERNAL, 500, "api_error"),
    ],
)
@pytest.mark.parametrize("streams", [True, False])
async def test_a_refusal_by_the_worker_has_its_own_status(
    stack: Stack, code: FailCode, status: int, kind: str, streams: bool
) -> None:
    posted = asyncio.create_task(stack.complete("hi", stream=streams))
    submit = await stack.worker.expect(Submit)
    stack.worker.fail(submit.ref, code, "see /srv/secret/model at 0x7f1234567890")
    response = await posted
    body = await response.json()
    assert response.status == status
    assert body["error"]["type"] == kind
    assert body["error"]["message"] == "see … at 0x…"
    assert ("Retry-After" in response.headers) == (status == 503)


async def test_a_stream_goes_on_where_it_was_after_a_worker_restarts(stack: Stack) -> None:
    posted = asyncio.create_task(stack.complete("hi", stream=True))
    submit = await stack.worker.submit()
    ids = stack.ids("abcd")
    stack.worker.tokens(submit.ref, 0, ids[:2])
    response = await posted
    first = await response.content.readuntil(b"\n\n")
    await stack.worker.stop()
    stack.worker.start()
    again = await stack.worker.submit()
    assert again.ref.incarnation == 1
    assert unpack_tokens(again.output_so_far) == ids[:2]
    stack.worker.tokens(again.ref, 2, ids[2:])
    stack.worker.finish(again, 4)
    chunks = events(first + await response.read())
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks[:-1]) == "abcd"


# --- overload, readiness, drain ---


@pytest.mark.parametrize("credits", [Credits(0, 200), Credits(9, 1)])
async def test_a_full_queue_refuses_before_anything_is_tokenized(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, credits: Credits
) -> None:
    tokenized: list[str] = []
    monkeypatch.setattr(stack.tokenizer, "encode_chat", tokenized.append)
    stack.worker.credits = credits
    stack.worker.report()
    await stack.when(lambda: stack.link.worker.credits == credits)
    response = await stack.chat("x" * 100)
    assert response.status == 503
    assert response.headers["Retry-After"] == "1"
    assert (await response.json())["error"]["type"] == "overloaded_error"
    assert tokenized == []


async def test_without_a_worker_nothing_is_ready_but_the_process_lives(
    make_stack: MakeStack,
) -> None:
    stack = await make_stack(with_worker=False)
    assert (await stack.client.get("/health/live")).status == 200
    for path in ("/health/ready", "/health"):
        response = await stack.client.get(path)
        assert response.status == 503
        assert response.headers["Retry-After"] == "1"
        assert (await response.json())["reason"] == "no worker"
    assert (await stack.chat()).status == 503
    stack.worker.start()
    await stack.until_ready()
    assert (await stack.client.get("/health/ready")).status == 200


async def test_without_a_scheduler_it_is_not_ready_but_requests_are_taken(stack: Stack) -> None:
    stack.worker.load = Load(scheduler="")
    stack.worker.report()
    await stack.when(lambda: stack.gateway.not_ready() is not None)
    response = await stack.client.get("/health/ready")
    assert (response.status, (await response.json())["reason"]) == (503, "no scheduler")
    posted = asyncio.create_task(stack.complete("hi"))
    await stack.worker.answer(stack.ids("a"))
    assert (await posted).status == 200


async def test_a_drain_refuses_new_requests_and_waits_for_running_ones(stack: Stack) -> None:
    posted = asyncio.create_task(stack.complete("hi"))
    submit = await stack.worker.submit()
    stack.gateway.draining = True
    refused = await stack.complete("hi")
    assert refused.status == 503
    assert refused.headers["Connection"] == "close"
    assert refused.headers["Retry-After"] == "1"
    assert (await stack.client.get("/health/ready")).status == 503
    assert not await stack.gateway.wait_idle(0)
    stack.worker.tokens(submit.ref, 0, stack.ids("a"))
    stack.worker.finish(submit, 1)
    assert (await posted).status == 200
    assert await stack.gateway.wait_idle(30)


async def test_what_a_drain_cuts_hears_of_it(stack: Stack) -> None:
    posted = asyncio.create_task(stack.complete("hi", stream=True))
    submit = await stack.worker.submit()
    response = await posted
    assert stack.link.break_all("the gateway is stopping") == 1
    error, done = events(await response.read())
    assert (error["error"]["code"], done) == ("shutdown", "[DONE]")
    assert (await stack.worker.expect(Abort)).ref == submit.ref


async def test_a_full_text_pool_refuses_and_a_late_one_gives_up(make_stack: MakeStack) -> None:
    stack = await make_stack(tokenizer_threads=1, tokenizer_queue=0, tokenizer_timeout_s=0.01)
    go = threading.Event()
    late = asyncio.create_task(stack.gateway.pool.run(go.wait))
    with pytest.raises(ApiError, match=r"not tokenized in 0\.01 s"):
        await late
    full = await stack.complete("hi")
    assert full.status == 503
    assert "too many prompts" in (await full.json())["error"]["message"]
    go.set()


# --- about the server ---


async def test_models_are_listed_under_every_name_with_their_length(stack: Stack) -> None:
    listed = (await (await stack.client.get("/v1/models")).json())["data"]
    assert [(entry["id"], entry["max_model_len"]) for entry in listed] == [
        ("tiny-model", 256),
        ("alias/tiny", 256),
    ]
    one = await (await stack.client.get("/v1/models/alias/tiny")).json()
    assert one == listed[1]


async def test_an_alias_is_answered_under_the_name_it_was_asked_by(stack: Stack) -> None:
    posted = asyncio.create_task(stack.complete("hi", model="alias/tiny"))
    submit = await stack.worker.answer([])
    assert (await (await posted).json())["model"] == "alias/tiny"
    assert submit.model == "tiny"


async def test_the_version_is_told(stack: Stack) -> None:
    assert (await (await stack.client.get("/version")).json())["protocol"] == 1


@pytest.mark.parametrize(
    ("given", "echoed"),
    [("abc-1.2:3_x", True), ("x" * 64, True), ("x" * 65, False), ("a b", False)],
)
async def test_a_request_id_is_echoed_when_it_is_harmless(
    stack: Stack, given: str, echoed: bool
) -> None:
    response = await stack.client.get("/health/live", headers={"X-Request-Id": given})
    label = response.headers["X-Request-Id"]
    assert (label == given) == echoed
    assert echoed or len(label) == 32
