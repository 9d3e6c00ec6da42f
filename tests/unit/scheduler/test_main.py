"""The process's shell over a real socket, with a worker that is played by the test."""

import asyncio
import os
import time
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ops.explain import ExplainError, ask
from protocol.control_link import (
    Attach,
    ControlToWorker,
    Detach,
    Fenced,
    Observe,
    Plan,
    ToScheduler,
)
from protocol.endpoint import Endpoint, Received
from protocol.ids import Epoch
from protocol.lifecycle import EXIT_CONFIG, Ready, Reporter, Stage, Stopped, parse_report
from protocol.link import LINK
from protocol.pump import pump
from protocol.transport.zeromq import bind
from scheduler.core import Exit
from scheduler.estimator.profile import save
from scheduler.estimator.soft_state import read as read_soft_state
from scheduler.explain import SOCKET
from scheduler.main import build, learner, main, serve
from scheduler.settings import SchedulerSettings
from tests.unit.scheduler.profiles import profile
from tests.unit.scheduler.world import decoding, queued, snapshot


class PlayedWorker:
    """Answers Observe and Attach like a worker, and keeps what it was told."""

    def __init__(self, run_dir):
        self.endpoint = Endpoint(bind(f"ipc://{run_dir}/control"), ControlToWorker, LINK)
        self.told = []
        self.peer = b""
        self._waiting = []

    async def run(self):
        async for event in pump(self.endpoint, time.monotonic):
            if isinstance(event, Received):
                self.peer = event.peer
                self._hear(event.message)

    def _hear(self, message):
        self.told.append(message)
        requests = [*decoding(2), *queued(2)]
        if isinstance(message, Observe):
            self.say(snapshot(*requests, epoch=6))
        elif isinstance(message, Attach):
            self.say(snapshot(*requests, epoch=7, acting=True))
        for kind, future in self._waiting:
            if isinstance(message, kind) and not future.done():
                future.set_result(message)

    def say(self, message: ToScheduler):
        self.endpoint.send(message, time.monotonic(), self.peer)

    async def hears(self, kind):
        found = next((m for m in self.told if isinstance(m, kind)), None)
        if found is not None:
            return found
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((kind, future))
        return await future


@pytest.fixture
def run_dir(tmp_path):
    tmp_path.chmod(0o700)
    return str(tmp_path)


@asynccontextmanager
async def running(run_dir, **options):
    """A played worker, a scheduler's task, and the descriptor of its reports."""
    chosen = SchedulerSettings(run_dir=run_dir, **options)
    worker = PlayedWorker(run_dir)
    read, write = os.pipe()
    estimator, keeper = learner(chosen)
    tasks = [
        asyncio.create_task(worker.run()),
        asyncio.create_task(
            serve(chosen, build(chosen, estimator), Reporter(write), estimator, keeper)
        ),
    ]
    try:
        yield worker, tasks[1], read
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        worker.endpoint.close()
        os.close(read)
        os.close(write)


def reports(descriptor):
    return [parse_report(line) for line in os.read(descriptor, 65536).splitlines()]


@pytest.mark.parametrize("policy", ["chunked", "muxwise", "prefill_first"])
async def test_it_observes_attaches_plans_and_reports_ready(run_dir, policy):
    async with running(run_dir, scheduler=policy) as (worker, _, read):
        plan = await worker.hears(Plan)
        assert [type(m) for m in worker.told] == [Observe, Attach, Plan]
        assert plan.epoch == Epoch("boot", 7)
        assert worker.told[0].policy == policy
        assert reports(read) == [Stage("connecting"), Ready({"policy": policy, "epoch": 7})]


async def test_sigterm_gives_the_epoch_back(run_dir):
    async with running(run_dir) as (worker, scheduler, _):
        await worker.hears(Plan)
        os.kill(os.getpid(), 15)
        assert await scheduler == Exit("asked to stop")
        assert await worker.hears(Detach) == Detach(Epoch("boot", 7))


async def test_fenced_it_ends_without_failure(run_dir):
    async with running(run_dir) as (worker, scheduler, _):
        await worker.hears(Plan)
        worker.say(Fenced(1, Epoch("boot", 8)))
        end = await scheduler
        assert (end.fenced, end.status) == (True, 0)


async def test_an_observer_never_attaches(run_dir):
    async with running(run_dir, observe_only=True) as (worker, scheduler, read):
        await worker.hears(Observe)
        while Ready({"policy": "muxwise", "epoch": 0}) not in await asyncio.to_thread(
            reports, read
        ):
            pass
        os.kill(os.getpid(), 15)
        await scheduler
        assert [type(m) for m in worker.told] == [Observe]


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["--scheduler", "nix"], "known: chunked, drift, muxwise, prefill_first"),
        (["--scheduler", "chunked", "--option", "depth=99"], "depth"),
        (["--log-level", "loud"], "loud"),
        (["--profile", "/nowhere/p.json"], "/nowhere/p.json: No such file"),
        (["--soft-state", "s.json", "--profile", "none"], "of no use with --profile none"),
    ],
)
def test_a_wrong_configuration_ends_with_its_status_and_says_why(run_dir, flags, why, capsys):
    read, write = os.pipe()
    status = main(["--run-dir", run_dir, "--ready-fd", str(write), *flags])
    (stopped,) = reports(read)
    os.close(read)
    os.close(write)
    assert status == EXIT_CONFIG
    assert isinstance(stopped, Stopped)
    assert why in stopped.reason
    assert why in capsys.readouterr().err


async def test_what_it_learns_beside_a_profile_is_kept_when_it_ends(run_dir, tmp_path):
    taken, kept = tmp_path / "profile.json", tmp_path / "soft.json"
    save(taken, profile())
    async with running(run_dir, profile=str(taken), soft_state=str(kept)) as (worker, scheduler, _):
        plan = await worker.hears(Plan)
        assert "predicted" in plan.reason
        os.kill(os.getpid(), 15)
        await scheduler
    assert read_soft_state(kept).profile


async def explained(run_dir):
    return await asyncio.to_thread(ask, Path(run_dir) / SOCKET, 5.0)


async def test_it_explains_its_decisions_to_whoever_asks_and_leaves_no_socket(run_dir):
    async with running(run_dir, scheduler="muxwise") as (worker, scheduler, _):
        plan = await worker.hears(Plan)
        told = await explained(run_dir)
        assert (told.policy, told.epoch, told.pid) == ("muxwise", 7, os.getpid())
        (decision,) = told.decisions
        assert (decision.seq, decision.reason) == (plan.seq, plan.reason)
        assert told.latest
        assert decision.at <= told.now
        os.kill(os.getpid(), 15)
        await scheduler
    assert [name for name in os.listdir(run_dir) if "explain" in name] == []


async def test_an_observer_does_not_take_the_explaining_over(run_dir):
    async with running(run_dir, observe_only=True) as (_worker, _, read):
        while Ready({"policy": "muxwise", "epoch": 0}) not in await asyncio.to_thread(
            reports, read
        ):
            pass
        with pytest.raises(ExplainError, match="no scheduler explains itself there"):
            await explained(run_dir)


def test_a_run_directory_that_others_can_enter_is_refused(tmp_path, capsys):
    tmp_path.chmod(0o755)
    assert main(["--run-dir", str(tmp_path)]) == EXIT_CONFIG
    assert "0o700" in capsys.readouterr().err
