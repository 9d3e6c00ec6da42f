"""The launcher's display: bars on a terminal, each stage once elsewhere."""

import io
import json

from rich.console import Console

from ops.display import Display
from ops.events import Role
from protocol.lifecycle import Stage
from protocol.logs import LogForm


def display(*, terminal: bool) -> tuple[Display, io.StringIO]:
    output = io.StringIO()
    console = Console(file=output, force_terminal=terminal, color_system=None, width=120)
    return Display(console), output


def test_without_a_terminal_a_stage_is_one_line_however_often_it_is_reported() -> None:
    shown, output = display(terminal=False)
    for done in range(5):
        shown.stage(1, Role.WORKER, Stage("loading weights", done, 5))
    shown.stage(1, Role.WORKER, Stage("starting lanes"))
    shown.close()
    assert output.getvalue() == "worker    loading weights\nworker    starting lanes\n"


def test_on_a_terminal_a_stage_with_a_count_shows_how_much_is_done() -> None:
    shown, output = display(terminal=True)
    shown.stage(1, Role.WORKER, Stage("loading weights", 1 << 20, 4 << 20))
    shown.close()
    assert "loading weights" in output.getvalue()
    assert "25%" in output.getvalue()


def test_a_stage_does_not_inherit_the_count_of_the_one_before() -> None:
    shown, output = display(terminal=True)
    shown.stage(1, Role.WORKER, Stage("loading weights", 4, 4))
    output.truncate(0)
    shown.stage(1, Role.WORKER, Stage("starting lanes"))
    shown.close()
    assert "starting lanes" in output.getvalue()
    assert "%" not in output.getvalue().split("starting lanes")[-1]


def test_long_lines_of_a_process_are_not_broken() -> None:
    shown, output = display(terminal=False)
    shown.line(Role.GATEWAY, "x" * 500)
    assert output.getvalue() == f"gateway   {'x' * 500}\n"


def test_what_looks_like_markup_is_shown_as_it_is() -> None:
    shown, output = display(terminal=False)
    shown.note("[red]ids [1, 2]")
    assert output.getvalue() == "tandem    [red]ids [1, 2]\n"


def test_closing_twice_is_no_error() -> None:
    shown, _ = display(terminal=True)
    shown.close()
    shown.close()


def test_with_json_lines_every_line_is_one_object_and_its_own_stay_whole() -> None:
    out = io.StringIO()
    shown = Display(Console(file=out, force_terminal=True, width=20), LogForm.JSON)
    shown.line(Role.WORKER, '{"message": "' + "long " * 20 + '"}')
    shown.line(Role.GATEWAY, "a warning from a library [not markup]")
    shown.note("ending")
    shown.stage(1, Role.WORKER, Stage("loading", 1, 2))
    told = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [line.get("process") for line in told] == [None, "gateway", "tandem", "worker"]
    assert told[1]["message"] == "a warning from a library [not markup]"
