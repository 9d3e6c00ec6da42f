"""The last minute of one worker, for people who look: samples at an even pace, and the decisions.

Plain arithmetic over what the worker reported and what clients waited; no I/O and no clock, so
`tokenizer_service.activity` only has to ask for a sample now and then.
"""

from collections import deque
from collections.abc import Callable

from msgspec import Struct

from protocol.activity import Activity, LaneActivity, PlanInForce
from tokenizer_service.latencies import Latencies, Summary
from tokenizer_service.worker_state import WorkerState

PERIOD_S = 0.25
KEPT_S = 60.0
RATE_S = 2.0
"""Rates are means over so long: one prompt is computed in bursts."""
DECISIONS = 30


class Lane(Struct, frozen=True, kw_only=True):
    """One lane, at one moment."""

    units: int = 0
    """SMs or cores that it runs on; 0: it has no work."""
    busy: float = 0.0
    """Share of the last seconds in which it ran, 0 to 1."""
    tokens_per_s: float = 0.0


class Sample(Struct, frozen=True, kw_only=True):
    """One moment."""

    at: float
    """Unix time, seconds."""
    not_ready: str | None
    """Why requests should go elsewhere; None: all is well."""
    scheduler: str
    """The acting policy; empty: none."""
    plan: int
    """Number of the plan in force."""
    prefill: Lane
    decode: Lane
    both_busy: float
    """Share of the last seconds in which both lanes ran, 0 to 1."""
    running: int
    queued: int
    pages_total: int
    pages_referenced: int
    pages_cached: int
    ttft: Summary
    tbt: Summary


class Decided(Struct, frozen=True, kw_only=True):
    """A plan that was in force when it was looked at."""

    at: float
    """Unix time, seconds."""
    scheduler: str
    plan: PlanInForce


class History:
    """The recent past of one worker."""

    def __init__(
        self, worker: Callable[[], WorkerState], recent: Latencies, kept_s: float = KEPT_S
    ) -> None:
        """`worker` gives what is known of it now."""
        self._worker = worker
        self._recent = recent
        self._raw: deque[tuple[float, str, Activity]] = deque(maxlen=round(RATE_S / PERIOD_S) + 1)
        """(when, boot, what was reported), for rates."""
        self.samples: deque[Sample] = deque(maxlen=round(kept_s / PERIOD_S))
        """Oldest first."""
        self.decisions: deque[Decided] = deque(maxlen=DECISIONS)
        """Oldest first; plans that stood for less than a period are left out."""

    @property
    def activity(self) -> Activity | None:
        """What the worker reported last; None: nothing yet."""
        return self._worker().activity

    def take(self, now: float, unix: float, not_ready: str | None) -> Sample:
        """Add a sample. `now` is monotonic seconds, `unix` the time of day."""
        worker = self._worker()
        load = worker.load
        told = worker.activity
        if told is not None:
            self._note(told, worker, now, unix)
        sample = Sample(
            at=unix,
            not_ready=not_ready,
            scheduler=load.scheduler,
            plan=told.plan.seq if told else 0,
            prefill=self._lane(lambda activity: activity.prefill),
            decode=self._lane(lambda activity: activity.decode),
            both_busy=_share(self._rate(lambda activity: activity.both_s)),
            running=load.running,
            queued=load.queued,
            pages_total=load.pages_total,
            pages_referenced=load.pages_referenced,
            pages_cached=load.pages_cached,
            ttft=self._recent.ttft.summary(now),
            tbt=self._recent.tbt.summary(now),
        )
        self.samples.append(sample)
        return sample

    def _note(self, told: Activity, worker: WorkerState, now: float, unix: float) -> None:
        if self._raw and self._raw[-1][1] != worker.boot:
            self._raw.clear()  # another worker's counters
        self._raw.append((now, worker.boot, told))
        decided = Decided(at=unix, scheduler=worker.load.scheduler, plan=told.plan)
        last = self.decisions[-1] if self.decisions else None
        same = last and (last.plan.seq, last.scheduler) == (told.plan.seq, decided.scheduler)
        if told.plan.seq and not same:
            self.decisions.append(decided)

    def _lane(self, of: Callable[[Activity], LaneActivity]) -> Lane:
        if not self._raw:
            return Lane()
        return Lane(
            units=of(self._raw[-1][2]).units,
            busy=_share(self._rate(lambda activity: of(activity).busy_s)),
            tokens_per_s=self._rate(lambda activity: of(activity).tokens),
        )

    def _rate(self, counter: Callable[[Activity], float]) -> float:
        """Return how fast a counter rose, per second."""
        if len(self._raw) < 2:
            return 0.0
        (since, _, first), (now, _, last) = self._raw[0], self._raw[-1]
        return max(0.0, counter(last) - counter(first)) / (now - since) if now > since else 0.0


def _share(seconds_per_s: float) -> float:
    """Device times are told when a launch ends, so a long one may seem to take over a second's."""
    return min(1.0, seconds_per_s)
