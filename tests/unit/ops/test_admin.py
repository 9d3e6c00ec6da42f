"""The admin socket: typed orders in, one typed answer each."""

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ops import admin
from ops.admin import AdminError, Request, Swap, Swapped


async def handle(request: Request) -> admin.Reply:
    """Answer a swap by repeating it."""
    assert isinstance(request, Swap)
    return Swapped(request.scheduler, len(request.options), 0.5)


@pytest.fixture
async def path(tmp_path: Path) -> AsyncIterator[Path]:
    path = tmp_path / "admin.sock"
    server = await admin.listen(path, handle)
    yield path
    server.close()
    await server.wait_closed()


async def ask(path: Path, request: Request) -> admin.Reply:
    return await asyncio.to_thread(admin.ask, path, request, 10.0)


async def raw(path: Path, line: bytes) -> bytes:
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(line)
    answer = await reader.read()
    writer.close()
    return answer


async def test_an_order_is_answered_in_its_type(path: Path) -> None:
    reply = await ask(path, Swap("muxwise", ("split=2",)))
    assert reply == Swapped("muxwise", 1, 0.5)


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"{}\n",
        b"nonsense\n",
        b'{"type":"Reboot"}\n',
        b'{"type":"Swap","scheduler":7}\n',
        b'{"type":"Swap","scheduler":""}\n',
        b'{"type":"Swap","scheduler":"x","options":["no value"]}\n',
        b"x" * (admin.LONGEST_LINE + 1) + b"\n",
    ],
    ids=str,
)
async def test_what_is_no_order_is_refused_and_the_next_one_is_served(
    path: Path, line: bytes
) -> None:
    assert b'"type":"Refused"' in await raw(path, line)
    assert isinstance(await ask(path, Swap("muxwise")), Swapped)


async def test_a_caller_that_leaves_in_the_middle_of_a_line_is_no_error(path: Path) -> None:
    _, writer = await asyncio.open_unix_connection(path)
    writer.write(b'{"type":')
    writer.close()
    await writer.wait_closed()
    assert isinstance(await ask(path, Swap("muxwise")), Swapped)


async def test_a_stale_socket_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    with pytest.raises(AdminError, match="no server runs there"):
        await ask(path, Swap("muxwise"))
    server = await admin.listen(path, handle)
    assert isinstance(await ask(path, Swap("muxwise")), Swapped)
    server.close()
    await server.wait_closed()


def test_nobody_there_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(AdminError, match="no server runs there"):
        admin.ask(tmp_path / "none", Swap("muxwise"), 1.0)
