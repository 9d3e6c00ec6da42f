"""The launcher with small real processes that speak the readiness protocol."""

import asyncio
import contextlib
import io
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from ops.admin import GetStatus, Refused, ServerStatus, Swap, Swapped
from ops.display import Display
from ops.events import Choice, Key, Role, Start
from ops.launch import Launcher
from ops.restarts import RestartPolicy
from ops.supervisor import Supervisor, SupervisorConfig

CONFIG = SupervisorConfig(
    start_timeout_s=60.0,
    swap_timeout_s=60.0,
    fence_timeout_s=60.0,
    drain_timeout_s=60.0,
    stop_timeout_s=60.0,
    fallback=Choice("chunked"),
    restarts=RestartPolicy(limit=3),
)

CHILD = """
import os, signal, sys
fd, role, policy, pids = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4]
say = lambda line: os.write(fd, line.encode() + b"\\n")
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
# SIGUSR1: what a scheduler does that is fenced.
signal.signal(signal.SIGUSR1, lambda *_: (say(FENCED), sys.exit(0)))
FENCED = '{"type":"Stopped","reason":"fenced","fenced":true}'
say('{"type":"Stage","name":"loading","done":1,"total":2}')
print("hello from", role, flush=True)
if policy == "broken":
    say('{"type":"Stopped","reason":"no such policy"}')
    sys.exit(2)
if role == "scheduler":
    with open(pids, "a+") as file:  # fence whoever acts
        file.seek(0)
        for pid in file.read().split()[-1:]:
            os.kill(int(pid), signal.SIGUSR1)
        file.write(f"{os.getpid()} ")
say('{"type":"Ready","facts":{"url":"http://127.0.0.1:1","pid":%d}}' % os.getpid())
while True:
    signal.pause()
"""


