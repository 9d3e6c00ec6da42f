"""Messages between a scheduler and a worker, grouped by who receives them.

A scheduler folds events into a view and answers with plans. A plan is a standing, declarative
order: it says what should be so until the next one, and carrying it out twice changes nothing.
Everything that correctness needs is in the snapshot, so a scheduler can crash or be replaced at any
time.
"""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from protocol.data_link import ModelInfo, Priority, WorkerLimits
from protocol.ids import BootId, Count, Epoch, ModelName, PeerName, RequestRef, Seconds, Tenant
from protocol.slo import Slo

WHOLE = 0
"""Partition index 0: both lanes on the whole device. The others are disjoint pairs."""

Reason = Annotated[str, Meta(max_length=2048)]


class Lane(StrEnum):
    """The two phases of inference, each with its own streams or threads."""

    PREFILL = "prefill"
    DECODE = "decode"


class Partition(Struct, frozen=True):
    """One row of the partition table, as realized (not as asked for)."""

    index: Count
    prefill_units: Count
    """SMs (CUDA) or cores (CPU)."""
    decode_units: Count


class RequestState(StrEnum):
    """Where a request is in the worker."""

    QUEUED = "queued"
    """Accepted or retracted; nothing of its (remaining) prompt is computed."""
    PREFILLING = "prefilling"
    SUSPENDED = "suspended"
    """In a started prefill that is not running now, at a quantum's or a chunk's boundary."""
    DECODING = "decoding"


# --- plans ---


class Disjoint(Struct, frozen=True, tag=True):
    """Both lanes at once, each on its side of a partition (MuxWise, DRIFT)."""

    partition: Count


class Shared(Struct, frozen=True, tag=True):
    """Both lanes at once on plain streams over the whole device (WindServe)."""


class Exclusive(Struct, frozen=True, tag=True):
    """One lane at a time on the whole device.

    `first` has precedence when both have work; after `quanta` prefill quanta in a row the other
    lane gets `iterations` decode iterations (0: it waits until the first has no work).
    """

    first: Lane = Lane.PREFILL
    quanta: Count = 1
    iterations: Count = 0


class FusedChunks(Struct, frozen=True):
    """Prefill tokens that ride in the decode lane's forward (Sarathi's chunked prefill; hybrid).

    Each iteration takes the next min(`max_chunk`, `token_budget` - decode rows) tokens of the
    listed requests, in order. No request in it: no chunk.
    """

    requests: tuple[RequestRef, ...] = ()
    token_budget: Count = 0
    """Tokens of one forward at most, decode rows counted."""
    max_chunk: Count = 0
    """Prefill tokens of one forward at most."""


class DecodePlan(Struct, frozen=True):
    """What the decode lane should do."""

    wanted: tuple[RequestRef, ...] | None = None
    """Running set; None: every request whose prefill is done. Others pause and keep their pages."""
    depth: Annotated[int, Meta(ge=0, le=64)] = 1
    """Iterations launched ahead of the one that runs: 0 waits for each iteration's tokens."""
    fused: FusedChunks = FusedChunks()


class PrefillItem(Struct, frozen=True, array_like=True):
    """Prefill `ref` up to position `upto` (exclusive, absolute; 0: all that is known of it)."""

    ref: RequestRef
    upto: Count = 0


class PrefillBatch(Struct, frozen=True):
    """Prompts that go through the layers together."""

    items: tuple[PrefillItem, ...]


class PrefillPlan(Struct, frozen=True):
    """What the prefill lane should do: run the head; a started batch that is not the head is
    suspended at its boundary; when the head is finished the next one follows without a round trip.
    """

    batches: tuple[PrefillBatch, ...] = ()
    layers_per_quantum: Count = 0
    """Layers launched together; 0: all of them."""
    token_chunk: Count = 0
    """New tokens that go through all layers before the next ones; 0: the worker's limit."""


class Plan(Struct, frozen=True, tag=True, kw_only=True):
    """A standing order (DESIGN 3). It replaces the one before it whole."""

    epoch: Epoch
    seq: Count
    """Rises within an epoch; a plan that is not newer than the standing one has no effect."""
    sharing: Disjoint | Shared | Exclusive
    alone: Count = WHOLE
    """Partition for a lane while the other one has no work."""
    decode: DecodePlan = DecodePlan()
    prefill: PrefillPlan = PrefillPlan()
    victims: tuple[RequestRef, ...] = ()
    """Order in which requests are retracted when the pool is full; then newest first."""
    reason: Reason = ""
    """Why, for `tandem explain`: chosen split, predicted and allowed times."""


# --- to the worker ---


class Observe(Struct, frozen=True, tag=True):
    """Ask for a snapshot and events, without the right to act."""

    scheduler: PeerName
    policy: str
    version: Count


class Attach(Struct, frozen=True, tag=True):
    """Ask for the next epoch. Fences whoever held the one before."""

    scheduler: PeerName
    policy: str
    version: Count


class Detach(Struct, frozen=True, tag=True):
    """Give the epoch back; the worker goes on by its standing plan (autopilot)."""

    epoch: Epoch


# --- from the worker ---


class PoolState(Struct, frozen=True):
    """Pages of the KV pool. total = free + cached (idle, evictable) + referenced."""

    total: Count
    free: Count
    cached: Count


class RequestView(Struct, frozen=True, kw_only=True):
    """One request as a scheduler sees it: counts and times, no tokens, no pages."""

    ref: RequestRef
    model: ModelName
    tenant: Tenant
    state: RequestState
    prompt_tokens: Count
    """Tokens to prefill in all: the prompt, and after a retraction the output so far besides."""
    computed: Count
    """Of these, tokens whose KV is in the pool; cache hits included once the prefill has begun."""
    cached: Count
    """Tokens found in the prefix cache (an estimate until the prefill begins)."""
    output_tokens: Count
    max_tokens: Count
    """Output tokens at most."""
    arrival: float
    """On the worker's monotonic clock, seconds."""
    slo: Slo = Slo()
    priority: Priority = 0


