"""The mirror of one worker that its events build: what a policy looks at.

Separate from the core because it is a fact, not a decision: folding events into a snapshot gives
exactly what a later snapshot says (`facts`; the pool is as of the last event that carries it), and
only the measurements beside it (`recent`, `last_work`) are the mirror's own. Policies read it and
never change it.
"""

from collections import deque
from enum import Enum

from msgspec.structs import replace

from protocol.control_link import (
    Arrived,
    DeviceWork,
    Event,
    Lane,
    Left,
    Partition,
    PoolState,
    PrefillDone,
    PrefillStarted,
    Progress,
    QuantumDone,
    RequestState,
    RequestView,
    Retracted,
    Snapshot,
    StartedBatch,
    StepDone,
)
from protocol.data_link import ModelInfo, WorkerLimits
from protocol.ids import BootId, ModelName, RequestRef
from scheduler.ordered import Ordered
from scheduler.requests import Requests

RECENT_WORKS = 256
"""Device works remembered; a policy that plans after every event misses none."""

_GROUPS = {
    RequestState.QUEUED: RequestState.QUEUED,
    RequestState.PREFILLING: RequestState.PREFILLING,
    RequestState.SUSPENDED: RequestState.PREFILLING,
    RequestState.DECODING: RequestState.DECODING,
}
"""States whose requests are kept in one order, by the state that stands for them."""

Facts = tuple[int, PoolState, dict[RequestRef, RequestView], tuple[StartedBatch, ...]]


class Fold(Enum):
    """What became of an event."""

    DONE = "done"
    OLD = "old"
    """The snapshot contains it already."""
    GAP = "gap"
    """Events before it are missing: a new snapshot is needed, and this one was not applied."""


def to_prefill(request: RequestView) -> int:
    """Return the tokens that a prefill must still compute (an estimate while queued)."""
    known = request.computed
    if known < request.cached and request.state is RequestState.QUEUED:
        known = request.cached
    left = request.prompt_tokens - known
    return left if left > 0 else 0


