"""OpenAI's own client against the gateway: it must notice nothing."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from protocol.data_link import Abort, Credits, FailCode, FinishReason, Stop, TokenLogprobs

from .conftest import Stack

USER: Any = [{"role": "user", "content": "hi"}]


@pytest.fixture
async def client(stack: Stack) -> AsyncIterator[openai.AsyncOpenAI]:
    url = str(stack.client.make_url("/v1"))
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client


def asked(client: openai.AsyncOpenAI, **fields: Any) -> asyncio.Task[Any]:
    call = client.chat.completions.create(model="tiny-model", messages=USER, **fields)
    return asyncio.create_task(call)


async def test_a_chat_has_text_reason_and_usage(stack: Stack, client: openai.AsyncOpenAI) -> None:
    task = asked(client, seed=7)
    submit = await stack.worker.answer(stack.ids("hello"))
    answer = await task
    assert answer.choices[0].message.content == "hello"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens == 1
    assert answer.usage.prompt_tokens_details.cached_tokens == 0
    assert answer._request_id
    assert submit.sampling.seed == 7


async def test_a_stream_ends_with_usage(stack: Stack, client: openai.AsyncOpenAI) -> None:
    task = asked(client, stream=True, stream_options={"include_usage": True})
    await stack.worker.answer(stack.ids("abc"))
    chunks = [chunk async for chunk in await task]
    texts = [c.choices[0].delta.content or "" for c in chunks if c.choices]
    assert "".join(texts) == "abc"
    assert chunks[-1].usage.completion_tokens == 3
    assert all(chunk.usage is None for chunk in chunks[:-1])


async def test_choices_come_with_their_indices(stack: Stack, client: openai.AsyncOpenAI) -> None:
    task = asked(client, n=2)
    first = await stack.worker.submit()
    stack.worker.tokens(first.ref, 0, stack.ids("a"))
    second = await stack.worker.submit()
    stack.worker.tokens(second.ref, 0, stack.ids("b"))
    stack.worker.finish(second, 1, FinishReason.LENGTH)
    stack.worker.finish(first, 1)
    answer = await task
    assert [(c.index, c.message.content, c.finish_reason) for c in answer.choices] == [
        (0, "a", "stop"),
        (1, "b", "length"),
    ]


async def test_a_stop_string_is_not_in_the_text(stack: Stack, client: openai.AsyncOpenAI) -> None:
    task = asked(client, stop=["X"])
    submit = await stack.worker.submit()
    stack.worker.tokens(submit.ref, 0, stack.ids("aXb"))
    assert (await stack.worker.expect(Stop)).at_index == 2
    choice = (await task).choices[0]
    assert (choice.message.content, choice.finish_reason) == ("a", "stop")


async def test_logprobs_are_read(stack: Stack, client: openai.AsyncOpenAI) -> None:
    task = asked(client, logprobs=True, top_logprobs=1)
    submit = await stack.worker.submit()
    (token,) = ids = stack.ids("a")
    stack.worker.tokens(submit.ref, 0, ids, [TokenLogprobs(-0.5, (token,), (-0.5,))])
    stack.worker.finish(submit, 1)
    (entry,) = (await task).choices[0].logprobs.content
    assert (entry.token, entry.logprob, entry.bytes) == ("a", -0.5, [97])
    assert [other.token for other in entry.top_logprobs] == ["a"]


async def test_a_client_that_leaves_is_aborted(stack: Stack, client: openai.AsyncOpenAI) -> None:
    task = asked(client, stream=True)
    submit = await stack.worker.submit()
    await (await task).close()
    assert (await stack.worker.expect(Abort)).ref == submit.ref


@pytest.mark.parametrize(
    ("fields", "error", "param"),
    [
        ({"model": "gpt-9"}, openai.NotFoundError, "model"),
        ({"temperature": -1}, openai.BadRequestError, "temperature"),
        ({"n": 9}, openai.BadRequestError, "n"),
        ({"tools": [{"type": "function"}]}, openai.BadRequestError, "tools"),
    ],
)
async def test_a_refusal_is_the_right_exception(
    client: openai.AsyncOpenAI, fields: dict[str, Any], error: type[Any], param: str
) -> None:
    request = {"model": "tiny-model", "messages": USER} | fields
    with pytest.raises(error) as raised:
        await client.chat.completions.create(**request)
    assert raised.value.param == param


async def test_a_failure_inside_a_stream_raises(stack: Stack, client: openai.AsyncOpenAI) -> None:
    task = asked(client, stream=True)
    submit = await stack.worker.submit()
    stack.worker.tokens(submit.ref, 0, stack.ids("a"))
    stack.worker.fail(submit.ref, FailCode.INTERNAL, "lane wedged")
    with pytest.raises(openai.APIError, match="lane wedged"):
        async for _ in await task:
            pass


async def test_an_overload_says_when_to_try_again(stack: Stack, client: openai.AsyncOpenAI) -> None:
    stack.worker.credits = Credits(requests=0, tokens=0)
    stack.worker.report()
    await stack.when(lambda: stack.link.worker.credits.requests == 0)
    with pytest.raises(openai.InternalServerError) as raised:
        await asked(client)
    assert raised.value.status_code == 503
    assert raised.value.response.headers["Retry-After"] == "1"


async def test_what_was_refused_is_tried_again_when_it_was_told_to(
    stack: Stack, client: openai.AsyncOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    async def no_wait(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr("openai._base_client.anyio.sleep", no_wait)
    task = asked(client.with_options(max_retries=2))
    submit = await stack.worker.submit()
    stack.worker.fail(submit.ref, FailCode.OVERLOADED, "full")
    again = await stack.worker.answer(stack.ids("a"))
    assert (await task).choices[0].message.content == "a"
    assert again.ref.request != submit.ref.request
    assert waits == [1.0]
