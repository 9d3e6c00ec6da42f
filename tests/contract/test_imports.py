"""The import rules of DESIGN 7, as import-linter reads them from pyproject.toml, and as processes
really load: no rule on paper helps if `import scheduler.main` pulls torch in."""

import subprocess
import sys
from pathlib import Path

import pytest
from importlinter import cli

ROOT = Path(__file__).parents[2]
HEAVY = {"torch", "flashinfer", "cuda", "safetensors", "transformers"}


def modules_after(statement: str) -> set[str]:
    """Return the modules that a fresh interpreter has after `statement`."""
    code = f"{statement}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return set(done.stdout.split())


def test_every_import_contract_is_kept(capsys):
    status = cli.lint_imports(config_filename=str(ROOT / "pyproject.toml"), no_cache=True)
    assert status == cli.EXIT_STATUS_SUCCESS, capsys.readouterr().out


@pytest.mark.parametrize("module", ["scheduler.main", "protocol.endpoint"])
def test_a_light_process_loads_nothing_heavy(module):
    code = f"import sys, {module}\nprint(*sorted({HEAVY!r} & sys.modules.keys()))".replace(
        repr(HEAVY), repr(set(HEAVY))
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_policies_are_loaded_only_when_they_are_named():
    loaded = modules_after("import scheduler.main")
    assert not {name for name in loaded if name.startswith("scheduler.policies.")}