class Watched(Display):
    """A display that tells when a process has become ready or has gone."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self.changed = asyncio.Event()

    def forget(self, key: Key) -> None:
        super().forget(key)
        self.changed.set()


async def ended(pid: int) -> None:
    """Wait until a process has ended, also one that is not our own to wait for."""
    gone = asyncio.Event()
    descriptor = os.pidfd_open(pid)
    asyncio.get_running_loop().add_reader(descriptor, gone.set)
    try:
        await gone.wait()
    finally:
        asyncio.get_running_loop().remove_reader(descriptor)
        os.close(descriptor)


@dataclass
class Bench:
    """A launcher in this process and its children."""

    folder: Path
    output: io.StringIO = field(default_factory=io.StringIO)

    def __post_init__(self) -> None:
        self.display = Watched(Console(file=self.output, width=200))
        self.launcher = Launcher(
            Supervisor(CONFIG, Choice("first")),
            self.command,
            os.environ,
            self.display,
            str(self.folder),
        )
        self.task = asyncio.create_task(self.launcher.run())

    def command(self, start: Start, descriptor: int) -> list[str]:
        policy = start.choice.policy if start.choice else ""
        pids = str(self.folder / "acting")
        return [sys.executable, "-S", "-c", CHILD, str(descriptor), start.role, policy, pids]

    def pid(self, role: Role) -> int:
        return next(p.pid for p in self.launcher.status().processes if p.role == role)

    def states(self) -> list[tuple[str, str, int]]:
        return [(p.role, p.state, p.pid) for p in self.launcher.status().processes]

    async def replaced(self, role: Role, old: int) -> None:
        """Wait until another process than `old` is ready in a role."""
        async with asyncio.timeout(30):
            while not any(s[:2] == (role, "ready") and s[2] != old for s in self.states()):
                self.display.changed.clear()
                await self.display.changed.wait()


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = Bench(tmp_path)
    try:
        async with asyncio.timeout(30):
            await bench.launcher.serving.wait()
        yield bench
    finally:
        if not bench.task.done():
            bench.launcher.stop()
        async with asyncio.timeout(30):
            await bench.task
        assert children() == []


def children() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


async def test_everything_becomes_ready_and_ends_with_status_0(bench: Bench) -> None:
    assert [p.state for p in bench.launcher.status().processes] == ["ready"] * 3
    assert bench.launcher.url == "http://127.0.0.1:1"
    bench.launcher.stop()
    assert await bench.task == 0
    assert children() == []


async def test_lines_and_stages_are_shown_with_the_name_of_their_process(bench: Bench) -> None:
    bench.launcher.stop()
    await bench.task
    lines = [line.split() for line in bench.output.getvalue().splitlines()]
    for role in Role:
        assert [role, "loading"] in lines
        assert [role, "hello", "from", role] in lines


async def test_a_killed_process_is_restarted_and_the_others_are_left_alone(bench: Bench) -> None:
    before = {role: bench.pid(role) for role in Role}
    os.kill(before[Role.GATEWAY], signal.SIGKILL)
    await bench.replaced(Role.GATEWAY, before[Role.GATEWAY])
    after = {role: bench.pid(role) for role in Role}
    assert after[Role.GATEWAY] != before.pop(Role.GATEWAY)
    assert {role: after[role] for role in before} == before
    assert "killed by SIGKILL" in bench.output.getvalue()


async def test_a_swap_answers_when_the_new_one_acts_and_the_old_one_leaves(bench: Bench) -> None:
    old_left = asyncio.create_task(ended(bench.pid(Role.SCHEDULER)))
    reply = await bench.launcher.handle(Swap("second"))
    assert isinstance(reply, Swapped)
    assert (reply.scheduler, reply.pid) == ("second", bench.pid(Role.SCHEDULER))
    await asyncio.wait_for(old_left, 30)
    status = await bench.launcher.handle(GetStatus())
    assert isinstance(status, ServerStatus)
    assert [p.restarts for p in status.processes] == [0, 0, 0]
    assert [p.detail for p in status.processes] == ["", "second", ""]


async def test_a_swap_to_a_broken_scheduler_says_why_and_keeps_the_old_one(bench: Bench) -> None:
    old = bench.pid(Role.SCHEDULER)
    assert await bench.launcher.handle(Swap("broken")) == Refused("no such policy")
    assert bench.pid(Role.SCHEDULER) == old
    assert bench.launcher.status().processes[1].detail == "first"


async def test_a_process_that_always_dies_ends_the_server_with_status_1(bench: Bench) -> None:
    for _ in range(2):
        pid = bench.pid(Role.WORKER)
        os.kill(pid, signal.SIGKILL)
        await bench.replaced(Role.WORKER, pid)
    os.kill(bench.pid(Role.WORKER), signal.SIGKILL)
    assert await bench.task == 1
    assert "3 times" in bench.output.getvalue()


def test_children_die_with_a_launcher_that_is_killed(tmp_path: Path) -> None:
    script = f"""
import asyncio, sys
sys.path.insert(0, {os.fspath(Path(__file__).parents[3])!r})
sys.path.insert(0, {os.fspath(Path(__file__).parent)!r})
from pathlib import Path
from test_launch import Bench
async def main():
    bench = Bench(Path({os.fspath(tmp_path)!r}))
    await bench.launcher.serving.wait()
    print("serving", *(p.pid for p in bench.launcher.status().processes), flush=True)
    await bench.task
asyncio.run(main())
"""
    with launcher(script) as process:
        assert process.stdout is not None
        words = process.stdout.readline().split()
        assert words[0] == b"serving"
        pids = [psutil.Process(int(word)) for word in words[1:]]
        assert len(pids) == 3
        process.kill()
        gone, alive = psutil.wait_procs(pids, timeout=30)
        assert (len(gone), alive) == (3, [])


@contextlib.contextmanager
def launcher(script: str) -> Iterator[psutil.Popen]:
    """A launcher in a process of its own."""
    process = psutil.Popen([sys.executable, "-c", script], stdout=-1)
    try:
        yield process
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
        process.stdout.close()
        process.wait()
