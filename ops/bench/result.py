"""A run on disk: settings, machine, every request's times. Figures are computed from these anew.

One JSON file a run, so that a report can be redone, joined with others', or computed by somebody
else's definitions.
"""

import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec
from msgspec import Struct

from ops.bench.metrics import Limits, Outcome, Summary, summarize

FORMAT = 1
PACKAGES = ("tandem-serve", "aiohttp", "msgspec")


class ResultError(ValueError):
    """A file that is no result. The message names it."""


class Result(Struct, frozen=True, kw_only=True):
    """One run of `tandem bench serve`."""

    format: int
    label: str
    """What the run is called in tables and pictures."""
    created: str
    """UTC, ISO 8601."""
    machine: dict[str, str]
    """Where the generator ran, with its versions. What the server was is in the label and note."""
    note: str
    settings: dict[str, object]
    """All settings of the run, defaults included: the command that repeats it."""
    limits: Limits
    lags: tuple[float, ...]
    """Delays of the generator's event loop, seconds."""
    outcomes: tuple[Outcome, ...]

    @property
    def summary(self) -> Summary:
        """The figures."""
        return summarize(self.outcomes, self.limits, self.lags)


class Saved(Struct, frozen=True):
    """The file: the figures come first, for those who only look at them."""

    summary: Summary
    run: Result


def save(result: Result, path: Path) -> None:
    """Write a run, its folder too if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.encode(Saved(result.summary, result)))


def load(path: Path) -> Result:
    """Read a run. Raises ResultError."""
    try:
        result = msgspec.json.decode(path.read_bytes(), type=Saved).run
    except (OSError, msgspec.MsgspecError) as error:
        raise ResultError(f"{path}: {error}") from error
    if result.format != FORMAT or not result.outcomes:
        raise ResultError(f"{path}: format {result.format}, {len(result.outcomes)} requests")
    return result


def machine() -> dict[str, str]:
    """Return what ran the generator."""
    found = {
        "system": platform.platform(),
        "cpus": str(os.cpu_count()),
        "python": sys.version.split()[0],
    }
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found | {"commit": commit()}


def commit() -> str:
    """Return the commit of this checkout, empty where there is none."""
    here = Path(__file__).parent
    try:
        asked = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"],
            cwd=here,
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return asked.stdout.strip()
