"""Names of the things that messages are about: requests, boots, epochs, and token ids on the wire.

Separate from the messages because every layer uses them, also where nothing is sent.
"""

import sys
from array import array
from collections.abc import Sequence
from secrets import token_hex
from typing import Annotated

from msgspec import Meta, Struct

RequestId = Annotated[str, Meta(min_length=1, max_length=64)]
"""Made by the gateway, 128 random bits in hex; a client's own id is a label, never this."""
BootId = Annotated[str, Meta(min_length=1, max_length=64)]
"""Made anew each time a worker process starts."""
PeerName = Annotated[str, Meta(min_length=1, max_length=64)]
ModelName = Annotated[str, Meta(min_length=1, max_length=256)]
Tenant = Annotated[str, Meta(max_length=64)]

Count = Annotated[int, Meta(ge=0, le=2**53)]
"""Tokens, pages, rows: anything that is counted."""
Seconds = Annotated[float, Meta(ge=0)]

TokenBytes = Annotated[bytes, Meta(max_length=64 << 20)]
"""Token ids as packed little-endian int32, so that a 128K prompt is one `bin` and not a list."""


class RequestRef(Struct, frozen=True, array_like=True, cache_hash=True):
    """One attempt at a request: a resubmit after a worker's crash raises the incarnation."""

    request: RequestId
    incarnation: Count = 0


class Epoch(Struct, frozen=True, order=True):
    """Who may act: the n-th scheduler attached since the worker's boot. Larger n wins."""

    boot: BootId
    n: Count


def new_id() -> str:
    """Return 128 random bits in hex."""
    return token_hex(16)


def pack_tokens(ids: Sequence[int]) -> bytes:
    """Pack token ids (each in int32) for the wire. Raises OverflowError outside int32."""
    packed = array("i", ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack_tokens(data: bytes) -> list[int]:
    """Unpack token ids from the wire. Raises ValueError when the length is not a multiple of 4."""
    packed = array("i")
    packed.frombytes(data)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tolist()
