"""First-come-first-served prefill batches that stay as they were formed.

A batch that was listed may have started by the time the next plan arrives (the worker goes from one
to the next without asking), and its members' hidden states are parked together. So a listed batch
is never recomposed: members leave it, nobody joins it, and newcomers form the next one.
"""

from collections.abc import Sequence

from protocol.control_link import PrefillBatch, PrefillItem, RequestState, RequestView
from protocol.ids import RequestRef
from scheduler.admission import Room
from scheduler.view import WorkerView, to_prefill

Members = tuple[RequestRef, ...]


class BatchBook:
    """The prefill batches that are planned, the head first."""

    def __init__(self, token_cap: int, ahead: int) -> None:
        self._token_cap = token_cap
        self._ahead = ahead
        self._batches: list[Members] = []

    def update(self, view: WorkerView) -> tuple[PrefillBatch, ...]:
        """Drop what is done, adopt what the worker has started, form new batches up to `ahead`.

        A new batch takes the oldest requests up to the token cap (at least one, of one model) and
        as many as there is room for; nobody overtakes.
        """
        self._batches = self._current(view)
        listed = {ref for batch in self._batches for ref in batch}
        room = Room(view)
        for ref in listed:
            if view.requests[ref].state is RequestState.QUEUED:
                room.reserve(view.requests[ref])
        waiting = [r for r in (*view.started, *view.queued) if r.ref not in listed]
        while waiting and len(self._batches) < self._ahead:
            batch = self._form(waiting, room)
            if not batch:
                break
            self._batches.append(batch)
            waiting = waiting[len(batch) :]
        return tuple(PrefillBatch(tuple(map(PrefillItem, batch))) for batch in self._batches)

    def _current(self, view: WorkerView) -> list[Members]:
        """Return the batches that go on: the worker's own as they are, then ours without those."""

        def unfinished(ref: RequestRef) -> bool:
            request = view.requests.get(ref)
            return request is not None and request.state is not RequestState.DECODING

        started = [batch.batch for batch in view.batches]
        taken = {ref for batch in started for ref in batch}
        ours = [tuple(r for r in batch if r not in taken) for batch in self._batches]
        kept = (tuple(filter(unfinished, batch)) for batch in (*started, *ours))
        return [batch for batch in kept if batch]

    def _form(self, waiting: Sequence[RequestView], room: Room) -> Members:
        batch: list[RequestRef] = []
        tokens = 0
        for request in waiting:
            tokens += max(1, to_prefill(request))
            full = batch and (tokens > self._token_cap or request.model != waiting[0].model)
            # A started request holds its row and pages already.
            queued = request.state is RequestState.QUEUED
            if full or (queued and not room.take(request)):
                break
            batch.append(request.ref)
        return tuple(batch)


def tokens_of(batch: PrefillBatch, view: WorkerView) -> int:
    """Return the tokens that a batch's prefill must still compute."""
    return sum(max(1, to_prefill(view.requests[item.ref])) for item in batch.items)
