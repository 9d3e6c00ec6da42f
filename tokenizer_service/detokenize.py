"""Token ids of an output to text that may be sent, token by token.

Two things make a token's text wait: it ends inside a UTF-8 character, or it ends in what may be the
beginning of a stop string. Each step looks at the new text and at most one stop string's length
before it, so the cost of a stream is linear in its length.
"""

import codecs
from collections.abc import Sequence
from dataclasses import dataclass

from tokenizer_service.token_bytes import TokenBytes


@dataclass(frozen=True, slots=True)
class Stopped:
    """A stop string was found: the text ends before it, the output before token `at_index`."""

    at_index: int
    stop: str


class StopFinder:
    """Finds the first occurrence of any stop string in a text that comes in pieces.

    First is the one that ends first; of those that end together the one that begins first. So the
    result does not depend on how the text was cut.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """`stops` are not empty strings."""
        self._stops = tuple(sorted(set(stops), key=len, reverse=True))
        self._beginnings = frozenset(stop[:n] for stop in self._stops for n in range(1, len(stop)))
        self._held = ""

    def push(self, text: str) -> tuple[str, str | None]:
        """Return the text that is safe to send now, and the stop string if it was found."""
        if not self._stops:
            return text, None
        seen = self._held + text
        found = self._first_end(seen, len(self._held))
        if found is not None:
            end, stop = found
            self._held = ""
            return seen[: end - len(stop)], stop
        safe = len(seen) - self._may_begin(seen)
        self._held = seen[safe:]
        return seen[:safe], None

    def flush(self) -> str:
        """Return what was held back: no more text will come."""
        held, self._held = self._held, ""
        return held

    def _first_end(self, seen: str, old: int) -> tuple[int, str] | None:
        """Return where the first stop string ends, after the `old` characters scanned before."""
        best: tuple[int, str] | None = None
        for stop in self._stops:
            start = seen.find(stop, max(0, old - len(stop) + 1))
            if start >= 0 and (best is None or start + len(stop) < best[0]):
                best = (start + len(stop), stop)
        return best

    def _may_begin(self, seen: str) -> int:
        """Return the length of the longest end of `seen` that begins a stop string."""
        longest = min(len(self._stops[0]) - 1, len(seen))
        for size in range(longest, 0, -1):
            if seen[-size:] in self._beginnings:
                return size
        return 0


class Detokenizer:
    """The text of one output. Bytes that are no UTF-8 become U+FFFD, as in Python and Rust."""

    def __init__(
        self, tokens: TokenBytes, stops: Sequence[str], *, skip_special: bool = True
    ) -> None:
        self._tokens = tokens
        self._skip = tokens.special if skip_special else frozenset()
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._stops = StopFinder(stops)
        self._count = 0
        self.stopped: Stopped | None = None

    def push(self, ids: Sequence[int]) -> str:
        """Return the text that `ids`, the next tokens of the output, make safe to send.

        Sets `stopped` when a stop string ends in them; what follows it is not looked at.
        """
        sendable: list[str] = []
        for token in ids:
            if self.stopped is not None:
                break
            self._count += 1
            sendable.append(self._scan(self._utf8.decode(self._bytes(token))))
        return "".join(sendable)

    def finish(self) -> str:
        """Return the rest of the text: no more tokens will come. Nothing once stopped."""
        if self.stopped is not None:
            return ""
        rest = self._scan(self._utf8.decode(b"", True))
        return rest if self.stopped is not None else rest + self._stops.flush()

    def _bytes(self, token: int) -> bytes:
        if token in self._skip or not 0 <= token < len(self._tokens.table):
            return b""
        return self._tokens.table[token]

    def _scan(self, text: str) -> str:
        if not text:
            return ""
        sendable, stop = self._stops.push(text)
        if stop is not None:
            self.stopped = Stopped(at_index=self._count, stop=stop)
        return sendable
