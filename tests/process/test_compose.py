"""Each service's very command, with its very environment, as a process of this machine.

Only the folder of the sockets and the ports are others. So the processes start and find each other
in any order, health checks tell the truth, and a scheduler is replaced by stopping one service and
starting it with another policy, as Compose does.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.contract.test_compose import ROOT, filled

pytestmark = [pytest.mark.process, pytest.mark.model, pytest.mark.timeout(300)]

START_S = 120.0
PERIOD_S = 0.5
"""Of health checks: another process's state, there is nothing to wait for."""


class Project:
    """Services of one profile."""

    def __init__(self, folder: Path) -> None:
        text = filled((ROOT / "docker-compose.yml").read_text())
        self.services: dict[str, Any] = yaml.safe_load(text)["services"]
        with socket.socket() as probe, socket.socket() as other:
            probe.bind(("127.0.0.1", 0))
            other.bind(("127.0.0.1", 0))
            self.port, self.metrics_port = probe.getsockname()[1], other.getsockname()[1]
        self._changes = {"TANDEM_RUN_DIR": str(folder), "TANDEM_PORT": str(self.port)}
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def environment(self, name: str, **more: str) -> dict[str, str]:
        own = self.services[name]["environment"] | self._changes | more
        if "TANDEM_METRICS_PORT" in own:
            own["TANDEM_METRICS_PORT"] = str(self.metrics_port)
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("TANDEM_")}
        return inherited | own

    def up(self, name: str, **more: str) -> None:
        command = self.services[name]["command"]
        assert command[0] == "python"
        self._running[name] = subprocess.Popen(
            [sys.executable, *command[1:]],
            env=self.environment(name, **more),
            stdin=subprocess.DEVNULL,
        )

    def down(self, name: str) -> int:
        """Stop a service as Compose does; return its exit status."""
        process = self._running.pop(name)
        process.send_signal(signal.SIGTERM)
        return process.wait(timeout=60)

    def healthy(self, name: str) -> bool:
        kind, *test = self.services[name]["healthcheck"]["test"]
        assert (kind, test[0]) == ("CMD", "python")
        done = subprocess.run(
            [sys.executable, *test[1:]], env=self.environment(name), capture_output=True, timeout=30
        )
        return done.returncode == 0

    def until_healthy(self, name: str) -> None:
        over = time.monotonic() + START_S
        while not self.healthy(name):
            assert time.monotonic() < over, f"{name} is not healthy after {START_S:g} s"
            assert self._running[name].poll() is None, f"{name} has ended"
            time.sleep(PERIOD_S)

    def kill(self) -> None:
        for process in self._running.values():
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait(timeout=10)

    def get(self, path: str, port: int | None = None) -> str:
        url = f"http://127.0.0.1:{port or self.port}{path}"
        with urllib.request.urlopen(url, timeout=10) as response:
            return response.read().decode()


@pytest.fixture
def project() -> Iterator[Project]:
    with tempfile.TemporaryDirectory() as folder:
        made = Project(Path(folder))
        yield made
        made.kill()


def test_the_services_of_profile_cpu_serve_and_a_recreated_scheduler_is_another_one(
    project: Project,
) -> None:
    for name in ("gateway", "scheduler", "worker"):  # none waits for another one to be there
        project.up(name)
    assert not project.healthy("gateway")
    for name in ("worker", "scheduler", "gateway"):
        project.until_healthy(name)
    assert '"scheduler":"muxwise"' in project.get("/server_info")
    assert 'tandem_scheduler_acting{policy="muxwise"} 1.0' in project.get(
        "/metrics", project.metrics_port
    )

    assert project.down("scheduler") == 0
    assert not project.healthy("scheduler")
    project.up("scheduler", TANDEM_SCHEDULER="chunked")
    project.until_healthy("scheduler")
    project.until_healthy("gateway")
    assert '"scheduler":"chunked"' in project.get("/server_info")
    assert 'tandem_scheduler_acting{policy="chunked"} 1.0' in project.get(
        "/metrics", project.metrics_port
    )
    assert [project.down(name) for name in ("gateway", "worker")] == [0, 0]
