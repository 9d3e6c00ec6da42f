"""Who holds which page of the KV pool: free list, reference counts, and idle cached pages.

Counts and numbers only; the bytes are the executor's. A page is in exactly one of three sets: free
(no content worth keeping), idle (named content, nobody holds it, least recently used goes first)
or referenced. Reference counts are counted in holders: page tables, open or behind a fence.
"""

from collections.abc import Iterable, Sequence

from worker.kv.prefix import PrefixIndex


class OutOfPages(Exception):
    """More pages were asked for than are free or idle. The message names both numbers."""


class PagePool:
    """Accounting of `num_pages` pages, numbered from 0."""

    def __init__(self, num_pages: int) -> None:
        if num_pages < 1:
            raise ValueError(f"a pool of {num_pages} pages, at least 1 is needed")
        self.num_pages = num_pages
        self.evicted = 0
        """Cached pages given up for new content since the start."""
        self._free = list(range(num_pages - 1, -1, -1))
        self._references = [0] * num_pages
        self._index = PrefixIndex()
        self._idle: dict[int, None] = {}  # in order of last use, oldest first

    @property
    def free(self) -> int:
        """Pages without content."""
        return len(self._free)

    @property
    def cached(self) -> int:
        """Idle pages: cached content that nobody holds."""
        return len(self._idle)

    @property
    def available(self) -> int:
        """Pages that `take` can give now."""
        return len(self._free) + len(self._idle)

    @property
    def referenced(self) -> int:
        """Pages that somebody holds."""
        return self.num_pages - self.available

    def references(self, page: int) -> int:
        """Return how many hold `page`."""
        return self._references[page]

    def is_idle(self, page: int) -> bool:
        """Return whether `page` is cached and held by nobody."""
        return page in self._idle

    def take(self, count: int) -> list[int]:
        """Return `count` pages, held once each by the caller; idle ones are evicted when needed.

        Raises OutOfPages, and changes nothing, when fewer are available.
        """
        if count > self.available:
            raise OutOfPages(f"{count} pages wanted, {self.available} available")
        pages = [self._free.pop() if self._free else self._evict() for _ in range(count)]
        for page in pages:
            self._references[page] = 1
        return pages

    def share(self, pages: Iterable[int]) -> None:
        """Hold cached `pages` once more each. Raises ValueError for a page without content."""
        for page in pages:
            if not self._references[page] and page not in self._idle:
                raise ValueError(f"page {page} is free and cannot be shared")
            self._idle.pop(page, None)
            self._references[page] += 1

    def release(self, pages: Sequence[int]) -> None:
        """Let go of `pages`, held once each by the caller.

        Last pages first, so that of one sequence the end is evicted before the beginning, without
        which the end is of no use. Raises ValueError for a page that nobody holds.
        """
        for page in reversed(pages):
            if not self._references[page]:
                raise ValueError(f"page {page} is released and nobody holds it")
            self._references[page] -= 1
            if self._references[page]:
                continue
            if self._index.has(page):
                self._idle[page] = None
            else:
                self._free.append(page)

    def name(self, page: int, content: bytes) -> bool:
        """Make a held, full, written `page` findable under its content's hash.

        False when another page has the same content: the first one keeps the name.
        """
        if not self._references[page]:
            raise ValueError(f"page {page} is named and nobody holds it")
        return self._index.add(page, content)

    def find(self, content: bytes) -> int | None:
        """Return the page with this content, if any."""
        return self._index.find(content)

    def check(self) -> list[str]:
        """Return violated invariants: the three sets are disjoint and together all pages."""
        free, idle = set(self._free), set(self._idle)
        held = {page for page, count in enumerate(self._references) if count}
        wrong = []
        if len(free) != len(self._free):
            wrong.append("a page is in the free list twice")
        if overlap := (free & idle) | (free & held) | (idle & held):
            wrong.append(f"pages {sorted(overlap)} are in two of free, idle, referenced")
        if lost := set(range(self.num_pages)) - free - idle - held:
            wrong.append(f"pages {sorted(lost)} are neither free nor idle nor referenced")
        if any(count < 0 for count in self._references):
            wrong.append("a reference count is negative")
        if named := sorted(page for page in free if self._index.has(page)):
            wrong.append(f"free pages {named} have a name")
        if unnamed := sorted(page for page in idle if not self._index.has(page)):
            wrong.append(f"idle pages {unnamed} have no name")
        return wrong + self._index.check()

    def _evict(self) -> int:
        page = next(iter(self._idle))
        del self._idle[page]
        self._index.remove(page)
        self.evicted += 1
        return page
