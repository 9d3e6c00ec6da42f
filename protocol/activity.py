"""What a worker's device does, lane by lane: for people who look, and for metrics.

Nothing decides by it. Counters run since the worker's boot, so a reader that misses reports loses
resolution and no work; what is "now" is as of the report.
"""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from protocol.ids import Count, Seconds

MAX_REASON_CHARS = 512


class LaneActivity(Struct, frozen=True, kw_only=True):
    """One lane."""

    units: Count = 0
    """SMs or cores of its newest launch in flight; 0: nothing runs."""
    launches: Count = 0
    """Completed since boot."""
    busy_s: Seconds = 0.0
    """Device time of these."""
    tokens: Count = 0
    """Prompt tokens computed, or output tokens drawn. A prefill that rides in a decode iteration
    counts as prefill."""


class Sharing(StrEnum):
    """How the lanes share the device."""

    DISJOINT = "disjoint"
    """Each has its own part."""
    SHARED = "shared"
    """Both at once on all of it."""
    EXCLUSIVE = "exclusive"
    """In turns."""


class PlanInForce(Struct, frozen=True, kw_only=True):
    """The standing order, as far as it concerns the split."""

    seq: Count
    """Rises within an epoch; 0: no plan yet."""
    sharing: Sharing
    prefill_units: Count
    """What the lane has while both have work."""
    decode_units: Count
    depth: Count = 0
    """Decode iterations launched ahead."""
    layers_per_quantum: Count = 0
    """0: all of them."""
    autopilot: bool = False
    """No scheduler acts: the plan goes on without one."""
    reason: Annotated[str, Meta(max_length=MAX_REASON_CHARS)] = ""
    """The scheduler's words, cut."""


class Activity(Struct, frozen=True, kw_only=True):
    """One worker's device."""

    unit: str
    """What `units` count: `SM` or `core`."""
    units: Count
    """Of the whole device."""
    plan: PlanInForce
    prefill: LaneActivity = LaneActivity()
    decode: LaneActivity = LaneActivity()
    both_s: Seconds = 0.0
    """Device time during which both lanes ran."""
    retractions: Count = 0
    """Requests that lost their pages."""
