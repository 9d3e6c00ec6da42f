"""Two lanes on a CPU: what decoding streams and long prompts do to each other, policy by policy.

`python -m ops.bench.cpu_lanes`. Eight streams decode while 1,500-token prompts keep arriving (two
are always waiting or running); every policy has the same executor, in one run, in turn. Writes
`results.json`; `ops.bench.cpu_lanes_report` makes the page of it.
"""

import json
import os
import platform
import random
import sys
import time
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, ClassVar

from msgspec import Meta, Struct
from msgspec.structs import replace

from ops.bench.engine_metrics import percentile
from ops.bench.rig import Rig
from protocol.control_link import Lane
from protocol.data_link import Submit, ToGateway, Tokens
from protocol.ids import RequestRef, pack_tokens, unpack_tokens
from protocol.model_files import resolve
from protocol.sampling import Sampling
from protocol.settings import parse
from scheduler.policies.muxwise import MuxWise, MuxWiseOptions
from scheduler.policy import Objectives, PolicyPlan
from scheduler.registry import make
from scheduler.view import WorkerView
from worker.core.config import CoreConfig
from worker.executors.base import Completion, Executor, Launch, ModelShape, PrefillQuantum
from worker.executors.cpu.start import start
from worker.settings import WorkerSettings

PINNED = "ops.bench.cpu_lanes:Pinned"
STREAMS, STREAM_PROMPT = 8, 64
WAITING = 2
"""Prompts that wait or run at any time."""
OBJECTIVES = Objectives(tbt_s=0.2, ttft_s=10.0)


class LanesSettings(Struct, frozen=True, kw_only=True):
    """What to measure."""

    output: Annotated[str, Meta(description="JSON file to write")]
    model: Annotated[str, Meta(description="a model, as of `tandem serve`")] = "demo"
    seconds: Annotated[float, Meta(gt=0, description="length of each window")] = 40.0
    rounds: Annotated[int, Meta(ge=1, description="windows of each setting, interleaved")] = 2
    prompt: Annotated[int, Meta(ge=1, description="tokens of a prompt")] = 1500
    budgets: Annotated[tuple[int, ...], Meta(description="budgets of chunked prefill")] = (
        32,
        64,
        128,
        256,
        512,
    )


class PinnedOptions(Struct, frozen=True, kw_only=True):
    """Options of `Pinned`."""

    split: int


class Pinned:
    """`muxwise` on one split, where a lane that is alone does not get the whole device either."""

    Options: ClassVar[type[Struct]] = PinnedOptions

    def __init__(self, objectives: Objectives, options: PinnedOptions) -> None:
        self._split = options.split
        self._inner = MuxWise(objectives, MuxWiseOptions(split=options.split))

    def plan(self, view: WorkerView, now: float) -> PolicyPlan:
        """Return muxwise's plan, kept to its side of the split."""
        return replace(self._inner.plan(view, now), alone=self._split)


@dataclass(frozen=True, slots=True)
class Window:
    """One setting, measured once. Milliseconds, and tokens per second."""

    setting: str
    tbt_p50_ms: float
    tbt_p99_ms: float
    tbt_max_ms: float
    prefill_tok_s: float
    decode_tok_s: float
    prefill_busy: float
    """Share of the window in which the prefill lane ran."""
    decode_busy: float


class Streams:
    """Submits both kinds of requests to a rig and records what comes back."""

    def __init__(self, rig: Rig, model: ModelShape, prompt: int, seed: int) -> None:
        self._rig, self._prompt = rig, prompt
        self._model, self._vocab, self._layers = model.name, model.vocab_size, model.num_layers
        self._random = random.Random(seed)
        self._number = 0
        self._open: set[str] = set()
        self.times: dict[str, list[float]] = {}
        self.done: list[Completion] = []
        self._layer_tokens: dict[int, int] = {}
        rig.on_message = self._take
        rig.on_launch = self._launched
        rig.on_completion = self.done.append

    def decode(self, count: int) -> None:
        """Start streams that do not end."""
        for _ in range(count):
            self.times[self._submit("stream", STREAM_PROMPT, 1_000_000)] = []

    def keep_waiting(self, count: int) -> None:
        """Have `count` prompts in the system."""
        while len(self._open) < count:
            self._open.add(self._submit("prompt", self._prompt, 1))

    @property
    def decoding(self) -> bool:
        """Whether all streams have begun."""
        return all(len(times) > 2 for times in self.times.values())

    def _submit(self, kind: str, tokens: int, output: int) -> str:
        self._number += 1
        name = f"{kind}-{self._number}"
        ids = [self._random.randrange(1000, self._vocab) for _ in range(tokens)]
        sampling = Sampling(max_tokens=output, seed=0, temperature=0.0, ignore_eos=True)
        self._rig.submit(
            Submit(
                ref=RequestRef(name),
                model=self._model,
                token_ids=pack_tokens(ids),
                sampling=sampling,
            )
        )
        return name

    def prefilled(self, begin: float, end: float) -> float:
        """Return prompt tokens through all layers between two times; a launch counts in part."""
        return (
            sum(
                self._layer_tokens.get(done.ticket, 0)
                * max(0.0, min(done.finished, end) - max(done.started, begin))
                / (done.finished - done.started)
                for done in self.done
            )
            / self._layers
        )

    def _launched(self, work: Launch) -> None:
        if isinstance(work, PrefillQuantum):
            rows, layers = work.rows, work.layer_end - work.layer_start
        else:
            rows, layers = work.chunks, self._layers
        self._layer_tokens[work.ticket] = layers * sum(len(row.token_ids) for row in rows)

    def _take(self, message: ToGateway, now: float) -> None:
        if not isinstance(message, Tokens):
            return
        for run in message.runs:
            name = run.ref.request
            if name in self._open:
                self._open.remove(name)
            elif name in self.times:
                self.times[name].extend([now] * len(unpack_tokens(run.ids)))


