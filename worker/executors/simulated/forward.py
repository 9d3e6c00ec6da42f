"""What the simulated device computes: the fake model's forward over slots and pages.

A launch is looked at twice: at its begin it takes slot inits and table updates and reads what it
attends to, at its end it reads again and writes. So work that touches a page at the same time as
its next owner is found, whichever of the two comes first.
"""

from protocol.sampling import Sampling
from worker.executors.base import (
    DecodeBatch,
    DeviceInfo,
    Launch,
    PrefillQuantum,
    PrefillRow,
    SampledToken,
)
from worker.executors.simulated.fake_model import draw, origin
from worker.executors.simulated.pages import KvCorruption, Pages, Slot


class BadLaunch(Exception):
    """A launch contradicts the executor's contract."""


class FakeForward:
    """Slots, pages and parked batches of one device."""

    def __init__(self, info: DeviceInfo, *, verify: bool) -> None:
        self._info = info
        self._models = {model.name: model for model in info.models}
        self._pages = Pages(info.page_size, verify=verify)
        self._slots: dict[int, Slot] = {}
        self._parked: dict[int, int] = {}
        """Layers done, by batch."""

    @property
    def parked(self) -> list[int]:
        """Batches with parked hidden states."""
        return list(self._parked)

    def discard(self, batch: int) -> None:
        """Drop a parked batch; one that is not there is no error."""
        self._parked.pop(batch, None)

    def begin(self, work: Launch) -> None:
        """Take slot inits and tables, and read. Raises BadLaunch and KvCorruption."""
        self._introduce(work)
        layers = self._models[work.model].num_layers
        if isinstance(work, DecodeBatch):
            self._check_decode(work)
            for slot, position in zip(work.slots, work.positions, strict=True):
                self._pages.read(self._slots[slot], position, layers)
        else:
            self._check_quantum(work, layers)
        end = work.layer_end if isinstance(work, PrefillQuantum) else layers
        for row in rows_of(work):
            self._check_row(row)
            self._pages.read(self._slots[row.slot], row.start, end)

    def fail(self, work: Launch) -> None:
        """`work` failed: what it was to write is undefined, and so is what comes of its slots."""
        self._introduce(work)
        numbers = [row.slot for row in rows_of(work)]
        if isinstance(work, DecodeBatch):
            numbers += work.slots
        else:
            self._park(work)
        for number in numbers:
            self._slots[number].broken = True

    def end(self, work: Launch) -> tuple[SampledToken, ...]:
        """Write, and draw. Raises KvCorruption."""
        layers = self._models[work.model].num_layers
        drawn: list[SampledToken] = []
        if isinstance(work, DecodeBatch):
            for number, position in zip(work.slots, work.positions, strict=True):
                drawn.append(self._step(number, position, layers))
            span = (0, layers)
        else:
            span = (work.layer_start, work.layer_end)
            self._park(work)
        for row in rows_of(work):
            slot = self._slots[row.slot]
            state = 0 if slot.broken else self._pages.write(slot, row.start, row.token_ids, span)
            if span[1] == layers:
                slot.written = row.start + len(row.token_ids)
                if row.sample:
                    drawn.append(self._draw(row.slot, slot, state))
        return tuple(drawn)

    def _introduce(self, work: Launch) -> None:
        for init in work.inits:
            self._slots[init.slot] = Slot(
                init.model, init.sampling, origin(init.model), len(init.output)
            )
        for update in work.tables:
            table = self._slots[update.slot].table
            if update.first > len(table):
                raise BadLaunch(
                    f"slot {update.slot}: pages from {update.first} on, {len(table)} known"
                )
            table[update.first :] = update.pages

    def _park(self, work: PrefillQuantum) -> None:
        self._parked[work.batch] = work.layer_end
        if work.layer_end == self._models[work.model].num_layers:
            del self._parked[work.batch]

    def _step(self, number: int, position: int, layers: int) -> SampledToken:
        slot = self._slots[number]
        if slot.broken:
            return SampledToken(number, 0)
        assert slot.token is not None
        state = self._pages.write(slot, position, (slot.token,), (0, layers))
        slot.written = position + 1
        return self._draw(number, slot, state)

    def _draw(self, number: int, slot: Slot, state: int) -> SampledToken:
        sampling: Sampling = slot.sampling
        slot.token = draw(state, sampling, slot.index, self._models[slot.model])
        slot.index += 1
        return SampledToken(number, slot.token)

    # --- the contract ---

    def _check_decode(self, work: DecodeBatch) -> None:
        numbers = [*work.slots, *(row.slot for row in work.chunks)]
        if len(set(numbers)) != len(numbers):
            raise BadLaunch(f"ticket {work.ticket}: a slot has two rows")
        for number, position in zip(work.slots, work.positions, strict=True):
            slot = self._slots[number]
            if slot.broken:
                continue
            if slot.token is None:
                raise BadLaunch(f"slot {number} decodes and nothing was drawn for it")
            if slot.written != position:
                raise BadLaunch(f"slot {number}: position {position}, {slot.written} are written")

    def _check_quantum(self, work: PrefillQuantum, layers: int) -> None:
        if not 0 <= work.layer_start < work.layer_end <= layers:
            raise BadLaunch(f"layers {work.layer_start} to {work.layer_end} of {layers}")
        if self._parked.get(work.batch, 0) != work.layer_start:
            raise BadLaunch(f"batch {work.batch} is not parked at layer {work.layer_start}")
        tokens = sum(len(row.token_ids) for row in work.rows)
        if tokens > self._info.max_prefill_tokens:
            limit = self._info.max_prefill_tokens
            raise BadLaunch(f"{tokens} tokens in a quantum, the limit is {limit}")

    def _check_row(self, row: PrefillRow) -> None:
        slot = self._slots[row.slot]
        written = slot.written
        if not row.token_ids:
            raise BadLaunch(f"slot {row.slot}: a row without tokens")
        if not slot.broken and written is not None and written != row.start:
            raise KvCorruption(f"slot {row.slot}: starts at {row.start}, {written} are written")


def rows_of(work: Launch) -> tuple[PrefillRow, ...]:
    """Return the prefill rows of a launch."""
    return work.chunks if isinstance(work, DecodeBatch) else work.rows
