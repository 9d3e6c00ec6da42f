"""Frames over ZeroMQ: a ROUTER binds, DEALERs connect, nothing is left at a silent default.

ROUTER_MANDATORY, because a default ROUTER drops to a slow peer without a word; no handover, because
a second peer of the same name would hijack the first; IMMEDIATE on the connecting side, so that
nothing is queued for a binder that is away and delivered to its successor. Sockets are never waited
for: the main loops poll. Who may bind and connect is `protocol.transport.access`.
"""

import errno
from typing import Any

import zmq

from protocol.codec import MAX_MESSAGE_BYTES
from protocol.frame import HEADER_BYTES
from protocol.transport.access import (
    AddressLock,
    CurveClient,
    CurveServer,
    Gatekeeper,
    check_address,
    lock_address,
)
from protocol.transport.base import SERVER, AddressInUse, AddressRefused

HIGH_WATER_MARK = 8192
"""Frames queued per peer and direction; a link's window has to be below it."""
LINGER_MS = 500
"""How long `close` waits for a goodbye to leave."""
HANDSHAKE_MS = 2_000
RECONNECT_MS = 20
RECONNECT_MAX_MS = 1_000
TCP_HEARTBEAT_MS = 1_000
"""Frees the name of a TCP peer that vanished; whether a process lives, the link decides."""
MAX_IDENTITY_BYTES = 64


class ZeroMqTransport:
    """One ROUTER or DEALER socket with a context of its own."""

    def __init__(self, kind: zmq.SocketType, *, tcp: bool) -> None:
        self._context = zmq.Context()
        self._socket: zmq.Socket[bytes] = self._context.socket(kind)
        self._lock: AddressLock | None = None
        self._gatekeeper: Gatekeeper | None = None
        options: dict[int, Any] = {
            zmq.SNDHWM: HIGH_WATER_MARK,
            zmq.RCVHWM: HIGH_WATER_MARK,
            zmq.LINGER: LINGER_MS,
            zmq.MAXMSGSIZE: HEADER_BYTES + MAX_MESSAGE_BYTES,
            zmq.HANDSHAKE_IVL: HANDSHAKE_MS,
            zmq.RECONNECT_IVL: RECONNECT_MS,
            zmq.RECONNECT_IVL_MAX: RECONNECT_MAX_MS,
        }
        if tcp:
            options |= {
                zmq.HEARTBEAT_IVL: TCP_HEARTBEAT_MS,
                zmq.HEARTBEAT_TIMEOUT: 3 * TCP_HEARTBEAT_MS,
            }
        for option, value in options.items():
            self._socket.setsockopt(option, value)

    @property
    def binds(self) -> bool:
        """Whether this is the ROUTER."""
        return self._socket.type == zmq.ROUTER

    @property
    def address(self) -> str:
        """The address in use, with the port that the kernel chose."""
        return self._socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def send(self, peer: bytes, frame: bytes) -> bool:
        """Send without blocking; False: no such peer, or its queue is full, or closed."""
        if self._socket.closed:
            return False
        parts = [peer, frame] if self.binds else [frame]
        try:
            self._socket.send_multipart(parts, zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno in (zmq.EAGAIN, errno.EHOSTUNREACH):
                return False
            raise
        return True

    def receive(self) -> tuple[bytes, bytes] | None:
        """Return (peer, frame); None: nothing is there. What is no single frame comes as b""."""
        if self._socket.closed:
            return None
        if self._gatekeeper is not None:
            self._gatekeeper.serve()
        try:
            parts = self._socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return None
        peer = parts.pop(0) if self.binds else SERVER
        return peer, parts[0] if len(parts) == 1 else b""

    def fileno(self) -> int:
        """Edge-triggered descriptor; -1 once closed."""
        return -1 if self._socket.closed else int(self._socket.getsockopt(zmq.FD))

    def close(self) -> None:
        """Free the socket and its address, after LINGER_MS at most."""
        if self._socket.closed:
            return
        self._socket.close(LINGER_MS)
        if self._gatekeeper is not None:
            self._gatekeeper.close()
        self._context.term()
        if self._lock is not None:
            self._lock.release()


def bind(address: str, curve: CurveServer | None = None) -> ZeroMqTransport:
    """Bind a ROUTER to `ipc://` in a private directory, or to `tcp://` with CURVE keys.

    Raises AddressRefused, or AddressInUse when another process holds the address.
    """
    path = check_address(address, has_keys=curve is not None)
    lock = lock_address(path) if path is not None else None
    transport = ZeroMqTransport(zmq.ROUTER, tcp=path is None)
    transport._lock = lock
    socket = transport._socket
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    socket.setsockopt(zmq.ROUTER_HANDOVER, 0)
    try:
        if curve is not None:
            transport._gatekeeper = Gatekeeper(transport._context, curve.allowed)
            curve.apply(socket)
        socket.bind(address)
    except zmq.ZMQError as error:
        transport.close()
        raise _refused(address, error) from None
    return transport


def connect(address: str, identity: bytes, curve: CurveClient | None = None) -> ZeroMqTransport:
    """Connect a DEALER, known to the binder as `identity`; the binder may come later.

    Raises AddressRefused.
    """
    path = check_address(address, has_keys=curve is not None)
    if not 0 < len(identity) <= MAX_IDENTITY_BYTES or identity[0] == 0:
        raise AddressRefused(f"identity {identity!r}: 1 to {MAX_IDENTITY_BYTES} bytes, not 0 first")
    transport = ZeroMqTransport(zmq.DEALER, tcp=path is None)
    socket = transport._socket
    socket.setsockopt(zmq.IDENTITY, identity)
    socket.setsockopt(zmq.IMMEDIATE, 1)
    try:
        if curve is not None:
            curve.apply(socket)
        socket.connect(address)
    except zmq.ZMQError as error:
        transport.close()
        raise _refused(address, error) from None
    return transport


def _refused(address: str, error: zmq.ZMQError) -> AddressRefused:
    kind = AddressInUse if error.errno == zmq.EADDRINUSE else AddressRefused
    return kind(f"{address}: {error.strerror}")
