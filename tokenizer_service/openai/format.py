"""What an answer looks like, as plain dictionaries: one class for each of the two endpoints.

Pieces of a stream and the whole are built here only, so that both always agree.
"""

from dataclasses import dataclass
from typing import Protocol

from protocol.data_link import FinishReason, Usage

Json = dict[str, object]


def usage_json(usage: Usage) -> Json:
    """Return token counts as OpenAI names them."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.prompt_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


@dataclass(frozen=True)
class Answer:
    """What all parts of one answer carry."""

    request: str
    model: str
    """As the client named it."""
    created: int
    """Unix time in seconds."""
    streams_usage: bool
    """A stream that ends with usage says `usage: null` before."""

    def envelope(self, prefix: str, kind: str, choices: list[Json]) -> Json:
        """Return one object of the API."""
        return {
            "id": f"{prefix}-{self.request}",
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }

    def chunk(self, prefix: str, kind: str, choices: list[Json]) -> Json:
        """Return one chunk of a stream."""
        chunk = self.envelope(prefix, kind, choices)
        return chunk | {"usage": None} if self.streams_usage else chunk


class Format(Protocol):
    """How one endpoint says it."""

    def opening(self) -> list[Json]:
        """Return the chunks before any text."""
        ...

    def piece(self, text: str) -> Json:
        """Return a chunk with text."""
        ...

    def closing(self, reason: FinishReason) -> Json:
        """Return the chunk that says why the output ended."""
        ...

    def usage(self, usage: Usage) -> Json:
        """Return the chunk with the token counts: without choices, the last one."""
        ...

    def whole(self, text: str, reason: FinishReason, usage: Usage) -> Json:
        """Return the answer of a request that does not stream."""
        ...


@dataclass(frozen=True)
class ChatFormat:
    """/v1/chat/completions."""

    answer: Answer

    def _chunk(self, delta: Json, reason: FinishReason | None) -> Json:
        choice: Json = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        return self.answer.chunk("chatcmpl", "chat.completion.chunk", [choice])

    def opening(self) -> list[Json]:
        """The role comes first."""
        return [self._chunk({"role": "assistant", "content": ""}, None)]

    def piece(self, text: str) -> Json:
        """A delta with content."""
        return self._chunk({"content": text}, None)

    def closing(self, reason: FinishReason) -> Json:
        """An empty delta with the reason."""
        return self._chunk({}, reason)

    def usage(self, usage: Usage) -> Json:
        """No choices, but usage."""
        chunk = self.answer.envelope("chatcmpl", "chat.completion.chunk", [])
        return chunk | {"usage": usage_json(usage)}

    def whole(self, text: str, reason: FinishReason, usage: Usage) -> Json:
        """One message."""
        message: Json = {"role": "assistant", "content": text, "refusal": None}
        choice: Json = {"index": 0, "message": message, "logprobs": None, "finish_reason": reason}
        whole = self.answer.envelope("chatcmpl", "chat.completion", [choice])
        return whole | {"usage": usage_json(usage)}


@dataclass(frozen=True)
class CompletionFormat:
    """/v1/completions."""

    answer: Answer

    def _choice(self, text: str, reason: FinishReason | None) -> Json:
        return {"index": 0, "text": text, "logprobs": None, "finish_reason": reason}

    def _chunk(self, text: str, reason: FinishReason | None) -> Json:
        return self.answer.chunk("cmpl", "text_completion", [self._choice(text, reason)])

    def opening(self) -> list[Json]:
        """Nothing comes before the text."""
        return []

    def piece(self, text: str) -> Json:
        """A choice with text."""
        return self._chunk(text, None)

    def closing(self, reason: FinishReason) -> Json:
        """A choice without text, with the reason."""
        return self._chunk("", reason)

    def usage(self, usage: Usage) -> Json:
        """No choices, but usage."""
        chunk = self.answer.envelope("cmpl", "text_completion", [])
        return chunk | {"usage": usage_json(usage)}

    def whole(self, text: str, reason: FinishReason, usage: Usage) -> Json:
        """One choice."""
        whole = self.answer.envelope("cmpl", "text_completion", [self._choice(text, reason)])
        return whole | {"usage": usage_json(usage)}
