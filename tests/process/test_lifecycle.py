"""The launcher's promises: no orphans, restarts that streams survive, drains, clear refusals."""

import asyncio
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import psutil
import pytest

from tests.process.server import Answer, Server, client, command, ended
from tests.process.workload import asks, compare, undisturbed

pytestmark = [pytest.mark.process, pytest.mark.model, pytest.mark.timeout(600)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    return folder


@pytest.fixture
def server(folder: Path) -> Iterator[Server]:
    with Server.start(folder) as server:
        yield server


def lives(process: psutil.Process) -> bool:
    """Whether a process runs: one that nobody has reaped yet does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def test_streams_continue_after_the_worker_was_killed(server: Server) -> None:
    worker = server.pid("worker")
    others = [server.pid("scheduler"), server.pid("gateway")]
    async with client(server) as user:
        wanted = asks(max_tokens=64)[:4]
        expected = await undisturbed(user, wanted)
        answers = [Answer() for _ in wanted]
        pairs = list(zip(wanted, answers, strict=True))
        streams = [asyncio.create_task(user.stream(*pair)) for pair in pairs]
        for answer in answers:
            await answer.started.wait()
        server.kill("worker")
        await asyncio.gather(*streams)
    report = await compare(pairs, expected)
    assert report.equal + report.ties == len(wanted)
    assert server.pid("worker") not in (0, worker)
    assert server.row("worker").restarts == 1
    assert [server.pid("scheduler"), server.pid("gateway")] == others


async def test_a_launcher_that_is_killed_leaves_no_process(server: Server) -> None:
    children = server.process.children(recursive=True)
    assert len(children) >= 3
    server.process.kill()
    await asyncio.gather(*(ended(child.pid) for child in children))
    assert not [child for child in children if lives(child)]


async def test_sigterm_lets_streams_finish_refuses_new_ones_and_ends_with_0(
    server: Server,
) -> None:
    children = server.process.children(recursive=True)
    async with client(server) as user:
        ask = asks(max_tokens=100)[0]
        expected = await undisturbed(user, [ask])
        answer = Answer()
        stream = asyncio.create_task(user.stream(ask, answer))
        await answer.started.wait()
        server.process.send_signal(signal.SIGTERM)
        await server.until(lambda status: status.processes[2].state == "ending")
        await refused(server.url)
        await stream
    report = await compare([(ask, answer)], expected)
    assert report.equal + report.ties == 1
    assert await asyncio.to_thread(server.process.wait, 60) == 0
    assert not [child for child in children if lives(child)]


async def refused(url: str) -> None:
    """Wait until the gateway takes no new request: 503, or no connection any more."""
    async with aiohttp.ClientSession() as session, asyncio.timeout(30):
        while True:
            try:
                async with session.get(f"{url}/health/ready") as response:
                    if response.status == 503:
                        return
            except aiohttp.ClientConnectionError:
                return


async def test_a_second_signal_ends_everything_at_once(server: Server) -> None:
    children = server.process.children(recursive=True)
    async with client(server) as user:
        answer = Answer()
        ask = asks(max_tokens=2000)[0]
        stream = asyncio.create_task(user.stream(ask, answer))
        await answer.started.wait()
        server.process.send_signal(signal.SIGTERM)
        await server.until(lambda status: status.processes[2].state == "ending")
        server.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(server.process.wait, 10) == 1
        with pytest.raises((aiohttp.ClientError, AssertionError)):
            await stream
    assert not [child for child in children if lives(child)]


def test_a_signal_in_the_middle_of_the_start_ends_it_with_0(folder: Path) -> None:
    process = psutil.Popen(command(folder), stderr=subprocess.PIPE, text=True)
    with process:
        assert any(line.startswith("worker") for line in process.stderr)
        children = process.children(recursive=True)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert not [child for child in children if lives(child)]


def refusal(folder: Path, *flags: str) -> str:
    """Run a server that must not start, and return what it says."""
    ended = subprocess.run(command(folder, *flags), capture_output=True, text=True, timeout=120)
    assert ended.returncode == 2, ended.stderr
    return ended.stderr


def test_a_port_in_use_is_refused_in_one_clear_line(folder: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = refusal(folder, "--port", str(port))
    (line,) = said.splitlines()
    assert f"127.0.0.1:{port}" in line
    assert "in use" in line


def test_a_second_server_in_the_same_run_directory_is_refused(server: Server) -> None:
    said = refusal(server.folder)
    assert "another server runs in it" in said
    assert server.status().processes[0].state == "ready"


def test_an_unknown_scheduler_ends_the_start_with_the_known_names(folder: Path) -> None:
    said = refusal(folder, "--scheduler", "nonsense")
    assert "no scheduler 'nonsense'" in said
    assert "chunked" in said


def test_a_model_that_is_not_there_ends_the_start_with_what_was_looked_for(
    folder: Path,
) -> None:
    line = command(folder)
    line[line.index("demo")] = "/no/such/model"
    ended = subprocess.run(line, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 2
    assert "/no/such/model" in ended.stderr
