"""Settings files: flat or in sections, refused with the file's name when they are wrong."""

from pathlib import Path

import pytest
import yaml

from ops import config
from ops.explain import ExplainSettings
from ops.serve import DEMO_SETTINGS, CannotServe, read
from protocol.settings import SettingError

EXPLAIN = {"prog": "tandem explain", "description": "d"}


def written(folder: Path, text: str) -> str:
    path = folder / "tandem.yaml"
    path.write_text(text)
    return str(path)


def test_flags_go_before_the_environment_which_goes_before_the_file(tmp_path, monkeypatch):
    path = written(tmp_path, "last: 5\njson: true\n")
    parsed = config.parse(ExplainSettings, ["--config", path], **EXPLAIN)
    assert (parsed.last, parsed.json) == (5, True)
    monkeypatch.setenv("TANDEM_LAST", "6")
    assert config.parse(ExplainSettings, ["--config", path], **EXPLAIN).last == 6
    assert config.parse(ExplainSettings, ["--config", path, "--last=7"], **EXPLAIN).last == 7


def test_the_file_itself_may_be_named_in_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("TANDEM_CONFIG", written(tmp_path, "last: 5"))
    assert config.parse(ExplainSettings, [], **EXPLAIN).last == 5


def test_one_file_has_a_section_for_each_command(tmp_path):
    path = written(tmp_path, "serve:\n  port: 9\nexplain:\n  last: 4\n")
    assert config.read(path, "explain") == {"last": 4}
    assert config.read(path, "serve") == {"port": 9}
    assert config.read(path, "swap") == {}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("serve: {port: 9}\nport: 8", "'port' stands beside sections"),
        ("- port", "`name: value`"),
        ("port: [", "not YAML"),
        ("3: 4", "`name: value`"),
    ],
)
def test_a_file_that_says_nothing_clear_is_refused(tmp_path, text, named):
    with pytest.raises(SettingError, match=named):
        config.read(written(tmp_path, text), "serve")


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(SettingError, match=r"absent\.yaml: No such file"):
        config.read(str(tmp_path / "absent.yaml"), "serve")


def test_an_empty_file_changes_nothing(tmp_path):
    assert config.read(written(tmp_path, "# nothing\n"), "serve") == {}


# --- tandem serve ---


def test_a_server_is_described_by_a_file_alone(tmp_path):
    said = {
        "model": "some/folder",
        "served-model-name": ["a", "b"],
        "port": 9,
        "scheduler": "chunked",
        "option": {"token_budget": 64},
    }
    parts = read(["--config", written(tmp_path, yaml.safe_dump(said)), "--port=10"], {})
    assert (parts.worker.model, parts.worker.served_model_name) == ("some/folder", "a")
    assert (parts.gateway.port, parts.gateway.served_model_name) == (10, ("a", "b"))
    assert (parts.scheduler.scheduler, parts.scheduler.option) == ("chunked", ("token_budget=64",))


def test_a_file_without_a_model_is_not_enough(tmp_path):
    with pytest.raises(CannotServe, match="name a model"):
        read(["--config", written(tmp_path, "port: 9")], {})


def test_a_wrong_line_ends_the_command_with_its_name_and_a_hint(tmp_path, capsys):
    with pytest.raises(SystemExit) as caught:
        read(["--config", written(tmp_path, "model: x\nprot: 9")], {})
    assert caught.value.code == 2
    assert "there is no setting 'prot'; did you mean port?" in capsys.readouterr().err


def test_the_demo_has_objectives_that_a_cpu_can_keep_and_the_user_may_choose_others(tmp_path):
    assert read(["--demo"], {}).gateway.slo_tbt_ms == DEMO_SETTINGS["slo-tbt-ms"]
    assert read(["--demo"], {}).scheduler.slo_tbt_ms == DEMO_SETTINGS["slo-tbt-ms"]
    assert read(["--demo", "--slo-tbt-ms=40"], {}).scheduler.slo_tbt_ms == 40
    path = written(tmp_path, "demo: true\nslo_tbt_ms: 70")
    assert read(["--config", path], {}).scheduler.slo_tbt_ms == 70
