"""Requests in one state, oldest first, kept so as they come and go.

A view has a thousand of them and a policy looks at the first few at every event: sorting them anew
each time was most of a decision's time.
"""

from bisect import bisect_left, insort
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
        self._refs: dict[Key, RequestRef] = {}

    def add(self, request: RequestView) -> None:
        """Put `request` in its place."""
        key = age_order(request)
        if key not in self._refs:
            insort(self._keys, key)
            self.added += 1
        self._refs[key] = request.ref

    def discard(self, request: RequestView) -> None:
        """Take `request` out, if it is there."""
        key = age_order(request)
        if self._refs.pop(key, None) is not None:
            del self._keys[bisect_left(self._keys, key)]

    def fill(self, requests: Iterable[RequestView]) -> None:
        """Have exactly `requests`."""
        self.added += 1
        self._refs = {age_order(request): request.ref for request in requests}
        self._keys = sorted(self._refs)

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[RequestView]:
        for key in self._keys:
            yield self._requests[self._refs[key]]

    @overload
    def __getitem__(self, index: int) -> RequestView: ...
    @overload
    def __getitem__(self, index: slice) -> list[RequestView]: ...
    def __getitem__(self, index: int | slice) -> RequestView | list[RequestView]:
        if isinstance(index, slice):
            return [self._requests[self._refs[key]] for key in self._keys[index]]
        return self._requests[self._refs[self._keys[index]]]

    def __contains__(self, request: object) -> bool:
        return isinstance(request, RequestView) and age_order(request) in self._refs

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]