class StartedBatch(Struct, frozen=True):
    """A prefill batch that has begun and is not finished. Its members stay together, because their
    hidden states are parked together; a plan that goes on with it names the same members.
    """

    batch: tuple[RequestRef, ...]
    layers_done: Count
    """Layers completed of the tokens under way."""
    layers_total: Count


class Snapshot(Struct, frozen=True, tag=True, kw_only=True):
    """Reply to `Observe` and `Attach`: everything a scheduler must know. Events with a larger
    `event` number follow.
    """

    boot: BootId
    event: Count
    """Number of the last event that this snapshot contains."""
    epoch: Epoch
    """The newest epoch."""
    acting: bool
    """Whether that epoch is the receiver's."""
    now: float
    """The worker's monotonic clock, seconds."""
    device: str
    """What the device calls itself."""
    unit: str
    """What a partition counts: `SM` or `core`."""
    units: Count
    """Of the whole device."""
    partitions: tuple[Partition, ...]
    models: tuple[ModelInfo, ...]
    limits: WorkerLimits
    pool: PoolState
    requests: tuple[RequestView, ...]
    batches: tuple[StartedBatch, ...] = ()
    """Prefill batches under way, the running one first; fused chunks are not among them."""
    plan_seq: Count = 0
    """Sequence number of the standing plan, 0 when there is none."""


class DeviceWork(Struct, frozen=True):
    """What one launch did, for estimators: device time and what ran beside it."""

    lane: Lane
    partition: Count
    units: Count
    seconds: Seconds
    """Device time of the launch."""
    new_tokens: Count
    """Prefill tokens computed (Σn), in this lane."""
    new_squared: Count
    """Σn² (MuxWise eq. 1)."""
    new_times_reused: Count
    """Σn·r (MuxWise eq. 1)."""
    reused_tokens: Count
    """Tokens that the prefill attended to and did not compute (Σr)."""
    batch_size: Count
    """Decode rows, or prompts in the prefill batch."""
    context_tokens: Count
    """Σ context over decode rows (Σr of MuxWise eq. 2)."""
    layers: Count
    """Layers run; for decode all of them."""
    overlap_s: Seconds = 0.0
    """Part of `seconds` during which the other lane was busy too."""
    queued_s: Seconds = 0.0
    """From launch to start on the device."""
    started: float = 0.0
    """When it began, on the executor's clock: a GPU's and a CPU's is the host's monotonic one."""


class Progress(Struct, frozen=True, array_like=True):
    """Absolute counts of one request after an event."""

    ref: RequestRef
    computed: Count
    output_tokens: Count


class Arrived(Struct, frozen=True, tag=True):
    """A request was accepted."""

    event: Count
    request: RequestView


class PrefillStarted(Struct, frozen=True, tag=True):
    """A prefill is launched, for the first time or again after a suspension: its pages are taken,
    its cache hits known. With it, a mirror of the events equals a snapshot at every event, but for
    the pool: launches take pages without a word, so it is as of the last event that carries it.
    """

    event: Count
    lane: Lane
    """PREFILL: the requests go through the layers as one batch. DECODE: as fused chunks."""
    requests: tuple[RequestView, ...]
    pool: PoolState


class QuantumDone(Struct, frozen=True, tag=True):
    """A prefill quantum has completed."""

    event: Count
    batch: tuple[RequestRef, ...]
    layers_done: Count
    layers_total: Count
    work: DeviceWork
    progress: tuple[Progress, ...]
    """Only at the end of a chunk (all layers): tokens are computed then."""
    suspended: bool = False
    """The batch is not the head any more and parks here."""


class PrefillDone(Struct, frozen=True, tag=True):
    """Requests whose prefill is complete, with their first token: they decode from here on."""

    event: Count
    progress: tuple[Progress, ...]
    pool: PoolState


class StepDone(Struct, frozen=True, tag=True):
    """A decode iteration has completed."""

    event: Count
    work: DeviceWork
    progress: tuple[Progress, ...]
    """Of the rows, and of requests whose chunk rode along."""
    pool: PoolState


class Retracted(Struct, frozen=True, tag=True):
    """A request lost its pages and is queued again: its prompt now includes its output."""

    event: Count
    request: RequestView
    pool: PoolState


class Left(Struct, frozen=True, tag=True):
    """A request is terminal and owns nothing any more."""

    event: Count
    ref: RequestRef
    reason: str
    pool: PoolState


class PlanRejected(Struct, frozen=True, tag=True):
    """The plan can never be right (unknown partition or model): it has no effect."""

    event: Count
    seq: Count
    why: str


class Fenced(Struct, frozen=True, tag=True):
    """Another scheduler acts: the receiver exits with status 0 and never attaches again."""

    event: Count
    epoch: Epoch


Event = (
    Arrived
    | PrefillStarted
    | QuantumDone
    | PrefillDone
    | StepDone
    | Retracted
    | Left
    | PlanRejected
    | Fenced
)
"""Numbered by the worker from 1 at boot; the same number for every scheduler that observes.

`PlanRejected` and `Fenced` answer one scheduler alone: they carry the newest number, use none up.
"""


class RefusedScheduler(Struct, frozen=True, tag=True):
    """Reply to an `Observe` or `Attach` of another protocol version."""

    version: Count
    message: str


ControlToWorker = Observe | Attach | Plan | Detach
ToScheduler = Snapshot | Event | RefusedScheduler
