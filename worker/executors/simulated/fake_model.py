"""A model whose right output is a pure function: the next token is a hash of the context.

The context travels as a chain of 64-bit states, one a token, and the states are what the simulated
pages hold. So a wrong page table or a page that was freed too early changes every later token.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from zlib import crc32

from protocol.sampling import Sampling
from worker.executors.base import ModelShape

_MASK = (1 << 64) - 1


def mix(state: int, token: int) -> int:
    """Return the state after `token` (the finalizer of SplitMix64)."""
    x = (state ^ ((token + 1) * 0x9E3779B97F4A7C15)) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def origin(model: str) -> int:
    """Return the state before the first token."""
    return crc32(model.encode())


def draw(state: int, sampling: Sampling, index: int, model: ModelShape) -> int:
    """Return output token `index` after a context that ends in `state`."""
    token = mix(state, sampling.seed if sampling.temperature else 0) % model.vocab_size
    if index < sampling.min_tokens:
        barred = {*sampling.stop_token_ids, *model.eos_token_ids}
        while token in barred:
            token = (token + 1) % model.vocab_size
    return token


@dataclass(frozen=True, slots=True)
class Stream:
    """What a client must see."""

    tokens: tuple[int, ...]
    stop_token: int | None
    """None: the output ended by its length."""


def right_stream(prompt: Iterable[int], sampling: Sampling, model: ModelShape) -> Stream:
    """Return the output of an undisturbed run."""
    state = origin(model.name)
    length = 0
    for token in prompt:
        state = mix(state, token)
        length += 1
    stops = {*sampling.stop_token_ids}
    if not sampling.ignore_eos:
        stops |= {*model.eos_token_ids}
    limit = min(sampling.max_tokens, model.max_model_len - length)
    tokens: list[int] = []
    while len(tokens) < limit:
        token = draw(state, sampling, len(tokens), model)
        if token in stops and len(tokens) >= sampling.min_tokens:
            return Stream(tuple(tokens), token)
        tokens.append(token)
        state = mix(state, token)
    return Stream(tuple(tokens), None)
