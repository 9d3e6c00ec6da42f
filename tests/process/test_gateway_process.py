"""The gateway as a process of its own: readiness by pipe, drain on SIGTERM, exit statuses."""

import asyncio
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest

from protocol.lifecycle import EXIT_CONFIG, Ready, Report, Stopped, parse_report
from tests.unit.tokenizer_service.scripted_worker import ScriptedWorker

pytestmark = [pytest.mark.process, pytest.mark.model]


@pytest.fixture
def run_dir() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory)


class GatewayProcess:
    def __init__(self, process: asyncio.subprocess.Process, reports: asyncio.StreamReader) -> None:
        self.process = process
        self._reports = reports
        self.url = ""

    @classmethod
    async def start(cls, run_dir: Path, *flags: str) -> "GatewayProcess":
        readable, writable = os.pipe()
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tokenizer_service.main",
            f"--run-dir={run_dir}",
            "--port=0",
            f"--ready-fd={writable}",
            *flags,
            pass_fds=(writable,),
        )
        os.close(writable)
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: protocol, os.fdopen(readable, "rb")
        )
        return cls(process, reader)

    async def report(self, kind: type[Report]) -> Report:
        """Return the next report of a kind."""
        while line := await self._reports.readline():
            if isinstance(report := parse_report(line), kind):
                return report
        raise AssertionError(f"the process ended without {kind.__name__}")


@pytest.fixture
async def gateway(run_dir: Path) -> AsyncIterator[GatewayProcess]:
    started = await GatewayProcess.start(run_dir, "--model=demo", "--drain-timeout-s=60")
    ready = await started.report(Ready)
    assert isinstance(ready, Ready)
    started.url = str(ready.facts["url"])
    yield started
    if started.process.returncode is None:
        started.process.kill()
    await started.process.wait()


@pytest.fixture
async def worker(run_dir: Path, gateway: GatewayProcess) -> AsyncIterator[ScriptedWorker]:
    scripted = ScriptedWorker(run_dir, vocab_size=49152)
    scripted.start()
    yield scripted
    await scripted.stop()


async def test_sigterm_lets_a_stream_finish_refuses_new_requests_and_exits_0(
    gateway: GatewayProcess, worker: ScriptedWorker
) -> None:
    body = {"model": "SmolLM2-135M-Instruct", "prompt": [1, 2, 3], "stream": True}
    async with aiohttp.ClientSession(gateway.url) as http:
        while (await http.get("/health/ready")).status != 200:
            pass
        posted = asyncio.create_task(http.post("/v1/completions", json=body))
        submit = await worker.submit()
        response = await posted
        gateway.process.terminate()
        while (await http.get("/health/ready")).status == 200:
            pass
        assert (await http.get("/health/live")).status == 200
        refused = await http.post("/v1/completions", json=body)
        assert (refused.status, refused.headers["Retry-After"]) == (503, "1")
        worker.tokens(submit.ref, 0, [19556])
        worker.finish(submit, 1)
        text = (await response.read()).decode()
    assert '"text":"Hello"' in text
    assert text.endswith("data: [DONE]\n\n")
    assert await gateway.process.wait() == 0


async def test_a_model_that_is_not_there_is_a_configuration_error(run_dir: Path) -> None:
    started = await GatewayProcess.start(run_dir, "--model=/nowhere/at/all")
    stopped = await started.report(Stopped)
    assert isinstance(stopped, Stopped)
    assert "no such folder or file" in stopped.reason
    assert await started.process.wait() == EXIT_CONFIG
