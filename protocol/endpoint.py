"""Messages to and from all peers of one socket: codec, links and transport put together.

The only thing of this package that a main loop holds. Nothing that a peer sends raises out of
`poll`; everything that goes wrong is an event, a count, or both.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from types import UnionType
from typing import Generic, TypeVar

from msgspec import Struct

from protocol.codec import Codec, Malformed, encode
from protocol.frame import BadFrame, unpack
from protocol.link import Link, LinkConfig, LinkStatistics, Signal, random_session
from protocol.transport.base import SERVER, Transport

MAX_PEERS = 256
"""Peers of a binding side at one time; those that come later are turned away until one is gone."""

In = TypeVar("In")
Out = TypeVar("Out", bound=Struct)


@dataclass(frozen=True, slots=True)
class Received(Generic[In]):
    """A message, delivered once and in order."""

    peer: bytes
    message: In


@dataclass(frozen=True, slots=True)
class Up:
    """The peer's link has (re)started: say hello or observe again; nothing from before counts."""

    peer: bytes


@dataclass(frozen=True, slots=True)
class Lost:
    """Frames were lost, in either direction: resync."""

    peer: bytes


@dataclass(frozen=True, slots=True)
class Down:
    """Nothing heard, or no progress of the peer's main loop, for `silence_s`."""

    peer: bytes


PeerEvent = Received[In] | Up | Lost | Down

_EVENTS: dict[Signal, type[Up] | type[Lost] | type[Down]] = {
    Signal.UP: Up,
    Signal.LOST: Lost,
    Signal.DOWN: Down,
}


class Endpoint(Generic[In, Out]):
    """One side of a link, with one peer (connecting) or many (binding). Used from one thread."""

    def __init__(
        self,
        transport: Transport,
        accepts: type[In] | UnionType,
        config: LinkConfig,
        *,
        sessions: Callable[[], int] = random_session,
    ) -> None:
        """`accepts` is the type, or the union of tagged types, that peers may send.

        `sessions` gives ids of links, never 0, never twice the same; a simulation passes its own.
        """
        self._transport = transport
        self._codec = Codec[In](accepts)
        self._config = config
        self._sessions = sessions
        self._statistics = LinkStatistics()
        self._links: dict[bytes, Link] = {}
        self._has_more = False
        self.on_send: Callable[[], None] | None = None
        """Called after each `send`: a send may swallow the descriptor's edge (`protocol.pump`)."""

    def send(self, message: Out, now: float, peer: bytes = SERVER) -> bool:
        """Send without blocking.

        False: no credit, no peer, or the transport is full; to a peer that is up it then shows as a
        gap, both sides get `Lost` and resync. Raises ValueError for what no peer would accept.
        """
        payload = encode(message)
        link = self._links.get(peer)
        frame = link.send(payload) if link is not None else None
        sent = frame is not None and self._transport.send(peer, frame)
        self._statistics.sent += sent
        self._statistics.refused += not sent
        if self.on_send is not None:
            self.on_send()
        return sent

    def poll(self, now: float, max_frames: int = 256) -> list[PeerEvent[In]]:
        """Take at most `max_frames` frames, notice silence, send heartbeats that are due.

        To be called at `deadline` at the latest, and when the descriptor fires. Never raises on
        what peers send. Peers hear from this process only while somebody calls this.
        """
        events: list[PeerEvent[In]] = []
        self._has_more = True
        for _ in range(max_frames):
            arrived = self._transport.receive()
            if arrived is None:
                self._has_more = False
                break
            self._receive(*arrived, now, events)
        if not self._transport.binds:
            self._link(SERVER, now)
        for peer, link in list(self._links.items()):
            self._tick(peer, link, now, events)
        return events

    def deadline(self, now: float) -> float:
        """When `poll` must be called next, at the latest; `now` or before: at once."""
        if self._has_more:
            return now
        beats = [link.deadline() for link in self._links.values()]
        return min(
            beats, default=now if not self._transport.binds else now + self._config.heartbeat_s
        )

    def fileno(self) -> int:
        """The transport's descriptor."""
        return self._transport.fileno()

    def peers(self) -> list[bytes]:
        """Return the peers that are up."""
        return [peer for peer, link in self._links.items() if link.up]

    def statistics(self) -> LinkStatistics:
        """Return a copy of the counts."""
        up = [link for link in self._links.values() if link.up]
        return dataclasses.replace(
            self._statistics,
            peers=len(up),
            unacknowledged=sum(link.unacknowledged for link in up),
        )

    def close(self) -> None:
        """Close the transport."""
        self._transport.close()

    def _link(self, peer: bytes, now: float) -> Link | None:
        """Return the peer's link, made when it is new; None: there are too many."""
        link = self._links.get(peer)
        if link is None and len(self._links) < MAX_PEERS:
            link = Link(self._config, self._sessions, self._statistics, now)
            self._links[peer] = link
        return link

    def _receive(self, peer: bytes, data: bytes, now: float, events: list[PeerEvent[In]]) -> None:
        try:
            frame = unpack(data)
        except BadFrame:
            self._statistics.malformed += 1
            return
        link = self._link(peer, now)
        if link is None:
            self._statistics.turned_away += 1
            return
        signals, payload = link.receive(frame)
        events.extend(_EVENTS[signal](peer) for signal in signals)
        if payload is None:
            return
        try:
            events.append(Received(peer, self._codec.decode(payload)))
        except Malformed:
            self._statistics.malformed += 1
            link.reject()

    def _tick(self, peer: bytes, link: Link, now: float, events: list[PeerEvent[In]]) -> None:
        signals, heartbeat = link.tick(now)
        events.extend(_EVENTS[signal](peer) for signal in signals)
        if self._transport.binds and not link.up and link.quiet_s > self._config.silence_s:
            del self._links[peer]
        elif heartbeat is not None and not self._transport.send(peer, heartbeat):
            link.retry(now)
