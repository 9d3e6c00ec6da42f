"""The simulated KV pool: each position holds the state of its context, and is verified on read.

What real memory would answer with wrong text for (a table that points elsewhere, a page reused
while it was still read, layers that were never written) raises here at once.
"""

from dataclasses import dataclass, field

from protocol.sampling import Sampling
from worker.executors.simulated.fake_model import mix


class KvCorruption(Exception):
    """A page does not hold what its reader relies on. The message names page and position."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One position's KV: the state before and after its token, in layers below `layers`."""

    before: int
    after: int
    layers: int


@dataclass(slots=True)
class Slot:
    """Device-side arrays of one running request."""

    model: str
    sampling: Sampling
    origin: int
    index: int
    """Of the next token to draw."""
    table: list[int] = field(default_factory=list)
    token: int | None = None
    """The last token drawn."""
    written: int | None = None
    """Positions written by this slot's work, all layers; None: nothing yet."""
    broken: bool = False
    """A launch of it failed: its reads are not verified, its writes are not done."""


class Pages:
    """Cells of all pages."""

    def __init__(self, page_size: int, *, verify: bool) -> None:
        """`verify`: walk the whole context at each read, not only its last position."""
        self._page_size = page_size
        self._verify = verify
        self._cells: dict[tuple[int, int], Cell] = {}

    def read(self, slot: Slot, length: int, layers: int) -> int:
        """Return the state after the first `length` positions, which must have `layers` layers.

        Raises KvCorruption.
        """
        if not length or slot.broken:
            return slot.origin
        if not self._verify:
            return self._cell(slot, length - 1, layers).after
        state = slot.origin
        for position in range(length):
            cell = self._cell(slot, position, layers)
            if cell.before != state:
                raise KvCorruption(f"{self._where(slot, position)} holds another context")
            state = cell.after
        return state

    def write(
        self, slot: Slot, start: int, tokens: tuple[int, ...], layers: tuple[int, int]
    ) -> int:
        """Write layers `layers[0]` .. `layers[1]` of `tokens` from position `start` on.

        Returns the state after them. Raises KvCorruption when the layers below are not there.
        """
        first, last = layers
        state = self.read(slot, start, last)
        for position, token in enumerate(tokens, start):
            after = mix(state, token)
            if first:
                below = self._cell(slot, position, first)
                if (below.before, below.after) != (state, after):
                    raise KvCorruption(f"{self._where(slot, position)} was overwritten")
            self._cells[self._place(slot, position)] = Cell(state, after, last)
            state = after
        return state

    def _cell(self, slot: Slot, position: int, layers: int) -> Cell:
        cell = self._cells.get(self._place(slot, position))
        if cell is None or cell.layers < layers:
            has = cell.layers if cell else 0
            raise KvCorruption(f"{self._where(slot, position)} has {has} layers, {layers} are read")
        return cell

    def _place(self, slot: Slot, position: int) -> tuple[int, int]:
        entry, offset = divmod(position, self._page_size)
        if entry >= len(slot.table):
            raise KvCorruption(f"position {position} has no page, the table has {len(slot.table)}")
        return slot.table[entry], offset

    def _where(self, slot: Slot, position: int) -> str:
        page, offset = self._place(slot, position)
        return f"page {page} offset {offset}, read as position {position},"
