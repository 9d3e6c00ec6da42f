"""The page table of one sequence: which pages, which of them the device knows, which are named.

Entry i holds positions i * page_size .. (i + 1) * page_size - 1. A table only grows while its
sequence is on the device; shared pages (cache hits) come first and are full, so none is written.
"""

from collections.abc import Sequence

from worker.kv.pool import PagePool


def pages_for(tokens: int, page_size: int) -> int:
    """Return the pages that `tokens` tokens need."""
    return -(-tokens // page_size)


class PageTable:
    """Pages of one sequence, all held once by it until `release`."""

    __slots__ = ("_page_size", "_pool", "capacity", "named", "pages", "sent")

    def __init__(self, pool: PagePool, page_size: int, shared: Sequence[int]) -> None:
        """Start with `shared` pages of the cache, in order."""
        pool.share(shared)
        self._pool = pool
        self._page_size = page_size
        self.pages = list(shared)
        self.capacity = len(shared) * page_size
        """Positions that have a page."""
        self.sent = 0
        """Entries that the device has been told."""
        self.named = len(shared)
        """Entries, from the first, that were offered to the prefix cache."""

    def missing(self, tokens: int) -> int:
        """Return the pages that are still to be taken for `tokens` positions."""
        return max(0, pages_for(tokens, self._page_size) - len(self.pages))

    def grow(self, tokens: int) -> None:
        """Have pages for `tokens` positions. Raises OutOfPages, and then changes nothing."""
        self.pages += self._pool.take(self.missing(tokens))
        self.capacity = len(self.pages) * self._page_size

    def unsent(self) -> tuple[int, tuple[int, ...]]:
        """Return entries that the device has not been told, with the first one's index."""
        first = self.sent
        self.sent = len(self.pages)
        return first, tuple(self.pages[first:])

    def name(self, hashes: Sequence[bytes], computed: int) -> None:
        """Offer full pages below position `computed`, all layers written, to the cache."""
        full = min(computed // self._page_size, len(hashes))
        for entry in range(self.named, full):
            self._pool.name(self.pages[entry], hashes[entry])
        self.named = max(self.named, full)

    def release(self) -> None:
        """Let go of all pages. Nothing launched may touch them any more."""
        self._pool.release(self.pages)
        self.pages = []
        self.capacity = 0
