"""POST /v1/completions: a raw prompt, as text or as token ids."""

from tokenizer_service.assets import ModelAssets
from tokenizer_service.gateway import Prompt
from tokenizer_service.openai.errors import invalid, unsupported
from tokenizer_service.openai.schema import CompletionRequest
from tokenizer_service.tokenizer import Tokenizer


def prompt(request: CompletionRequest, assets: ModelAssets) -> Prompt:
    """Return the prompt. Raises ApiError 400 for several prompts, or none."""
    if request.echo and request.logprobs is not None:
        raise unsupported("echo", "echo together with logprobs")
    text_or_ids = _single(request.prompt)
    if isinstance(text_or_ids, str):
        text = text_or_ids
        tokenizer = assets.tokenizer
        return Prompt(
            encode=lambda: _not_empty(tokenizer.encode_prompt(text)),
            at_least=tokenizer.at_least(text),
            limit=request.output_limit,
            most_likely=request.logprobs,
        )
    ids = _not_empty(text_or_ids)
    return Prompt(
        encode=lambda: ids,
        at_least=len(ids),
        limit=request.output_limit,
        most_likely=request.logprobs,
    )


def echo(request: CompletionRequest, tokenizer: Tokenizer) -> list[str]:
    """Return what comes before each choice's text: nothing, or the prompt as text."""
    if not request.echo:
        return []
    text_or_ids = _single(request.prompt)
    return [text_or_ids if isinstance(text_or_ids, str) else tokenizer.decode(text_or_ids)]


def _single(prompt: str | list[int | str | list[int]]) -> str | list[int]:
    if isinstance(prompt, str):
        return prompt
    if not prompt:
        raise invalid("prompt is empty", "prompt")
    if isinstance(prompt[0], int):
        ids = [token for token in prompt if isinstance(token, int)]
        if len(ids) != len(prompt):
            raise invalid("prompt mixes token ids and text", "prompt")
        return ids
    if len(prompt) > 1:
        raise unsupported("prompt", f"more than one prompt ({len(prompt)})")
    return prompt[0]


def _not_empty(ids: list[int]) -> list[int]:
    if not ids:
        raise invalid("prompt is empty", "prompt")
    return ids
