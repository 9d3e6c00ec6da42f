"""Several outputs of a request: each has its index, a prompt is prefilled once, and all end."""

import asyncio
from typing import Any

import pytest

from protocol.data_link import Abort, Credits, FailCode, FinishReason, Submit
from protocol.ids import unpack_tokens

from .conftest import Stack
from .test_app import events

LONG = list(range(10))
"""Two full pages and a half."""


async def serve(stack: Stack, submit: Submit, text: str, cached: int = 0) -> None:
    ids = stack.ids(text)
    stack.worker.tokens(submit.ref, 0, ids)
    stack.worker.finish(submit, len(ids), FinishReason.LENGTH, cached=cached)


async def test_siblings_follow_when_the_prompt_is_prefilled(stack: Stack) -> None:
    posted = asyncio.create_task(stack.complete(LONG, n=3, seed=5))
    first = await stack.worker.submit()
    assert stack.registry.live() == [first.ref.request]
    stack.worker.tokens(first.ref, 0, stack.ids("a"))
    siblings = [await stack.worker.submit(cached=8) for _ in range(2)]
    for submit, text in zip(reversed(siblings), ("c", "b"), strict=True):
        await serve(stack, submit, text, cached=8)
    stack.worker.finish(first, 1)
    body = await (await posted).json()
    assert [(c["index"], c["text"]) for c in body["choices"]] == [(0, "a"), (1, "b"), (2, "c")]
    assert [submit.sampling.seed for submit in (first, *siblings)] == [5, 6, 7]
    assert {(s.token_ids, s.page_hashes) for s in siblings} == {
        (first.token_ids, first.page_hashes)
    }
    assert body["usage"] == {
        "prompt_tokens": 10,
        "completion_tokens": 3,
        "total_tokens": 13,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


async def test_siblings_follow_also_when_the_first_ends_without_a_token(stack: Stack) -> None:
    posted = asyncio.create_task(stack.complete(LONG, n=2))
    stack.worker.finish(await stack.worker.submit(), 0)
    await serve(stack, await stack.worker.submit(), "b")
    body = await (await posted).json()
    assert [choice["text"] for choice in body["choices"]] == ["", "b"]


async def test_without_a_page_to_share_nobody_waits(stack: Stack) -> None:
    posted = asyncio.create_task(stack.complete([1, 2], n=2))
    submits = [await stack.worker.submit() for _ in range(2)]
    for submit in submits:
        await serve(stack, submit, "a")
    assert len((await (await posted).json())["choices"]) == 2


async def test_without_a_seed_choices_draw_differently(stack: Stack) -> None:
    posted = asyncio.create_task(stack.complete([[1], [1]], n=2))
    submits = [await stack.worker.submit() for _ in range(4)]
    for submit in submits:
        await serve(stack, submit, "a")
    await posted
    assert len({submit.sampling.seed for submit in submits}) == 4


async def test_a_stream_gives_each_chunk_its_index(stack: Stack) -> None:
    options = {"include_usage": True}
    posted = asyncio.create_task(stack.chat("hi", n=2, stream=True, stream_options=options))
    first = await stack.worker.submit()
    stack.worker.tokens(first.ref, 0, stack.ids("a"))
    second = await stack.worker.submit()
    await serve(stack, second, "xy")
    stack.worker.tokens(first.ref, 1, stack.ids("b"))
    stack.worker.finish(first, 2)
    *chunks, usage, done = events(await (await posted).read())
    told: dict[int, list[Any]] = {0: [], 1: []}
    for chunk in chunks:
        (choice,) = chunk["choices"]
        told[choice["index"]].append((choice["delta"].get("content"), choice["finish_reason"]))
    assert told == {
        0: [("", None), ("a", None), ("b", None), (None, "stop")],
        1: [("", None), ("xy", None), (None, "length")],
    }
    assert len({chunk["id"] for chunk in chunks}) == 1
    prompt = len(unpack_tokens(first.token_ids))
    assert (usage["usage"]["prompt_tokens"], usage["usage"]["completion_tokens"]) == (prompt, 4)
    assert done == "[DONE]"


@pytest.mark.parametrize("streams", [True, False])
async def test_a_client_that_leaves_ends_all_of_them(stack: Stack, streams: bool) -> None:
    posted = asyncio.create_task(stack.complete(LONG, n=3, stream=streams))
    first = await stack.worker.submit()
    stack.worker.tokens(first.ref, 0, stack.ids("a"))
    submits = [first, *[await stack.worker.submit() for _ in range(2)]]
    if streams:
        (await posted).close()
    else:
        posted.cancel()
    aborted = {(await stack.worker.expect(Abort)).ref for _ in submits}
    assert aborted == {submit.ref for submit in submits}
    assert stack.registry.live() == []


async def test_one_that_fails_ends_the_others(stack: Stack) -> None:
    posted = asyncio.create_task(stack.complete([[1], [2]]))
    first, second = [await stack.worker.submit() for _ in range(2)]
    stack.worker.fail(second.ref, FailCode.INTERNAL)
    assert (await posted).status == 500
    assert (await stack.worker.expect(Abort)).ref == first.ref


@pytest.mark.parametrize("prompt", [["a", "b"], [[1], [2]], ["a", [2]]])
async def test_each_prompt_of_a_list_has_its_choices_in_order(stack: Stack, prompt: Any) -> None:
    posted = asyncio.create_task(stack.complete(prompt, n=2, echo=True, seed=1))
    submits = [await stack.worker.submit() for _ in range(4)]
    for submit, text in zip(submits, "wxyz", strict=True):
        await serve(stack, submit, text)
    body = await (await posted).json()
    ids = [unpack_tokens(submit.token_ids) for submit in submits]
    assert ids[0] == ids[1]
    assert ids[2] == ids[3] != ids[0]
    assert [submit.sampling.seed for submit in submits] == [1, 2, 1, 2]
    expected = [stack.tokenizer.decode(i) + t for i, t in zip(ids, "wxyz", strict=True)]
    assert [choice["text"] for choice in body["choices"]] == expected
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    assert body["usage"]["prompt_tokens"] == 2


async def test_a_queue_without_room_for_all_refuses_before_it_begins(stack: Stack) -> None:
    stack.worker.credits = Credits(requests=3, tokens=200)
    stack.worker.report()
    await stack.when(lambda: stack.link.worker.credits.requests == 3)
    busy = await stack.complete("hi", n=4)
    assert (busy.status, busy.headers["Retry-After"]) == (503, "1")
    assert "3 outputs, not for 4" in (await busy.json())["error"]["message"]
    never = await stack.complete(["hi"] * 5, n=2)
    assert never.status == 400
    assert "10 outputs" in (await never.json())["error"]["message"]
    never = await stack.complete([[1] * 150, [2] * 150])
    assert never.status == 400
    assert "300 prompt tokens" in (await never.json())["error"]["message"]
    assert stack.registry.live() == []
