"""The `tandem` command finds its subcommands and refuses what it does not know."""

import importlib
import sys

import pytest

from ops import cli


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["tandem", *arguments])
    return cli.main()


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_each_command_is_there_and_explains_itself(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    with pytest.raises(SystemExit) as stopped:
        run(monkeypatch, name, "--help")
    assert stopped.value.code == 0
    assert f"tandem {name}" in capsys.readouterr().out


def test_an_unknown_command_is_answered_with_the_known_ones(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "sevre") == 2
    error = capsys.readouterr().err
    assert "sevre" in error
    assert all(name in error for name in cli.COMMANDS)


def test_the_version_is_that_of_the_distribution(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "version", lambda distribution: f"7.1 of {distribution}")
    assert run(monkeypatch, "--version") == 0
    assert capsys.readouterr().out == "tandem 7.1 of tandem-serve\n"


def test_no_command_shows_the_help(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch) == 0
    assert "usage: tandem COMMAND" in capsys.readouterr().out


def test_the_schedulers_are_listed_with_their_options(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "schedulers") == 0
    listed = capsys.readouterr().out
    assert "chunked  (scheduler.policies.chunked:Chunked)" in listed
    assert "--option token_budget=" in listed


@pytest.mark.parametrize("command", ["swap", "status"])
def test_an_order_without_a_server_says_how_to_start_one(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: object,
    command: str,
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    more = ["--scheduler", "chunked"] if command == "swap" else []
    assert run(monkeypatch, command, *more) == 1
    assert "tandem serve" in capsys.readouterr().err


def test_the_command_itself_does_not_load_what_a_subcommand_needs() -> None:
    heavy = {"ops.serve", "torch", "aiohttp"}
    before = {name: sys.modules.pop(name) for name in heavy if name in sys.modules}
    try:
        importlib.reload(cli)
        assert not heavy & set(sys.modules)
    finally:
        sys.modules.update(before)
