"""Waiting for real sockets: for a condition, woken by descriptors, with a deadline that fails."""

import select
import time
from collections.abc import Callable

from protocol.endpoint import Endpoint
from protocol.transport.base import Transport

PATIENCE_S = 30.0


def wait_until(condition: Callable[[], bool], *descriptors: int) -> None:
    """Return when `condition` holds; look at it whenever a descriptor fires, and now and then."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "never happened"
        select.select(descriptors, [], [], 0.005)


def receive(transport: Transport, *served: Transport) -> tuple[bytes, bytes]:
    """Wait for a frame; `served` transports are read too, and must have nothing."""
    arrived: list[tuple[bytes, bytes]] = []

    def look() -> bool:
        for other in served:
            assert other.receive() is None
        if (frame := transport.receive()) is not None:
            arrived.append(frame)
        return bool(arrived)

    wait_until(look, transport.fileno())
    return arrived[0]


def poll_until(condition: Callable[[], bool], events: list, *endpoints: Endpoint) -> None:
    """Poll all endpoints until `condition` holds, their events appended to `events`."""

    def look() -> bool:
        for endpoint in endpoints:
            events.extend((endpoint, event) for event in endpoint.poll(time.monotonic()))
        return condition()

    wait_until(look, *(endpoint.fileno() for endpoint in endpoints))
