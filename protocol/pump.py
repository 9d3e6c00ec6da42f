"""An endpoint in an asyncio process: wakes when something came, or when a heartbeat is due.

Not ZeroMQ's own asyncio sockets: their chained futures can drop a message on cancellation. Here a
message leaves the socket in `poll`, which is not async and thus cannot be cut in the middle.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

from msgspec import Struct

from protocol.endpoint import Endpoint, PeerEvent

In = TypeVar("In")
Out = TypeVar("Out", bound=Struct)


async def pump(
    endpoint: Endpoint[In, Out], clock: Callable[[], float]
) -> AsyncIterator[PeerEvent[In]]:
    """Yield the endpoint's events for ever. `clock` gives seconds, monotonic.

    One reader per endpoint; other tasks of the same loop may call its `send`. Close it (as
    `contextlib.aclosing` does) when the endpoint is done with: events not yet taken are gone then.
    What the consumer does between two events delays heartbeats: that is meant, peers shall see a
    loop that hangs.
    """
    loop = asyncio.get_running_loop()
    wake = asyncio.Event()
    descriptor = endpoint.fileno()
    loop.add_reader(descriptor, wake.set)
    endpoint.on_send = wake.set
    try:
        while True:
            # Cleared before the poll: an edge during it, or a send that swallows one, wakes again.
            wake.clear()
            for event in endpoint.poll(clock()):
                yield event
            await asyncio.sleep(0)  # a consumer that never waits must not starve the other tasks
            await _wait(loop, wake, endpoint, clock)
    finally:
        endpoint.on_send = None
        loop.remove_reader(descriptor)


async def _wait(
    loop: asyncio.AbstractEventLoop,
    wake: asyncio.Event,
    endpoint: Endpoint[Any, Any],
    clock: Callable[[], float],
) -> None:
    now = clock()
    timer = loop.call_later(max(0.0, endpoint.deadline(now) - now), wake.set)
    try:
        await wake.wait()
    finally:
        timer.cancel()
