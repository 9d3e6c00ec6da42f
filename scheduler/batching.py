"""First-come-first-served prefill batches that stay as they were formed.

A batch that was listed may have started by the time the next plan arrives (the worker goes from one
to the next without asking), and its members' hidden states are parked together. So a listed batch
is never recomposed: members leave it, nobody joins it, and newcomers form the next one. One batch
at a time may overtake the others: the batch that preempts.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from protocol.control_link import PrefillBatch, PrefillItem, RequestState, RequestView
from protocol.ids import RequestRef
from scheduler.admission import Room
from scheduler.estimator.loads import NOTHING, PrefillLoad
from scheduler.view import WorkerView, to_prefill

Members = tuple[RequestRef, ...]


class BatchBook:
    """The prefill batches that are planned, the head first."""

    def __init__(self, token_cap: int, ahead: int) -> None:
        self.batches: list[Members] = []
        self._token_cap = token_cap
        self._ahead = ahead
        self._urgent: frozenset[RequestRef] = frozenset()
        """Members of the batch that overtook."""
        self._told: tuple[PrefillBatch, ...] | None = None
        """`batches` as a plan names them, once asked for."""
        self._seen: tuple[str, int] | None = None
        """The view's boot and changes that `batches` take account of."""

    def update(self, view: WorkerView) -> tuple[PrefillBatch, ...]:
        """Drop what is done, adopt what the worker has started, form new batches up to `ahead`.

        A new batch takes the oldest requests up to the token cap (at least one, of one model) and
        as many as there is room for; nobody overtakes.
        """
        seen = (view.boot, view.changes)
        if seen != self._seen:
            self._seen, self._told = seen, None
            self.batches = self._current(view)
        if len(self.batches) < self._ahead:
            room = self._room(view)
            while len(self.batches) < self._ahead:
                batch = self._form(self._unlisted(view), room)
                if not batch:
                    break
                self.batches.append(batch)
                self._told = None
        return self.listed()

    def listed(self) -> tuple[PrefillBatch, ...]:
        """Return the batches as a plan names them."""
        if self._told is None:
            self._told = tuple(
                PrefillBatch(tuple(map(PrefillItem, batch))) for batch in self.batches
            )
        return self._told

    def head(self, view: WorkerView) -> PrefillLoad:
        """Return what runs in the prefill lane, or is next."""
        if not self.batches:
            return NOTHING
        return PrefillLoad.of_requests(view.requests[ref] for ref in self.batches[0])

    def overtake(self, batch: Members) -> None:
        """Put `batch`, a listed one that has not started or a new one, before all others."""
        self.batches = [batch, *(each for each in self.batches if each != batch)]
        self._told = None
        self._urgent = frozenset(batch)

    def may_overtake(self, view: WorkerView) -> bool:
        """Whether a batch runs that none has overtaken: preemption is never recursive."""
        return len(view.batches) == 1 and not self._urgent

    def pick(self, view: WorkerView, wanted: Callable[[RequestView], bool], look: int) -> Members:
        """Return a new batch of those among the `look` oldest unlisted requests that `wanted` takes
        and that there is room for. It is not listed by this.
        """
        room = self._room(view)
        found: list[RequestView] = []
        tokens = 0
        for request, _ in zip(self._unlisted(view), range(look), strict=False):
            if not wanted(request):
                continue
            tokens += max(1, to_prefill(request))
            full = found and (tokens > self._token_cap or request.model != found[0].model)
            queued = request.state is RequestState.QUEUED
            if full or (queued and not room.take(request)):
                break
            found.append(request)
        return tuple(request.ref for request in found)

    # --- what goes on ---

    def _current(self, view: WorkerView) -> list[Members]:
        """Return the batches that go on: the one that overtook, the worker's own as they are, and
        ours without those.
        """

        def unfinished(ref: RequestRef) -> bool:
            request = view.requests.get(ref)
            return request is not None and request.state is not RequestState.DECODING

        started = [batch.batch for batch in view.batches]
        taken = {ref for batch in started for ref in batch}
        ours = [tuple(r for r in batch if r not in taken) for batch in self.batches]
        kept = [tuple(filter(unfinished, batch)) for batch in (*started, *ours)]
        kept = [batch for batch in kept if batch]
        urgent = [batch for batch in kept if self._urgent.issuperset(batch)]
        self._urgent = frozenset(chain.from_iterable(urgent))
        return [*urgent, *(batch for batch in kept if batch not in urgent)]

    # --- what is new ---

    def _unlisted(self, view: WorkerView) -> Iterator[RequestView]:
        listed = {ref for batch in self.batches for ref in batch}
        return (r for r in chain(view.started, view.queued) if r.ref not in listed)

    def _room(self, view: WorkerView) -> Room:
        """Return what is left beside those that are promised a start."""
        room = Room(view)
        for ref in chain.from_iterable(self.batches):
            if view.requests[ref].state is RequestState.QUEUED:
                room.reserve(view.requests[ref])
        return room

    def _form(self, waiting: Iterable[RequestView], room: Room) -> Members:
        batch: list[RequestRef] = []
        tokens, model = 0, ""
        for request in waiting:
            tokens += max(1, to_prefill(request))
            full = batch and (tokens > self._token_cap or request.model != model)
            # A started request holds its row and pages already.
            queued = request.state is RequestState.QUEUED
            if full or (queued and not room.take(request)):
                break
            batch.append(request.ref)
            model = request.model
        return tuple(batch)


def tokens_of(batch: PrefillBatch, view: WorkerView) -> int:
    """Return the tokens that a batch's prefill must still compute."""
    return sum(max(1, to_prefill(view.requests[item.ref])) for item in batch.items)
