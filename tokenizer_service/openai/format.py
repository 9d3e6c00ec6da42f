"""What an answer looks like, as plain dictionaries: one class for each of the two endpoints.

Pieces of a stream and the whole are built here only, so that both always agree.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from protocol.data_link import FinishReason, Usage
from tokenizer_service.openai.logprobs import Json, chat_logprobs, completion_logprobs
from tokenizer_service.output import Piece


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
    choices: int
    """How many there are."""

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
        """Return the chunks before any output."""
        ...

    def piece(self, piece: Piece) -> Json:
        """Return a chunk with text."""
        ...

    def closing(self, index: int, reason: FinishReason) -> Json:
        """Return the chunk that says why an output ended."""
        ...

    def usage(self, usage: Usage) -> Json:
        """Return the chunk with the token counts: without choices, the last one."""
        ...

    def whole(self, outputs: Sequence[Piece], usage: Usage) -> Json:
        """Return the answer of a request that does not stream."""
        ...


@dataclass(frozen=True)
class ChatFormat:
    """/v1/chat/completions."""

    answer: Answer

    def _chunk(
        self, index: int, delta: Json, logprobs: Json | None, reason: FinishReason | None
    ) -> Json:
        choice: Json = {
            "index": index,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": reason,
        }
        return self.answer.chunk("chatcmpl", "chat.completion.chunk", [choice])

    def opening(self) -> list[Json]:
        """The role comes first."""
        delta: Json = {"role": "assistant", "content": ""}
        return [self._chunk(index, delta, None, None) for index in range(self.answer.choices)]

    def piece(self, piece: Piece) -> Json:
        """A delta with content."""
        return self._chunk(piece.index, {"content": piece.text}, chat_logprobs(piece.tokens), None)

    def closing(self, index: int, reason: FinishReason) -> Json:
        """An empty delta with the reason."""
        return self._chunk(index, {}, None, reason)

    def usage(self, usage: Usage) -> Json:
        """No choices, but usage."""
        chunk = self.answer.envelope("chatcmpl", "chat.completion.chunk", [])
        return chunk | {"usage": usage_json(usage)}

    def whole(self, outputs: Sequence[Piece], usage: Usage) -> Json:
        """One message a choice."""
        choices: list[Json] = [
            {
                "index": output.index,
                "message": {"role": "assistant", "content": output.text, "refusal": None},
                "logprobs": chat_logprobs(output.tokens),
                "finish_reason": output.end,
            }
            for output in outputs
        ]
        whole = self.answer.envelope("chatcmpl", "chat.completion", choices)
        return whole | {"usage": usage_json(usage)}


@dataclass(frozen=True)
class CompletionFormat:
    """/v1/completions."""

    answer: Answer
    echoes: Sequence[str] = ()
    """What comes before each choice's text; empty: nothing."""

    def _choice(self, piece: Piece, text: str, reason: FinishReason | None) -> Json:
        return {
            "index": piece.index,
            "text": text,
            "logprobs": completion_logprobs(piece.tokens),
            "finish_reason": reason,
        }

    def _chunk(self, piece: Piece, reason: FinishReason | None) -> Json:
        choice = self._choice(piece, piece.text, reason)
        return self.answer.chunk("cmpl", "text_completion", [choice])

    def opening(self) -> list[Json]:
        """The prompts, when they are echoed."""
        return [self._chunk(Piece(i, echo, None), None) for i, echo in enumerate(self.echoes)]

    def piece(self, piece: Piece) -> Json:
        """A choice with text."""
        return self._chunk(piece, None)

    def closing(self, index: int, reason: FinishReason) -> Json:
        """A choice without text, with the reason."""
        return self._chunk(Piece(index, "", None), reason)

    def usage(self, usage: Usage) -> Json:
        """No choices, but usage."""
        chunk = self.answer.envelope("cmpl", "text_completion", [])
        return chunk | {"usage": usage_json(usage)}

    def whole(self, outputs: Sequence[Piece], usage: Usage) -> Json:
        """The choices, each after what it echoes."""
        echoes = self.echoes or [""] * len(outputs)
        choices = [
            self._choice(output, echo + output.text, output.end)
            for output, echo in zip(outputs, echoes, strict=True)
        ]
        whole = self.answer.envelope("cmpl", "text_completion", choices)
        return whole | {"usage": usage_json(usage)}
