"""`tandem explain`: what the scheduler of a running server decided last, and why."""

import socket
import sys
from collections.abc import Sequence
from os import environ, fspath
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from ops import config, run_dir
from scheduler.estimator.statistics import Errors
from scheduler.explain import SOCKET, Explanation

TIMEOUT_S = 10.0


class ExplainSettings(Struct, frozen=True, kw_only=True):
    """Which server, how much, and in which form."""

    run_dir: Annotated[
        str | None, Meta(description="of the server; default: your newest that runs")
    ] = None
    last: Annotated[int, Meta(ge=1, description="decisions to show")] = 10
    json: Annotated[bool, Meta(description="one JSON object instead of text")] = False


class ExplainError(Exception):
    """The scheduler did not answer. The message says why."""


def main(arguments: Sequence[str]) -> int:
    """Print the decisions; 1 when no scheduler answers."""
    asked = config.parse(ExplainSettings, arguments, prog="tandem explain", description=__doc__)
    try:
        folder = Path(asked.run_dir) if asked.run_dir else run_dir.find(environ)
        told = ask(folder / SOCKET, TIMEOUT_S)
    except (run_dir.RunDirError, ExplainError) as error:
        print(f"tandem explain: {error}", file=sys.stderr)
        return 1
    print(msgspec.json.encode(told).decode() if asked.json else text(told, asked.last))
    return 0


def ask(path: Path, timeout_s: float) -> Explanation:
    """Return what the scheduler that acts says. Raises ExplainError."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(timeout_s)
            connection.connect(fspath(path))
            with connection.makefile("rb") as answer:
                line = answer.read()
    except TimeoutError:
        raise ExplainError(f"{path}: no answer within {timeout_s:g} s") from None
    except OSError as error:
        why = f"{error.strerror}; no scheduler explains itself there"
        raise ExplainError(f"{path}: {why}") from None
    try:
        return msgspec.json.decode(line, type=Explanation)
    except msgspec.DecodeError as error:
        raise ExplainError(f"{path}: the scheduler ended before it answered ({error})") from None


def text(told: Explanation, last: int) -> str:
    """Return it for a person, the newest decision last."""
    lines = [f"{told.policy}  (process {told.pid}, epoch {told.epoch})"]
    if told.errors is not None:
        lines.append("  " + predictions(told.errors))
    for decision in told.decisions[-last:]:
        lines.append(f"  {decision.at - told.now:8.1f} s  plan {decision.seq}: {decision.reason}")
    lines.append(f"  now: {told.latest}")
    return "\n".join(lines)


def predictions(errors: Errors) -> str:
    """Return how good the predictions have been."""
    guard = errors.guard
    share = guard.exceeded / guard.count if guard.count else 0.0
    return (
        f"predictions off in the mean: prefill {errors.prefill.mean:.1%} of {errors.prefill.count},"
        f" decode alone {errors.decode.mean:.1%} of {errors.decode.count}; worst case exceeded by "
        f"{share:.2%} of {guard.count}, above by {guard.overestimate:.1%} in the mean"
    )
