"""Settings come from flags, then the environment, then defaults; what is wrong is named."""

from enum import StrEnum
from typing import Annotated

import pytest
from msgspec import Meta, Struct

from protocol.settings import SettingError, build, parse


class Mode(StrEnum):
    FAST = "fast"
    SAFE = "safe"


class Settings(Struct, frozen=True, kw_only=True):
    run_dir: Annotated[str, Meta(min_length=1, description="where sockets are")]
    rows: Annotated[int, Meta(ge=1, le=512, description="rows at most, 100% of them")] = 64
    rows_ahead: Annotated[int, Meta(ge=0, le=4)] = 1
    share: Annotated[float, Meta(gt=0, le=1)] = 0.5
    eager: bool = False
    mode: Mode = Mode.SAFE
    limit: Annotated[int, Meta(ge=0, description="limit, if any")] | None = None
    option: tuple[Annotated[str, Meta(max_length=8)], ...] = ()


def read(*line: str, **environment: str) -> Settings:
    return parse(Settings, ["--run-dir=r", *line], environment, prog="p", description="d")


def test_defaults_hold_where_nothing_is_said():
    assert read() == Settings(run_dir="r")


def test_each_kind_of_value_is_read_from_flags():
    line = "--rows 8 --share 0.25 --eager --mode fast --limit 3 --option a=1 b=2"
    assert read(*line.split()) == Settings(
        run_dir="r", rows=8, share=0.25, eager=True, mode=Mode.FAST, limit=3, option=("a=1", "b=2")
    )


def test_each_kind_of_value_is_read_from_the_environment():
    environment = {
        "TANDEM_ROWS": "8",
        "TANDEM_SHARE": "0.25",
        "TANDEM_EAGER": "true",
        "TANDEM_MODE": "fast",
        "TANDEM_LIMIT": "3",
        "TANDEM_OPTION": "a=1,b=2",
    }
    assert read(**environment) == Settings(
        run_dir="r", rows=8, share=0.25, eager=True, mode=Mode.FAST, limit=3, option=("a=1", "b=2")
    )


def test_flags_win_over_the_environment():
    assert read("--rows", "7", "--no-eager", TANDEM_ROWS="8", TANDEM_EAGER="true").rows == 7
    assert not read("--no-eager", TANDEM_EAGER="true").eager


def test_an_empty_variable_is_not_set_and_other_peoples_are_not_read():
    assert read(TANDEM_ROWS="", ROWS="3") == Settings(run_dir="r")


FILE = {"rows": 5, "rows-ahead": 2, "share": 0.25, "mode": "fast", "option": {"a": 1, "b": "x"}}


def test_a_file_goes_before_defaults_and_after_environment_and_flags():
    flags, environment = {"run_dir": "r", "rows": "7"}, {"TANDEM_ROWS": "6", "TANDEM_SHARE": "0.75"}
    assert build(Settings, flags, environment, FILE) == Settings(
        run_dir="r", rows=7, rows_ahead=2, share=0.75, mode=Mode.FAST, option=("a=1", "b=x")
    )


def test_a_files_names_may_be_written_with_underscores_and_a_list_may_be_one_value():
    read = build(Settings, {"run_dir": "r"}, {}, {"rows_ahead": 3, "option": "a=1"})
    assert (read.rows_ahead, read.option) == (3, ("a=1",))


@pytest.mark.parametrize(
    ("environment", "file", "named"),
    [
        ({"TANDEM_ROWS": "0"}, {}, ["TANDEM_ROWS '0'", ">= 1"]),
        ({}, {"rows-ahead": 9}, ["rows-ahead: 9", "<= 4"]),
        ({}, {"row-ahead": 1}, ["'row-ahead'", "did you mean rows-ahead?"]),
        ({}, {"zzz": 1}, ["no setting 'zzz'"]),
    ],
)
def test_a_wrong_value_is_named_as_it_was_given(environment, file, named):
    with pytest.raises(SettingError) as caught:
        build(Settings, {"run_dir": "r"}, environment, file)
    assert all(word in str(caught.value) for word in named), caught.value


def test_an_unknown_flag_is_answered_with_the_one_that_was_meant(capsys):
    with pytest.raises(SystemExit):
        read("--row", "3")
    assert "did you mean --rows?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ({"rows": "0"}, ["--rows '0'", ">= 1"]),
        ({"rows": "many"}, ["--rows 'many'"]),
        ({"rows": "8", "rows_ahead": "9"}, ["--rows-ahead '9'", "<= 4"]),
        ({"share": "nan"}, ["--share 'nan'"]),
        ({"mode": "slow"}, ["--mode 'slow'"]),
        ({"limit": "-1"}, ["--limit '-1'"]),
        ({"option": ["fits", "much too long"]}, ["--option", "8"]),
        ({"run_dir": ""}, ["--run-dir ''"]),
    ],
)
def test_a_wrong_value_is_refused_with_its_flag_and_the_limit(flags, named):
    with pytest.raises(SettingError) as caught:
        build(Settings, {"run_dir": "r"} | flags, {})
    assert all(word in str(caught.value) for word in named), caught.value


def test_a_missing_setting_is_named_as_its_flag():
    with pytest.raises(SettingError, match="--run-dir is missing"):
        build(Settings, {}, {})


def test_a_wrong_command_line_ends_with_status_2_and_says_why(capsys):
    for line in (["--rows", "0"], ["--mode", "slow"], ["--unknown"], []):
        arguments = line if not line else ["--run-dir", "r", *line]
        with pytest.raises(SystemExit) as caught:
            parse(Settings, arguments, {}, prog="p", description="d")
        assert caught.value.code == 2
        assert (line or ["--run-dir"])[0] in capsys.readouterr().err


def test_help_has_each_flag_with_its_description_and_default(capsys):
    with pytest.raises(SystemExit):
        read("--help")
    text = " ".join(capsys.readouterr().out.split())
    for words in (
        "--run-dir DIR where sockets are",
        "rows at most, 100% of them (default: 64)",
        "--eager, --no-eager",
        "{fast,safe}",
        "limit, if any (default: None)",
    ):
        assert words in text
