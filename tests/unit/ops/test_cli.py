"""The `tandem` command finds its subcommands and refuses what it does not know."""

import importlib
import importlib.util
import sys
from pathlib import Path

import pytest

from ops import cli
from ops.bench import main as bench


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["tandem", *arguments])
    return cli.main()


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_each_command_is_there_and_explains_itself(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    try:
        status = run(monkeypatch, name, "--help")
    except SystemExit as stopped:  # argparse's way
        status = stopped.code
    assert status == 0
    assert f"usage: tandem {name}" in capsys.readouterr().out


@pytest.mark.parametrize("name", bench.BENCHMARKS)
def test_each_benchmark_is_a_module_with_a_main(name: str) -> None:
    module, _ = bench.BENCHMARKS[name]
    source = Path(importlib.util.find_spec(module).origin).read_text()
    assert "\ndef main() -> None:" in source


def test_an_unknown_benchmark_is_answered_with_the_known_ones(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "bench", "engines") == 2
    assert "engine, engine-report" in capsys.readouterr().err


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
