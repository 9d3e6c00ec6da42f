"""Asks a running server one question over HTTP and shows the answer as it streams in.

A client like any other: it sees only the URL. The demo's proof that everything works together.
"""

from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import msgspec

QUESTION = "What is the capital of France?"
EXPECTED = "Paris"
MAX_TOKENS = 48
TIMEOUT_S = 120.0
DATA = b"data:"
END = b"[DONE]"


class DemoError(Exception):
    """The server's answer is none. The message quotes it."""


async def model_name(url: str) -> str:
    """Return the name of the first model that the server at `url` lists."""
    timeout = aiohttp.ClientTimeout(TIMEOUT_S)
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        session.get(f"{url}/v1/models") as response,
    ):
        listed = await response.json()
    return str(listed["data"][0]["id"])


async def ask(url: str, model: str, question: str, show: Callable[[str], object]) -> str:
    """Stream the answer to `question` into `show` and return it whole. Raises DemoError."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "temperature": 0,
        "max_tokens": MAX_TOKENS,
        "stream": True,
    }
    parts: list[str] = []
    timeout = aiohttp.ClientTimeout(TIMEOUT_S)
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        session.post(f"{url}/v1/chat/completions", json=body) as response,
    ):
        if response.status != 200:
            raise DemoError(f"status {response.status}: {await response.text()}")
        async for event in events(response.content):
            if "error" in event:
                raise DemoError(str(event["error"]))
            for choice in event["choices"]:
                text = choice["delta"].get("content") or ""
                parts.append(text)
                show(text)
    return "".join(parts)


async def events(lines: aiohttp.StreamReader) -> AsyncIterator[dict[str, Any]]:
    """Yield the JSON objects of a server-sent event stream, up to its end mark."""
    async for line in lines:
        if not line.startswith(DATA):
            continue
        data = line[len(DATA) :].strip()
        if data == END:
            return
        yield msgspec.json.decode(data)


def curl_line(url: str, model: str) -> str:
    """Return a command that asks the same question."""
    body = msgspec.json.encode(
        {"model": model, "messages": [{"role": "user", "content": QUESTION}], "stream": True}
    ).decode()
    return f"curl -N {url}/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'"
