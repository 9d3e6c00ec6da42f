"""The asyncio shell: woken by descriptors and deadlines, never stuck, never in the way."""

import asyncio
import itertools
import time
from contextlib import aclosing

import pytest

from protocol.endpoint import Endpoint, Received
from protocol.frame import Frame, pack, unpack
from protocol.link import LinkConfig
from protocol.pump import pump
from protocol.transport import zeromq
from protocol.transport.base import SERVER
from tests.unit.protocol.world import Note
from tests.unit.protocol.zeromq_help import receive, wait_until

CONFIG = LinkConfig(window=1024, heartbeat_s=0.1, silence_s=1.0)
FROZEN = 1000.0
"""A clock that stands still: no heartbeat ever comes due, so only descriptors can wake a pump."""

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def endpoints(tmp_path):
    tmp_path.chmod(0o700)
    address = f"ipc://{tmp_path}/s"
    binder = Endpoint[Note, Note](zeromq.bind(address), Note, CONFIG)
    client = Endpoint[Note, Note](zeromq.connect(address, b"gw-1"), Note, CONFIG)
    yield binder, client
    client.close()
    binder.close()


def bring_up(binder: Endpoint, client: Endpoint) -> None:
    """Pair them, with time made to pass as fast as the sockets need it."""
    turns = itertools.count()

    def both_up() -> bool:
        now = FROZEN - 500.0 + next(turns) / 1000
        client.poll(now)
        binder.poll(now)
        return bool(client.peers() and binder.peers())

    wait_until(both_up, client.fileno(), binder.fileno())
    client.poll(FROZEN)
    binder.poll(FROZEN)
    assert client.peers()
    assert binder.peers()


async def echo(binder: Endpoint, clock) -> None:
    async for event in pump(binder, clock):
        if isinstance(event, Received):
            binder.send(event.message, clock(), event.peer)


async def test_no_message_waits_for_a_heartbeat_whatever_else_is_sent(endpoints):
    """ZeroMQ's descriptor is edge-triggered, and sending swallows edges."""
    binder, client = endpoints
    bring_up(binder, client)
    rounds, extra = 2000, 20
    task = asyncio.create_task(echo(binder, lambda: FROZEN))
    client.send(Note("gw", 0), FROZEN)
    heard = 0
    async with aclosing(pump(client, lambda: FROZEN)) as events:
        async for event in events:
            assert isinstance(event, Received)
            heard += 1
            if heard == rounds:
                break
            await asyncio.sleep(0)
            for n in range(2 if heard <= extra else 1):
                assert client.send(Note("gw", n), FROZEN)
    task.cancel()
    assert client.statistics().gaps == binder.statistics().gaps == 0


async def test_a_send_from_another_task_wakes_the_pump(endpoints):
    binder, client = endpoints
    bring_up(binder, client)
    task = asyncio.create_task(echo(binder, lambda: FROZEN))

    async def speak() -> None:
        for n in range(500):
            client.send(Note("gw", n), FROZEN)
            await asyncio.sleep(0)

    speaker = asyncio.create_task(speak())
    heard = []
    async with aclosing(pump(client, lambda: FROZEN)) as events:
        async for event in events:
            heard.append(event.message.n)
            if len(heard) == 500:
                break
    assert heard == list(range(500))
    await speaker
    task.cancel()


async def test_links_beat_without_any_traffic(endpoints):
    binder, client = endpoints
    task = asyncio.create_task(echo(binder, time.monotonic))
    raw = client._transport
    hello = pack(Frame(5, 0, 0, 0, 0, 0, None))
    await asyncio.to_thread(wait_until, lambda: raw.send(SERVER, hello), raw.fileno())
    beats = [unpack((await asyncio.to_thread(receive, raw))[1]) for _ in range(4)]
    assert [beat.payload for beat in beats] == [None] * 4
    assert sorted({beat.progress for beat in beats}) == [beat.progress for beat in beats]
    task.cancel()


async def test_a_consumer_that_never_waits_does_not_starve_other_tasks(endpoints):
    binder, client = endpoints
    bring_up(binder, client)
    for n in range(600):
        assert binder.send(Note("w", n), FROZEN, b"gw-1")
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    heard = 0
    async with aclosing(pump(client, lambda: FROZEN)) as events:
        async for event in events:
            heard += 1
            if heard == 600:
                break
            client.send(event.message, FROZEN)
    assert turns >= 2  # one for each poll that was full
    task.cancel()


async def test_an_idle_pump_does_not_spin(endpoints, monkeypatch):
    binder, client = endpoints
    bring_up(binder, client)
    polls = []
    poll = client.poll
    monkeypatch.setattr(client, "poll", lambda now: polls.append(now) or poll(now))
    waiting = asyncio.ensure_future(anext(pump(client, lambda: FROZEN)))
    await asyncio.sleep(0)
    client.send(Note("gw", 0), FROZEN)
    for _ in range(1000):
        await asyncio.sleep(0)
    assert 2 <= len(polls) < 50
    waiting.cancel()


async def test_after_it_is_closed_the_descriptor_and_the_endpoint_are_free(endpoints):
    binder, client = endpoints
    bring_up(binder, client)
    for _ in range(2):
        async with aclosing(pump(client, lambda: FROZEN)) as events:
            binder.send(Note("w", 1), FROZEN, b"gw-1")
            assert await anext(events) == Received(SERVER, Note("w", 1))
            assert client.on_send is not None
        assert client.on_send is None
        assert not asyncio.get_running_loop().remove_reader(client.fileno())
