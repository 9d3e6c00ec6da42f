"""GET /activity: what the server does, once or for as long as somebody watches."""

import msgspec

from protocol.activity import Activity, LaneActivity, PlanInForce, Sharing
from protocol.data_link import Status
from tokenizer_service.activity import EVENTS, RECORDER, News, Overview
from tokenizer_service.limits import MAX_WATCHERS

from .conftest import MakeStack, Stack

PLAN = PlanInForce(seq=7, sharing=Sharing.DISJOINT, prefill_units=12, decode_units=4, reason="why")
ACTIVITY = Activity(unit="SM", units=16, plan=PLAN, decode=LaneActivity(units=4))
WATCH = {"Accept": EVENTS}


async def tell(stack: Stack) -> None:
    stack.worker.send(Status(stack.worker.credits, stack.worker.load, ACTIVITY))
    await stack.when(lambda: stack.link.worker.activity is not None)


async def test_once_it_is_the_whole_as_json(make_stack: MakeStack) -> None:
    stack = await make_stack(slo_tbt_ms=20.0)
    await tell(stack)
    response = await stack.client.get("/activity")
    assert response.status == 200
    told = msgspec.json.decode(await response.read(), type=Overview)
    assert (told.model, told.unit, told.units, told.page_size) == ("tiny-model", "SM", 16, 4)
    assert told.objectives.tbt_ms == 20.0
    assert told.samples


async def test_a_watcher_gets_the_whole_and_then_one_sample_after_the_other(stack: Stack) -> None:
    await tell(stack)
    async with stack.client.get("/activity", headers=WATCH) as response:
        assert response.headers["Content-Type"].startswith(EVENTS)
        lines = [line async for line in _lines(response, 3)]
    whole = msgspec.json.decode(lines[0], type=Overview)
    first, second = (msgspec.json.decode(line, type=News) for line in lines[1:])
    assert whole.units == 16
    assert first.plan == PLAN
    assert first.sample.decode.units == 4
    assert whole.samples[-1].at < first.sample.at < second.sample.at


async def test_a_mere_change_of_credits_does_not_hide_what_the_device_does(stack: Stack) -> None:
    await tell(stack)
    stack.worker.load = msgspec.structs.replace(stack.worker.load, queued=3)
    stack.worker.report()
    await stack.when(lambda: stack.link.worker.load.queued == 3)
    assert stack.link.worker.activity == ACTIVITY


async def test_more_watchers_than_the_limit_are_told_so(stack: Stack) -> None:
    recorder = stack.client.app[RECORDER]
    recorder.watchers = MAX_WATCHERS
    response = await stack.client.get("/activity", headers=WATCH)
    assert response.status == 503
    assert str(MAX_WATCHERS) in (await response.json())["error"]["message"]
    recorder.watchers = 0
    assert (await stack.client.get("/activity")).status == 200


async def test_a_watcher_that_leaves_is_not_counted_any_more(stack: Stack) -> None:
    recorder = stack.client.app[RECORDER]
    async with stack.client.get("/activity", headers=WATCH) as response:
        await anext(_lines(response, 1))
        assert recorder.watchers == 1
        response.close()
    await stack.when(lambda: recorder.watchers == 0)


async def test_watching_ends_when_the_gateway_drains(stack: Stack) -> None:
    async with stack.client.get("/activity", headers=WATCH) as response:
        lines = _lines(response, 1000)
        await anext(lines)
        stack.gateway.draining = True
        assert len([line async for line in lines]) <= 2


async def _lines(response, count):
    """The JSON of the first events."""
    async for line in response.content:
        if line.startswith(b"data: "):
            yield line.removeprefix(b"data: ")
            count -= 1
            if not count:
                return
