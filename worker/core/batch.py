"""What is launched: rows of prefill, chunks of a batch, and what a launch was about.

A *chunk* is a set of rows that goes through all layers with its hidden states parked between
quanta: the executor's "batch". Its rows never change, so a request that leaves in between goes on
as a dead row. A plan's batch may take several chunks, one after the other.
"""

from dataclasses import dataclass, field

from worker.core.request import Stay
from worker.executors.base import Launch, ModelShape, PrefillRow, SlotInit, TableUpdate


@dataclass(slots=True, eq=False)
class Chunk:
    """Rows on their way through the layers."""

    number: int
    model: ModelShape
    stays: tuple[Stay, ...]
    rows: tuple[PrefillRow, ...]
    """In the order of `stays`."""
    next_layer: int = 0
    """Layers below are launched."""
    in_flight: int = 0
    """Quanta."""

    @property
    def launched(self) -> bool:
        """Whether all layers are launched."""
        return self.next_layer >= self.model.num_layers

    @property
    def alive(self) -> bool:
        """Whether anybody still wants its results."""
        return any(stay.open for stay in self.stays)


@dataclass(frozen=True, slots=True)
class Work:
    """The sizes of a launch, as estimators want them (see `protocol.control_link.DeviceWork`)."""

    new_tokens: int = 0
    new_squared: int = 0
    new_times_reused: int = 0
    reused_tokens: int = 0
    batch_size: int = 0
    context_tokens: int = 0
    layers: int = 0


def measure(rows: tuple[PrefillRow, ...], batch_size: int, context: int, layers: int) -> Work:
    """Return the sizes of a launch with these prefill rows."""
    news = [(len(row.token_ids), row.start) for row in rows]
    return Work(
        new_tokens=sum(n for n, _ in news),
        new_squared=sum(n * n for n, _ in news),
        new_times_reused=sum(n * r for n, r in news),
        reused_tokens=sum(r for _, r in news),
        batch_size=batch_size,
        context_tokens=context,
        layers=layers,
    )


@dataclass(slots=True, eq=False)
class Flight:
    """A launch on the device."""

    work: Launch
    sizes: Work
    launched_at: float
    """Worker's clock."""
    limit: int
    """Launches that its lane was allowed, this one counted."""
    rows: list[Stay] = field(default_factory=list)
    """Decode rows, in order."""
    chunk: Chunk | None = None
    """Of a prefill quantum."""
    fused: list[tuple[Stay, PrefillRow]] = field(default_factory=list)
    """Chunks that ride in a decode iteration."""

    @property
    def stays(self) -> list[Stay]:
        """All that it touches."""
        if self.chunk is not None:
            return list(self.chunk.stays)
        return self.rows + [stay for stay, _ in self.fused]

    @property
    def draws(self) -> list[Stay]:
        """Those for which it draws a token, in the order of `Completion.tokens`."""
        if self.chunk is not None:
            pairs = zip(self.chunk.stays, self.chunk.rows, strict=True)
            final = self.ends_chunk
            return [stay for stay, row in pairs if row.sample] if final else []
        if not self.fused:
            return self.rows
        return self.rows + [stay for stay, row in self.fused if row.sample]

    @property
    def ends_chunk(self) -> bool:
        """Whether it is a chunk's last quantum."""
        return self.chunk is not None and (
            getattr(self.work, "layer_end", 0) == self.chunk.model.num_layers
        )


class Introductions:
    """Slot inits and page table updates that ride in one launch."""

    def __init__(self) -> None:
        self.inits: list[SlotInit] = []
        self.tables: list[TableUpdate] = []

    def add(self, stay: Stay) -> None:
        """Tell the device what it must know of `stay` and does not yet."""
        if not stay.introduced:
            stay.introduced = True
            self.inits.append(_init(stay))
        if stay.table.sent < len(stay.table.pages):
            first, pages = stay.table.unsent()
            self.tables.append(TableUpdate(stay.slot, first, pages))


def _init(stay: Stay) -> SlotInit:
    request = stay.request
    sampling = request.submit.sampling
    return SlotInit(
        slot=stay.slot,
        model=request.model.name,
        sampling=sampling,
        prompt=tuple(request.prompt) if sampling.repetition_penalty != 1.0 else (),
        output=tuple(request.output),
    )


def row_of(stay: Stay, count: int) -> PrefillRow:
    """Return the row with the next `count` tokens of a prefill."""
    start = stay.launched
    end = start + count
    return PrefillRow(
        slot=stay.slot,
        start=start,
        token_ids=stay.request.tokens(start, end),
        sample=end >= stay.total,
    )
