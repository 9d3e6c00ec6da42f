"""Log-probabilities, biases and echoes over HTTP, as clients of both endpoints read them."""

import asyncio
from typing import Any

import pytest

from protocol.data_link import TokenLogprobs
from protocol.sampling import LogitBias

from .conftest import Stack
from .test_app import events

HALF = TokenLogprobs(-0.5, (72, 73), (-0.5, -1.5))


async def answered(stack: Stack, posted: Any, text: str, *, logprobs: bool = True) -> Any:
    """Serve one request with a text, each token as likely as the others."""
    task = asyncio.create_task(posted)
    submit = await stack.worker.submit()
    ids = stack.ids(text)
    for index, token in enumerate(ids):
        stack.worker.tokens(submit.ref, index, [token], [HALF] if logprobs else [])
    stack.worker.finish(submit, len(ids))
    return submit, await task


async def test_a_chat_tells_each_token_with_the_most_likely_ones(stack: Stack) -> None:
    submit, response = await answered(stack, stack.chat(logprobs=True, top_logprobs=2), "aé")
    (choice,) = (await response.json())["choices"]
    names = [stack.tokenizer.bytes.table[token].decode("latin-1") for token in (72, 73)]
    top = [
        {"token": name, "logprob": logprob, "bytes": list(name.encode())}
        for name, logprob in zip(names, (-0.5, -1.5), strict=True)
    ]
    assert submit.sampling.logprobs == 2
    assert choice["logprobs"]["refusal"] is None
    content = choice["logprobs"]["content"]
    assert [entry["token"] for entry in content] == ["a", "bytes:\\xc3", "bytes:\\xa9"]
    assert b"".join(bytes(entry["bytes"]) for entry in content).decode() == "aé"
    assert all(entry["logprob"] == -0.5 and entry["top_logprobs"] == top for entry in content)


async def test_a_text_completion_tells_them_in_columns(stack: Stack) -> None:
    submit, response = await answered(stack, stack.complete(logprobs=1, max_tokens=2), "ab")
    (choice,) = (await response.json())["choices"]
    assert submit.sampling.logprobs == 1
    first, second = (stack.tokenizer.bytes.table[token].decode() for token in (72, 73))
    assert choice["logprobs"] == {
        "tokens": ["a", "b"],
        "token_logprobs": [-0.5, -0.5],
        "top_logprobs": [{drawn: -0.5, first: -0.5, second: -1.5} for drawn in ("a", "b")],
        "text_offset": [0, 1],
    }


async def test_a_stream_tells_the_same_as_the_whole(stack: Stack) -> None:
    _, response = await answered(stack, stack.chat(logprobs=True), "aéb")
    (choice,) = (await response.json())["choices"]
    _, response = await answered(stack, stack.chat(logprobs=True, stream=True), "aéb")
    *chunks, _ = events(await response.read())
    told = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    content = [entry for logprobs in told if logprobs for entry in logprobs["content"]]
    assert content == choice["logprobs"]["content"]
    assert len(content) == 4


async def test_nobody_who_does_not_ask_is_told(stack: Stack) -> None:
    submit, response = await answered(stack, stack.chat(), "a")
    assert submit.sampling.logprobs is None
    assert (await response.json())["choices"][0]["logprobs"] is None


async def test_biases_travel(stack: Stack) -> None:
    bias = {"logit_bias": {"5": 2.5, "261": -100}}
    submit, _ = await answered(stack, stack.chat(**bias), "a", logprobs=False)
    assert submit.sampling.logit_bias == (LogitBias(5, 2.5), LogitBias(261, -100.0))


@pytest.mark.parametrize("as_ids", [True, False])
async def test_an_echo_comes_before_the_text(stack: Stack, as_ids: bool) -> None:
    prompt = stack.ids("hellé ") if as_ids else "hellé "
    _, response = await answered(stack, stack.complete(prompt, echo=True), "ab", logprobs=False)
    assert (await response.json())["choices"][0]["text"] == "hellé ab"
    streamed = stack.complete(prompt, echo=True, stream=True)
    _, response = await answered(stack, streamed, "ab", logprobs=False)
    *chunks, _ = events(await response.read())
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ["hellé ", "a", "b", ""]
