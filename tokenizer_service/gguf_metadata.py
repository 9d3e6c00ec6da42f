"""Reads the key-value part of a GGUF file (its header), and nothing behind it.

The gateway needs a vocabulary and a template, not the tensors: this reads 100,000 strings in a
fraction of a second, where a general reader maps the whole file and builds an array per string.
Layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import struct
from pathlib import Path
from typing import BinaryIO

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_KEYS = 65_536
MAX_STRING_BYTES = 16 << 20
MAX_ARRAY_LENGTH = 16 << 20

STRING = 8
ARRAY = 9
SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}

Scalar = bool | int | float | str
Value = Scalar | list[Scalar]


class BadGgufError(Exception):
    """The file is no GGUF file that this reader knows. The message names the place and value."""


class _Reader:
    """Little-endian reads with bounds."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def exactly(self, size: int) -> bytes:
        data = self._file.read(size)
        if len(data) != size:
            raise BadGgufError(f"the file ends {size - len(data)} bytes too early in its header")
        return data

    def number(self, code: str) -> int:
        (value,) = struct.unpack("<" + code, self.exactly(struct.calcsize("<" + code)))
        return int(value)

    def bounded(self, what: str, limit: int) -> int:
        value = self.number("Q")
        if value > limit:
            raise BadGgufError(f"{what} is {value}, more than {limit}")
        return value

    def string(self) -> str:
        data = self.exactly(self.bounded("length of a string", MAX_STRING_BYTES))
        return data.decode("utf-8", "replace")

    def scalars(self, kind: int, count: int) -> list[Scalar]:
        if kind == STRING:
            return [self.string() for _ in range(count)]
        code = SCALARS.get(kind)
        if code is None:
            raise BadGgufError(f"unknown value type {kind}")
        data = self.exactly(count * struct.calcsize("<" + code))
        return list(struct.unpack(f"<{count}{code}", data))

    def value(self) -> Value:
        kind = self.number("I")
        if kind != ARRAY:
            return self.scalars(kind, 1)[0]
        kind = self.number("I")
        return self.scalars(kind, self.bounded("length of an array", MAX_ARRAY_LENGTH))


def read_metadata(path: Path) -> dict[str, Value]:
    """Return the key-value pairs of a GGUF file. Raises BadGgufError, OSError."""
    with path.open("rb") as file:
        reader = _Reader(file)
        if (magic := reader.exactly(4)) != MAGIC:
            raise BadGgufError(f"not a GGUF file: it begins with {magic!r}")
        if (version := reader.number("I")) not in VERSIONS:
            raise BadGgufError(f"GGUF version {version}; known are {VERSIONS}")
        reader.number("Q")  # number of tensors
        keys = reader.bounded("number of keys", MAX_KEYS)
        return {reader.string(): reader.value() for _ in range(keys)}
