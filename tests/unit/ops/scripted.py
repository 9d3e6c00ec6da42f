"""An HTTP server whose tokens come at scripted times, and a clock that shows only those.

The script goes step by step: it sets the clock, lets one thing happen (an arrival, a piece, an
end), and waits until the client has noticed it. So every time that the client writes down is one
of the script's, over real HTTP and without a wait that could be too short.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from ops.demo import DATA, END


class ScriptedTime:
    """A clock that stands still between steps. `sleep` ends when a step says that it is time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.read = asyncio.Event()
        """Set whenever somebody looks."""
        self._changed = asyncio.Condition()

    def __call__(self) -> float:
        self.read.set()
        return self.now

    async def sleep(self, seconds: float) -> None:
        due = self.now + seconds
        async with self._changed:
            await self._changed.wait_for(lambda: self.now >= due)

    async def set(self, now: float) -> None:
        async with self._changed:
            self.now = now
            self._changed.notify_all()


@dataclass
class Exchange:
    """One request as the server sees it."""

    body: dict[str, Any] = field(default_factory=dict)
    came: asyncio.Event = field(default_factory=asyncio.Event)
    go: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when there is an answer."""
    status: int = 200
    response: web.StreamResponse | None = None
    open: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the head of the answer is out."""
    over: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass
class ScriptedServer:
    """Plays (time, what, request, …) steps; requests are numbered by arrival."""

    time: ScriptedTime
    exchanges: list[Exchange]
    url: str = ""
    _arrived: int = 0

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["ScriptedServer"]:
        app = web.Application()
        app.router.add_post("/v1/completions", self._serve)
        app.router.add_get("/v1/models", self._models)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{port}"
        try:
            yield self
        finally:
            await runner.cleanup()

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "scripted"}]})

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        exchange = self.exchanges[self._arrived]
        self._arrived += 1
        exchange.body = await request.json()
        exchange.came.set()
        await exchange.go.wait()
        if exchange.status != 200:
            return web.Response(status=exchange.status, text="queue is full")
        exchange.response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await exchange.response.prepare(request)
        exchange.open.set()
        await exchange.over.wait()
        return exchange.response

    # --- steps ---

    async def play(self, *steps: tuple[Any, ...]) -> None:
        for now, what, number, *rest in steps:
            await self.time.set(now)
            await getattr(self, what)(self.exchanges[number], *rest)

    async def arrive(self, exchange: Exchange) -> None:
        """The client sends; the server answers with the head of a stream."""
        await exchange.came.wait()

    async def silence(self, exchange: Exchange) -> None:
        """Nothing but time."""

    async def refuse(self, exchange: Exchange, status: int) -> None:
        exchange.status = status
        await self._noticed(exchange.go.set)

    async def piece(self, exchange: Exchange, text: str) -> None:
        await self._say(exchange, {"choices": [{"text": text, "finish_reason": None}]})

    async def fail(self, exchange: Exchange, message: str) -> None:
        await self._say(exchange, {"error": {"message": message}})

    async def finish(self, exchange: Exchange, tokens: int, cached: int = 0) -> None:
        await self._say(exchange, {"choices": [{"text": "", "finish_reason": "length"}]})
        details = {"cached_tokens": cached}
        usage = {"completion_tokens": tokens, "prompt_tokens_details": details}
        await self._say(exchange, {"choices": [], "usage": usage})

    async def end(self, exchange: Exchange) -> None:
        """The stream ends."""
        assert exchange.response is not None
        await exchange.response.write(DATA + b" " + END + b"\n\n")
        await self._noticed(exchange.over.set)

    async def _say(self, exchange: Exchange, event: dict[str, Any]) -> None:
        exchange.go.set()
        await exchange.open.wait()
        assert exchange.response is not None
        self.time.read.clear()
        await exchange.response.write(DATA + b" " + json.dumps(event).encode() + b"\n\n")
        await self.time.read.wait()

    async def _noticed(self, act: Callable[[], None]) -> None:
        """Act, and wait until the client has looked at the clock: it knows."""
        self.time.read.clear()
        act()
        await self.time.read.wait()
