"""`tandem status`: what a running server consists of."""

import sys
from collections.abc import Sequence
from os import environ
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from ops import admin, config, run_dir

TIMEOUT_S = 10.0


class StatusSettings(Struct, frozen=True, kw_only=True):
    """Which server, and in which form."""

    run_dir: Annotated[
        str | None, Meta(description="of the server; default: your newest that runs")
    ] = None
    json: Annotated[bool, Meta(description="one JSON object instead of a table")] = False


def main(arguments: Sequence[str]) -> int:
    """Print the status; 1 when no server answers."""
    asked = config.parse(StatusSettings, arguments, prog="tandem status", description=__doc__)
    try:
        folder = Path(asked.run_dir) if asked.run_dir else run_dir.find(environ)
        reply = admin.ask(folder / run_dir.ADMIN_SOCKET, admin.GetStatus(), TIMEOUT_S)
    except (run_dir.RunDirError, admin.AdminError) as error:
        print(f"tandem status: {error}", file=sys.stderr)
        return 1
    assert isinstance(reply, admin.ServerStatus)
    print(msgspec.json.encode(reply).decode() if asked.json else table(reply))
    return 0


def table(status: admin.ServerStatus) -> str:
    """Return the status for a person."""
    lines = [f"{status.url or 'not listening yet'}  (launcher {status.pid}, {status.run_dir})"]
    for process in status.processes:
        pid = process.pid or "-"
        lines.append(
            f"  {process.role:<9} {pid:>8}  {process.state:<8}"
            f" restarts {process.restarts}  {process.detail}".rstrip()
        )
    return "\n".join(lines)
