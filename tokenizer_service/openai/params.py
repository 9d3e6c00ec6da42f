"""From a request's fields to what the worker draws by: defaults, clamps, and an effective seed."""

from secrets import randbits
from typing import TypeVar

from protocol.sampling import LogitBias, Sampling
from tokenizer_service.assets import SamplingDefaults
from tokenizer_service.openai.errors import invalid
from tokenizer_service.openai.schema import Request

N = TypeVar("N", int, float)

SEED_MASK = 2**63 - 1


def sampling(
    request: Request,
    defaults: SamplingDefaults,
    *,
    limit: int | None,
    room: int,
    most_likely: int | None,
    choice: int,
) -> Sampling:
    """Return a request's sampling.

    `limit`: output tokens that it asks for (None: all there is room for); `room`: tokens that the
    context has left, at least 1; `most_likely`: tokens to tell with log-probabilities beside the
    drawn one (None: none, nor the drawn one's); `choice`: which of a prompt's outputs it is: choice
    k draws as a request of its own with a seed that is k higher. Raises ApiError when `min_tokens`
    is above both.
    """
    max_tokens = room if limit is None else min(limit, room)
    min_tokens = request.min_tokens or 0
    if min_tokens > max_tokens:
        raise invalid(f"min_tokens is {min_tokens}, the output has {max_tokens}", "min_tokens")
    return Sampling(
        max_tokens=max_tokens,
        seed=randbits(63) if request.seed is None else (request.seed + choice) & SEED_MASK,
        temperature=_or(request.temperature, defaults.temperature),
        top_k=max(0, _or(request.top_k, defaults.top_k)),
        top_p=_or(request.top_p, defaults.top_p),
        min_p=_or(request.min_p, defaults.min_p),
        repetition_penalty=_or(request.repetition_penalty, defaults.repetition_penalty),
        presence_penalty=request.presence_penalty or 0.0,
        frequency_penalty=request.frequency_penalty or 0.0,
        min_tokens=min_tokens,
        ignore_eos=bool(request.ignore_eos),
        stop_token_ids=tuple(request.stop_token_ids or ()),
        logit_bias=tuple(LogitBias(*item) for item in (request.logit_bias or {}).items()),
        logprobs=most_likely,
    )


def _or(value: N | None, default: N) -> N:
    return default if value is None else value
