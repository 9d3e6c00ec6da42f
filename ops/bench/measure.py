"""One run of `tandem bench serve`: what was scheduled, sent and written down.

What is sent and when is decided in `serve_settings` before the clock starts.
"""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ops import demo
from ops.bench.client import Generator, Heartbeat, session
from ops.bench.metrics import Outcome
from ops.bench.prompts import Prompts, Vocabulary, bodies
from ops.bench.result import FORMAT, Result, machine
from ops.bench.serve_settings import BenchSettings, CannotBench, Schedule, limits, schedule
from ops.bench.workloads import Item

HEARTBEAT_S = 0.010
HEADSTART_S = 0.1
"""From the start of the clock to the first arrival at the earliest."""
PROBE = Item(input_tokens=8, output_tokens=2)


async def measure(chosen: BenchSettings) -> Result:
    """Run once and return what came of it. Raises CannotBench."""
    if chosen.url is None:
        raise CannotBench("name a server with --url, or give --demo")
    if chosen.token_low >= chosen.token_high:
        raise CannotBench(f"--token-low {chosen.token_low} is not below {chosen.token_high}")
    planned = schedule(chosen)
    url = chosen.url.rstrip("/")
    model = chosen.model or await _listed(url)
    vocabulary = Vocabulary(chosen.token_low, chosen.token_high)
    ready = bodies(model, planned.items, Prompts(f"{chosen.seed}{chosen.salt}", vocabulary))
    first = bodies(model, [PROBE], Prompts(f"{chosen.seed}{chosen.salt}/probe", vocabulary))
    heart = Heartbeat(HEARTBEAT_S)
    async with session() as opened:
        await _probe(url, opened, first[0])
        async with heart.beating():
            outcomes = await _send(url, opened, planned, ready, chosen.drain_s)
    return Result(
        format=FORMAT,
        label=chosen.label or Path(chosen.workload).name,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        machine=machine(),
        note=chosen.note,
        settings=msgspec.to_builtins(chosen),
        limits=limits(chosen),
        lags=tuple(heart.lags),
        outcomes=tuple(outcomes),
    )


async def _listed(url: str) -> str:
    try:
        return await demo.model_name(url)
    except (aiohttp.ClientError, OSError, KeyError, IndexError, ValueError) as error:
        raise CannotBench(f"{url}/v1/models gives no model: {error!r}; name one") from error


async def _probe(url: str, opened: aiohttp.ClientSession, body: bytes) -> None:
    """Ask for two tokens, so that a run that can never work is not begun."""
    clock = asyncio.get_running_loop().time
    one = Generator(url, opened, clock, asyncio.sleep, lambda outcome: None)
    (outcome,) = await one.run([PROBE], [body], [clock()], 60.0)
    if outcome.status != "finished":
        raise CannotBench(f"{url} does not serve a first request: {outcome.detail}")


async def _send(
    url: str,
    opened: aiohttp.ClientSession,
    planned: Schedule,
    ready: Sequence[bytes],
    drain_s: float,
) -> list[Outcome]:
    """Send all with a progress bar."""
    loop = asyncio.get_running_loop()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    shown = Progress(
        *(*columns, TimeElapsedColumn()),
        console=Console(stderr=True),
        transient=True,
        auto_refresh=False,  # its refreshing is a thread
    )
    with shown:
        task = shown.add_task("answered", total=len(ready))

        def over(outcome: Outcome) -> None:
            shown.update(task, advance=1)

        drawing = asyncio.create_task(_draw(shown))
        start = loop.time() + HEADSTART_S

        def clock() -> float:
            return loop.time() - start

        try:
            generator = Generator(url, opened, clock, asyncio.sleep, over)
            return await generator.run(planned.items, ready, planned.times, drain_s)
        finally:
            drawing.cancel()


async def _draw(shown: Progress) -> None:
    """Refresh once a second: a bar that is drawn at every answer delays what is measured."""
    while True:
        shown.refresh()
        await asyncio.sleep(1.0)
