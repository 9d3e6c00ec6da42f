"""One output of a request as it grows: tokens in, text and log-probabilities out. No I/O."""

from collections.abc import Sequence
from dataclasses import dataclass

from protocol.data_link import FinishReason, TokenLogprobs, Usage
from tokenizer_service.detokenize import Detokenizer
from tokenizer_service.events import Admitted, Broken, Done, Job, News, NewTokens
from tokenizer_service.logprobs import DrawnToken, LogprobReader
from tokenizer_service.metrics import Meter
from tokenizer_service.openai.errors import from_failure


@dataclass(frozen=True, slots=True)
class End:
    """How an output ended."""

    reason: FinishReason
    usage: Usage


@dataclass(frozen=True, slots=True)
class Piece:
    """What is new of one output. Text and tokens may be empty."""

    index: int
    """Of the output among a request's choices."""
    text: str
    tokens: tuple[DrawnToken, ...] | None
    """None: nobody asked for log-probabilities."""
    end: FinishReason | None = None
    """Set in the last piece."""


class Output:
    """The text of one choice, in pieces."""

    def __init__(
        self,
        index: int,
        job: Job,
        detokenizer: Detokenizer,
        reader: LogprobReader | None,
        meter: Meter,
    ) -> None:
        """`reader`: None when nobody asks for log-probabilities."""
        self.index = index
        self.job = job
        self.end: End | None = None
        self._detokenizer = detokenizer
        self._reader = reader
        self._meter = meter
        self._count = 0
        self._waiting: list[DrawnToken] = []
        """Positions whose text is held back, or is part of a character."""

    @property
    def stopped_at(self) -> int | None:
        """Index of the token at which a stop string ended the output; None: none did."""
        stopped = self._detokenizer.stopped
        return stopped.at_index if stopped is not None else None

    def take(self, news: News, now: float) -> Piece:
        """Return what the news add. Raises ApiError when the worker gave the request up."""
        self._meter.on(news, now)
        match news:
            case NewTokens(ids, logprobs):
                return self._piece(self._grow(ids, logprobs))
            case Done(reason, usage):
                return self._finish(reason, usage)
            case Broken(code, message):
                raise from_failure(code, message)
            case Admitted():
                return self._piece("")

    def _grow(self, ids: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> str:
        if self.stopped_at is not None:
            return ""
        text = self._detokenizer.push(ids)
        begin, self._count = self._count, self._count + len(ids)
        if self._reader is not None and len(logprobs) == len(ids):
            counted = min(self._count, self.stopped_at or self._count) - begin
            self._waiting += self._reader.read(ids[:counted], logprobs[:counted])
        return text

    def _finish(self, reason: FinishReason, usage: Usage) -> Piece:
        text = self._detokenizer.finish()
        if self.stopped_at is not None:
            reason = FinishReason.STOP
            usage = Usage(usage.prompt_tokens, self.stopped_at, usage.cached_tokens)
        self.end = End(reason, usage)
        return self._piece(text, reason)

    def _piece(self, text: str, end: FinishReason | None = None) -> Piece:
        """Return a piece; positions wait for text, so that a stream says both together."""
        if self._reader is None:
            return Piece(self.index, text, None, end)
        tokens: tuple[DrawnToken, ...] = ()
        if text or end is not None:
            tokens = tuple(self._waiting)
            self._waiting = []
        return Piece(self.index, text, tokens, end)
