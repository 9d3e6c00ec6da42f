"""What clients send, typed and bounded; and how a wrong field becomes an error that names it.

Unknown fields are ignored, as everywhere; known ones that are not served and would change the
meaning of the answer are refused. Ranges of sampling are those of `protocol.sampling`.
"""

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from protocol.data_link import Priority
from protocol.sampling import MAX_LOGIT_BIAS, MAX_LOGPROBS, MAX_STOP_TOKEN_IDS, TokenId
from protocol.slo import Slo
from tokenizer_service.limits import (
    MAX_CHOICES,
    MAX_CONTENT_PARTS,
    MAX_JSON_DEPTH,
    MAX_MESSAGES,
    MAX_NAME_CHARS,
    MAX_SLO_MS,
    MAX_STOP_CHARS,
    MAX_STOPS,
)
from tokenizer_service.openai.errors import ApiError, invalid, unsupported

DEFAULT_COMPLETION_TOKENS = 16

Body = dict[str, Any]
S = TypeVar("S", bound=Struct)

StopString = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_CHARS)]
Name = Annotated[str, Meta(max_length=MAX_NAME_CHARS)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Logprobs = Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)]
Bias = Annotated[float, Meta(ge=-100, le=100)]
OutputTokens = Annotated[int, Meta(ge=1, le=2**31 - 1)]


class StreamOptions(Struct, frozen=True):
    """Of a streaming request."""

    include_usage: bool | None = None


Milliseconds = Annotated[float, Meta(gt=0, le=MAX_SLO_MS)]


class Objectives(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Latency objectives of a request; None: the scheduler's own."""

    ttft_ms: Milliseconds | None = None
    """From arrival to the first token."""
    tbt_ms: Milliseconds | None = None
    """From token to token."""

    @property
    def slo(self) -> Slo:
        """The objectives as the worker takes them, in seconds."""
        return Slo(ttft_s=_seconds(self.ttft_ms), tbt_s=_seconds(self.tbt_ms))


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1e3


class Request(Struct, frozen=True, kw_only=True):
    """Fields that chat and text completions share. None: not given."""

    model: Name
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: OutputTokens | None = None
    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: (
        Annotated[str, Meta(min_length=1, max_length=MAX_STOP_CHARS)]
        | Annotated[list[StopString], Meta(max_length=MAX_STOPS)]
        | None
    ) = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=MAX_STOP_TOKEN_IDS)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=10)] | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    logit_bias: Annotated[dict[TokenId, Bias], Meta(max_length=MAX_LOGIT_BIAS)] | None = None
    priority: Priority | None = None
    slo: Objectives | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        """Stop strings."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def choices(self) -> int:
        """Outputs of each prompt."""
        return self.n or 1

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a usage chunk."""
        return bool(self.stream_options and self.stream_options.include_usage)


class Part(Struct, frozen=True):
    """One part of a message's content; only text is served."""

    type: Name
    text: str | None = None


class Message(Struct, frozen=True):
    """One turn of a conversation."""

    role: Name
    content: str | Annotated[list[Part], Meta(max_length=MAX_CONTENT_PARTS)] | None = None
    name: Name | None = None
    tool_calls: list[Any] | None = None


Messages = Annotated[list[Message], Meta(min_length=1, max_length=MAX_MESSAGES)]


class ChatRequest(Request, frozen=True, kw_only=True):
    """POST /v1/chat/completions."""

    messages: Messages
    max_completion_tokens: OutputTokens | None = None
    logprobs: bool | None = None
    top_logprobs: Logprobs | None = None

    @property
    def output_limit(self) -> int | None:
        """Output tokens at most; None: what the context leaves."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def most_likely(self) -> int | None:
        """Most likely tokens to tell beside each drawn one; None: no log-probabilities at all."""
        return self.top_logprobs or 0 if self.logprobs else None


class CompletionRequest(Request, frozen=True, kw_only=True):
    """POST /v1/completions. A prompt is a string or token ids, or a list of them."""

    prompt: str | list[int | str | list[int]]
    logprobs: Logprobs | None = None
    echo: bool | None = None

    @property
    def output_limit(self) -> int:
        """Output tokens at most; 16 when not given, as OpenAI's."""
        return self.max_tokens or DEFAULT_COMPLETION_TOKENS


