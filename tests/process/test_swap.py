"""Streams do not notice that their scheduler is replaced, killed, or away."""

import asyncio
import itertools
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.peers import Gateway, wait_for
from tests.process.server import Answer, Ask, Client, Server, client, ended
from tests.process.workload import asks, compare, undisturbed

pytestmark = [pytest.mark.process, pytest.mark.model, pytest.mark.timeout(900)]

STREAMS = 32
SWAPS = 30
PERIOD_S = 1.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder: Path = tmp_path_factory.mktemp("run")
    folder.chmod(0o700)
    with Server.start(folder, "--scheduler", "muxwise", "--max-num-seqs", "64") as server:
        yield server


async def stream_until(
    done: asyncio.Event, client: Client, turns: Iterator[Ask]
) -> list[tuple[Ask, Answer]]:
    """Ask one question after the other, as one user does, until `done`; finish the last."""
    answers: list[tuple[Ask, Answer]] = []
    while not done.is_set():
        ask = next(turns)
        answers.append((ask, await client.stream(ask)))
    return answers


async def swap_every_second(server: Server) -> list[float]:
    """Swap between the policies, SWAPS times, a second apart; return how long each took."""
    loop, took = asyncio.get_running_loop(), []
    began = loop.time()
    for number, name in zip(range(SWAPS), itertools.cycle(("chunked", "muxwise")), strict=False):
        took.append((await server.swap(name)).seconds)
        # The pace of the experiment, not a wait for anything.
        await asyncio.sleep(max(0.0, began + (number + 1) * PERIOD_S - loop.time()))
    return took


async def test_32_streams_equal_their_undisturbed_runs_while_schedulers_are_swapped(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    worker = server.pid("worker")
    async with client(server) as user:
        wanted = asks(max_tokens=48)
        expected = await undisturbed(user, wanted)
        done, turns = asyncio.Event(), itertools.cycle(wanted)
        users = [asyncio.create_task(stream_until(done, user, turns)) for _ in range(STREAMS)]
        took = await swap_every_second(server)
        done.set()
        answers = list(itertools.chain(*await asyncio.gather(*users)))
    report = await compare(answers, expected)
    with capsys.disabled():
        slowest = max(took)
        print(f"\n{len(took)} swaps (slowest {slowest:.2f} s): {report}")
    assert report.equal + report.ties == len(answers) >= STREAMS
    assert server.pid("worker") == worker
    assert [p.restarts for p in server.status().processes] == [0, 0, 0]


async def test_streams_go_on_while_the_scheduler_is_dead_and_queued_ones_are_served_later(
    server: Server,
) -> None:
    worker = server.pid("worker")
    async with client(server) as user:
        running, late = asks(max_tokens=400)[1], asks(max_tokens=16)[0]
        expected = await undisturbed(user, [running, late])
        answer = Answer()
        stream = asyncio.create_task(user.stream(running, answer))
        await answer.started.wait()
        await kill_until_it_waits(server)
        queued = Answer()
        queued_stream = asyncio.create_task(user.stream(late, queued))
        answer.grown.clear()
        await asyncio.wait_for(answer.grown.wait(), 30)
        assert server.row("scheduler").pid == 0, "the stream went on, but with a scheduler"
        assert not queued.text
        await asyncio.gather(stream, queued_stream)
    report = await compare([(running, answer), (late, queued)], expected)
    assert report.equal + report.ties == 2
    assert server.pid("worker") == worker
    assert server.row("scheduler").restarts >= 1


async def kill_until_it_waits(server: Server) -> None:
    """Kill the scheduler until the launcher lets it wait before its next start."""
    while True:
        await server.until(lambda status: scheduler_pid(status) != 0)
        killed = server.kill("scheduler")
        await ended(killed)
        await server.until(lambda status, killed=killed: scheduler_pid(status) != killed)
        if server.pid("scheduler") == 0:
            return


def scheduler_pid(status) -> int:
    return next(p.pid for p in status.processes if p.role == "scheduler")


async def test_a_scheduler_that_hangs_is_replaced_and_fenced_when_it_wakes(
    server: Server,
) -> None:
    await server.until(lambda status: all(p.state == "ready" for p in status.processes))
    hung = server.pid("scheduler")
    async with client(server) as user:
        ask = asks(max_tokens=64)[0]
        expected = await undisturbed(user, [ask])
        os.kill(hung, signal.SIGSTOP)
        await server.swap("chunked")
        answer = await user.stream(ask)
        os.kill(hung, signal.SIGCONT)
        await ended(hung)
        again = await user.stream(ask)
    report = await compare([(ask, answer), (ask, again)], expected)
    assert report.equal + report.ties == 2
    assert server.row("scheduler").state == "ready"
    assert server.pid("scheduler") != hung


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_hangs_up_frees_its_pages(server: Server, stream: bool) -> None:
    observer = Gateway(server.folder)
    idle = observer.load_is(running=0, queued=0, pages_referenced=0)
    await asyncio.to_thread(wait_for, idle, observer)
    ask = asks(max_tokens=4000)[0]
    async with client(server) as user, user.asking(ask, stream=stream):
        await asyncio.to_thread(wait_for, observer.load_is(running=1), observer)
    await asyncio.to_thread(wait_for, idle, observer)
    observer.close()


async def test_a_swap_to_what_is_no_scheduler_fails_with_the_known_names(server: Server) -> None:
    before = server.pid("scheduler")
    with pytest.raises(AssertionError, match=r"no scheduler 'nonsense'.*chunked.*muxwise"):
        await server.swap("nonsense")
    assert server.pid("scheduler") == before
