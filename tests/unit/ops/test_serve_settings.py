"""The flags of `tandem serve` are those of its processes, and reach them."""

from typing import get_type_hints

import msgspec
import pytest

from ops.events import Choice, Role, Start
from ops.serve import CannotServe, read
from ops.serve_settings import PER_PROCESS, LauncherSettings, ServeSettings
from protocol.settings import parse
from scheduler.settings import SchedulerSettings
from tokenizer_service.settings import GatewaySettings
from worker.settings import WorkerSettings

STRUCTS = (LauncherSettings, WorkerSettings, SchedulerSettings, GatewaySettings)
SEVERAL_NAMES = "served_model_name"
"""The one flag that means a list to the gateway and its head to the worker."""


def test_a_flag_that_several_processes_have_means_the_same_to_each() -> None:
    seen: dict[str, tuple[object, object]] = {}
    for struct in STRUCTS[1:]:
        hints = get_type_hints(struct)
        for field in msgspec.structs.fields(struct):
            if field.name in (*PER_PROCESS, SEVERAL_NAMES):
                continue
            meaning = (hints[field.name], field.default)
            assert seen.setdefault(field.name, meaning) == meaning, field.name


def test_every_flag_of_every_process_can_be_given_to_serve() -> None:
    flags = set(ServeSettings.__struct_fields__)
    for struct in STRUCTS:
        assert set(struct.__struct_fields__) - set(PER_PROCESS) <= flags
    assert "ready_fd" not in flags


def child(role: Role, arguments: list[str], environment: dict[str, str] | None = None):
    """Return the settings that a process started by `tandem serve ARGUMENTS` reads."""
    struct = {
        Role.WORKER: WorkerSettings,
        Role.SCHEDULER: SchedulerSettings,
        Role.GATEWAY: GatewaySettings,
    }[role]
    parts = read(arguments, environment or {})
    choice = parts.choice if role == Role.SCHEDULER else None
    line = parts.arguments(Start(1, role, choice), "/run/x", 9)
    return parse(struct, line, {}, prog=role, description="")


@pytest.mark.parametrize("role", list(Role))
def test_each_process_is_told_its_run_directory_and_descriptor(role: Role) -> None:
    read_back = child(role, ["demo"])
    assert (read_back.run_dir, read_back.ready_fd) == ("/run/x", 9)


def test_the_model_goes_to_the_worker_and_the_gateway() -> None:
    for role in (Role.WORKER, Role.GATEWAY):
        assert child(role, ["some/folder"]).model == "some/folder"
        assert child(role, ["--demo"]).model == "demo"
        assert child(role, [], {"TANDEM_MODEL": "m.gguf"}).model == "m.gguf"


def test_the_served_names_go_to_the_gateway_and_the_first_to_the_worker() -> None:
    line = ["demo", "--served-model-name", "a", "b"]
    assert child(Role.GATEWAY, line).served_model_name == ("a", "b")
    assert child(Role.WORKER, line).served_model_name == "a"
    assert child(Role.WORKER, ["demo"]).served_model_name is None


def test_flags_reach_the_process_that_owns_them() -> None:
    line = ["demo", "--port", "0", "--max-num-seqs", "8", "--device", "cpu", "--slo-tbt-ms", "40"]
    assert child(Role.GATEWAY, line).port == 0
    assert child(Role.WORKER, line).max_num_seqs == 8
    assert child(Role.WORKER, line).device == "cpu"
    assert child(Role.SCHEDULER, line).slo_tbt_ms == 40.0


def test_the_environment_is_read_once_by_serve() -> None:
    assert child(Role.WORKER, ["demo"], {"TANDEM_MAX_NUM_SEQS": "7"}).max_num_seqs == 7


def test_a_swap_changes_the_scheduler_and_its_options_and_nothing_else() -> None:
    line = ["demo", "--scheduler", "muxwise", "--option", "split=1", "--slo-tbt-ms", "40"]
    parts = read(line, {})
    assert parts.choice == Choice("muxwise", ("split=1",))
    swapped = Start(2, Role.SCHEDULER, Choice("chunked", ("token_budget=64",)))
    arguments = parts.arguments(swapped, "/run/x", 9)
    read_back = parse(SchedulerSettings, arguments, {}, prog="", description="")
    assert (read_back.scheduler, read_back.option) == ("chunked", ("token_budget=64",))
    assert read_back.slo_tbt_ms == 40.0


def test_no_model_is_an_error_that_names_the_ways_out() -> None:
    with pytest.raises(CannotServe, match=r"\.gguf.*--demo"):
        read([], {})


def test_a_wrong_value_names_the_flag_and_ends_with_status_2(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as stopped:
        read(["demo", "--port", "70000"], {})
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert "--port" in error
    assert "70000" in error
