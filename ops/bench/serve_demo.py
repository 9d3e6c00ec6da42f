"""`tandem bench serve --demo`: a server of the embedded model, a tiny trace, and the report.

A newcomer's first look at the figures, in a minute or two on any machine. The trace is of a few
conversations on a common system prompt, an eighth of their length, for the model to keep up.
"""

import asyncio
from os import environ
from pathlib import Path

from msgspec.structs import replace

from ops import run_dir, serve
from ops.bench.arrivals import Arrivals
from ops.bench.measure import measure
from ops.bench.result import Result
from ops.bench.serve_settings import BenchSettings, CannotBench
from ops.launch import Launcher
from ops.run_dir import RunDir, RunDirError
from ops.serve_settings import Parts

TRACE = Path(__file__).with_name("demo_trace.jsonl")
FLAGS = ("demo", "--device", "cpu", "--port", "0", "--scheduler", "muxwise")
FOLDER = "bench-demo"
"""Where the result and the report go, unless --output names another file."""


def settings_of(chosen: BenchSettings) -> BenchSettings:
    """Return the demo's settings; where to write, what to call it and the seed are the user's."""
    default = BenchSettings()
    output = chosen.output if chosen.output != default.output else f"{FOLDER}/{default.output}"
    return BenchSettings(
        demo=True,
        workload=str(TRACE),
        requests=0,
        length_scale=0.125,
        arrivals=Arrivals.TRACE,
        seed=chosen.seed,
        slo_tbt_ms=250.0,
        slo_ttft_ms=1000.0,
        slo_ttft_ms_per_token=10.0,
        label=chosen.label or "demo",
        note=chosen.note or "embedded model on the CPU of this machine, generator beside it",
        output=output,
    )


def run(settings: BenchSettings) -> Result:
    """Serve and measure. Raises CannotBench. Imports no pictures: the launcher must be the only
    thread of its process.
    """
    try:
        parts = serve.read(FLAGS, environ)
        serve.check(parts)
        folder = run_dir.create(environ)
    except (serve.CannotServe, RunDirError) as error:
        raise CannotBench(str(error)) from error
    try:
        return asyncio.run(_measured(parts, folder, settings))
    finally:
        folder.close()


async def _measured(parts: Parts, folder: RunDir, settings: BenchSettings) -> Result:
    """Start a server, measure it, and stop it. Raises CannotBench."""
    launcher = serve.launcher_for(parts, folder)
    running = asyncio.create_task(launcher.run())
    try:
        await _serving(launcher, running)
        return await measure(replace(settings, url=launcher.url))
    finally:
        if not running.done():
            launcher.stop()
        await running


async def _serving(launcher: Launcher, running: asyncio.Task[int]) -> None:
    """Wait until the server serves. Raises CannotBench when it ends before."""
    waiting = asyncio.create_task(launcher.serving.wait())
    try:
        await asyncio.wait((waiting, running), return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
    if running.done():
        raise CannotBench(f"the server ended with status {running.result()} before it served")