def measure(
    executor: Executor, setting: str, chosen: LanesSettings, streams: int, waiting: int
) -> Window:
    """Run one setting, `policy key=value …`, for one window."""
    policy, *options = setting.split()
    rig = Rig(executor, CoreConfig(), make(policy, OBJECTIVES, options), time.monotonic)
    load = Streams(rig, executor.info.models[0], chosen.prompt, seed=1)
    load.decode(streams)
    while not load.decoding:
        rig.turn()
    load.keep_waiting(waiting)
    settle = time.monotonic() + 0.1 * chosen.seconds
    while (begin := time.monotonic()) < settle:
        rig.turn()
        load.keep_waiting(waiting)
    while time.monotonic() < begin + chosen.seconds:
        rig.turn()
        load.keep_waiting(waiting)
    rig.drain()
    return _window(setting, load, begin, begin + chosen.seconds)


def _window(setting: str, load: Streams, begin: float, end: float) -> Window:
    gaps = [
        1e3 * (b - a)
        for times in load.times.values()
        for a, b in pairwise([t for t in times if begin <= t <= end])
    ] or [0.0]
    span = end - begin
    drawn = sum(begin <= t <= end for times in load.times.values() for t in times)
    return Window(
        setting=setting,
        tbt_p50_ms=percentile(gaps, 0.5),
        tbt_p99_ms=percentile(gaps, 0.99),
        tbt_max_ms=max(gaps),
        prefill_tok_s=load.prefilled(begin, end) / span,
        decode_tok_s=drawn / span,
        prefill_busy=_busy(load.done, Lane.PREFILL, begin, end) / span,
        decode_busy=_busy(load.done, Lane.DECODE, begin, end) / span,
    )


def _busy(done: list[Completion], lane: Lane, begin: float, end: float) -> float:
    spans = [(max(c.started, begin), min(c.finished, end)) for c in done if c.lane is lane]
    return sum(b - a for a, b in spans if b > a)


def pinned(executor: Executor) -> list[str]:
    """Return a setting for each split, to measure a lane alone on its side."""
    return [f"{PINNED} split={p.index}" for p in executor.info.partitions[1:]]


def settings_of(executor: Executor, budgets: tuple[int, ...]) -> list[str]:
    """Return what is compared: each split, each budget, and prefill first."""
    splits = [f"muxwise split={p.index}" for p in executor.info.partitions[1:]]
    chunks = [f"chunked token_budget={budget}" for budget in budgets]
    return [*splits, *chunks, "prefill_first"]


def main() -> None:
    """Measure everything, one setting after the other, and write it down."""
    chosen = parse(
        LanesSettings, sys.argv[1:], os.environ, prog="cpu_lanes", description=__doc__ or ""
    )
    worker = WorkerSettings(run_dir="", model=chosen.model, max_num_seqs=16, cpu_kv_cache_gib=2.0)
    files = resolve(chosen.model)
    executor = start(worker, files.name, files, lambda stage, done, total: None)
    solo, windows = [], []
    for number in range(chosen.rounds):
        for setting in ["prefill_first", *pinned(executor)]:
            for streams, waiting in ((STREAMS, 0), (0, WAITING)):
                solo.append(measure(executor, setting, chosen, streams, waiting))
                print(f"round {number + 1}, solo: {solo[-1]}", flush=True)
        for setting in settings_of(executor, chosen.budgets):
            window = measure(executor, setting, chosen, STREAMS, WAITING)
            print(f"round {number + 1}: {window}", flush=True)
            windows.append(window)
    result = {
        "machine": {
            "cpu": platform.processor() or platform.machine(),
            "cores": executor.info.units,
            "python": platform.python_version(),
            "partitions": [asdict_partition(p) for p in executor.info.partitions],
        },
        "workload": {"streams": STREAMS, "stream_prompt": STREAM_PROMPT, "prompt": chosen.prompt},
        "solo": [asdict(window) for window in solo],
        "windows": [asdict(window) for window in windows],
    }
    Path(chosen.output).write_text(json.dumps(result, indent=1) + "\n")
    executor.close()


def asdict_partition(partition: object) -> dict[str, int]:
    """Return a partition as plain data."""
    return {name: getattr(partition, name) for name in ("index", "prefill_units", "decode_units")}


if __name__ == "__main__":
    main()
