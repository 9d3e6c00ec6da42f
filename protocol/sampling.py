"""How the next token of a request is drawn, as it travels from the gateway to the device.

Ranges are checked here once, by type, for everybody: a worker never sees an index or a count
that could reach a kernel unchecked (the class of bug behind "one request kills the server").
"""

from typing import Annotated

from msgspec import Meta, Struct

from protocol.ids import Count

MAX_STOP_TOKEN_IDS = 64
MAX_LOGPROBS = 20
MAX_LOGIT_BIAS = 300

TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class LogitBias(Struct, frozen=True, array_like=True):
    """Added to one token's logit before anything else."""

    token: TokenId
    bias: Annotated[float, Meta(ge=-100, le=100)]


class Sampling(Struct, frozen=True, kw_only=True):
    """Sampling of one request. `temperature=0` is greedy; the filters then have no effect.

    Order of application: logit bias, penalties, temperature, top-k, top-p, min-p, draw.
    """

    max_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)]
    """Output tokens at most; the gateway has clamped it to the context that is left."""
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    """Effective seed, always set: draw i depends on (seed, i), whatever else is in the batch."""
    temperature: Annotated[float, Meta(ge=0, le=100)] = 1.0
    top_k: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0
    """0 keeps every token."""
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    min_p: Annotated[float, Meta(ge=0, le=1)] = 0.0
    repetition_penalty: Annotated[float, Meta(gt=0, le=10)] = 1.0
    """Over prompt and output (CTRL, section 4.1); 1 is none."""
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] = 0.0
    """Over the output only, as OpenAI's."""
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] = 0.0
    min_tokens: Count = 0
    """No stop id, nor the end of sequence, before this many output tokens."""
    ignore_eos: bool = False
    stop_token_ids: Annotated[tuple[TokenId, ...], Meta(max_length=MAX_STOP_TOKEN_IDS)] = ()
    logit_bias: Annotated[tuple[LogitBias, ...], Meta(max_length=MAX_LOGIT_BIAS)] = ()
    logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    """None: no logprobs; k: the drawn token's and the k most likely ones'."""

    @property
    def has_penalties(self) -> bool:
        """Whether a draw depends on counts of earlier tokens."""
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )
