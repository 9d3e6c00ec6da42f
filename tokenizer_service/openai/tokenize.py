"""POST /tokenize and /detokenize, with vLLM's fields: what a prompt will be, without running it."""

from msgspec import Struct

from protocol.sampling import TokenId
from tokenizer_service.assets import ModelAssets
from tokenizer_service.openai import chat
from tokenizer_service.openai.errors import invalid, unsupported
from tokenizer_service.openai.logprobs import Json
from tokenizer_service.openai.schema import Messages, Name


class TokenizeRequest(Struct, frozen=True, kw_only=True):
    """A raw prompt or messages. `model`: None is the one that is served."""

    model: Name | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None
    """Of a raw prompt: whether what the model begins a sequence with is added; default: it is."""
    add_generation_prompt: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(Struct, frozen=True, kw_only=True):
    """Token ids. `model`: None is the one that is served."""

    model: Name | None = None
    tokens: list[TokenId]


def tokenize(request: TokenizeRequest, assets: ModelAssets, max_model_len: int | None) -> Json:
    """Return the token ids. Raises ApiError 400."""
    ids = _encode(request, assets)
    table = assets.tokenizer.bytes.table
    answer: Json = {"count": len(ids), "max_model_len": max_model_len, "tokens": ids}
    if request.return_token_strs:
        answer["token_strs"] = [table[token].decode("utf-8", "replace") for token in ids]
    return answer


def detokenize(request: DetokenizeRequest, assets: ModelAssets) -> Json:
    """Return the text. Raises ApiError 400 for an id outside the vocabulary."""
    size = len(assets.tokenizer.bytes.table)
    wrong = next((token for token in request.tokens if token >= size), None)
    if wrong is not None:
        raise invalid(f"tokens: {wrong} is not in the vocabulary of {size}", "tokens")
    return {"prompt": assets.tokenizer.decode(request.tokens)}


def _encode(request: TokenizeRequest, assets: ModelAssets) -> list[int]:
    if (request.prompt is None) == (request.messages is None):
        raise invalid("either prompt or messages is needed", "prompt")
    if request.messages is not None:
        if request.add_generation_prompt is False:
            raise unsupported("add_generation_prompt", "a chat that ends without a turn to come")
        return chat.encode_later(request.messages, assets).encode()
    text = request.prompt or ""
    if request.add_special_tokens is False:
        return assets.tokenizer.encode_bare(text)
    return assets.tokenizer.encode_prompt(text)
