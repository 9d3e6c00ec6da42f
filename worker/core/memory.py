"""Slots and pages: who may come onto the device, who grows, and when what they held is free again.

Freeing has two phases (anchor: pages must not return while a dispatched step can still write them):
`close` ends a stay, and its slot and pages return when the last launched work that can touch them
has completed. Behind the fence they do not count as reclaimable.
"""

from protocol.control_link import RequestState
from worker.core.flights import Flights
from worker.core.request import Request, Stay
from worker.executors.base import DeviceInfo
from worker.kv.pool import PagePool
from worker.kv.table import PageTable, pages_for


class Memory:
    """The KV pool and the slots of a device."""

    def __init__(self, info: DeviceInfo, flights: Flights) -> None:
        self.pool = PagePool(info.num_pages)
        self.page_size = info.page_size
        self.stays: dict[Stay, None] = {}
        """Open stays, in order of their start."""
        self.fenced: list[Stay] = []
        """Closed stays that launched work can still touch."""
        self.closings = 0
        """Stays closed since boot: tells whoever keeps a list of stays that it is out of date."""
        self._flights = flights
        self._slots = list(range(info.max_slots - 1, -1, -1))

    def hits(self, request: Request) -> list[int]:
        """Return the cached pages that `request` would start with, in order.

        At least the last token is left to compute: without it nothing could be drawn.
        """
        request.extend_hashes(request.known, self.page_size)
        pages = []
        for content in request.hashes[: (request.known - 1) // self.page_size]:
            page = self.pool.find(content)
            if page is None:
                break
            pages.append(page)
        return pages

    def fits(self, request: Request) -> bool:
        """Return whether `request` can start now.

        Each request that runs can then still get a page, else the newcomer would be retracted
        again at once. When nothing runs, nobody needs one now.
        """
        if not self._slots:
            return False
        need = pages_for(request.known, self.page_size)
        spare = 0
        if not self._flights.idle:
            spare = sum(stay.state is not RequestState.SUSPENDED for stay in self.stays)
        if need + spare <= self.pool.free:
            return True  # without looking at the cache
        hits = self.hits(request)
        idle = sum(self.pool.is_idle(page) for page in hits)
        return need - len(hits) + spare <= self.pool.available - idle

    def start(self, request: Request) -> Stay:
        """Give `request`, which fits, a slot and pages for all that is known of it."""
        hits = self.hits(request)
        table = PageTable(self.pool, self.page_size, hits)
        table.grow(request.known)
        shared = len(hits) * self.page_size
        stay = Stay(
            request=request,
            slot=self._slots.pop(),
            table=table,
            total=request.known,
            launched=shared,
            computed=shared,
            left=request.limit - len(request.output),
        )
        request.stay = stay
        request.cached = shared
        self.stays[stay] = None
        return stay

    def written(self, stay: Stay, computed: int) -> None:
        """All layers of positions below `computed` are written: full pages can be found now."""
        stay.computed = computed
        if computed // self.page_size > stay.table.named:
            stay.request.extend_hashes(computed, self.page_size)
            stay.table.name(stay.request.hashes, computed)

    def close(self, stay: Stay) -> None:
        """End a stay. What it holds returns once nothing launched can touch it."""
        stay.open = False
        stay.request.stay = None
        del self.stays[stay]
        self.closings += 1
        if self._flights.is_clear(stay):
            self._free(stay)
        else:
            self.fenced.append(stay)

    def settle(self) -> None:
        """After a completion: free what is behind no fence any more."""
        if not self.fenced:
            return
        waiting = []
        for stay in self.fenced:
            if self._flights.is_clear(stay):
                self._free(stay)
            else:
                waiting.append(stay)
        self.fenced = waiting

    def coming(self) -> int:
        """Return the pages that completions of what is in flight will free.

        Not those that a started chunk holds for dead rows: it may stay suspended for long.
        """
        pages: dict[int, int] = {}
        for stay in self.fenced:
            if stay.chunk is None:
                for page in stay.table.pages:
                    pages[page] = pages.get(page, 0) + 1
        return sum(holders == self.pool.references(page) for page, holders in pages.items())

    def _free(self, stay: Stay) -> None:
        stay.table.release()
        self._slots.append(stay.slot)

    def check(self) -> list[str]:
        """Return violated invariants (DESIGN 6.3)."""
        wrong = self.pool.check()
        holders = [0] * self.pool.num_pages
        slots = list(self._slots)
        for stay in [*self.stays, *self.fenced]:
            slots.append(stay.slot)
            for page in stay.table.pages:
                holders[page] += 1
        for page, count in enumerate(holders):
            if count != self.pool.references(page):
                wrong.append(
                    f"page {page}: {count} tables, {self.pool.references(page)} references"
                )
        if len(slots) != len(set(slots)):
            wrong.append("a slot has two owners")
        for stay in self.stays:
            wrong += self._check_stay(stay)
        return wrong

    def _check_stay(self, stay: Stay) -> list[str]:
        name, table = stay.request.ref.request, stay.table
        wrong = []
        if not stay.computed <= stay.launched <= table.capacity:
            wrong.append(
                f"{name}: computed {stay.computed}, launched {stay.launched}, pages for "
                f"{table.capacity}"
            )
        if len(table.pages) != pages_for(max(stay.total, stay.launched), self.page_size):
            wrong.append(f"{name}: {len(table.pages)} pages for {stay.launched} positions")
        writable = table.pages[stay.computed // self.page_size :]
        if any(self.pool.references(page) > 1 for page in writable):
            wrong.append(f"{name}: a page that will be written is shared")
        return wrong
