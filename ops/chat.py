"""`tandem chat`: talk to a running server in the terminal."""

import asyncio
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from os import environ
from pathlib import Path
from typing import Annotated

import aiohttp
from msgspec import Meta, Struct

from ops import admin, config, demo, run_dir

DEFAULT_URL = "http://127.0.0.1:8000"
TIMEOUT_S = 5.0
HELP = "/new begins anew, /exit or Ctrl-D ends, Ctrl-C stops an answer"


class ChatSettings(Struct, frozen=True, kw_only=True):
    """Whom to talk to, and how. Names as vLLM's."""

    url: Annotated[
        str | None,
        Meta(description=f"of the server; default: your newest that runs, else {DEFAULT_URL}"),
    ] = None
    model_name: Annotated[str | None, Meta(description="default: the server's first")] = None
    api_key: Annotated[str, Meta(description="better in the environment: TANDEM_API_KEY")] = ""
    system_prompt: Annotated[str | None, Meta(description="what the model is told first")] = None
    quick: Annotated[
        str | None, Meta(description="send this one message, print the answer, and end")
    ] = None
    temperature: Annotated[float, Meta(ge=0)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    seed: int | None = None


class Conversation:
    """What was said, to one model of one server."""

    def __init__(self, chosen: ChatSettings, url: str, model: str) -> None:
        self._url, self._key = url, chosen.api_key
        fields = {name: getattr(chosen, name) for name in ("temperature", "top_p")}
        fields |= {name: getattr(chosen, name) for name in ("max_tokens", "seed")}
        self._fields = {name: value for name, value in fields.items() if value is not None}
        self._fields["model"] = model
        self._first: list[dict[str, str]] = []
        if chosen.system_prompt:
            self._first.append({"role": "system", "content": chosen.system_prompt})
        self.restart()

    def restart(self) -> None:
        """Forget all but the system prompt."""
        self._messages = list(self._first)

    async def say(self, text: str) -> demo.Said:
        """Send a message and print the answer as it comes. Raises DemoError, and aiohttp's errors.

        A message whose answer fails or is stopped is not part of the conversation.
        """
        asked = [*self._messages, {"role": "user", "content": text}]

        def show(piece: str) -> None:
            print(piece, end="", flush=True)

        try:
            said = await demo.chat(self._url, self._fields | {"messages": asked}, show, self._key)
        finally:
            print(flush=True)
        self._messages = [*asked, {"role": "assistant", "content": said.text}]
        return said


def main(arguments: Sequence[str]) -> int:
    """Talk until the person leaves; 1 when the server cannot be talked to."""
    chosen = config.parse(ChatSettings, arguments, prog="tandem chat", description=__doc__)
    url = base(chosen.url) if chosen.url else find()
    try:
        model = chosen.model_name or asyncio.run(demo.model_name(url, chosen.api_key))
        conversation = Conversation(chosen, url, model)
        if chosen.quick is not None:
            asyncio.run(conversation.say(chosen.quick))
            return 0
        print(f"{model} at {url}. {HELP}.", file=sys.stderr)
        talk(conversation)
    except (demo.DemoError, aiohttp.ClientError, TimeoutError) as error:
        print(f"tandem chat: {url}: {error}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, EOFError):
        print(file=sys.stderr)
    return 0


def talk(conversation: Conversation) -> None:
    """Read messages and answer them. Raises EOFError or KeyboardInterrupt: the person leaves."""
    with suppress(ImportError):
        import readline  # noqa: F401 - lines can be edited from now on
    while True:
        text = input("> " if sys.stdin.isatty() else "").strip()
        if text == "/exit":
            return
        if text == "/new":
            conversation.restart()
        elif text.startswith("/"):
            print(HELP, file=sys.stderr)
        elif text:
            answer(conversation, text)


def answer(conversation: Conversation, text: str) -> None:
    """Say one thing; Ctrl-C stops the answer, an error leaves the conversation as it was."""
    began = time.monotonic()
    try:
        said = asyncio.run(conversation.say(text))
    except KeyboardInterrupt:
        print("stopped; this message is forgotten", file=sys.stderr)
    except (demo.DemoError, aiohttp.ClientError, TimeoutError) as error:
        print(f"no answer: {error}", file=sys.stderr)
    else:
        cut = ", cut at the limit" if said.finish_reason == "length" else ""
        seconds = time.monotonic() - began
        print(f"({said.output_tokens} tokens in {seconds:.1f} s{cut})", file=sys.stderr)


def base(url: str) -> str:
    """Return a server's address, also when it was given with OpenAI's `/v1`."""
    return url.rstrip("/").removesuffix("/v1")


def find() -> str:
    """Return the address of this user's newest server, else the usual one."""
    try:
        reply = admin.ask(
            Path(run_dir.find(environ), run_dir.ADMIN_SOCKET), admin.GetStatus(), TIMEOUT_S
        )
    except (run_dir.RunDirError, admin.AdminError):
        return DEFAULT_URL
    return (reply.url if isinstance(reply, admin.ServerStatus) else "") or DEFAULT_URL
