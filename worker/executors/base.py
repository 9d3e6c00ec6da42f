"""What the worker's core asks of a device, as plain data: the one interface behind which CUDA, CPU
and simulated execution live.

Batches hold no tensors and no references, so that the log of launches is all that a follower of a
tensor-parallel group (or a test) needs to do the same work. The core numbers its launches; a lane
runs its launches in the order of their tickets.

Slots. A running request has a *slot*: an index into device-side arrays for its page table, its last
sampled token, its sampling parameters, its generator's counter and its penalty counts. `SlotInit`
starts one and `TableUpdate` extends its page table; both ride in the batch that first needs them.
"""

from dataclasses import dataclass, field
from typing import Protocol

from protocol.control_link import Lane, Partition
from protocol.data_link import TokenLogprobs
from protocol.sampling import Sampling

Ticket = int
"""Number of a launch: rises by one with each launch of the worker, over both lanes."""


@dataclass(frozen=True, slots=True)
class SlotInit:
    """A request takes a slot, before the batch it rides in runs."""

    slot: int
    model: str
    sampling: Sampling
    prompt: tuple[int, ...]
    """Prompt token ids, for the repetition penalty; empty when the request has none."""
    output: tuple[int, ...] = ()
    """Output so far, of a retracted or resubmitted request: the next draw has index len(output)."""


@dataclass(frozen=True, slots=True)
class TableUpdate:
    """The page table of `slot` holds `pages` from entry `first` on; entries behind are void."""

    slot: int
    first: int
    pages: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PrefillRow:
    """New tokens of one prompt: positions start .. start + len(token_ids) - 1 of its sequence.

    Positions below `start` are in the pool already (cache hits, earlier chunks), and attended to.
    """

    slot: int
    start: int
    token_ids: tuple[int, ...]
    sample: bool
    """Whether a token is drawn after the last position: the prompt ends here."""


@dataclass(frozen=True, slots=True)
class DecodeBatch:
    """One decode iteration, with prefill chunks fused in (possibly only chunks).

    Row i feeds the last token sampled for `slots[i]`, on the device, at position `positions[i]`
    (the number of tokens of the sequence whose KV is written before), and samples the next.
    """

    ticket: Ticket
    model: str
    partition: int
    """Row of the partition table whose decode side this runs on; WHOLE for the whole device."""
    slots: tuple[int, ...]
    positions: tuple[int, ...]
    chunks: tuple[PrefillRow, ...] = ()
    inits: tuple[SlotInit, ...] = ()
    tables: tuple[TableUpdate, ...] = ()

    @property
    def lane(self) -> Lane:
        """Decode."""
        return Lane.DECODE


@dataclass(frozen=True, slots=True)
class PrefillQuantum:
    """Consecutive layers of one prefill batch.

    The first quantum of a batch (`layer_start == 0`) embeds the rows' tokens; the executor parks
    hidden states under `batch` between quanta; the last one (`layer_end` = all layers) norms,
    samples the rows that ask for it, and drops what was parked.
    """

    ticket: Ticket
    model: str
    partition: int
    batch: int
    """Identifies the parked hidden states; never reused."""
    layer_start: int
    layer_end: int
    rows: tuple[PrefillRow, ...]
    """The same in each quantum of the batch."""
    inits: tuple[SlotInit, ...] = ()
    tables: tuple[TableUpdate, ...] = ()

    @property
    def lane(self) -> Lane:
        """Prefill."""
        return Lane.PREFILL


Launch = DecodeBatch | PrefillQuantum


@dataclass(frozen=True, slots=True)
class SampledToken:
    """A token drawn for a slot."""

    slot: int
    token: int
    logprobs: TokenLogprobs | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """A launch has completed on the device. Times are on the executor's own clock, in seconds."""

    ticket: Ticket
    lane: Lane
    started: float
    finished: float
    units: int
    """SMs or cores that it ran on, as realized."""
    overlap_s: float = 0.0
    """Part of it during which the other lane was busy too."""
    tokens: tuple[SampledToken, ...] = ()
    """Decode: one for each row in order, then one for each chunk that samples. Prefill: one for
    each row that samples."""
    error: str | None = None
    """The launch failed, and what it was to write is undefined."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What the core must know of a loaded model."""

    name: str
    num_layers: int
    vocab_size: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]
    num_heads: int = 0
    """Query heads; 0: not told."""


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """What an executor realized at start."""

    unit: str
    """`SM` or `core`."""
    units: int
    partitions: tuple[Partition, ...]
    """Index 0 is WHOLE. Sorted by decode units, ascending, from index 1 on."""
    models: tuple[ModelShape, ...]
    num_pages: int
    page_size: int
    """Tokens."""
    max_slots: int
    max_prefill_tokens: int
    """Tokens of one launch at most, decode rows included: what activations were reserved for."""
    row_sizes: tuple[int, ...] = field(default=())
    """A decode batch takes as long as one of the next of these sizes; empty: any is its own."""
    device: str = ""
    """What the device calls itself: a profile is of such devices."""
    notes: tuple[str, ...] = field(default=())
    """Warnings for the operator: what this machine cannot do, and why."""


class Executor(Protocol):
    """A device with two lanes. Calls do not block, and come from one thread."""

    @property
    def info(self) -> DeviceInfo:
        """What was realized at start."""
        ...

    def launch(self, work: Launch) -> None:
        """Queue `work` on its lane. Launches of one lane run in order, the lanes concurrently."""
        ...

    def discard(self, batch: int) -> None:
        """Drop the parked hidden states of a prefill batch that will not go on."""
        ...

    def poll(self) -> list[Completion]:
        """Return launches completed since the last call, in order within each lane."""
        ...

    def fileno(self) -> int | None:
        """Descriptor that turns readable when `poll` may have something; None: keep polling."""
        ...

    def close(self) -> None:
        """Finish what runs, free the device."""
        ...
