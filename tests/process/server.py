"""A whole server as real processes, started by `tandem serve`, and clients that stream from it.

Everything waits on a condition with a deadline: a line of output, an exit, a reply.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from ops import admin, demo, run_dir
from ops.admin import ServerStatus

ANSWER_S = 240.0
POLL_S = 0.02
"""Period at which a condition of another process is looked at."""


@dataclass
class Server:
    """A running server. `url` is where its gateway listens."""

    process: psutil.Popen
    folder: Path
    url: str

    @classmethod
    @contextlib.contextmanager
    def start(cls, folder: Path, *flags: str) -> Iterator["Server"]:
        """Run `tandem serve demo` on the CPU until it serves; kill what is left at the end."""
        process = psutil.Popen(
            command(folder, *flags), stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
        )
        server = cls(process, folder, "")
        try:
            server.url = server._wait_for_url()
            yield server
        finally:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=60)
            finally:
                server.kill_all()
                process.stdout.close()

    def _wait_for_url(self) -> str:
        for line in self.process.stdout:  # ends when the launcher does
            if "Serving at " in line:
                return line.split("Serving at ")[1].split()[0]
        raise AssertionError(f"the server ended with status {self.process.wait(timeout=10)}")

    def kill_all(self) -> None:
        """Kill the launcher and its children, if any is left."""
        if self.process.is_running():
            with contextlib.suppress(psutil.NoSuchProcess):
                for process in [*self.process.children(recursive=True), self.process]:
                    process.kill()
                self.process.wait(timeout=10)

    # --- the operator's side ---

    def status(self) -> ServerStatus:
        """Ask the launcher."""
        path = self.folder / run_dir.ADMIN_SOCKET
        reply = admin.ask(path, admin.GetStatus(), 30.0)
        assert isinstance(reply, ServerStatus)
        return reply

    def row(self, role: str) -> admin.ProcessStatus:
        """What is in one place."""
        return next(p for p in self.status().processes if p.role == role)

    def pid(self, role: str) -> int:
        """Process id in one place, 0 for none."""
        return self.row(role).pid

    def kill(self, role: str) -> int:
        """Kill -9 the process in a place and return its id."""
        pid = self.pid(role)
        os.kill(pid, signal.SIGKILL)
        return pid

    async def swap(self, scheduler: str, *options: str) -> admin.Swapped:
        """Replace the scheduler."""
        path = self.folder / run_dir.ADMIN_SOCKET
        order = admin.Swap(scheduler, options)
        reply = await asyncio.to_thread(admin.ask, path, order, 120.0)
        assert isinstance(reply, admin.Swapped), reply
        return reply

    async def until(self, condition: Callable[[ServerStatus], bool], within_s: float = 60) -> None:
        """Wait for a state of the server."""
        async with asyncio.timeout(within_s):
            # Another process's state: there is no event of ours to wait for.
            while not condition(await asyncio.to_thread(self.status)):  # noqa: ASYNC110
                await asyncio.sleep(POLL_S)


def command(folder: Path, *flags: str) -> list[str]:
    """Return the command line of a server in `folder`."""
    return [
        *(sys.executable, "-P", "-c", "from ops.cli import main; raise SystemExit(main())"),
        *("serve", "demo", "--device", "cpu", "--port", "0", "--run-dir", str(folder)),
        *flags,
    ]


async def ended(pid: int, within_s: float = 30.0) -> None:
    """Wait until a process has ended, whoever its parent is."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    gone = asyncio.Event()
    asyncio.get_running_loop().add_reader(descriptor, gone.set)
    try:
        async with asyncio.timeout(within_s):
            await gone.wait()
    finally:
        asyncio.get_running_loop().remove_reader(descriptor)
        os.close(descriptor)


# --- the client's side ---


@dataclass(frozen=True)
class Ask:
    """One greedy request by token ids, so that its answer can be compared id by id."""

    prompt: tuple[int, ...]
    max_tokens: int

    def body(self, model: str) -> dict[str, Any]:
        return {
            "model": model,
            "prompt": list(self.prompt),
            "max_tokens": self.max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "skip_special_tokens": False,
            "stream": True,
            "stream_options": {"include_usage": True},
        }


@dataclass
class Answer:
    """What a client has received so far."""

    text: str = ""
    finish: str = ""
    output_tokens: int = 0
    started: asyncio.Event = field(default_factory=asyncio.Event)
    """Set with the first piece of text."""
    grown: asyncio.Event = field(default_factory=asyncio.Event)
    """Set with every piece; whoever waits clears it."""


class Client:
    """Streams completions from one server. Used as a context manager."""

    def __init__(self, url: str, model: str) -> None:
        self._url, self._model = url, model

    async def __aenter__(self) -> "Client":
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=ANSWER_S)
        self._session = aiohttp.ClientSession(connector=connector, timeout=timeout)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._session.close()

    @contextlib.asynccontextmanager
    async def asking(self, ask: Ask, *, stream: bool) -> AsyncIterator[None]:
        """Ask, and close the connection without an answer at the end of the block."""
        body = ask.body(self._model)
        if not stream:
            body |= {"stream": False, "stream_options": None}
        url = f"{self._url}/v1/completions"
        posted = asyncio.create_task(aiohttp.request("POST", url, json=body).__aenter__())
        try:
            yield
        finally:
            if posted.done():
                posted.result().close()
            posted.cancel()

    async def stream(self, ask: Ask, answer: Answer | None = None) -> Answer:
        """Stream one answer to its end. Any error fails the test."""
        answer = answer or Answer()
        body = ask.body(self._model)
        async with self._session.post(f"{self._url}/v1/completions", json=body) as response:
            assert response.status == 200, await response.text()
            async for event in demo.events(response.content):
                assert "error" not in event, event
                self._take(event, answer)
        assert answer.finish == "length", answer
        assert answer.output_tokens == ask.max_tokens, answer
        return answer

    def _take(self, event: dict[str, Any], answer: Answer) -> None:
        for choice in event["choices"]:
            answer.text += choice["text"]
            answer.finish = choice["finish_reason"] or answer.finish
        if event.get("usage"):
            answer.output_tokens = event["usage"]["completion_tokens"]
        if answer.text:
            answer.started.set()
            answer.grown.set()


@contextlib.asynccontextmanager
async def client(server: Server) -> AsyncIterator[Client]:
    """A client of a server's model."""
    async with Client(server.url, await demo.model_name(server.url)) as opened:
        yield opened
