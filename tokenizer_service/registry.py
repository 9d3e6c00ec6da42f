"""The gateway's requests that have no terminal message yet: what was sent, and what was delivered.

A state machine without I/O: `on(event, now) -> effects`. It keeps prompt and output of each
request, so that a worker's restart costs a recompute and not the request; it delivers token i only
after token i-1, once; and it ends each request once, whatever is lost or said twice.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from protocol import PROTOCOL_VERSION
from protocol.data_link import (
    Abort,
    Accepted,
    Delivered,
    FailCode,
    Failed,
    Finished,
    FinishReason,
    Hello,
    Refused,
    Resync,
    Status,
    Stop,
    Submit,
    ToGateway,
    TokenRun,
    Tokens,
    Usage,
    Welcome,
)
from protocol.ids import RequestRef, pack_tokens, unpack_tokens
from tokenizer_service.events import (
    Admitted,
    Begin,
    Broken,
    Cancel,
    Done,
    Effect,
    Event,
    FromWorker,
    Job,
    LinkDown,
    LinkLost,
    LinkUp,
    NewTokens,
    Send,
    StopAt,
    Tell,
    Tick,
)
from tokenizer_service.limits import MAX_ATTEMPTS
from tokenizer_service.worker_state import Phase, WorkerState

RESYNC_S = 1.0
"""Between two resyncs that were not asked for by the link."""
TRY_AGAIN = frozenset({FailCode.UNKNOWN_REQUEST, FailCode.ABORTED})
"""The worker lost or dropped a request that is live here: its own abort is never answered."""


@dataclass(slots=True)
class _Live:
    job: Job
    arrival: float
    incarnation: int = 0
    attempts: int = 1
    """Incarnations that the worker may have had; of a submit that was lost it knows nothing."""
    output: list[int] = field(default_factory=list)
    submitted: bool = False
    admitted: bool = False
    cached_tokens: int = 0

    @property
    def ref(self) -> RequestRef:
        return RequestRef(self.job.request, self.incarnation)


@dataclass(frozen=True)
class RegistryStatistics:
    """Counts since the start, and what is live now."""

    live: int
    resyncs: int
    resubmits: int
    stale: int
    """Messages about requests or attempts that are over."""


class Registry:
    """Requests of one gateway at one worker."""

    def __init__(self, gateway: str, *, worker_wait_s: float, now: float) -> None:
        """`worker_wait_s`: how long requests outlive a worker that is not heard."""
        self._gateway = gateway
        self._worker_wait_s = worker_wait_s
        self._live: dict[str, _Live] = {}
        self._resync_at = -math.inf
        self._resyncs = self._resubmits = self._stale = 0
        self.worker = WorkerState(since=now)

    def on(self, event: Event, now: float) -> list[Effect]:
        """Take an event, return what to do. Unknown requests are never an error."""
        return list(self._on(event, now))

    def statistics(self) -> RegistryStatistics:
        """Return counts."""
        return RegistryStatistics(len(self._live), self._resyncs, self._resubmits, self._stale)

    def live(self) -> list[str]:
        """Return the ids of the requests without a terminal."""
        return list(self._live)

    def _on(self, event: Event, now: float) -> Iterator[Effect]:
        match event:
            case FromWorker(message):
                yield from self._from_worker(message, now)
            case Begin(job):
                yield from self._begin(job, now)
            case Cancel(request):
                yield from self._cancel(request)
            case StopAt(request, at_index):
                yield from self._stop(request, at_index)
            case LinkUp():
                self.worker.enter(Phase.GREETING, now)
                yield self._hello()
            case LinkLost():
                if self.worker.phase is Phase.READY:
                    yield self._resync(now)
                elif self.worker.phase is Phase.GREETING:
                    yield self._hello()
            case LinkDown():
                self.worker.enter(Phase.DOWN, now)
            case Tick():
                yield from self._give_up(now)

    # --- from the client's side ---

    def _begin(self, job: Job, now: float) -> Iterator[Effect]:
        live = self._live[job.request] = _Live(job, arrival=now)
        self.worker.spend(job.prompt_tokens)
        if self.worker.phase is Phase.READY:
            yield self._submit(live, now)

    def _cancel(self, request: str) -> Iterator[Effect]:
        live = self._live.pop(request, None)
        if live is not None and live.submitted and self.worker.phase is Phase.READY:
            yield Send(Abort(live.ref))

    def _stop(self, request: str, at_index: int) -> Iterator[Effect]:
        live = self._live.pop(request, None)
        if live is None:
            return
        if self.worker.phase is Phase.READY:
            yield Send(Stop(live.ref, at_index))
        usage = Usage(live.job.prompt_tokens, at_index, live.cached_tokens)
        yield Tell(request, Done(FinishReason.STOP, usage))

    # --- from the worker ---

    def _from_worker(self, message: ToGateway, now: float) -> Iterator[Effect]:
        match message:
            case Tokens(runs):
                for run in runs:
                    yield from self._tokens(run, now)
            case Accepted(ref, cached_tokens):
                yield from self._accepted(ref, cached_tokens)
            case Finished():
                yield from self._finished(message, now)
            case Failed(ref, code, text):
                yield from self._failed(ref, code, text, now)
            case Status():
                self.worker.status(message, now)
            case Welcome():
                yield from self._welcome(message, now)
            case Refused():
                self.worker.enter(Phase.REFUSED, now)

    def _welcome(self, message: Welcome, now: float) -> Iterator[Effect]:
        if message.version != PROTOCOL_VERSION:
            self.worker.enter(Phase.REFUSED, now)
            return
        another_boot = self.worker.welcome(message, now)
        earlier = [live for live in self._live.values() if live.submitted]
        waiting = [live for live in self._live.values() if not live.submitted]
        if not another_boot:
            yield self._resync(now)
        for live in earlier if another_boot else ():
            yield from self._try_again(live, "the worker has restarted", now)
        for live in waiting:
            yield self._submit(live, now)

    def _accepted(self, ref: RequestRef, cached_tokens: int) -> Iterator[Effect]:
        live = self._current(ref)
        if live is not None and not live.admitted:
            live.admitted, live.cached_tokens = True, cached_tokens
            yield Tell(ref.request, Admitted(cached_tokens))

    def _tokens(self, run: TokenRun, now: float) -> Iterator[Effect]:
        live = self._current(run.ref)
        if live is None:
            return
        known = len(live.output)
        if run.first > known or len(run.ids) % 4:
            yield from self._gap(now)
            return
        new = unpack_tokens(run.ids)[known - run.first :]
        if new:
            live.output += new
            aligned = len(run.logprobs) * 4 == len(run.ids)
            logprobs = run.logprobs[known - run.first :] if aligned else ()
            yield Tell(run.ref.request, NewTokens(tuple(new), logprobs))

    def _finished(self, message: Finished, now: float) -> Iterator[Effect]:
        live = self._current(message.ref)
        if live is None:
            return
        if len(live.output) < message.usage.output_tokens - (message.stop_token is not None):
            yield from self._gap(now)
            return
        del self._live[message.ref.request]
        yield Tell(message.ref.request, Done(message.reason, message.usage))

    def _failed(self, ref: RequestRef, code: FailCode, text: str, now: float) -> Iterator[Effect]:
        live = self._current(ref)
        if live is None:
            return
        if code is FailCode.UNKNOWN_REQUEST:
            live.attempts -= 1  # the submit was lost, perhaps not for the last time: no attempt
        if code in TRY_AGAIN:
            yield from self._try_again(live, text, now)
            return
        yield self._break(live, code, text)

    def _current(self, ref: RequestRef) -> _Live | None:
        live = self._live.get(ref.request)
        if live is None or live.incarnation != ref.incarnation:
            self._stale += 1
            return None
        return live

    # --- to the worker ---

    def _hello(self) -> Send:
        return Send(Hello(self._gateway, PROTOCOL_VERSION))

    def _submit(self, live: _Live, now: float) -> Send:
        live.submitted = True
        job = live.job
        return Send(
            Submit(
                ref=live.ref,
                model=job.model,
                token_ids=job.prompt,
                sampling=job.sampling,
                tenant=job.tenant,
                output_so_far=pack_tokens(live.output),
                page_hashes=job.page_hashes,
                root_hash=job.root_hash,
                slo=job.slo,
                deadlines=job.deadlines,
                priority=job.priority,
                age_s=max(0.0, now - live.arrival),
            )
        )

    def _try_again(self, live: _Live, why: str, now: float) -> Iterator[Effect]:
        if live.attempts >= MAX_ATTEMPTS:
            text = f"given up after {MAX_ATTEMPTS} attempts; the last one: {why}"
            yield self._break(live, FailCode.INTERNAL, text)
            return
        live.incarnation += 1
        live.attempts += 1
        self._resubmits += 1
        yield self._submit(live, now)

    def _gap(self, now: float) -> Iterator[Effect]:
        """Tokens are missing here: normally a resync for them is under way already."""
        if now - self._resync_at >= RESYNC_S:
            yield self._resync(now)

    def _resync(self, now: float) -> Send:
        self._resync_at = now
        self._resyncs += 1
        return Send(
            Resync(
                tuple(
                    Delivered(live.ref, len(live.output))
                    for live in self._live.values()
                    if live.submitted
                )
            )
        )

    def _give_up(self, now: float) -> Iterator[Effect]:
        gone_s = now - self.worker.since
        if self.worker.phase is Phase.READY or gone_s <= self._worker_wait_s:
            return
        for live in list(self._live.values()):
            if now - live.arrival > self._worker_wait_s:
                text = f"no worker for {self._worker_wait_s:g} s"
                yield self._break(live, FailCode.OVERLOADED, text)

    def _break(self, live: _Live, code: FailCode, text: str) -> Tell:
        del self._live[live.job.request]
        return Tell(live.job.request, Broken(code, text))