# --- known, not served: the value that means "not wanted", and how to call it ---


def _is_empty(value: object) -> bool:
    return not value


def _is_one(value: object) -> bool:
    return value == 1


def _is_text(value: object) -> bool:
    return not value or (isinstance(value, dict) and value.get("type") == "text")


def _is_no_choice(value: object) -> bool:
    return value in (None, "none", "auto")


def _is_absent(value: object) -> bool:
    return False


UNSUPPORTED: Mapping[str, tuple[Callable[[object], bool], str]] = {
    "tools": (_is_empty, "calling tools"),
    "tool_choice": (_is_no_choice, "calling tools"),
    "functions": (_is_empty, "calling functions"),
    "function_call": (_is_no_choice, "calling functions"),
    "response_format": (_is_text, "a response format other than text"),
    "structured_outputs": (_is_empty, "structured output"),
    "guided_json": (_is_empty, "structured output"),
    "guided_regex": (_is_empty, "structured output"),
    "guided_choice": (_is_empty, "structured output"),
    "guided_grammar": (_is_empty, "structured output"),
    "regex": (_is_empty, "structured output"),
    "ebnf": (_is_empty, "structured output"),
    "grammar": (_is_empty, "structured output"),
    "top_logprobs": (_is_empty, "logprobs"),
    "prompt_logprobs": (_is_absent, "logprobs"),
    "best_of": (_is_one, "best_of"),
    "use_beam_search": (_is_empty, "beam search"),
    "suffix": (_is_empty, "suffix"),
    "echo": (_is_empty, "echo"),
    "audio": (_is_empty, "audio"),
    "prompt_embeds": (_is_absent, "prompt_embeds"),
    "chat_template": (_is_absent, "a template in a request"),
    "chat_template_kwargs": (_is_empty, "chat_template_kwargs"),
    "continue_final_message": (_is_empty, "continue_final_message"),
    "truncate_prompt_tokens": (_is_absent, "truncate_prompt_tokens"),
    "bad_words": (_is_empty, "bad_words"),
    "allowed_token_ids": (_is_empty, "allowed_token_ids"),
    "return_token_ids": (_is_empty, "return_token_ids"),
}


def check_supported(body: Body, request: type[Struct]) -> None:
    """Raise ApiError for a known field that is not served here and asks for something."""
    for name, (means_nothing, what) in UNSUPPORTED.items():
        if name in request.__struct_fields__:
            continue  # this endpoint serves it
        value = body.get(name)
        if value is None or value is False or means_nothing(value):
            continue
        raise unsupported(name, what)


# --- from bytes ---

_STRUCTURE = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[\]{}]', re.DOTALL)
_MISSING = re.compile(r"missing required field `(\w+)`")
_FIELD = re.compile(r" - at (?:`key` in )?`\$\.?(.*)`$")


def check_depth(data: bytes, limit: int = MAX_JSON_DEPTH) -> None:
    """Raise ApiError for JSON nested deeper than `limit`, before a parser recurses into it."""
    depth = 0
    for match in _STRUCTURE.finditer(data):
        mark = match[0]
        if mark in (b"[", b"{"):
            depth += 1
            if depth > limit:
                raise invalid(f"the body is nested deeper than {limit} levels")
        elif mark in (b"]", b"}"):
            depth -= 1


def parse(data: bytes, request: type[S]) -> S:
    """Return a request's fields. Raises ApiError 400, naming the field."""
    check_depth(data)
    try:
        body = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise invalid(f"the body is no JSON: {error}") from None
    if not isinstance(body, dict):
        raise invalid("the body is no JSON object")
    check_supported(body, request)
    try:
        return msgspec.convert(body, request, str_keys=True)
    except msgspec.ValidationError as error:
        raise _field_error(str(error)) from None


def _field_error(text: str) -> ApiError:
    """Turn msgspec's "what - at `$.path`" into a message and a param."""
    found = _FIELD.search(text)
    path, what = (found[1], text[: found.start()]) if found else ("", text)
    missing = _MISSING.search(what)
    names = [path] if path and not path.startswith("[...") else []
    if missing is not None:
        names.append(missing[1])
    param = ".".join(names) or None
    return invalid(f"{param}: {what}" if param else what, param)
