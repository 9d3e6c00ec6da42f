"""Latency objectives of one request, and the deadlines after which it is given up.

An objective steers scheduling and is counted when missed; a deadline ends the request.
"""

from typing import Annotated

from msgspec import Meta, Struct

PositiveSeconds = Annotated[float, Meta(gt=0, le=86_400)]


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
