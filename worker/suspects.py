"""Who was on the device when the process died: a file that outlives it, mapped into memory.

A request that makes the device or the process fail must not take the server down again and again.
So the worker notes, before each launch, whose work is on the device; its successor counts them, and
refuses a request that was there in two deaths. Requests that only waited are never suspected.

What is noted survives a kill -9 because the kernel has it, not because it is on disk. Two areas
take turns, so that a death in the middle of a note leaves the note before it.
"""

import mmap
import os
import struct
from collections.abc import Iterable
from hashlib import blake2b

MAX_DEATHS = 2
"""With work on the device, after which a request is refused."""
MAX_NOTED = 8192
"""Requests on the device at one time; more than any worker has slots."""
MAX_REMEMBERED = 8192
"""Suspects of earlier deaths, the newest first."""

_MAGIC = b"TNDMSUS1"
_HEADER = struct.Struct("<8sBxxxI")
"""Magic, the area that counts, remembered suspects."""
_COUNT = struct.Struct("<I")
_NAME_BYTES = 16
_ROW = struct.Struct(f"<{_NAME_BYTES}sB")
_AREA_BYTES = _COUNT.size + MAX_NOTED * _NAME_BYTES
_AREAS_AT = _HEADER.size + MAX_REMEMBERED * _ROW.size
FILE_BYTES = _AREAS_AT + 2 * _AREA_BYTES


class Suspects:
    """What this process notes, and whom it refuses: `request in suspects`."""

    def __init__(self, memory: bytearray | mmap.mmap) -> None:
        """`memory` is `after` of what the process before has left."""
        self._memory = memory
        self._deaths = _remembered(memory)
        self._area = 0
        self._noted: list[str] = []
        self._names: dict[str, bytes] = {}

    def __contains__(self, request: object) -> bool:
        """Whether `request` was on the device in MAX_DEATHS deaths."""
        return isinstance(request, str) and self._deaths.get(_name(request), 0) >= MAX_DEATHS

    def note(self, requests: Iterable[str]) -> None:
        """Note that exactly `requests`, the first MAX_NOTED of them, are on the device from now on.

        To be called before their work is launched.
        """
        noted = list(requests)[:MAX_NOTED]
        if noted == self._noted:
            return
        known = self._names
        self._names = {request: known.get(request) or _name(request) for request in noted}
        self._noted = noted
        area = 1 - self._area
        at = _AREAS_AT + area * _AREA_BYTES
        data = _COUNT.pack(len(self._names)) + b"".join(self._names.values())
        self._memory[at : at + len(data)] = data
        self._memory[len(_MAGIC)] = area  # one byte: there is no half of it
        self._area = area

    def close(self) -> None:
        """The process ends by its own will: nobody is suspected of it."""
        self.note(())


def after(left: bytes) -> bytes:
    """Return the memory of a process whose predecessor has left `left`, empty when there was none.

    Anything that is no memory of this version counts as empty.
    """
    deaths: dict[bytes, int] = {}
    if len(left) == FILE_BYTES and left.startswith(_MAGIC):
        before = _remembered(left)
        deaths = {name: before.get(name, 0) + 1 for name in _on_device(left)}
        deaths |= {name: count for name, count in before.items() if name not in deaths}
    rows = list(deaths.items())[:MAX_REMEMBERED]
    table = b"".join(_ROW.pack(name, min(count, 255)) for name, count in rows)
    return (_HEADER.pack(_MAGIC, 0, len(rows)) + table).ljust(FILE_BYTES, b"\0")


def open_suspects(path: str) -> Suspects:
    """Return the suspects kept in the file at `path`, which is replaced at once or not at all."""
    try:
        with open(path, "rb") as file:
            left = file.read(FILE_BYTES + 1)
    except FileNotFoundError:
        left = b""
    fresh = f"{path}.new"
    with open(os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600), "r+b") as file:
        file.write(after(left))
        file.flush()
        memory = mmap.mmap(file.fileno(), FILE_BYTES)
    os.replace(fresh, path)
    return Suspects(memory)


def _name(request: str) -> bytes:
    return blake2b(request.encode(), digest_size=_NAME_BYTES).digest()


def _remembered(memory: bytes | bytearray | mmap.mmap) -> dict[bytes, int]:
    _, _, count = _HEADER.unpack(memory[: _HEADER.size])
    table = memory[_HEADER.size : _HEADER.size + min(count, MAX_REMEMBERED) * _ROW.size]
    return dict(_ROW.iter_unpack(table))


def _on_device(memory: bytes) -> list[bytes]:
    _, area, _ = _HEADER.unpack(memory[: _HEADER.size])
    at = _AREAS_AT + min(area, 1) * _AREA_BYTES
    (count,) = _COUNT.unpack(memory[at : at + _COUNT.size])
    first = at + _COUNT.size
    ends = range(first, first + min(count, MAX_NOTED) * _NAME_BYTES, _NAME_BYTES)
    return [bytes(memory[end : end + _NAME_BYTES]) for end in ends]
