"""`tandem swap`: replace the scheduler of a running server while its streams go on."""

import sys
from collections.abc import Sequence
from os import environ
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from ops import admin, config, run_dir


class SwapSettings(Struct, frozen=True, kw_only=True):
    """One order to replace the scheduler."""

    scheduler: Annotated[str, Meta(description="name of the new one, or module:Class")]
    option: Annotated[
        tuple[admin.Option, ...], Meta(description="its options, each as name=value")
    ] = ()
    run_dir: Annotated[
        str | None, Meta(description="of the server; default: your newest that runs")
    ] = None
    timeout_s: Annotated[float, Meta(gt=0, description="seconds to wait for the answer")] = 120.0


def main(arguments: Sequence[str]) -> int:
    """Order the swap and wait until the new scheduler acts, or say why it does not."""
    asked = config.parse(SwapSettings, arguments, prog="tandem swap", description=__doc__)
    try:
        folder = Path(asked.run_dir) if asked.run_dir else run_dir.find(environ)
        order = admin.Swap(asked.scheduler, asked.option)
        reply = admin.ask(folder / run_dir.ADMIN_SOCKET, order, asked.timeout_s)
    except (run_dir.RunDirError, admin.AdminError) as error:
        print(f"tandem swap: {error}", file=sys.stderr)
        return 1
    if isinstance(reply, admin.Swapped):
        print(f"{reply.scheduler} acts (process {reply.pid}, {reply.seconds:.2f} s)")
        return 0
    why = reply.message if isinstance(reply, admin.Refused) else f"unexpected answer {reply}"
    print(f"tandem swap: {why}; nothing has changed", file=sys.stderr)
    return 1
