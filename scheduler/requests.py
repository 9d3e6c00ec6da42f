"""The requests of a view, and the sums over those that decode that policies ask for all the time.

An iteration moves every row on by a token, and a new value for each of 256 rows was most of what a
decision took. So progress is kept beside a request and put into it when somebody looks at it, and
the sums follow by what changed.
"""

from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from protocol.control_link import Progress, RequestState, RequestView
from protocol.ids import ModelName, RequestRef

RESERVED_TOKENS = 128
"""Output tokens reserved ahead for each row, or what it has left if that is less."""

ELSEWHERE = -1
"""Context of a request that does not decode."""


def context_tokens(request: RequestView) -> int:
    """Return the tokens that one more decode iteration of `request` attends to."""
    return max(request.computed, request.prompt_tokens)


class _Entry:
    """One request. Plain and mutable: touched for every row at every iteration."""

    __slots__ = ("context", "ends_from", "max_tokens", "news", "page", "request", "reserved")

    def __init__(self, request: RequestView, page: int) -> None:
        decodes = request.state is RequestState.DECODING
        self.request = request
        self.news: Progress | None = None
        """What is not in `request` yet."""
        self.max_tokens, self.page = request.max_tokens, page
        self.ends_from = request.max_tokens - RESERVED_TOKENS
        """Output tokens from which on less is reserved."""
        self.context = context_tokens(request) if decodes else ELSEWHERE
        self.reserved = self.pages(request.output_tokens) if decodes else 0

    def pages(self, output_tokens: int) -> int:
        """Return the pages that are reserved for what may come."""
        left = self.max_tokens - output_tokens
        tokens = RESERVED_TOKENS if left > RESERVED_TOKENS else left
        return -(-tokens // self.page) if tokens > 0 else 0


class Requests(Mapping[RequestRef, RequestView]):
    """All requests by name. Whoever changes it is the view."""

    def __init__(self, page_sizes: Mapping[ModelName, int]) -> None:
        """`page_sizes`: tokens, by model; 1 for one that is not known."""
        self.context = 0
        """Tokens that one more iteration of all rows attends to."""
        self.reserved = 0
        """Pages reserved for what all rows may still add (`RESERVED_TOKENS`)."""
        self._page_sizes = page_sizes
        self._entries: dict[RequestRef, _Entry] = {}

    def put(self, request: RequestView) -> None:
        """Take a request as it is now, known or new."""
        self.pop(request.ref)
        entry = _Entry(request, max(1, self._page_sizes.get(request.model, 1)))
        self._entries[request.ref] = entry
        self._add(entry, 1)

    def pop(self, ref: RequestRef) -> None:
        """Forget a request, if it is there."""
        entry = self._entries.pop(ref, None)
        if entry is not None:
            self._add(entry, -1)

    def count(self, progress: tuple[Progress, ...]) -> None:
        """Note how far requests are; of one that has gone, nothing. Written out: the one loop over
        all rows at every iteration.
        """
        find, grown, reserved = self._entries.get, 0, 0
        for item in progress:
            entry = find(item.ref)
            if entry is None:
                continue
            entry.news = item
            before = entry.context
            if before < 0:  # elsewhere
                continue
            computed = item.computed
            if computed > before:
                grown += computed - before
                entry.context = computed
            if item.output_tokens > entry.ends_from:
                pages = entry.pages(item.output_tokens)
                reserved += pages - entry.reserved
                entry.reserved = pages
        self.context += grown
        self.reserved += reserved

    def _add(self, entry: _Entry, sign: int) -> None:
        if entry.context != ELSEWHERE:
            self.context += sign * entry.context
            self.reserved += sign * entry.reserved

    def __getitem__(self, ref: RequestRef) -> RequestView:
        entry = self._entries[ref]
        news = entry.news
        if news is not None:
            entry.request = replace(
                entry.request, computed=news.computed, output_tokens=news.output_tokens
            )
            entry.news = None
        return entry.request

    def __contains__(self, ref: object) -> bool:
        return ref in self._entries

    def __iter__(self) -> Iterator[RequestRef]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)
