"""POST /v1/chat/completions: messages to a prompt."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tokenizer_service.assets import ModelAssets
from tokenizer_service.gateway import Prompt
from tokenizer_service.openai.errors import invalid, unsupported
from tokenizer_service.openai.schema import ChatRequest, Message
from tokenizer_service.templates import ChatTemplate, TemplateRefusedError
from tokenizer_service.tokenizer import Tokenizer

ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
"""As clients say it → as templates know it."""


def prompt(request: ChatRequest, assets: ModelAssets) -> Prompt:
    """Return the prompt of a conversation. Raises ApiError 400 for what no template takes."""
    if request.top_logprobs and not request.logprobs:
        raise invalid(
            f"top_logprobs is {request.top_logprobs} but logprobs is not true", "top_logprobs"
        )
    encoder = encode_later(request.messages, assets)
    return Prompt(
        encode=encoder.encode,
        at_least=encoder.at_least,
        limit=request.output_limit,
        most_likely=request.most_likely,
    )


@dataclass(frozen=True)
class ChatEncoder:
    """Messages that are still to be tokenized."""

    encode: Callable[[], list[int]]
    at_least: int
    """Tokens that they surely have."""


def encode_later(given: Sequence[Message], assets: ModelAssets) -> ChatEncoder:
    """Check messages. Raises ApiError 400."""
    template, tokenizer = assets.template, assets.tokenizer
    if template is None:
        raise invalid("the model has no chat template; use /v1/completions", "messages")
    messages = [_plain(message, index) for index, message in enumerate(given)]
    return ChatEncoder(
        encode=lambda: _encode(messages, template, tokenizer),
        at_least=sum(tokenizer.at_least(message["content"]) for message in messages),
    )


def _encode(
    messages: list[dict[str, str]], template: ChatTemplate, tokenizer: Tokenizer
) -> list[int]:
    guarded = [
        {key: value if key == "role" else tokenizer.guard(value) for key, value in message.items()}
        for message in messages
    ]
    try:
        return tokenizer.encode_chat(template.render(guarded))
    except TemplateRefusedError as refused:
        raise invalid(str(refused), "messages") from None


def _plain(message: Message, index: int) -> dict[str, str]:
    """Return a message as templates take it: strings only."""
    where = f"messages[{index}]"
    if message.tool_calls:
        raise unsupported(f"{where}.tool_calls", "calling tools")
    role = ROLES.get(message.role)
    if role is None:
        known = ", ".join(ROLES)
        raise invalid(f"{where}.role: {message.role!r} is none of {known}", f"{where}.role")
    plain = {"role": role, "content": _text(message, where)}
    return plain | {"name": message.name} if message.name else plain


def _text(message: Message, where: str) -> str:
    if message.content is None or isinstance(message.content, str):
        return message.content or ""
    texts = []
    for index, part in enumerate(message.content):
        field = f"{where}.content[{index}]"
        if part.type != "text":
            raise unsupported(f"{field}.type", f"content of type {part.type!r}")
        if part.text is None:
            raise invalid(f"{field}.text is missing", f"{field}.text")
        texts.append(part.text)
    return "".join(texts)
