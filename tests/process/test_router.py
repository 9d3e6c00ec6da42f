"""sglang-router in front of two replicas: a router that was written for other servers just works.

Requests flow, those that share a prefix go to the replica that has it, and neither a killed nor a
drained replica costs a request that had not begun.
"""

import asyncio
import contextlib
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from ops import demo
from tests.process.server import POLL_S, Server

pytestmark = [pytest.mark.process, pytest.mark.model, pytest.mark.timeout(600)]
pytest.importorskip("sglang_router", reason="pip install 'tandem-serve[router]'")

START_S = 60.0
WORDS = [
    "river",
    "stone",
    "paper",
    "light",
    "window",
    "garden",
    "engine",
    "silver",
    "winter",
    "letter",
    "market",
]


def free_port() -> int:
    """A port that was free a moment ago: the router cannot be asked which one it took."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Fleet:
    """Two replicas behind a router."""

    def __init__(self, replicas: list[Server], url: str, model: str) -> None:
        self.replicas, self.url, self.model = replicas, url, model
        self.session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(240))

    async def ask(self, prompt: str, max_tokens: int = 4, **fields: Any) -> dict[str, Any]:
        """Send one request through the router. Raises AssertionError for any but an answer."""
        body = {"model": self.model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
        async with self.session.post(f"{self.url}/v1/completions", json=body | fields) as response:
            assert response.status == 200, (response.status, await response.text())
            return await response.json()

    async def stream(self, prompt: str, begun: asyncio.Event) -> bool:
        """Stream one answer; return whether it came to its end."""
        body = {
            "model": self.model,
            "prompt": prompt,
            "max_tokens": 24,
            "ignore_eos": True,
            "stream": True,
        }
        try:
            async with self.session.post(f"{self.url}/v1/completions", json=body) as response:
                assert response.status == 200, (response.status, await response.text())
                async for event in demo.events(response.content):
                    if "error" in event:
                        return False
                    begun.set()
                    if event["choices"][0]["finish_reason"]:
                        return True
        except aiohttp.ClientError:
            return False
        return False


def family(name: str, member: int) -> str:
    """Prompts of one family begin with the same 100 words."""
    shared = " ".join(f"{name} {WORDS[i % len(WORDS)]}" for i in range(50))
    return f"{shared} and then number {member}"


@contextlib.contextmanager
def routing(urls: list[str], port: int) -> Iterator[psutil.Popen]:
    process = psutil.Popen(
        [
            *(sys.executable, "-m", "sglang_router.launch_router", "--host", "127.0.0.1"),
            *("--port", str(port), "--prometheus-port", str(free_port())),
            *("--worker-urls", *urls, "--policy", "cache_aware"),
            *("--health-check-endpoint", "/ready", "--health-check-interval-secs", "1"),
            *("--health-failure-threshold", "1", "--health-success-threshold", "1"),
            *("--log-level", "warn"),
        ],
        stdin=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        for one in [*process.children(recursive=True), process]:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        process.wait(timeout=10)


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    with contextlib.ExitStack() as stack:
        folders = [Path(stack.enter_context(tempfile.TemporaryDirectory())) for _ in range(2)]
        replicas = [
            await asyncio.to_thread(stack.enter_context, Server.start(folder)) for folder in folders
        ]
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        stack.enter_context(routing([replica.url for replica in replicas], port))
        fleet = Fleet(replicas, url, await demo.model_name(replicas[0].url))
        await ready(fleet)
        yield fleet
        await fleet.session.close()


async def ready(fleet: Fleet) -> None:
    async with asyncio.timeout(START_S):
        while True:
            with contextlib.suppress(aiohttp.ClientError):
                async with fleet.session.get(f"{fleet.url}/health") as response:
                    if response.status == 200:
                        return
            await asyncio.sleep(POLL_S)


def cached(answer: dict[str, Any]) -> int:
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


async def test_requests_flow_keep_their_prefixes_and_survive_a_replica(fleet: Fleet) -> None:
    # A family's first request computes its prefix; the others find it, wherever it went.
    for name in ("amber", "cobalt", "jade"):
        first, *others = [await fleet.ask(family(name, member)) for member in range(3)]
        assert cached(first) == 0
        assert all(cached(answer) >= 80 for answer in others), [cached(a) for a in others]

    # Killed: streams that had begun there may break; all that had not begun are answered.
    begun = [asyncio.Event() for _ in range(6)]
    streams = [
        asyncio.create_task(fleet.stream(f"{WORDS[at]} tells a story", event))
        for at, event in enumerate(begun)
    ]
    await asyncio.gather(*(event.wait() for event in begun))
    fleet.replicas[0].kill("gateway")
    late = await asyncio.gather(*(fleet.ask(f"{word} after the death") for word in WORDS[:8]))
    assert len(late) == 8
    ends = await asyncio.gather(*streams)
    assert any(ends), "no stream was on the other replica"

    # Drained: what runs there is finished, and what comes then goes to the other.
    await fleet.replicas[0].until(lambda status: all(p.state == "ready" for p in status.processes))
    begun = [asyncio.Event() for _ in range(4)]
    streams = [
        asyncio.create_task(fleet.stream(f"{WORDS[at]} begins again", event))
        for at, event in enumerate(begun)
    ]
    await asyncio.gather(*(event.wait() for event in begun))
    fleet.replicas[0].process.send_signal(signal.SIGTERM)
    late = await asyncio.gather(*(fleet.ask(f"{word} after the drain") for word in WORDS[:8]))
    assert len(late) == 8
    assert all(await asyncio.gather(*streams))
