"""`tandem bench`: finds the benchmark and hands the rest of the line to it."""

import importlib
import sys
from collections.abc import Sequence

BENCHMARKS = {
    "serve": ("ops.bench.serve", "load over HTTP, on any OpenAI-compatible server"),
    "search": ("ops.bench.search", "the highest rate that keeps the objectives, by scheduler"),
    "report": ("ops.bench.report", "its page, pictures and tables"),
    "engine": ("ops.bench.engine", "a GPU's frontier: prefill rate against time between tokens"),
    "engine-report": ("ops.bench.engine_report", "its pictures and tables"),
    "cpu-lanes": ("ops.bench.cpu_lanes", "the two lanes on a CPU, policy by policy"),
    "scheduler-time": ("ops.bench.scheduler_time", "how long decisions take, policy by policy"),
    "worker-time": ("ops.bench.worker_time", "processor time of the worker for an iteration"),
    "cpu-lanes-report": ("ops.bench.cpu_lanes_report", "its picture and table"),
}


def main(arguments: Sequence[str]) -> int:
    """Run one benchmark, which prints what it finds. Status 2: there is none of that name."""
    name = arguments[0] if arguments else "--help"
    lines = [f"  {known:<17} {text}" for known, (_, text) in BENCHMARKS.items()]
    if name in ("--help", "-h"):
        print("usage: tandem bench BENCHMARK [--help] …\n")
        print("\n".join(lines))
        return 0
    if name not in BENCHMARKS:
        known = ", ".join(BENCHMARKS)
        print(f"tandem bench: no benchmark {name!r}; known: {known}", file=sys.stderr)
        return 2
    module, _ = BENCHMARKS[name]
    sys.argv = [f"tandem bench {name}", *arguments[1:]]
    importlib.import_module(module).main()
    return 0
