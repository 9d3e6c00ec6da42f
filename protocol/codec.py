"""Messages to bytes and back: MessagePack for the bytes, msgspec for types, ranges and lengths.

Unpacking takes two steps because each has what the other lacks: msgpack has limits on what it
unpacks (a header of five bytes can claim four billion elements), msgspec checks the result against
the message types. Packing is msgspec's alone: a worker packs hundreds of rows an iteration.
Whatever is wrong with a peer's bytes is one exception, so that a main loop has one thing to catch.
"""

import re
from math import isfinite
from types import UnionType
from typing import Any, Generic, NoReturn, TypeVar, cast

import msgpack
import msgspec
from msgspec import Struct

MAX_MESSAGE_BYTES = 32 << 20
"""A prompt of a million tokens, its output and its page hashes fit eight times."""
MAX_ELEMENTS = 1 << 16
"""Of one array: twice the requests and batch rows that any worker holds."""
MAX_FIELDS = 256
MAX_STRING_BYTES = 1 << 16

In = TypeVar("In")

_BYTES = (bytes,)
_MAYBE_NOT_FINITE = re.compile(rb"\xca[\x7f\xff][\x80-\xff]|\xcb[\x7f\xff][\xf0-\xff]")
"""A float32 or float64 whose exponent is all ones. May hit inside a `bin`, never misses one."""
_BEGINS = (b"\xca\x7f", b"\xca\xff", b"\xcb\x7f", b"\xcb\xff")
"""How each of these begins: looking for two bytes is ten times as fast as the pattern."""
_PACK = msgspec.msgpack.Encoder().encode
"""From structs to bytes in one step; what msgpack would pack, byte for byte."""


class Malformed(Exception):
    """Bytes from a peer that are no message of the accepted types. The text says why."""


def encode(message: Struct) -> bytes:
    """Pack a message.

    Raises ValueError for what no peer would accept: more than MAX_MESSAGE_BYTES, or a float that is
    not finite.
    """
    data = _PACK(message)
    if len(data) > MAX_MESSAGE_BYTES:
        raise ValueError(
            f"{type(message).__name__} of {len(data)} bytes, the limit is {MAX_MESSAGE_BYTES}"
        )
    if _may_hold_not_finite(data) and not _all_finite(_unpack(data)):
        raise ValueError(f"{type(message).__name__} holds a float that is not finite")
    return data


class Codec(Generic[In]):
    """Unpacks messages of one type, or of one union of tagged types."""

    def __init__(self, accepts: type[In] | UnionType) -> None:
        self._accepts = accepts

    def decode(self, data: bytes) -> In:
        """Unpack one message. Raises Malformed, and nothing else, for any bytes."""
        if len(data) > MAX_MESSAGE_BYTES:
            raise Malformed(f"{len(data)} bytes, over the limit of {MAX_MESSAGE_BYTES}")
        try:
            plain = _unpack(data)
            message = msgspec.convert(plain, self._accepts, builtin_types=_BYTES)
        except (ValueError, TypeError, OverflowError, RecursionError, MemoryError) as error:
            raise Malformed(f"{type(error).__name__}: {str(error)[:200]}") from None
        if _may_hold_not_finite(data) and not _all_finite(plain):
            raise Malformed("a float is not finite")
        return cast(In, message)


def _may_hold_not_finite(data: bytes) -> bool:
    return any(b in data for b in _BEGINS) and _MAYBE_NOT_FINITE.search(data) is not None


def _unpack(data: bytes) -> object:
    return msgpack.unpackb(
        data,
        raw=False,
        strict_map_key=True,
        ext_hook=_refuse_extension,
        max_str_len=MAX_STRING_BYTES,
        max_bin_len=MAX_MESSAGE_BYTES,
        max_array_len=min(len(data), MAX_ELEMENTS),
        max_map_len=min(len(data), MAX_FIELDS),
        max_ext_len=0,
    )


def _refuse_extension(code: int, data: bytes) -> NoReturn:
    raise ValueError(f"extension type {code} is not accepted")


def _all_finite(plain: object) -> bool:
    """Whether no float in a tree of builtins is NaN or infinite. Iterative: depth is a peer's."""
    pending: list[Any] = [plain]
    while pending:
        item = pending.pop()
        if isinstance(item, float):
            if not isfinite(item):
                return False
        elif isinstance(item, dict):
            pending.extend(item.values())
        elif isinstance(item, list | tuple):
            pending.extend(item)
    return True