class WorkerView:
    """One worker as its snapshot and the events since describe it."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.recent: deque[tuple[int, DeviceWork]] = deque(maxlen=RECENT_WORKS)
        """The newest device works, each with its event's number, oldest first."""
        self.last_work: dict[tuple[Lane, int], DeviceWork] = {}
        """The newest device work by lane and partition."""
        self.boot: BootId = ""
        self.changes = 0
        """Rises with all that is more than progress: arrivals, states, batches, another snapshot.
        What was planned from them need not be planned anew while it stays."""
        self.restore(snapshot)

    def restore(self, snapshot: Snapshot) -> None:
        """Take everything from `snapshot`. Measurements of the same boot are kept."""
        if snapshot.boot != self.boot:
            self.recent.clear()
            self.last_work.clear()
        self.changes += 1
        self.boot = snapshot.boot
        self.event = snapshot.event
        self.device = snapshot.device
        self.unit = snapshot.unit
        self.units = snapshot.units
        self.partitions: tuple[Partition, ...] = snapshot.partitions
        pairs = (p for p in self.partitions if p.index and p.prefill_units and p.decode_units)
        self.splits = tuple(sorted(pairs, key=lambda p: p.decode_units))
        """The disjoint partitions, fewest decode units first."""
        self.models: dict[ModelName, ModelInfo] = {model.name: model for model in snapshot.models}
        self.num_layers = max((model.num_layers for model in snapshot.models), default=1)
        """Of a prefill."""
        self.limits: WorkerLimits = snapshot.limits
        self.pool: PoolState = snapshot.pool
        self.requests = Requests({m.name: m.page_size for m in snapshot.models})
        for request in snapshot.requests:
            self.requests.put(request)
        states = {state: Ordered(self.requests) for state in set(_GROUPS.values())}
        self._ordered = {state: states[group] for state, group in _GROUPS.items()}
        for group, ordered in states.items():
            ordered.fill(r for r in snapshot.requests if _GROUPS[r.state] is group)
        self.decode_tbt = {r.ref: r.slo.tbt_s for r in self.decoding if r.slo.tbt_s is not None}
        """Objectives of their own for the time between tokens, of those that decode, seconds."""
        self.batches: tuple[StartedBatch, ...] = tuple(_in_chunk(b) for b in snapshot.batches)
        """Started prefill batches, the one that runs first."""

    def apply(self, event: Event) -> Fold:
        """Fold one event in. A gap or an old event changes nothing."""
        if event.event <= self.event:
            return Fold.OLD
        if event.event != self.event + 1:
            return Fold.GAP
        self.event = event.event
        match event:
            case Arrived(request=request):
                self._set(request)
            case PrefillStarted():
                self._started(event)
            case QuantumDone():
                self._quantum(event)
            case PrefillDone():
                self._prefilled(event.progress)
            case StepDone():
                self._stepped(event)
            case Retracted(request=request):
                self._unbatch(request.ref)
                self._set(request)
            case Left(ref=ref):
                self._unbatch(ref)
                self._remove(ref)
            case _:
                return Fold.DONE  # PlanRejected and Fenced are the core's affair
        if isinstance(event, PrefillStarted | PrefillDone | StepDone | Retracted | Left):
            self.pool = event.pool
        return Fold.DONE

    def facts(self) -> Facts:
        """Return all that a snapshot of the same event number would say."""
        return (self.event, self.pool, dict(self.requests), self.batches)

    # --- what policies ask ---

    @property
    def decode_context(self) -> int:
        """Tokens that one more decode iteration of all rows attends to."""
        return self.requests.context

    @property
    def queued(self) -> Ordered:
        """Requests of which nothing is computed, oldest first."""
        return self._ordered[RequestState.QUEUED]

    @property
    def started(self) -> Ordered:
        """Requests in a started prefill, running or suspended, oldest first."""
        return self._ordered[RequestState.PREFILLING]

    @property
    def decoding(self) -> Ordered:
        """Requests whose prefill is done, oldest first."""
        return self._ordered[RequestState.DECODING]

    # --- folding ---

    def _set(self, request: RequestView) -> None:
        """Take a request as it is now, known or new."""
        self.changes += 1
        old = self.requests.get(request.ref)
        place = self._ordered[request.state]
        if old is not None:
            self._no_row(old)
            if self._ordered[old.state] is not place:
                self._ordered[old.state].discard(old)
        if request.state is RequestState.DECODING and request.slo.tbt_s is not None:
            self.decode_tbt[request.ref] = request.slo.tbt_s
        self.requests.put(request)
        place.add(request)

    def _remove(self, ref: RequestRef) -> None:
        if (request := self.requests.get(ref)) is None:
            return
        self.changes += 1
        self._no_row(request)
        self._ordered[request.state].discard(request)
        self.requests.pop(ref)

    def _no_row(self, request: RequestView) -> None:
        """`request` does not decode any more, if it did."""
        if request.state is RequestState.DECODING:
            self.decode_tbt.pop(request.ref, None)

    def _started(self, event: PrefillStarted) -> None:
        refs = tuple(request.ref for request in event.requests)
        same = next((b for b in self.batches if set(b.batch) & set(refs)), None)
        for request in event.requests:
            self._unbatch(request.ref)
            self._set(request)
        if event.lane is Lane.PREFILL and refs:
            model = self.models.get(event.requests[0].model)
            layers = model.num_layers if model else 0
            running = StartedBatch(refs, same.layers_done if same else 0, layers)
            self.batches = (running, *self.batches)

    def _quantum(self, event: QuantumDone) -> None:
        state = RequestState.SUSPENDED if event.suspended else RequestState.PREFILLING
        for ref in event.batch:
            request = self.requests.get(ref)
            if request is not None and request.state is not state:
                self._set(replace(request, state=state))
        self.requests.count(event.progress)
        self._note(event.event, event.work)
        members = set(event.batch)
        done = event.layers_done
        self.batches = tuple(
            _in_chunk(replace(b, layers_done=done)) if members & set(b.batch) else b
            for b in self.batches
        )

    def _prefilled(self, progress: tuple[Progress, ...]) -> None:
        self.requests.count(progress)
        for item in progress:
            self._unbatch(item.ref)
            if request := self.requests.get(item.ref):
                self._set(replace(request, state=RequestState.DECODING))

    def _stepped(self, event: StepDone) -> None:
        self.requests.count(event.progress)
        self._note(event.event, event.work)

    def _note(self, number: int, work: DeviceWork) -> None:
        self.recent.append((number, work))
        self.last_work[work.lane, work.partition] = work

    def _unbatch(self, ref: RequestRef) -> None:
        if not any(ref in b.batch for b in self.batches):
            return
        left = (replace(b, batch=tuple(r for r in b.batch if r != ref)) for b in self.batches)
        self.batches = tuple(b for b in left if b.batch)


def _in_chunk(batch: StartedBatch) -> StartedBatch:
    """Count layers of the tokens under way: a chunk through all layers begins the next at 0."""
    if batch.layers_total and batch.layers_done >= batch.layers_total:
        return replace(batch, layers_done=0)
    return batch
