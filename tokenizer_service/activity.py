"""GET /activity: what the server does, as JSON or as a stream of events; the page at / shows it.

Everything comes from the worker's reports and from what clients waited: the gateway never speaks to
the scheduler, whose words reach it in the plan that the worker follows.
"""

import asyncio
import time
from collections.abc import AsyncIterator

import msgspec
from aiohttp import web

from protocol.activity import PlanInForce
from tokenizer_service.gateway import Gateway
from tokenizer_service.history import PERIOD_S, Decided, History, Sample
from tokenizer_service.http import GATEWAY
from tokenizer_service.limits import MAX_WATCHERS
from tokenizer_service.openai import sse
from tokenizer_service.openai.errors import unavailable

EVENTS = "text/event-stream"


class Promises(msgspec.Struct, frozen=True, kw_only=True):
    """The service's objectives, milliseconds."""

    tbt_ms: float
    ttft_ms: float
    ttft_ms_per_token: float


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """All that there is to see; the first event of a stream."""

    model: str
    max_model_len: int
    """Tokens of prompt and output together; 0: not known yet."""
    page_size: int
    """Tokens in a page."""
    unit: str
    """`SM` or `core`; empty: not known yet."""
    units: int
    period_s: float
    """Between two samples."""
    objectives: Promises
    decisions: tuple[Decided, ...]
    """Oldest first."""
    samples: tuple[Sample, ...]
    """Oldest first."""


class News(msgspec.Struct, frozen=True, kw_only=True):
    """The events of a stream after the first."""

    sample: Sample
    plan: PlanInForce | None
    """In force now."""
    unit: str
    units: int


class Recorder:
    """Takes a sample each period and wakes those who watch."""

    def __init__(self, gateway: Gateway) -> None:
        link = gateway.router.links[0]
        self._gateway = gateway
        self._next = asyncio.Event()
        self.history = History(lambda: link.worker, gateway.metrics.objectives.recent)
        self.watchers = 0

    async def run(self) -> None:
        """Record until cancelled."""
        while True:
            self.history.take(time.monotonic(), time.time(), self._gateway.not_ready())
            self._next.set()
            self._next = asyncio.Event()
            await asyncio.sleep(PERIOD_S)

    def overview(self) -> Overview:
        """Return all that there is to see."""
        gateway, told = self._gateway, self.history.activity
        model, objectives = gateway.router.known_model(), gateway.settings
        return Overview(
            model=gateway.router.served[0],
            max_model_len=model.max_model_len if model else 0,
            page_size=model.page_size if model else 0,
            unit=told.unit if told else "",
            units=told.units if told else 0,
            period_s=PERIOD_S,
            objectives=Promises(
                tbt_ms=objectives.slo_tbt_ms,
                ttft_ms=objectives.slo_ttft_ms,
                ttft_ms_per_token=objectives.slo_ttft_ms_per_token,
            ),
            decisions=tuple(self.history.decisions),
            samples=tuple(self.history.samples),
        )

    async def news(self) -> News:
        """Wait for the next sample."""
        await self._next.wait()
        told = self.history.activity
        return News(
            sample=self.history.samples[-1],
            plan=told.plan if told else None,
            unit=told.unit if told else "",
            units=told.units if told else 0,
        )


RECORDER = web.AppKey("recorder", Recorder)


def add_routes(app: web.Application) -> None:
    """Add the paths, and record for as long as the application runs."""
    app[RECORDER] = Recorder(app[GATEWAY])
    app.router.add_get("/activity", _activity)
    app.cleanup_ctx.append(_recording)


async def _recording(app: web.Application) -> AsyncIterator[None]:
    task = asyncio.create_task(app[RECORDER].run())
    yield
    task.cancel()


async def _activity(http: web.Request) -> web.StreamResponse:
    """Answer once, or for as long as somebody watches."""
    recorder = http.app[RECORDER]
    if EVENTS not in http.headers.get("Accept", ""):
        body = msgspec.json.encode(recorder.overview())
        return web.Response(body=body, content_type="application/json")
    if recorder.watchers >= MAX_WATCHERS:
        raise unavailable(f"{MAX_WATCHERS} clients watch already, the limit")
    recorder.watchers += 1
    try:
        return await _stream(http, recorder)
    finally:
        recorder.watchers -= 1


async def _stream(http: web.Request, recorder: Recorder) -> web.StreamResponse:
    gateway = http.app[GATEWAY]
    response = web.StreamResponse(headers=sse.HEADERS)
    await response.prepare(http)
    frame = sse.frame(recorder.overview())
    while not gateway.draining:
        try:
            async with asyncio.timeout(gateway.settings.write_stall_s):
                await response.write(frame)
        except TimeoutError:  # it does not read
            if http.transport is not None:
                http.transport.abort()
            return response
        frame = sse.frame(await recorder.news())
    await response.write_eof()
    return response
