"""The request table: live requests, what is queued, and a bounded memory of what has ended.

A request's id is live in at most one incarnation. What has ended is remembered with its output, so
that a gateway that lost frames still gets its last tokens and its one terminal message.
"""

from array import array
from dataclasses import dataclass

from protocol.data_link import Credits, Failed, Finished, TokenLogprobs
from protocol.ids import RequestRef
from worker.core.config import CoreConfig
from worker.core.request import Request


@dataclass(frozen=True, slots=True)
class Ended:
    """A terminal request, as remembered."""

    ref: RequestRef
    terminal: Finished | Failed
    output: "array[int]"
    logprobs: list[TokenLogprobs | None]


class RequestTable:
    """All requests of the worker."""

    def __init__(self, config: CoreConfig) -> None:
        self.live: dict[str, Request] = {}
        """By request id, oldest accepted first."""
        self.queued: dict[Request, None] = {}
        """Live requests without a stay."""
        self.queued_tokens = 0
        """Tokens that they would prefill."""
        self.accepted = 0
        """Requests accepted since boot."""
        self._config = config
        self._ended: dict[str, Ended] = {}
        self._ended_tokens = 0

    def find(self, ref: RequestRef) -> Request | None:
        """Return the live request, in exactly this incarnation."""
        request = self.live.get(ref.request)
        if request is None or request.ref.incarnation != ref.incarnation:
            return None
        return request

    def ended(self, request: str) -> Ended | None:
        """Return what is remembered of a terminal request, in its last incarnation."""
        return self._ended.get(request)

    def add(self, request: Request) -> None:
        """Take a new request; its id is not live."""
        self.accepted += 1
        request.age = self.accepted
        self._forget(request.ref.request)
        self.live[request.ref.request] = request
        self.enqueue(request)

    def enqueue(self, request: Request) -> None:
        """Put a new or retracted request into the queue."""
        self.queued[request] = None
        self.queued_tokens += request.known

    def dequeue(self, request: Request) -> None:
        """Take a request out of the queue, if it is in it. Its output has not changed there."""
        if request in self.queued:
            del self.queued[request]
            self.queued_tokens -= request.known

    def end(self, request: Request, terminal: Finished | Failed) -> None:
        """Remove a request that is terminal now."""
        self.dequeue(request)
        del self.live[request.ref.request]
        self._ended[request.ref.request] = Ended(
            request.ref, terminal, request.output, request.logprobs
        )
        self._ended_tokens += len(request.output)
        while self._ended and (
            len(self._ended) > self._config.ended_requests
            or self._ended_tokens > self._config.ended_tokens
        ):
            self._forget(next(iter(self._ended)))

    def of_peer(self, peer: bytes) -> list[Request]:
        """Return the live requests of a gateway."""
        return [request for request in self.live.values() if request.peer == peer]

    def credits(self) -> Credits:
        """Return what the queue still takes."""
        return Credits(
            requests=max(0, self._config.max_queued_requests - len(self.queued)),
            tokens=max(0, self._config.max_queued_tokens - self.queued_tokens),
        )

    def _forget(self, request: str) -> None:
        ended = self._ended.pop(request, None)
        if ended is not None:
            self._ended_tokens -= len(ended.output)

    def check(self) -> list[str]:
        """Return violated invariants: the queue is the live requests without a stay."""
        wrong = []
        waiting = {request.ref for request in self.live.values() if request.stay is None}
        if waiting != {request.ref for request in self.queued}:
            wrong.append("the queue is not the live requests without a stay")
        if self.queued_tokens != sum(request.known for request in self.queued):
            wrong.append(f"queued tokens are miscounted: {self.queued_tokens}")
        if both := sorted(set(self.live) & set(self._ended)):
            wrong.append(f"{both} are live and terminal")
        return wrong
