"""Log-probabilities of an output's tokens, with each token's text, bytes and place in the text.

Separate from the detokenizer, which hides where tokens begin: here a token is told as it was drawn,
also one that ends inside a character.
"""

import codecs
from collections.abc import Sequence
from dataclasses import dataclass

from protocol.data_link import TokenLogprobs
from tokenizer_service.token_bytes import TokenBytes

FLOOR = -9999.0
"""For a token that cannot be drawn: JSON has no infinity."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A token that could stand at a position."""

    data: bytes
    logprob: float

    @property
    def text(self) -> str:
        """The token as text; part of a character as `bytes:` and hex, as OpenAI writes it."""
        try:
            return self.data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in self.data)


@dataclass(frozen=True, slots=True)
class DrawnToken:
    """One position of an output."""

    drawn: Candidate
    top: tuple[Candidate, ...]
    """The most likely ones, most likely first."""
    offset: int
    """Characters of text before it."""


class LogprobReader:
    """Reads the positions of one output, in order."""

    def __init__(self, tokens: TokenBytes, *, skip_special: bool) -> None:
        self._tokens = tokens
        self._skip = tokens.special if skip_special else frozenset()
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def read(self, ids: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> list[DrawnToken]:
        """Return the positions of `ids`, the next tokens; `logprobs` has one entry for each."""
        return [self._one(token, entry) for token, entry in zip(ids, logprobs, strict=True)]

    def _one(self, token: int, entry: TokenLogprobs) -> DrawnToken:
        top = zip(entry.top_ids, entry.top, strict=True)
        offset = self._offset
        if token not in self._skip:
            self._offset += len(self._utf8.decode(self._bytes(token)))
        return DrawnToken(
            drawn=self._candidate(token, entry.drawn),
            top=tuple(self._candidate(other, logprob) for other, logprob in top),
            offset=offset,
        )

    def _candidate(self, token: int, logprob: float) -> Candidate:
        return Candidate(self._bytes(token), max(logprob, FLOOR))

    def _bytes(self, token: int) -> bytes:
        return self._tokens.table[token] if 0 <= token < len(self._tokens.table) else b""
