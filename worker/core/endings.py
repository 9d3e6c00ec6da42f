"""How a stay or a request ends: finished, failed, or retracted to make room.

The only place that sends terminal messages, so that there is exactly one (DESIGN 6.1): whoever
finds the request live ends it, and ended it is not live.
"""

import logging
from collections.abc import Iterable

from protocol.control_link import Left, Retracted
from protocol.data_link import FailCode, Failed, Finished, FinishReason, Usage
from protocol.ids import RequestRef
from worker.core.memory import Memory
from worker.core.outbox import Outbox
from worker.core.request import Request, Stay
from worker.core.table import RequestTable
from worker.core.views import pool_state, view

log = logging.getLogger(__name__)


class Endings:
    """Ends requests and stays."""

    def __init__(self, table: RequestTable, memory: Memory, outbox: Outbox) -> None:
        self.retractions = 0
        """Since boot."""
        self._table = table
        self._memory = memory
        self._outbox = outbox

    def finish(
        self, request: Request, reason: FinishReason, tokens: int, stop_token: int | None = None
    ) -> None:
        """End a request well, after `tokens` output tokens (a stop token counted)."""
        usage = Usage(len(request.prompt), tokens, request.cached)
        self._end(request, Finished(request.ref, reason, usage, stop_token), reason)

    def fail(self, request: Request, code: FailCode, message: str) -> None:
        """End a request without its output."""
        self._end(request, Failed(request.ref, code, message), code)

    def _end(self, request: Request, terminal: Finished | Failed, reason: str) -> None:
        if request.stay is not None:
            self._memory.close(request.stay)
        self._table.end(request, terminal)
        self._outbox.data(request.peer, terminal)
        log.debug("request %s left: %s", request.ref.request, reason)
        self._outbox.publish(lambda n: Left(n, request.ref, reason, pool_state(self._memory.pool)))

    def retract(self, stay: Stay) -> None:
        """Take a request's pages; it is queued again, its prompt now with its output.

        A started chunk is retracted whole: while it goes on, its dead rows would hold their pages.
        """
        for each in stay.chunk.stays if stay.chunk else (stay,):
            if each.open:
                self._retract(each)

    def _retract(self, stay: Stay) -> None:
        request = stay.request
        self._memory.close(stay)
        request.retracted = True
        self._table.enqueue(request)
        self.retractions += 1
        log.info("request %s retracted at %d tokens", request.ref.request, stay.launched)
        self._outbox.publish(lambda n: Retracted(n, view(request), pool_state(self._memory.pool)))

    def victim(self, named: Iterable[RequestRef]) -> Stay | None:
        """Return whom to retract: the plan's victims, else the newest; the oldest never.

        Who shares a started chunk with the oldest is spared with it.
        """
        if not self._memory.stays:
            return None
        oldest = min(self._memory.stays, key=lambda stay: stay.request.age)
        spared = set(oldest.chunk.stays) if oldest.chunk else {oldest}
        for ref in named:
            request = self._table.find(ref)
            if request and request.stay and request.stay not in spared:
                return request.stay
        others = [stay for stay in self._memory.stays if stay not in spared]
        return max(others, key=lambda stay: stay.request.age, default=None)

    def newest_after(self, age: int) -> Stay | None:
        """Return the newest stay whose request, and those it is in a chunk with, are younger."""
        younger = [
            stay
            for stay in self._memory.stays
            if all(each.request.age > age for each in (stay.chunk.stays if stay.chunk else (stay,)))
        ]
        return max(younger, key=lambda stay: stay.request.age, default=None)
