"""Asks a running server over HTTP and shows the answer as it streams in; and the demo's question.

A client like any other: it sees only the URL. The demo's proof that everything works together.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
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


async def model_name(url: str, key: str = "") -> str:
    """Return the name of the first model that the server at `url` lists. Raises DemoError."""
    timeout = aiohttp.ClientTimeout(TIMEOUT_S)
    async with (
        aiohttp.ClientSession(timeout=timeout, headers=authorization(key)) as session,
        session.get(f"{url}/v1/models") as response,
    ):
        if response.status != 200:
            raise DemoError(f"status {response.status}: {await response.text()}")
        listed = await response.json()
    return str(listed["data"][0]["id"])


async def ask(url: str, model: str, question: str, show: Callable[[str], object]) -> str:
    """Stream the answer to `question` into `show` and return it whole. Raises DemoError."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "temperature": 0,
        "max_tokens": MAX_TOKENS,
    }
    return (await chat(url, body, show)).text


@dataclass
class Said:
    """One answer."""

    text: str = ""
    finish_reason: str = ""
    output_tokens: int = 0


async def chat(
    url: str, body: Mapping[str, object], show: Callable[[str], object], key: str = ""
) -> Said:
    """Stream the answer to a chat completion's `body` into `show`. Raises DemoError."""
    said = Said()
    timeout = aiohttp.ClientTimeout(total=None, sock_read=TIMEOUT_S)
    asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
    async with (
        aiohttp.ClientSession(timeout=timeout, headers=authorization(key)) as session,
        session.post(f"{url}/v1/chat/completions", json=asked) as response,
    ):
        if response.status != 200:
            raise DemoError(f"status {response.status}: {await response.text()}")
        async for event in events(response.content):
            if "error" in event:
                raise DemoError(str(event["error"]))
            for choice in event["choices"]:
                text = choice["delta"].get("content") or ""
                said.text += text
                said.finish_reason = choice["finish_reason"] or said.finish_reason
                show(text)
            if usage := event.get("usage"):
                said.output_tokens = usage["completion_tokens"]
    return said


def authorization(key: str) -> dict[str, str]:
    """Return the header for an API key; none for an empty one."""
    return {"Authorization": f"Bearer {key}"} if key else {}


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
