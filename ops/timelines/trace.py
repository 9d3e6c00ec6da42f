"""A recording of a worker's events as a trace that Perfetto and chrome://tracing show.

Both lanes are tracks, the split is a counter, decisions are instants, requests are spans of their
own. Trace Event Format: "X" a span, "C" a counter, "i" an instant, "b" and "e" the ends of an
asynchronous span, "M" a name; times are microseconds from the first event.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from protocol.control_link import (
    Arrived,
    DeviceWork,
    Event,
    Lane,
    Left,
    PrefillDone,
    QuantumDone,
    RequestView,
    Retracted,
    Snapshot,
    StepDone,
)
from protocol.ids import RequestRef
from scheduler.explain import Decision

DEVICE, SCHEDULER, REQUESTS = 1, 2, 3
"""Process ids of the trace: groups of tracks."""
TRACKS = {Lane.PREFILL: 1, Lane.DECODE: 2}

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Heard:
    """An event, and when the recorder had it, on the host's monotonic clock in seconds."""

    at: float
    event: Event


@dataclass(frozen=True, slots=True)
class Recording:
    """What was heard of one worker; all times are of the same clock."""

    snapshot: Snapshot
    heard: tuple[Heard, ...]
    decisions: tuple[Decision, ...] = ()
    seconds: float = 0.0
    """Length of the recording."""

    @property
    def works(self) -> list[tuple[DeviceWork, QuantumDone | StepDone]]:
        """Launches that completed, in the order of their completion."""
        events = [one.event for one in self.heard]
        return [(e.work, e) for e in events if isinstance(e, QuantumDone | StepDone)]


def trace(recording: Recording) -> Record:
    """Return the trace's JSON object."""
    works = recording.works
    begins = [one.at for one in recording.heard[:1]] + [work.started for work, _ in works]
    origin = min(begins, default=recording.snapshot.now)
    records = [*_names(recording.snapshot)]
    for work, event in works:
        records.append(_launch(work, event, origin))
    records += _split(recording.snapshot, works, origin)
    records += _decisions(recording.decisions, origin)
    records += _requests(recording, origin)
    return {"traceEvents": records, "displayTimeUnit": "ms"}


def _us(seconds: float, origin: float) -> float:
    return round((seconds - origin) * 1e6, 1)


def _names(snapshot: Snapshot) -> Iterator[Record]:
    groups = {DEVICE: f"device, {snapshot.units} {snapshot.unit}s", SCHEDULER: "scheduler"}
    for pid, name in {**groups, REQUESTS: "requests"}.items():
        yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}
    for lane, tid in TRACKS.items():
        named = {"name": f"{lane.value} lane"}
        yield {"ph": "M", "name": "thread_name", "pid": DEVICE, "tid": tid, "args": named}


def _launch(work: DeviceWork, event: QuantumDone | StepDone, origin: float) -> Record:
    """Return a quantum or an iteration as a span, with all that is known of it."""
    if isinstance(event, QuantumDone):
        last = event.layers_done
        name = f"layers {last - work.layers}…{last} of {event.layers_total}"
        more: Record = {"requests": [ref.request for ref in event.batch]}
        more["suspended"] = event.suspended
    else:
        fused = f" + {work.new_tokens} prompt tokens" if work.new_tokens else ""
        name, more = f"{work.batch_size} rows{fused}", {"context_tokens": work.context_tokens}
    share = work.overlap_s / work.seconds if work.seconds else 0.0
    args = {
        "units": work.units,
        "partition": work.partition,
        "new_tokens": work.new_tokens,
        "reused_tokens": work.reused_tokens,
        "beside_other_lane": round(share, 3),
        "queued_us": round(work.queued_s * 1e6),
        **more,
    }
    return {
        "ph": "X",
        "name": name,
        "cat": work.lane.value,
        "pid": DEVICE,
        "tid": TRACKS[work.lane],
        "ts": _us(work.started, origin),
        "dur": round(work.seconds * 1e6, 1),
        "args": args,
    }


def _split(
    snapshot: Snapshot, works: Sequence[tuple[DeviceWork, object]], origin: float
) -> Iterator[Record]:
    """Count what each lane runs on, as realized: 0 while it runs nothing."""
    edges: list[tuple[float, int, Lane, int]] = []
    for work, _ in works:
        edges.append((work.started + work.seconds, 0, work.lane, 0))
        edges.append((work.started, 1, work.lane, work.units))
    now = {lane.value: 0 for lane in TRACKS}
    for at, _, lane, units in sorted(edges, key=lambda edge: edge[:2]):
        now[lane.value] = units
        name = f"{snapshot.unit}s at work"
        yield {"ph": "C", "name": name, "pid": DEVICE, "ts": _us(at, origin), "args": dict(now)}


def _decisions(decisions: Sequence[Decision], origin: float) -> Iterator[Record]:
    for decision in decisions:
        if decision.at >= origin:
            yield {
                "ph": "i",
                "s": "g",
                "name": decision.reason,
                "pid": SCHEDULER,
                "tid": 1,
                "ts": _us(decision.at, origin),
                "args": {"plan": decision.seq, "sharing": decision.sharing},
            }


def _requests(recording: Recording, origin: float) -> Iterator[Record]:
    """Return a span for each request, from its arrival (or the recording's start) to its end."""

    def record(phase: str, ref: RequestRef, at: float, **args: object) -> Record:
        key = f"{ref.request}/{ref.incarnation}"
        return {
            "ph": phase,
            "cat": "request",
            "id": key,
            "name": ref.request,
            "pid": REQUESTS,
            "tid": 1,
            "ts": max(0.0, _us(at, origin)),
            "args": args,
        }

    def begin(view: RequestView, at: float) -> Record:
        return record("b", view.ref, at, prompt_tokens=view.prompt_tokens, cached=view.cached)

    for view in recording.snapshot.requests:
        yield begin(view, origin)
    for one in recording.heard:
        match one.event:
            case Arrived(request=view):
                yield begin(view, one.at)
            case PrefillDone(progress=progress):
                for each in progress:
                    yield record("n", each.ref, one.at, what="first token")
            case Retracted(request=view):
                yield record("n", view.ref, one.at, what="retracted")
            case Left(ref=ref, reason=reason):
                yield record("e", ref, one.at, reason=reason)
