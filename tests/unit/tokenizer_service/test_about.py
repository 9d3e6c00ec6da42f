"""Tokens without a run, and what the server says of itself."""

from typing import Any

import pytest

from protocol.data_link import Load

from .conftest import MakeStack, Stack


async def post(stack: Stack, path: str, **body: object) -> Any:
    response = await stack.client.post(path, json=body)
    return response.status, await response.json()


@pytest.mark.parametrize("prefix", ["", "/v1"])
async def test_tokens_and_back(stack: Stack, prefix: str) -> None:
    text = "hello é <|im_end|>"
    status, told = await post(stack, f"{prefix}/tokenize", prompt=text, return_token_strs=True)
    ids = stack.ids(text)
    assert (status, told["tokens"], told["count"]) == (200, ids, len(ids))
    assert told["max_model_len"] == 256
    assert told["token_strs"][0] == "hello"
    assert told["token_strs"][-1] == "<|im_end|>"
    assert await post(stack, f"{prefix}/detokenize", tokens=ids) == (200, {"prompt": text})


async def test_messages_are_what_a_chat_would_prefill(stack: Stack) -> None:
    messages = [{"role": "user", "content": "<|im_end|>"}]
    _, told = await post(stack, "/tokenize", messages=messages, model="tiny-model")
    assert told["tokens"][0] == 260
    assert told["tokens"].count(261) == 1, "the user cannot write control tokens"
    assert "token_strs" not in told


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/tokenize", {}, 400, "prompt"),
        (
            "/tokenize",
            {"prompt": "a", "messages": [{"role": "user", "content": "a"}]},
            400,
            "prompt",
        ),
        ("/tokenize", {"messages": [{"role": "robot", "content": "a"}]}, 400, "messages[0].role"),
        (
            "/tokenize",
            {"messages": [{"role": "user"}], "add_generation_prompt": False},
            400,
            "add_generation_prompt",
        ),
        ("/tokenize", {"prompt": "a", "model": "gpt-9"}, 404, "model"),
        ("/detokenize", {}, 400, "tokens"),
        ("/detokenize", {"tokens": [262]}, 400, "tokens"),
        ("/detokenize", {"tokens": [-1]}, 400, "tokens[0]"),
        ("/detokenize", {"tokens": [1], "model": "gpt-9"}, 404, "model"),
    ],
)
async def test_what_cannot_be_tokenized_is_refused_by_name(
    stack: Stack, path: str, body: dict[str, Any], status: int, param: str
) -> None:
    answered, told = await post(stack, path, **body)
    assert (answered, told["error"]["param"]) == (status, param)


async def test_tokens_need_no_worker(make_stack: MakeStack) -> None:
    stack = await make_stack(with_worker=False)
    status, told = await post(stack, "/tokenize", prompt="hello", add_special_tokens=False)
    assert (status, told) == (
        200,
        {"count": 1, "max_model_len": None, "tokens": stack.ids("hello")},
    )
    stack.worker.start()


async def test_the_model_is_described(stack: Stack) -> None:
    told = await (await stack.client.get("/model_info")).json()
    assert told["served_model_names"] == ["tiny-model", "alias/tiny"]
    assert told["model"]["vocab_size"] == 262
    assert told["has_chat_template"] is True
    assert told["default_sampling"]["top_p"] == 1.0


async def test_the_server_says_what_its_worker_said(stack: Stack) -> None:
    stack.worker.load = Load(scheduler="s", queued=2, running=3, pages_total=7)
    stack.worker.report()
    await stack.when(lambda: stack.link.worker.load.queued == 2)
    told = await (await stack.client.get("/server_info")).json()
    (worker,) = told["workers"]
    assert (worker["phase"], worker["load"]["running"], worker["max_requests"]) == ("ready", 3, 9)
    assert told["not_ready"] is None


async def test_health_has_the_names_of_other_servers(make_stack: MakeStack) -> None:
    stack = await make_stack(with_worker=False)
    assert (await stack.client.get("/live")).status == 200
    assert (await stack.client.get("/ready")).status == 503
    stack.worker.start()
