"""`tandem timeline`: record what both lanes of a running server do, for Perfetto or Chrome.

It listens on the control link as a scheduler does that only observes: nothing waits for it, and
nothing that it does can change a plan.
"""

import asyncio
import gzip
import json
import sys
import time
from collections.abc import Sequence
from contextlib import aclosing
from os import environ
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from ops import explain, run_dir
from ops.timelines.figures import lines
from ops.timelines.picture import draw
from ops.timelines.trace import Heard, Recording, trace
from protocol import PROTOCOL_VERSION, settings
from protocol.control_link import (
    ControlToWorker,
    Observe,
    RefusedScheduler,
    Snapshot,
    ToScheduler,
)
from protocol.endpoint import Down, Endpoint, Lost, Received, Up
from protocol.ids import new_id
from protocol.link import LINK
from protocol.pump import pump
from protocol.transport.zeromq import connect
from scheduler.explain import SOCKET, Decision

NAME = "timeline"
EXPLAIN_TIMEOUT_S = 2.0


class TimelineSettings(Struct, frozen=True, kw_only=True):
    """What to record, and where to."""

    run_dir: Annotated[
        str | None, Meta(description="of the server; default: your newest that runs")
    ] = None
    seconds: Annotated[float, Meta(gt=0, le=600, description="to record")] = 5.0
    output: Annotated[
        str, Meta(description="file to write; .gz packs it. Open it at ui.perfetto.dev")
    ] = "timeline.json"
    picture: Annotated[
        str | None, Meta(description="a PNG or SVG of the end of it besides; needs matplotlib")
    ] = None
    picture_seconds: Annotated[float, Meta(gt=0, description="that the picture shows")] = 0.5


class TimelineError(Exception):
    """Nothing could be recorded. The message says why."""


def main(arguments: Sequence[str]) -> int:
    """Record and write; return the exit status."""
    asked = settings.parse(
        TimelineSettings, arguments, {}, prog="tandem timeline", description=__doc__ or ""
    )
    try:
        folder = Path(asked.run_dir) if asked.run_dir else run_dir.find(environ)
        recording = asyncio.run(record(folder, asked.seconds))
        write(recording, Path(asked.output))
        if asked.picture is not None:
            draw(recording, Path(asked.picture), min(asked.picture_seconds, asked.seconds))
    except (run_dir.RunDirError, TimelineError, OSError, ModuleNotFoundError) as error:
        print(f"tandem timeline: {error}", file=sys.stderr)
        return 1
    print("\n".join(lines(recording)))
    print(f"{asked.output}: open it at ui.perfetto.dev or chrome://tracing")
    return 0


def write(recording: Recording, path: Path) -> None:
    """Write the trace, packed when the name ends in .gz."""
    data = json.dumps(trace(recording)).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


async def record(folder: Path, seconds: float) -> Recording:
    """Observe the worker whose sockets are in `folder`. Raises TimelineError."""
    heard: list[Heard] = []
    snapshots: list[Snapshot] = []
    try:
        async with asyncio.timeout(seconds):
            await _listen(folder, snapshots, heard)
    except TimeoutError:
        pass
    if not snapshots:
        raise TimelineError(f"{folder}: no worker answered within {seconds:g} s")
    return Recording(snapshots[0], tuple(heard), _decisions(folder), seconds)


async def _listen(folder: Path, snapshots: list[Snapshot], heard: list[Heard]) -> None:
    """Collect until cancelled; what a gap in the link lost is missing, and nothing else."""
    identity = f"{NAME}-{new_id()}"
    transport = connect(f"ipc://{folder / 'control'}", identity.encode())
    endpoint = Endpoint[ToScheduler, ControlToWorker](transport, ToScheduler, LINK)
    try:
        async with aclosing(pump(endpoint, time.monotonic)) as events:
            async for event in events:
                match event:
                    case Up() | Lost():
                        asked = Observe(identity, NAME, PROTOCOL_VERSION)
                        endpoint.send(asked, time.monotonic())
                    case Down() if snapshots:
                        raise TimelineError("the worker has gone")
                    case Received(message=RefusedScheduler(message=why)):
                        raise TimelineError(why)
                    case Received(message=Snapshot() as snapshot):
                        snapshots.append(snapshot)
                    case Received(message=message):
                        heard.append(Heard(time.monotonic(), message))
    finally:
        endpoint.close()


def _decisions(folder: Path) -> tuple[Decision, ...]:
    """Return what the acting scheduler decided last; nothing when it does not say."""
    try:
        return explain.ask(folder / SOCKET, EXPLAIN_TIMEOUT_S).decisions
    except explain.ExplainError:
        return ()
