"""The load generator: sends each request at its time over HTTP and notes when its output comes.

Works against any server of OpenAI's /v1/completions; of Tandem it knows nothing. Each piece carries
the time at which this process had it; how late that can be is measured too (`Heartbeat`).
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from ops import demo
from ops.bench.metrics import Outcome
from ops.bench.workloads import Item

DETAIL_CHARS = 200
"""Of a server's refusal, kept for the report."""
LINE_BYTES = 1 << 20
"""Longest line of a stream."""


@dataclass
class Stream:
    """What one answer has said so far."""

    clock: Callable[[], float]
    chunks: list[float] = field(default_factory=list)
    output_tokens: int = 0
    cached_tokens: int = 0
    finished: bool = False
    error: str = ""

    async def read(self, lines: aiohttp.StreamReader) -> None:
        """Read to the end of the stream."""
        async for event in demo.events(lines):
            self.take(event, self.clock())

    def take(self, event: dict[str, Any], now: float) -> None:
        """Note one event: a piece of output, an end, a count, or an error."""
        if error := event.get("error"):
            self.error = str(error)[:DETAIL_CHARS]
        for choice in event.get("choices", ()):
            if choice.get("text") or choice.get("token_ids"):
                self.chunks.append(now)
            self.finished |= choice.get("finish_reason") is not None
        if usage := event.get("usage"):
            self.output_tokens = usage.get("completion_tokens") or 0
            self.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)

    @property
    def status(self) -> str:
        """How it ended."""
        if self.error:
            return "failed"
        return "finished" if self.finished else "unfinished"


@dataclass(frozen=True)
class Generator:
    """Sends requests to `url`; `clock` in seconds from the start of the run, `sleep` until then."""

    url: str
    session: aiohttp.ClientSession
    clock: Callable[[], float]
    sleep: Callable[[float], Awaitable[None]]
    over: Callable[[Outcome], object]
    """Told of every request that is over."""

    async def run(
        self, items: Sequence[Item], bodies: Sequence[bytes], times: Sequence[float], drain_s: float
    ) -> list[Outcome]:
        """Send all, wait at most `drain_s` after the last, and return what became of each."""
        tasks = []
        for item, body, time in sorted(zip(items, bodies, times, strict=True), key=lambda x: x[2]):
            if (left := time - self.clock()) > 0:
                await self.sleep(left)
            tasks.append(asyncio.create_task(self._one(item, body, time)))
        drained = asyncio.ensure_future(self.sleep(drain_s))
        answered = asyncio.gather(*tasks)
        await asyncio.wait((answered, drained), return_when=asyncio.FIRST_COMPLETED)
        drained.cancel()
        for task in tasks:
            task.cancel()  # does nothing to those that are over
        return await answered

    async def _one(self, item: Item, body: bytes, scheduled: float) -> Outcome:
        """Send one request. Whatever goes wrong is an outcome."""
        stream = Stream(self.clock)
        status, detail = "", ""
        sent = self.clock()
        try:
            status, detail = await self._stream(body, stream)
        except asyncio.CancelledError:
            status, detail = "unfinished", "not over when the run was"
        except (aiohttp.ClientError, OSError, ValueError) as error:
            status, detail = "failed", f"{type(error).__name__}: {error}"[:DETAIL_CHARS]
        outcome = Outcome(
            scheduled=scheduled,
            sent=sent,
            chunks=tuple(stream.chunks),
            ended=self.clock(),
            status=status,
            input_tokens=item.input_tokens,
            wanted_tokens=item.output_tokens,
            output_tokens=stream.output_tokens or len(stream.chunks),
            cached_tokens=stream.cached_tokens,
            tag=item.tag,
            detail=detail,
        )
        self.over(outcome)
        return outcome

    async def _stream(self, body: bytes, stream: Stream) -> tuple[str, str]:
        headers = {"Content-Type": "application/json"}
        post = self.session.post(f"{self.url}/v1/completions", data=body, headers=headers)
        async with post as response:
            if response.status != 200:
                text = (await response.text())[:DETAIL_CHARS]
                return "rejected", f"{response.status}: {text}"
            await stream.read(response.content)
        return stream.status, stream.error


def session() -> aiohttp.ClientSession:
    """Return a session without limits of its own: they would close the loop."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=30),
        read_bufsize=LINE_BYTES,
    )


@dataclass
class Heartbeat:
    """Measures how late the generator's own event loop is: `lags` in seconds, one each `period`."""

    period: float
    lags: list[float] = field(default_factory=list)

    @contextlib.asynccontextmanager
    async def beating(self) -> AsyncIterator[None]:
        """Measure during the block."""
        task = asyncio.create_task(self._beat())
        try:
            yield
        finally:
            task.cancel()

    async def _beat(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            due = clock() + self.period
            await asyncio.sleep(self.period)
            self.lags.append(max(0.0, clock() - due))
