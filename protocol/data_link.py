"""Messages between a gateway and a worker, grouped by who receives them.

Tokens never pass through the scheduler, so that no pause of the control plane can delay them.
Submits are idempotent by (request, incarnation) and tokens carry their index, so a resync after
lost frames is enough and nothing is ever retransmitted by the link.
"""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from protocol.activity import Activity
from protocol.ids import (
    BootId,
    Count,
    ModelName,
    PeerName,
    RequestRef,
    Seconds,
    Tenant,
    TokenBytes,
)
from protocol.sampling import Sampling
from protocol.slo import Deadlines, Slo

Priority = Annotated[int, Meta(ge=-1000, le=1000)]
"""Lower is sooner."""


class FinishReason(StrEnum):
    """Why a request ended well."""

    STOP = "stop"
    LENGTH = "length"


class FailCode(StrEnum):
    """Why a request ended without its output."""

    ABORTED = "aborted"
    OVERLOADED = "overloaded"
    INVALID = "invalid"
    UNKNOWN_MODEL = "unknown_model"
    TOO_LONG = "too_long"
    DEADLINE = "deadline"
    SHUTDOWN = "shutdown"
    SUSPECT = "suspect"
    """It was on the device in two crashes of the worker."""
    UNKNOWN_REQUEST = "unknown_request"
    """Named in a resync, not here: the gateway submits it again."""
    INTERNAL = "internal"


# --- to the worker ---


class Hello(Struct, frozen=True, tag=True):
    """First message of a gateway, after each (re)connect."""

    gateway: PeerName
    version: Count


class Submit(Struct, frozen=True, tag=True, kw_only=True):
    """A request, complete. Sent again after a worker's crash with the output so far."""

    ref: RequestRef
    model: ModelName
    token_ids: TokenBytes
    """The prompt."""
    sampling: Sampling
    tenant: Tenant = ""
    output_so_far: TokenBytes = b""
    """Output tokens that the gateway holds already; the next token's index follows on."""
    page_hashes: TokenBytes = b""
    """32 bytes for each full page of the prompt (`protocol.prefix`)."""
    root_hash: Annotated[bytes, Meta(max_length=32)] = b""
    slo: Slo = Slo()
    deadlines: Deadlines = Deadlines()
    priority: Priority = 0
    age_s: Seconds = 0.0
    """Seconds since the request's arrival at the gateway, when this was sent."""


class Stop(Struct, frozen=True, tag=True):
    """A stop string was found: the output ends before index `at_index`."""

    ref: RequestRef
    at_index: Count


class Abort(Struct, frozen=True, tag=True):
    """The client left. Idempotent; an unknown request is not an error."""

    ref: RequestRef


class Delivered(Struct, frozen=True, array_like=True):
    """How far a gateway got with one request."""

    ref: RequestRef
    tokens: Count


class Resync(Struct, frozen=True, tag=True):
    """All live requests of a gateway, after a gap. What the worker has besides is aborted."""

    requests: tuple[Delivered, ...]


# --- from the worker ---


class Credits(Struct, frozen=True):
    """What the worker's queue still takes: gateways refuse from it before they tokenize."""

    requests: Count
    tokens: Count


class Load(Struct, frozen=True):
    """The worker's state in numbers, for readiness and metrics."""

    queued: Count = 0
    running: Count = 0
    pages_total: Count = 0
    pages_referenced: Count = 0
    pages_cached: Count = 0
    iterations: Count = 0
    """Decode iterations and prefill quanta completed since boot: progress, when it moves."""
    draining: bool = False
    scheduler: str = ""
    """Name of the attached policy, empty when none is."""


class ModelInfo(Struct, frozen=True, kw_only=True):
    """What a gateway and a scheduler must know of a model."""

    name: ModelName
    num_layers: Count
    vocab_size: Count
    max_model_len: Count
    """Tokens of prompt and output together."""
    page_size: Count
    """Tokens in a page."""
    eos_token_ids: tuple[Count, ...] = ()


class WorkerLimits(Struct, frozen=True, kw_only=True):
    """Bounds of the worker's queue and batch."""

    max_queued_requests: Count
    max_queued_tokens: Count
    max_num_seqs: Count
    """Rows of a decode batch at most."""


class Welcome(Struct, frozen=True, tag=True, kw_only=True):
    """Reply to `Hello`. A boot id not seen before means that everything must be resubmitted."""

    boot: BootId
    version: Count
    models: tuple[ModelInfo, ...]
    limits: WorkerLimits
    credits: Credits


class Accepted(Struct, frozen=True, tag=True):
    """The request is in the table; exactly one `Finished` or `Failed` will follow.

    Said again, before tokens and end, in answer to a resync or to the same submit.
    """

    ref: RequestRef
    cached_tokens: Count
    """Prompt tokens whose pages are in the prefix cache now."""


class TokenLogprobs(Struct, frozen=True, array_like=True):
    """Log-probabilities at one output position, after penalties and before temperature."""

    drawn: float
    top_ids: tuple[Count, ...]
    top: tuple[float, ...]


class TokenRun(Struct, frozen=True, array_like=True):
    """Consecutive output tokens of one request."""

    ref: RequestRef
    first: Count
    """Index of the first token in the output."""
    ids: TokenBytes
    logprobs: tuple[TokenLogprobs, ...] = ()


class Tokens(Struct, frozen=True, tag=True):
    """New tokens of all of a gateway's requests in one iteration: one frame."""

    runs: tuple[TokenRun, ...]


class Usage(Struct, frozen=True):
    """Token counts of a finished request."""

    prompt_tokens: Count
    output_tokens: Count
    cached_tokens: Count = 0


class Finished(Struct, frozen=True, tag=True):
    """Terminal: the output is complete."""

    ref: RequestRef
    reason: FinishReason
    usage: Usage
    stop_token: int | None = None
    """The stop or end-of-sequence id that ended the output: never delivered in `Tokens`, counted in
    `usage.output_tokens`."""


class Failed(Struct, frozen=True, tag=True):
    """Terminal: no more output will come. The message names the limit and the value."""

    ref: RequestRef
    code: FailCode
    message: Annotated[str, Meta(max_length=1024)]


class Refused(Struct, frozen=True, tag=True):
    """Reply to a hello of another protocol version."""

    version: Count
    message: str


class Status(Struct, frozen=True, tag=True):
    """Sent with every change of credits and at least with every heartbeat."""

    credits: Credits
    load: Load
    activity: Activity | None = None
    """A few times a second; None with a mere change of credits."""


ToWorker = Hello | Submit | Stop | Abort | Resync
ToGateway = Welcome | Refused | Accepted | Tokens | Finished | Failed | Status
