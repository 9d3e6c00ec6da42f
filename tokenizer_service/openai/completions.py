"""POST /v1/completions: raw prompts, as text or as token ids."""

from collections.abc import Sequence

from tokenizer_service.assets import ModelAssets
from tokenizer_service.gateway import Prompt
from tokenizer_service.limits import MAX_PROMPTS
from tokenizer_service.openai.errors import invalid, unsupported
from tokenizer_service.openai.schema import CompletionRequest
from tokenizer_service.tokenizer import Tokenizer


def prompts(request: CompletionRequest, assets: ModelAssets) -> list[Prompt]:
    """Return the prompts, at least one. Raises ApiError 400."""
    if request.echo and request.logprobs is not None:
        raise unsupported("echo", "echo together with logprobs")
    return [_prompt(one, request, assets.tokenizer) for one in _each(request.prompt)]


def echoes(request: CompletionRequest, tokenizer: Tokenizer) -> list[str]:
    """Return what comes before each choice's text: nothing, or the prompt as text."""
    if not request.echo:
        return []
    texts = [
        one if isinstance(one, str) else tokenizer.decode(one) for one in _each(request.prompt)
    ]
    return [text for text in texts for _ in range(request.choices)]


def _prompt(one: str | list[int], request: CompletionRequest, tokenizer: Tokenizer) -> Prompt:
    return Prompt(
        encode=lambda: _not_empty(tokenizer.encode_prompt(one) if isinstance(one, str) else one),
        at_least=tokenizer.at_least(one) if isinstance(one, str) else len(_not_empty(one)),
        limit=request.output_limit,
        most_likely=request.logprobs,
    )


def _each(prompt: str | list[int | str | list[int]]) -> Sequence[str | list[int]]:
    """Return each prompt. Raises ApiError for none, too many, or ids beside prompts."""
    if isinstance(prompt, str):
        return [prompt]
    ids = [item for item in prompt if isinstance(item, int)]
    several = [item for item in prompt if not isinstance(item, int)]
    if ids and several:
        raise invalid("prompt mixes token ids and text", "prompt")
    if len(several) > MAX_PROMPTS:
        raise invalid(
            f"prompt has {len(several)} prompts, at most {MAX_PROMPTS} are taken", "prompt"
        )
    return several or [_not_empty(ids)]


def _not_empty(ids: list[int]) -> list[int]:
    if not ids:
        raise invalid("prompt is empty", "prompt")
    return ids
