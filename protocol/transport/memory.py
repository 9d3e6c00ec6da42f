"""Frames in memory and in virtual time: the network of tests and of the fault simulator.

It does what was measured of ZeroMQ and no worse: per connection frames arrive in order and once; a
break loses some suffix of what is in flight, in each direction; a second peer of a name is kept
out while the first is connected; a full queue refuses. It decides nothing by itself: time, breaks
and stalls are the driver's, so a run is a pure function of what the driver does.
"""

from collections import deque
from dataclasses import dataclass, field

from protocol.transport.base import SERVER, AddressInUse

_NEVER = float("inf")


@dataclass(eq=False)
class _Pipe:
    """One direction of one connection: frames with the time at which each arrives, in order."""

    last_due: float
    frames: deque[tuple[float, int, bytes]] = field(default_factory=deque)
    """(arrival in seconds, number over the whole network, frame)."""
    open: bool = True

    def push(self, due: float, number: int, frame: bytes) -> None:
        self.last_due = max(self.last_due, due)
        self.frames.append((self.last_due, number, frame))

    def head(self) -> tuple[float, int]:
        return self.frames[0][:2] if self.frames else (_NEVER, 0)

    def lose(self, now: float, keep: int) -> int:
        """Lose what is in flight but the first `keep`; what has arrived stays. Return how many."""
        arrived = sum(due <= now for due, _, _ in self.frames)
        lost = max(0, len(self.frames) - arrived - keep)
        for _ in range(lost):
            self.frames.pop()
        return lost

    def delay(self, now: float, until: float) -> None:
        """Let nothing more arrive before `until`."""
        self.last_due = max(self.last_due, until)
        self.frames = deque(
            (due if due <= now else max(due, until), number, frame)
            for due, number, frame in self.frames
        )


@dataclass(eq=False)
class _Connection:
    binder: "MemoryTransport"
    connector: "MemoryTransport"
    to_binder: _Pipe
    to_connector: _Pipe


class MemoryTransport:
    """One socket of a `Network`; made by its `bind` and `connect`."""

    def __init__(self, network: "Network", address: str, identity: bytes | None) -> None:
        """`identity` is None for a binding socket."""
        self.address = address
        self.identity = identity
        self._network = network
        self._connections: dict[bytes, _Connection] = {}
        self._inbox: list[tuple[bytes, _Pipe]] = []
        self._retry_at = _NEVER
        self._closed = False

    @property
    def binds(self) -> bool:
        """Whether peers come to this socket."""
        return self.identity is None

    @property
    def connected(self) -> list[bytes]:
        """Peers that are connected now."""
        return list(self._connections)

    def send(self, peer: bytes, frame: bytes) -> bool:
        """Put a frame in flight; False: not connected, or `capacity` frames are under way."""
        connection = self._connections.get(peer)
        if connection is None:
            return False
        pipe = connection.to_connector if self.binds else connection.to_binder
        if len(pipe.frames) >= self._network.capacity:
            return False
        self._network.put(pipe, frame)
        return True

    def receive(self) -> tuple[bytes, bytes] | None:
        """Return the frame that arrived first of those not yet taken."""
        if not self._inbox:
            return None
        peer, pipe = min(self._inbox, key=lambda entry: entry[1].head())
        if pipe.head()[0] > self._network.now:
            return None
        _, _, frame = pipe.frames.popleft()
        return peer, frame

    def fileno(self) -> int:
        """-1: there is no descriptor; the driver knows when something arrives."""
        return -1

    def close(self) -> None:
        """Leave: what was sent still arrives."""
        self._network.kill(self, keep=self._network.capacity)

    def next_arrival(self) -> float:
        """When `receive` next has something, in virtual seconds; infinity: nothing is under way."""
        return min((pipe.head()[0] for _, pipe in self._inbox), default=_NEVER)

    def _attach(self, peer: bytes, connection: _Connection, inbound: _Pipe) -> None:
        self._connections[peer] = connection
        self._retry_at = _NEVER
        # Old pipes stay until they are read: what arrived before a break is not lost by it.
        self._inbox = [(name, pipe) for name, pipe in self._inbox if pipe.open or pipe.frames]
        earlier = [pipe.last_due for name, pipe in self._inbox if name == peer]
        inbound.last_due = max([inbound.last_due, *earlier])
        self._inbox.append((peer, inbound))


