"""The command line is what the pages say, and its words mean what vLLM's mean."""

import contextlib
import importlib
import io
import re
from functools import cache
from pathlib import Path

import pytest

from ops.cli import COMMANDS
from ops.config import COMMANDS as SECTIONS
from ops.serve_settings import ServeSettings
from protocol.settings import flag

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
FOREIGN = {
    *("--build", "--detach", "--env", "--no-deps", "--rm"),  # docker compose's
    "--health-check-endpoint",  # sglang-router's
    "--seeds",  # of python -m tests.simulation.run
}
AS_VLLM = {
    *("model", "served_model_name", "host", "port", "dtype", "load_format", "max_model_len"),
    *("max_num_seqs", "gpu_memory_utilization", "otlp_traces_endpoint"),
}
"""Settings of `vllm serve` that Tandem has too."""


@cache
def flags_of(command: str) -> frozenset[str]:
    """Return the flags that a command's help lists."""
    told = io.StringIO()
    with contextlib.redirect_stdout(told), contextlib.suppress(SystemExit):
        importlib.import_module(COMMANDS[command][0]).main(["--help"])
    return frozenset(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", told.getvalue()))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_flag_that_a_page_names_is_some_commands(page: Path) -> None:
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", page.read_text()))
    known = frozenset().union(*(flags_of(command) for command in COMMANDS if command != "bench"))
    assert named - FOREIGN <= known


def test_serve_has_vllms_words_for_what_vllm_has_too() -> None:
    assert set(ServeSettings.__struct_fields__) >= AS_VLLM


def test_every_setting_of_serve_is_in_its_help_with_a_description() -> None:
    listed = flags_of("serve")
    assert {flag(name) for name in ServeSettings.__struct_fields__} <= listed
    assert "--config" in listed


def test_commands_with_settings_have_a_section_in_settings_files() -> None:
    with_settings = {name for name in COMMANDS if "--config" in flags_of(name)}
    assert with_settings <= SECTIONS
