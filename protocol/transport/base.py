"""What carries frames between processes: the one interface over ZeroMQ and the in-memory network.

A carrier is unreliable by contract. It may lose frames, also silently; it does not corrupt, reorder
or repeat them within one connection. What follows from that is `protocol.link`'s.
"""

from typing import Protocol

SERVER = b""
"""The one peer of a connecting transport."""


class AddressRefused(ValueError):
    """An address that must not or cannot be used. The text names the rule and the value."""


class AddressInUse(AddressRefused):
    """Another process (or socket) holds the address."""


class Transport(Protocol):
    """One socket, used from one thread."""

    @property
    def binds(self) -> bool:
        """Whether peers come to this socket (many, by routing id); else its one peer is SERVER."""
        ...

    def send(self, peer: bytes, frame: bytes) -> bool:
        """Send without blocking; False: no such peer, or its queue is full."""
        ...

    def receive(self) -> tuple[bytes, bytes] | None:
        """Return (peer, frame) without blocking; None: nothing is there."""
        ...

    def fileno(self) -> int:
        """Descriptor that turns readable when `receive` may have something.

        Edge-triggered for ZeroMQ: after it fired, and after each `send`, call `receive` until None.
        -1 where there is none (in memory).
        """
        ...

    def close(self) -> None:
        """Free the socket and its address. Idempotent; the other calls then find nothing."""
        ...
