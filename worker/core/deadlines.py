"""Deadlines of requests, soonest first: looking whether one has passed costs nothing."""

import heapq

from worker.core.request import Request


class DeadlineWatch:
    """A heap of deadlines; those of requests that have ended are dropped when they come up."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, str, float, Request]] = []

    def add(self, request: Request) -> None:
        """Watch a request's deadlines."""
        limits = request.submit.deadlines
        named = (("queue", limits.queue_s), ("ttft", limits.ttft_s), ("total", limits.total_s))
        for what, limit in named:
            if limit is not None:
                entry = (request.arrival + limit, request.age, what, limit, request)
                heapq.heappush(self._heap, entry)

    def passed(self, now: float) -> list[tuple[Request, str]]:
        """Return requests that missed a deadline which still meant something, and which one."""
        missed = []
        while self._heap and self._heap[0][0] <= now:
            _, _, what, limit, request = heapq.heappop(self._heap)
            met = {"queue": request.started, "ttft": bool(request.output), "total": False}
            if not met[what]:
                missed.append((request, f"{what} deadline of {limit:g} s has passed"))
        return missed
