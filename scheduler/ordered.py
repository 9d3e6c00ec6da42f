"""Requests in one state, oldest first, kept so as they come and go.

A view has a thousand of them and a policy looks at the first few at every event: sorting them anew
each time was most of a decision's time.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import overload

from protocol.control_link import RequestView
from protocol.ids import RequestRef

Key = tuple[int, float, str, int]


def age_order(request: RequestView) -> Key:
    """Sort key: lower priority value first, then the oldest; the id makes it total."""
    return (request.priority, request.arrival, request.ref.request, request.ref.incarnation)


class Ordered(Sequence[RequestView]):
    """A live sequence over the requests of a view."""

    def __init__(self, requests: Mapping[RequestRef, RequestView]) -> None:
        """`requests` must have every member at any time."""
        self.added = 0
        """How many have come, ever: who has looked at all of them need look again when it rises."""
        self._requests = requests
        self._keys: list[Key] = []
        self._refs: list[RequestRef] = []
        """Of the keys, in their order."""

    def add(self, request: RequestView) -> None:
        """Put `request` in its place, once."""
        key = age_order(request)
        at = bisect_left(self._keys, key)
        if not self._is_at(at, key):
            self._keys.insert(at, key)
            self._refs.insert(at, request.ref)
            self.added += 1

    def discard(self, request: RequestView) -> None:
        """Take `request` out, if it is there."""
        key = age_order(request)
        at = bisect_left(self._keys, key)
        if self._is_at(at, key):
            del self._keys[at]
            del self._refs[at]

    def fill(self, requests: Iterable[RequestView]) -> None:
        """Have exactly `requests`."""
        self.added += 1
        ordered = sorted(requests, key=age_order)
        self._keys = [age_order(request) for request in ordered]
        self._refs = [request.ref for request in ordered]

    def _is_at(self, at: int, key: Key) -> bool:
        return at < len(self._keys) and self._keys[at] == key

    def __len__(self) -> int:
        return len(self._refs)

    def __iter__(self) -> Iterator[RequestView]:
        return map(self._requests.__getitem__, self._refs)

    @overload
    def __getitem__(self, index: int) -> RequestView: ...
    @overload
    def __getitem__(self, index: slice) -> list[RequestView]: ...
    def __getitem__(self, index: int | slice) -> RequestView | list[RequestView]:
        if isinstance(index, slice):
            return [self._requests[ref] for ref in self._refs[index]]
        return self._requests[self._refs[index]]

    def __contains__(self, request: object) -> bool:
        if not isinstance(request, RequestView):
            return False
        key = age_order(request)
        return self._is_at(bisect_left(self._keys, key), key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]
