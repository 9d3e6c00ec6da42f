"""Orders to a running server: typed JSON lines on a Unix socket in its run directory.

The directory's mode is what authorizes: whoever can open the socket may give orders.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

LONGEST_LINE = 64 * 1024

Option = Annotated[str, Meta(pattern="^[A-Za-z0-9_-]+=", max_length=1024)]


class Swap(Struct, frozen=True, tag=True):
    """Replace the scheduler. Answered by Swapped or Refused."""

    scheduler: Annotated[str, Meta(min_length=1, max_length=256)]
    options: tuple[Option, ...] = ()


class GetStatus(Struct, frozen=True, tag=True):
    """Ask what runs. Answered by ServerStatus."""


class Swapped(Struct, frozen=True, tag=True):
    """The new scheduler acts; the old one has been fenced."""

    scheduler: str
    pid: int
    seconds: float
    """From the order to the moment it acts; the old one acted for most of it."""


class Refused(Struct, frozen=True, tag=True):
    """The order was not carried out, and nothing has changed."""

    message: str


class ProcessStatus(Struct, frozen=True):
    """One place and the process in it."""

    role: str
    pid: int
    """0: none now."""
    state: str
    """starting, ready, ending or down."""
    restarts: int
    detail: str = ""
    """For a scheduler: its policy."""


class ServerStatus(Struct, frozen=True, tag=True):
    """What runs."""

    run_dir: str
    url: str
    """Empty until the gateway listens."""
    pid: int
    """The launcher's."""
    processes: tuple[ProcessStatus, ...]


Request = Swap | GetStatus
Reply = Swapped | Refused | ServerStatus


class AdminError(Exception):
    """The server did not answer. The message says why."""


async def listen(path: Path, handle: Callable[[Request], Awaitable[Reply]]) -> asyncio.Server:
    """Answer orders on a Unix socket until the returned server is closed."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            reply = await _answer(reader, handle)
            writer.write(msgspec.json.encode(reply) + b"\n")
            await writer.drain()
        writer.close()

    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    return await asyncio.start_unix_server(serve, path, limit=LONGEST_LINE)


async def _answer(
    reader: asyncio.StreamReader, handle: Callable[[Request], Awaitable[Reply]]
) -> Reply:
    try:
        line = await reader.readuntil(b"\n")
        request: Request = msgspec.json.decode(line, type=Request)
    except asyncio.LimitOverrunError:
        return Refused(f"an order has at most {LONGEST_LINE} bytes")
    except msgspec.DecodeError as error:
        return Refused(f"not an order: {error}")
    return await handle(request)


def ask(path: Path, request: Request, timeout_s: float) -> Reply:
    """Send one order and wait for its answer. Raises AdminError."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout_s)
        try:
            connection.connect(os.fspath(path))
            connection.sendall(msgspec.json.encode(request) + b"\n")
            with connection.makefile("rb") as lines:
                line = lines.readline()
        except TimeoutError:
            raise AdminError(f"{path}: no answer within {timeout_s:g} s") from None
        except OSError as error:
            raise AdminError(f"{path}: {error.strerror}; no server runs there") from None
    if not line:
        raise AdminError(f"{path}: the server ended before it answered")
    reply: Reply = msgspec.json.decode(line, type=Reply)
    return reply
