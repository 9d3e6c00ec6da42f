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
