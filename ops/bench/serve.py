"""`tandem bench serve`: load from a workload over HTTP, to a result file and some lines of figures.

The command line's part: settings in, figures out. `measure` is the run.
"""

import asyncio
import shlex
import sys
from pathlib import Path

from ops import config
from ops.bench import report, serve_demo
from ops.bench.arrivals import ArrivalsError
from ops.bench.measure import measure
from ops.bench.metrics import Summary
from ops.bench.result import Result, save
from ops.bench.serve_settings import BenchSettings, CannotBench
from ops.bench.workloads import WorkloadError


def main() -> None:
    """Run and say what came of it. Exit status 2: cannot be run; 1: nothing was finished."""
    chosen = config.parse(
        BenchSettings, sys.argv[1:], prog="tandem bench serve", description=__doc__
    )
    try:
        if chosen.demo:
            chosen = serve_demo.settings_of(chosen)
            result = serve_demo.run(chosen)
        else:
            result = asyncio.run(measure(chosen))
    except (CannotBench, WorkloadError, ArrivalsError) as error:
        print(f"tandem bench serve: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    raise SystemExit(finish(result, Path(chosen.output), with_report=chosen.demo))


def finish(result: Result, path: Path, *, with_report: bool) -> int:
    """Save a run and print its figures; return the exit status."""
    save(result, path)
    summary = result.summary
    print("\n".join(lines(summary)))
    print(f"\n{path} has every time")
    if with_report:
        try:
            report.write([result], path.parent)
            print(f"{path.parent / report.PAGE} is the report")
        except ModuleNotFoundError as error:
            print(f"no report: {error}; {report.NEEDED}", file=sys.stderr)
    else:
        print(f"a page of it: tandem bench report {shlex.quote(str(path))}")
    return 0 if summary.finished else 1


def lines(summary: Summary) -> list[str]:
    """Return what a terminal shows of a run."""
    s = summary
    return [
        f"requests    {s.finished} of {s.requests} finished, {s.rejected} rejected, "
        f"{s.failed} failed, {s.unfinished} unfinished",
        f"rate        {s.offered_rps:.3f}/s sent, {s.scheduled_rps:.3f}/s scheduled",
        f"TTFT        P50 {s.ttft.p50:.3f} s, P99 {s.ttft.p99:.3f} s",
        f"TBT         P50 {1e3 * s.tbt.p50:.1f} ms, P99 {1e3 * s.tbt.p99:.1f} ms, "
        f"max {1e3 * s.tbt.max:.1f} ms",
        f"TPOT        P50 {1e3 * s.tpot.p50:.1f} ms, P99 {1e3 * s.tpot.p99:.1f} ms",
        f"SLO         {s.slo_attainment:.1%} attained, goodput {s.goodput_rps:.3f}/s",
        *_warnings(s),
    ]


def _warnings(summary: Summary) -> list[str]:
    found = []
    if summary.fell_behind:
        found.append(
            f"WARNING     the generator fell behind: P99 {1e3 * summary.lateness.p99:.1f} ms late "
            f"in sending, {1e3 * summary.loop_lag.p99:.1f} ms in noticing"
        )
    if summary.queue_grew:
        found.append("WARNING     the queue grew while requests came: more than the server takes")
    return found
