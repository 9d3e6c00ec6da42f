"""The shell around the registry: a socket on one side, a queue per request on the other.

Nothing here decides anything. Calls from request handlers are not async, so a handler that is
cancelled cannot be cut between telling the registry and telling the worker.
"""

import asyncio
import logging
from collections.abc import Callable

from protocol.data_link import FailCode, ModelInfo, ToGateway, ToWorker
from protocol.endpoint import Down, Endpoint, Lost, PeerEvent, Received, Up
from protocol.pump import pump
from tokenizer_service.events import (
    Begin,
    Broken,
    Cancel,
    Done,
    Event,
    FromWorker,
    Job,
    LinkDown,
    LinkLost,
    LinkUp,
    Send,
    StopAt,
    Tell,
    Tick,
)
from tokenizer_service.registry import Registry
from tokenizer_service.worker_state import WorkerState

log = logging.getLogger(__name__)

TICK_S = 1.0
"""Period of the registry's deadlines."""

Inbox = asyncio.Queue[Tell]
"""What happens to the jobs of one request. Bounded by its outputs' lengths."""


class WorkerLink:
    """One worker, as seen by request handlers. All calls from the event loop's thread."""

    def __init__(
        self,
        endpoint: Endpoint[ToGateway, ToWorker],
        registry: Registry,
        clock: Callable[[], float],
    ) -> None:
        """`clock` gives seconds, monotonic."""
        self._endpoint = endpoint
        self._registry = registry
        self._clock = clock
        self._inboxes: dict[str, Inbox] = {}

    @property
    def worker(self) -> WorkerState:
        """What is known of the worker."""
        return self._registry.worker

    def model(self, names: tuple[str, ...]) -> ModelInfo | None:
        """Return the worker's model of one of these names, or its only one; None: not known yet."""
        models = self.worker.models
        named = next((model for model in models if model.name in names), None)
        return named or (models[0] if len(models) == 1 else None)

    def begin(self, job: Job, inbox: Inbox) -> None:
        """Send a job; its news arrive in the inbox, the last one is Done or Broken."""
        self._inboxes[job.request] = inbox
        self._feed(Begin(job))

    def cancel(self, request: str) -> None:
        """The client left: abort, unless the request is over."""
        if self._inboxes.pop(request, None) is not None:
            self._feed(Cancel(request))

    def stop_at(self, request: str, at_index: int) -> None:
        """End a request at a stop string; Done follows in its inbox."""
        self._feed(StopAt(request, at_index))

    def break_all(self, message: str) -> int:
        """End all requests with an error, since this process stops. Returns how many."""
        inboxes = list(self._inboxes.items())
        for request, inbox in inboxes:
            self.cancel(request)
            inbox.put_nowait(Tell(request, Broken(FailCode.SHUTDOWN, message)))
        return len(inboxes)

    async def run(self) -> None:
        """Serve the link until cancelled."""
        ticks = asyncio.create_task(self._tick())
        try:
            async for event in pump(self._endpoint, self._clock):
                self._on_link(event)
        finally:
            ticks.cancel()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._feed(Tick())

    def _on_link(self, event: PeerEvent[ToGateway]) -> None:
        match event:
            case Received(_, message):
                self._feed(FromWorker(message))
            case Up():
                log.info("worker link up")
                self._feed(LinkUp())
            case Lost():
                log.warning("worker link lost frames: resync")
                self._feed(LinkLost())
            case Down():
                log.warning("worker link down")
                self._feed(LinkDown())

    def _feed(self, event: Event) -> None:
        now = self._clock()
        for effect in self._registry.on(event, now):
            match effect:
                case Send(message):
                    self._endpoint.send(message, now)
                case Tell():
                    self._tell(effect)

    def _tell(self, tell: Tell) -> None:
        over = isinstance(tell.news, Done | Broken)
        inboxes = self._inboxes
        inbox = inboxes.pop(tell.request, None) if over else inboxes.get(tell.request)
        if inbox is not None:
            inbox.put_nowait(tell)
