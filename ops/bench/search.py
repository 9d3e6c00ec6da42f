"""`tandem bench search`: the highest rate that keeps the objectives, for one or several schedulers.

Schedulers take turns, run by run, on one worker (`tandem swap`), so that a machine that drifts does
so for all of them. Every run is a result file: a search that was cut off goes on where it was, and
`tandem bench report` draws attainment against rate.
"""

import asyncio
import sys
import time
from collections.abc import Callable, Iterator
from os import environ
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from ops import admin, config, run_dir
from ops.bench.arrivals import ArrivalsError
from ops.bench.bisection import Bisection, why_missed
from ops.bench.measure import measure
from ops.bench.result import Result, load, save
from ops.bench.serve_settings import BenchSettings, CannotBench
from ops.bench.workloads import WorkloadError

SWAP_S = 120.0
AS_IT_IS = "as served"
"""Name of a server's own scheduler, when none is named."""

CANNOT = (CannotBench, WorkloadError, ArrivalsError)

Run = Callable[[str, BenchSettings], Result]
"""(scheduler, settings) → a run."""


class SearchSettings(BenchSettings, frozen=True, kw_only=True):
    """What a search consists of; what each run is, besides. `rate` is the first to be tried;
    results are labelled and named by scheduler and rate, whatever `label` and `output` say.
    """

    schedulers: Annotated[
        tuple[str, ...],
        Meta(description="to compare, each 'NAME [key=value …]', by swaps; default: as served"),
    ] = ()
    run_dir: Annotated[
        str | None, Meta(description="of the server, for swaps; default: the one that runs")
    ] = None
    precision: Annotated[
        float, Meta(gt=0, description="how near the rates kept and missed must be, relative")
    ] = 0.05
    least_rate: Annotated[float, Meta(gt=0, description="look for no rate below this")] = 0.01
    budget_s: Annotated[float, Meta(gt=0, description="begin no run after so many seconds")] = 3600
    folder: Annotated[str, Meta(description="where each run's result goes, and comes from")] = (
        "bench-search"
    )


def main() -> None:
    """Search and print what was found. Exit status 2: cannot be run."""
    chosen = config.parse(
        SearchSettings, sys.argv[1:], prog="tandem bench search", description=__doc__
    )

    def run(scheduler: str, one: BenchSettings) -> Result:
        if scheduler != AS_IT_IS:
            swap(Path(chosen.run_dir) if chosen.run_dir else run_dir.find(environ), scheduler)
        return asyncio.run(measure(one))

    try:
        for line in search(chosen, run, time.monotonic):
            print(line, flush=True)
    except (*CANNOT, run_dir.RunDirError, admin.AdminError) as error:
        print(f"tandem bench search: {error}", file=sys.stderr)
        raise SystemExit(2) from None


def swap(folder: Path, scheduler: str) -> None:
    """Let a scheduler act, given as 'NAME [key=value …]'. Raises CannotBench."""
    name, *options = scheduler.split()
    order = admin.Swap(name, tuple(options))
    reply = admin.ask(folder / run_dir.ADMIN_SOCKET, order, SWAP_S)
    if isinstance(reply, admin.Refused):
        raise CannotBench(f"no swap to {scheduler!r}: {reply.message}")


def search(chosen: SearchSettings, run: Run, clock: Callable[[], float]) -> Iterator[str]:
    """Yield a line for each run, and at the end one for each scheduler. Raises what `run` does."""
    if chosen.demo:
        raise CannotBench("a search needs a server: --demo is of `tandem bench serve`")
    if chosen.rate is None:
        raise CannotBench("--rate is missing: the rate to try first")
    folder, begun = Path(chosen.folder), clock()
    found = {
        name: Bisection(chosen.rate, chosen.precision, chosen.least_rate)
        for name in chosen.schedulers or (AS_IT_IS,)
    }
    while any(bisection.ask() is not None for bisection in found.values()):
        for name, bisection in found.items():
            rate = bisection.ask()
            if rate is None:
                continue
            one = of_run(chosen, name, rate)
            path = folder / f"{name.replace('/', '_').replace(' ', '_')}-{rate:.6g}.json"
            if not path.exists():
                if clock() - begun > chosen.budget_s:
                    yield f"no run was begun after {chosen.budget_s:g} s"
                    yield from map(verdict, found, found.values())
                    return
                save(run(name, one), path)
            yield judged(name, rate, same(path, one), bisection)
    yield from map(verdict, found, found.values())


def judged(name: str, rate: float, result: Result, bisection: Bisection) -> str:
    """Let a run's answer into its search, and say what it was."""
    summary = result.summary
    why = why_missed(summary, result.limits)
    bisection.take(rate, not why)
    late = "; the generator fell behind" if summary.fell_behind else ""
    return f"{name}: {rate:.4g}/s {f'missed: {why}' if why else 'kept'}{late}"


def same(path: Path, one: BenchSettings) -> Result:
    """Return the run of these settings from its file. Raises CannotBench for one of others."""
    result = load(path)
    asked = msgspec.to_builtins(one)
    for name in asked.keys() - {"url", "note", "output"}:
        if result.settings.get(name) != asked[name]:
            was, now = result.settings.get(name), asked[name]
            raise CannotBench(f"{path} is of {name} {was!r}, not {now!r}; use another --folder")
    return result


def of_run(chosen: SearchSettings, scheduler: str, rate: float) -> BenchSettings:
    """Return the settings of one run: equal lengths in every run, but contents that no cache has
    from another one.
    """
    names = BenchSettings.__struct_fields__
    one = BenchSettings(**{name: getattr(chosen, name) for name in names})
    salt = f"{chosen.salt}/{scheduler}/{rate:.6g}"
    return replace(one, rate=rate, salt=salt, label=scheduler, demo=False)


def verdict(name: str, found: Bisection) -> str:
    """Say what is known of one scheduler."""
    best = f"max rate at SLO {found.kept:.4g}/s" if found.kept else "no rate was kept"
    over = f"{found.missed:.4g}/s is too much" if found.missed < float("inf") else "none was missed"
    return f"{name}: {best}; {over}"
