"""Bad requests over HTTP: refused with a status and a name, and nothing reaches the worker."""

import asyncio
import gzip
import json
from typing import Any

import pytest

from protocol.data_link import Submit

from .conftest import MakeStack, Stack

JSON = {"Content-Type": "application/json"}
USER = {"role": "user", "content": "x"}


async def refused(stack: Stack, response: Any, status: int) -> dict[str, Any]:
    body = await response.json()
    assert response.status == status, body
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert response.headers["X-Request-Id"]
    assert not [message for message in stack.worker.seen if isinstance(message, Submit)]
    error: dict[str, Any] = body["error"]
    return error


async def test_an_unknown_model_is_not_found_and_names_the_known_ones(stack: Stack) -> None:
    for response in (
        await stack.chat(model="gpt-9"),
        await stack.complete(model="gpt-9"),
        await stack.client.get("/v1/models/gpt-9"),
    ):
        error = await refused(stack, response, 404)
        assert (error["type"], error["code"]) == ("not_found_error", "model_not_found")
        assert "tiny-model" in error["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": [USER | {"role": "robot"}]}, "messages[0].role"),
        ({"messages": [USER | {"role": "tool"}]}, "messages"),
        ({"messages": [USER, USER | {"tool_calls": [{}]}]}, "messages[1].tool_calls"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[0].content[0].type",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "messages[0].content[0].text",
        ),
        ({"stop_token_ids": [262]}, "stop_token_ids"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        ({"n": 9}, "n"),
        ({"logit_bias": {"262": 1}}, "logit_bias"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"echo": True}, "echo"),
        ({"temperature": "hot"}, "temperature"),
    ],
)
async def test_a_bad_chat_names_its_field(stack: Stack, fields: dict[str, Any], param: str) -> None:
    assert (await refused(stack, await stack.chat(**fields), 400))["param"] == param


@pytest.mark.parametrize(
    "prompt",
    ["", [], [[]], [262], [-1], [2**40], [1, "a"], ["a", ""], [[1], []], [1, [2]], ["a"] * 65],
)
async def test_a_bad_prompt_is_refused(stack: Stack, prompt: object) -> None:
    assert (await refused(stack, await stack.complete(prompt), 400))["param"] == "prompt"


async def test_an_echo_with_logprobs_of_the_prompt_is_refused(stack: Stack) -> None:
    response = await stack.complete("hi", echo=True, logprobs=0)
    error = await refused(stack, response, 400)
    assert (error["param"], error["code"]) == ("echo", "unsupported_parameter")


@pytest.mark.parametrize("prompt", [["hi"], [[1, 2]]])
async def test_a_list_of_one_prompt_is_that_prompt(stack: Stack, prompt: object) -> None:
    posted = asyncio.create_task(stack.complete(prompt))
    await stack.worker.answer([])
    assert (await posted).status == 200


@pytest.mark.parametrize(
    "make", [lambda s: s.complete([1] * 200 + [2] * 56), lambda s: s.chat("x" * 5000)]
)
async def test_a_prompt_without_room_for_output_is_too_long(stack: Stack, make: Any) -> None:
    error = await refused(stack, await make(stack), 400)
    assert error["code"] == "context_length_exceeded"
    assert "201 tokens" in error["message"], "the smaller of queue and context"


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        (JSON, b"{", 400),
        (JSON, b"[" * 100_000, 400),
        (JSON, b"\x80\x05\x95", 400),
        (JSON | {"Content-Encoding": "gzip"}, gzip.compress(b"{}"), 415),
        ({"Content-Type": "text/plain"}, b"{}", 415),
        ({"Content-Type": "multipart/form-data; boundary=x"}, b"--x--", 415),
    ],
)
async def test_a_bad_body_is_refused(
    stack: Stack, headers: dict[str, str], body: bytes, status: int
) -> None:
    response = await stack.client.post("/v1/completions", data=body, headers=headers)
    await refused(stack, response, status)


async def test_a_body_over_the_limit_is_refused_by_its_size(make_stack: MakeStack) -> None:
    stack = await make_stack(max_body_bytes=2048)
    error = await refused(stack, await stack.complete("x" * 4000), 413)
    assert "2048 bytes" in error["message"]


async def test_a_body_that_does_not_arrive_is_given_up(make_stack: MakeStack) -> None:
    stack = await make_stack(body_timeout_s=0.01)
    never = asyncio.Event()

    async def endless() -> Any:
        yield b"{"
        await never.wait()

    posted = stack.client.post("/v1/completions", data=endless(), headers=JSON)
    error = await refused(stack, await posted, 408)
    assert "0.01 s" in error["message"]


async def test_a_large_body_is_parsed_beside_the_loop_with_the_same_errors(stack: Stack) -> None:
    ids = [1] * 100_000
    error = await refused(stack, await stack.complete(ids, temperature="hot"), 400)
    assert error["param"] == "temperature"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/nowhere", 404), ("GET", "/v1/chat/completions", 405), ("POST", "/health", 405)],
)
async def test_paths_and_methods_that_are_not_there_answer_in_the_same_form(
    stack: Stack, method: str, path: str, status: int
) -> None:
    await refused(stack, await stack.client.request(method, path), status)


async def test_an_error_inside_is_a_500_without_details(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(text: str) -> list[int]:
        raise RuntimeError("/srv/secret 0x7fffdeadbeef")

    monkeypatch.setattr(stack.tokenizer, "encode_prompt", fail)
    error = await refused(stack, await stack.complete("hi"), 500)
    assert (error["type"], error["message"]) == ("api_error", "internal error")


async def test_a_connection_serves_on_after_an_error(stack: Stack) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", stack.client.port)
    body = b'{"model": 5}'
    head = (
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n" % len(body)
    )
    for _ in range(3):
        writer.write(head + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 400 ")
        length = int(answer.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        assert json.loads(await reader.readexactly(length))["error"]["param"] == "model"
    writer.close()
    await writer.wait_closed()