class Network:
    """A world of named addresses. `now` moves only by `advance`; seconds throughout."""

    def __init__(
        self, latency_s: float, *, reconnect_s: float = 0.02, capacity: int = 8192
    ) -> None:
        """`capacity`: frames under way per direction of a connection, unread ones included."""
        self.now = 0.0
        self.latency_s = latency_s
        self.reconnect_s = reconnect_s
        self.capacity = capacity
        self._binders: dict[str, MemoryTransport] = {}
        self._connectors: list[MemoryTransport] = []
        self._numbers = 0

    def bind(self, address: str) -> MemoryTransport:
        """Return a binding socket. Raises AddressInUse."""
        if address in self._binders:
            raise AddressInUse(f"{address} is bound")
        binder = MemoryTransport(self, address, None)
        self._binders[address] = binder
        self._wake_connectors()
        return binder

    def connect(self, address: str, identity: bytes) -> MemoryTransport:
        """Return a connecting socket; its connection follows, when there is a binder."""
        connector = MemoryTransport(self, address, identity)
        connector._retry_at = self.now
        self._connectors.append(connector)
        self._open_due()
        return connector

    def advance(self, now: float) -> None:
        """Move time on; connections that are due open. Raises ValueError when it would go back."""
        if now < self.now:
            raise ValueError(f"time {now} is before {self.now}")
        self.now = now
        self._open_due()

    def next_event(self) -> float:
        """When something next arrives or connects; infinity: never, unless somebody sends."""
        sockets = [*self._binders.values(), *self._connectors]
        arrivals = (socket.next_arrival() for socket in sockets)
        return min((*arrivals, self.next_connection()))

    def next_connection(self) -> float:
        """When somebody next tries to connect; infinity: never."""
        return min((connector._retry_at for connector in self._connectors), default=_NEVER)

    def cut(self, connector: MemoryTransport, keep: int, keep_back: int) -> int:
        """Break a connection: all but the first frames in flight are lost, in each direction.

        `keep` frames towards the binder and `keep_back` towards the connector still arrive. It
        connects again after `reconnect_s`. Returns how many frames were lost.
        """
        connection = connector._connections.get(SERVER)
        if connection is None:
            return 0
        lost = connection.to_binder.lose(self.now, keep)
        lost += connection.to_connector.lose(self.now, keep_back)
        self._disconnect(connection)
        return lost

    def stall(self, connector: MemoryTransport, until: float) -> None:
        """Let nothing arrive on a connection before `until`, in either direction."""
        connection = connector._connections.get(SERVER)
        if connection is not None:
            connection.to_binder.delay(self.now, until)
            connection.to_connector.delay(self.now, until)

    def kill(self, socket: MemoryTransport, keep: int) -> None:
        """End a socket as its process's death does: of its frames in flight the first `keep` per
        connection arrive, those on the way to it do not. Its address is free at once.
        """
        if socket._closed:
            return
        socket._closed = True
        if socket.binds:
            del self._binders[socket.address]
        else:
            self._connectors.remove(socket)
        for connection in list(socket._connections.values()):
            outbound = connection.to_connector if socket.binds else connection.to_binder
            outbound.lose(self.now, keep)
            self._disconnect(connection)
        socket._inbox = []
        socket._retry_at = _NEVER

    def put(self, pipe: _Pipe, frame: bytes) -> None:
        """Put a frame in flight (for sockets)."""
        self._numbers += 1
        pipe.push(self.now + self.latency_s, self._numbers, frame)

    def _disconnect(self, connection: _Connection) -> None:
        identity = connection.connector.identity
        assert identity is not None  # connectors have one
        del connection.binder._connections[identity]
        del connection.connector._connections[SERVER]
        connection.to_binder.open = connection.to_connector.open = False
        self._wake_connectors()

    def _wake_connectors(self) -> None:
        for connector in self._connectors:
            if not connector._connections:
                connector._retry_at = min(connector._retry_at, self.now + self.reconnect_s)

    def _open_due(self) -> None:
        for connector in self._connectors:
            if connector._retry_at > self.now:
                continue
            connector._retry_at = _NEVER  # until something changes: a bind, or a name set free
            binder = self._binders.get(connector.address)
            identity = connector.identity
            assert identity is not None  # connectors have one
            if binder is None or identity in binder._connections:
                continue
            connection = _Connection(binder, connector, _Pipe(self.now), _Pipe(self.now))
            binder._attach(identity, connection, connection.to_binder)
            connector._attach(SERVER, connection, connection.to_connector)
