"""Latency objectives of one request, and the deadlines after which it is given up.

An objective steers scheduling and is counted when missed; a deadline ends the request.
"""

from typing import Annotated

from msgspec import Meta, Struct

PositiveSeconds = Annotated[float, Meta(gt=0, le=86_400)]
Milliseconds = Annotated[float, Meta(gt=0, le=86_400_000)]


class Slo(Struct, frozen=True, kw_only=True):
    """Objectives in seconds; None: no objective."""

    ttft_s: PositiveSeconds | None = None
    """Time to first token, from arrival."""
    tbt_s: PositiveSeconds | None = None
    """Time between tokens."""


class Deadlines(Struct, frozen=True, kw_only=True):
    """Seconds from arrival; None: no deadline."""

    queue_s: PositiveSeconds | None = None
    """Until the first prefill quantum is launched."""
    ttft_s: PositiveSeconds | None = None
    total_s: PositiveSeconds | None = None


class ObjectiveSettings(Struct, frozen=True, kw_only=True):
    """Flags for the service's objectives: the scheduler plans by them, the gateway counts by them.
    A request's own objective goes before them.
    """

    slo_tbt_ms: Annotated[
        Milliseconds, Meta(description="objective for the time between tokens, ms")
    ] = 50.0
    slo_ttft_ms: Annotated[
        Milliseconds, Meta(description="objective for the time to first token, ms")
    ] = 2000.0
    slo_ttft_ms_per_token: Annotated[
        float, Meta(ge=0, le=10_000, description="added to it for each prompt token to compute, ms")
    ] = 1.0

    def promised(self, slo: Slo) -> "RequestObjectives":
        """Return the objectives of one request: its own, else the service's."""
        return RequestObjectives(
            tbt_s=slo.tbt_s or self.slo_tbt_ms / 1e3,
            ttft_s=slo.ttft_s or self.slo_ttft_ms / 1e3,
            ttft_per_token_s=0.0 if slo.ttft_s else self.slo_ttft_ms_per_token / 1e3,
        )


class RequestObjectives(Struct, frozen=True, kw_only=True):
    """What one request is promised, seconds."""

    tbt_s: float
    ttft_s: float
    ttft_per_token_s: float
    """For each prompt token that is computed; cache hits are not."""

    def ttft_with(self, new_tokens: int) -> float:
        """Return the objective for the first token of a prompt with so many tokens to compute."""
        return self.ttft_s + self.ttft_per_token_s * new_tokens
