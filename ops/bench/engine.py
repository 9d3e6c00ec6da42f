"""The engine's frontier: how fast prefill goes at which time between tokens.

`tandem bench engine`, or `python -m ops.bench.engine`.
Drives the CUDA executor through its own interface, one mode after the other in one run: each split,
chunked prefill at several budgets, both at once (hybrid), plain streams (shared), lanes in turn
(exclusive), and each lane alone. Writes `frontier.json`; `ops.bench.engine_report` draws it.
"""

import gc
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import torch
from msgspec import Meta, Struct

from ops.bench.engine_load import Case, Load, Mode, drive
from ops.bench.engine_metrics import Measured, measure, prefill_rate
from protocol.model_files import resolve
from protocol.settings import parse
from worker.executors.base import Completion
from worker.executors.cuda.config import CudaConfig
from worker.executors.cuda.start import start
from worker.loaders import load_config, load_dummy, silent
from worker.models.weights import Model

WARM = 6
"""Iterations before the window."""


class EngineSettings(Struct, frozen=True, kw_only=True):
    """What to measure."""

    model: Annotated[str, Meta(description="name of a shape in protocol/shapes")]
    output: Annotated[str, Meta(description="JSON file; points of other models in it are kept")]
    cases: Annotated[
        tuple[str, ...], Meta(description="new:reused:layers of a quantum, one for each case")
    ] = ("8192:0:2",)
    batch: Annotated[int, Meta(ge=1, description="decode rows")] = 64
    context: Annotated[int, Meta(ge=1, description="tokens that a row attends to")] = 2048
    iterations: Annotated[int, Meta(ge=10, description="decode iterations per point")] = 60
    chunks: Annotated[tuple[int, ...], Meta(description="budgets of chunked prefill")] = (
        256,
        512,
        1024,
        2048,
    )
    hybrid: Annotated[
        tuple[str, ...], Meta(description="decode SMs:chunk tokens, for both at once")
    ] = ()
    switch: Annotated[
        tuple[int, ...], Meta(description="two splits, by decode SMs, to change between; or none")
    ] = ()
    modes: Annotated[tuple[str, ...], Meta(description="what to run, in this order")] = (
        "multiplexed",
        "chunked",
        "hybrid",
        "shared",
        "exclusive",
    )


class Bench:
    """One executor and one case; results collect in `points`."""

    def __init__(self, executor: Any, settings: EngineSettings, case: str) -> None:
        self.executor, self.settings = executor, settings
        new, reused, self.quantum = (int(part) for part in case.split(":"))
        self.case = Case(new, reused, settings.batch, settings.context)
        self.load = Load(executor.info, self.case, self.quantum, seed=1)
        self.layers = executor.info.models[0].num_layers
        executor.launch(self.load.setup())
        while not executor.poll():
            time.sleep(1e-3)
        self.solo_prefill, self.solo_decode = 0.0, 0.0

    def run(self, mode: Mode, iterations: int, warm: int = WARM) -> Measured:
        """Measure one mode with both lanes, or with chunks only."""
        trace = drive(self.executor, self.load, mode, iterations + warm, 0)
        return measure(
            trace.decode[: iterations + warm],
            trace.prefill,
            warm=warm - 1,
            rows=self.case.batch,
            tokens=self.case.new,
            layers=self.layers,
            chunk=mode.chunk,
        )

    def decode_alone(self, partition: int, iterations: int) -> Measured:
        """Measure decode with nothing beside it."""
        return self.run(Mode(partition, prefill=False), iterations)

    def prefill_alone(self, partition: int, prompts: int) -> float:
        """Return prompt tokens per second with nothing beside it."""
        per_prompt = -(-self.layers // self.quantum)
        mode = Mode(partition, decode=False)
        trace = drive(self.executor, self.load, mode, 0, per_prompt * (prompts + 1))
        counted = trace.prefill[: per_prompt * (prompts + 1)]
        return prefill_rate(counted, self.case.new, self.layers, per_prompt)

    def point(
        self, mode: str, partition: int, chunk: int | None, found: Measured
    ) -> dict[str, Any]:
        """Return a point in the published form, and print it."""
        settings = self.settings
        gain = found.prefill_rate / self.solo_prefill + found.decode_rate / self.solo_decode
        sms = self.executor.info.partitions[partition].decode_units
        print(
            f"{settings.model} {self.case.new}+{self.case.reused} {mode:11} sms={sms:3}"
            f" chunk={chunk or 0:4}: TBT {found.tbt_p50 * 1e3:6.1f}/{found.tbt_p99 * 1e3:6.1f} ms,"
            f" prefill {found.prefill_rate:7.0f}, decode {found.decode_rate:6.0f} tok/s,"
            f" G {gain:.3f}, gap p99 {found.gap_p99 * 1e6:.0f} us, overlap {found.overlap:.2f}",
            flush=True,
        )
        return {
            **self.key(),
            "decode_batch": settings.batch,
            "context": settings.context,
            "mode": mode,
            "decode_sms": sms,
            "chunk": chunk,
            "tbt_p50_ms": round(found.tbt_p50 * 1e3, 3),
            "tbt_p99_ms": round(found.tbt_p99 * 1e3, 3),
            "prefill_tok_s": round(found.prefill_rate, 1),
            "decode_tok_s": round(found.decode_rate, 1),
            "gain": round(gain, 4),
        }

    def solo(self) -> dict[str, Any]:
        """Measure each lane alone on every partition; the whole device is what gain refers to."""
        result = []
        for row in self.executor.info.partitions:
            decode = self.decode_alone(row.index, 30)
            rate = self.prefill_alone(row.index, 2)
            if row.index == 0:
                self.solo_prefill, self.solo_decode = rate, decode.decode_rate
            print(
                f"solo: prefill on {row.prefill_units} SMs {rate:.0f} tok/s; decode on"
                f" {row.decode_units} SMs {decode.tbt_p50 * 1e3:.2f} ms, gap p99"
                f" {decode.gap_p99 * 1e6:.0f} us",
                flush=True,
            )
            result.append(
                {
                    "prefill_sms": row.prefill_units,
                    "prefill_tok_s": round(rate, 1),
                    "decode_sms": row.decode_units,
                    "decode_ms": round(decode.tbt_p50 * 1e3, 3),
                    "decode_tok_s": round(decode.decode_rate, 1),
                    "gap_p99_us": round(decode.gap_p99 * 1e6, 1),
                }
            )
        return {**self.key(), "rows": result}

    def key(self) -> dict[str, Any]:
        """Return what tells results of this case from others."""
        return {"model": self.settings.model, "new": self.case.new, "reused": self.case.reused}

    def points(self) -> Iterator[dict[str, Any]]:
        """Measure every mode that was asked for."""
        for name in self.settings.modes:
            yield from getattr(self, f"_{name}")()

    def switch(self, before: int, after: int) -> dict[str, Any]:
        """Change the split in the middle of a prefill; return what ran around it, in ms."""
        at, count = 20, 40
        mode = Mode(before, then=after, switch_at=at)
        trace = drive(self.executor, self.load, mode, count, 0)
        origin = trace.decode[at].finished
        rows = self.executor.info.partitions

        def told(done: Completion) -> list[float]:
            return [
                round((done.started - origin) * 1e3, 3),
                round((done.finished - origin) * 1e3, 3),
                done.units,
            ]

        idle = [b.started - a.finished for a, b in pairwise(trace.decode)]
        lane = [done for done, _ in trace.prefill]
        gaps = [b.started - a.finished for a, b in pairwise(lane)]
        return {
            **self.key(),
            "from_decode_sms": rows[before].decode_units,
            "to_decode_sms": rows[after].decode_units,
            "longest_decode_idle_ms": round(max(idle) * 1e3, 3),
            "longest_prefill_idle_ms": round(max(gaps) * 1e3, 3),
            "decode": [told(done) for done in trace.decode[at - 6 : at + 8]],
            "prefill": [told(done) for done in lane if abs(done.finished - origin) < 0.15],
        }

    def _multiplexed(self) -> Iterator[dict[str, Any]]:
        for row in self.executor.info.partitions[1:]:
            found = self.run(Mode(row.index), self.settings.iterations)
            yield self.point("multiplexed", row.index, None, found)

    def _chunked(self) -> Iterator[dict[str, Any]]:
        for chunk in self.settings.chunks:
            per_prompt = -(-self.case.new // chunk)
            prompts = max(1, -(-32 // per_prompt))
            mode = Mode(0, prefill=False, chunk=chunk)
            found = self.run(mode, prompts * per_prompt, warm=per_prompt)
            yield self.point("chunked", 0, chunk, found)

    def _hybrid(self) -> Iterator[dict[str, Any]]:
        table = {row.decode_units: row.index for row in self.executor.info.partitions}
        for item in self.settings.hybrid:
            sms, chunk = (int(part) for part in item.split(":"))
            found = self.run(Mode(table[sms], chunk=chunk), self.settings.iterations)
            yield self.point("hybrid", table[sms], chunk, found)

    def _shared(self) -> Iterator[dict[str, Any]]:
        yield self.point("shared", 0, None, self.run(Mode(0), 24))

    def _exclusive(self) -> Iterator[dict[str, Any]]:
        yield self.point("exclusive", 0, None, self.run(Mode(0, in_turn=True), 32))


def make_executor(settings: EngineSettings) -> Any:
    """Start an executor with random weights of the model's shape, and random keys and values."""
    device = torch.device("cuda", 0)
    shape = load_config(resolve(settings.model))
    weights = load_dummy(shape, 0, device, torch.bfloat16, silent)
    config = CudaConfig(
        device=0,
        max_slots=settings.batch + 8,
        max_model_len=min(shape.max_model_len, 32768),
        max_prefill_tokens=8192 + settings.batch,
        page_size=16,
        num_pages=None,
        memory_utilization=0.9,
        require_partitions=True,
        graph_rows=(settings.batch,),
    )
    executor = start(settings.model, Model(shape, weights), config, lambda *_: None)
    with torch.inference_mode():
        executor.pool.fill()
    torch.cuda.synchronize()
    return executor


def save(path: Path, key: dict[str, Any], found: dict[str, Any]) -> None:
    """Add a case's results to the file, in place of older ones of the same case."""
    kept: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    for name, items in found.items():
        others = [item for item in kept.get(name, []) if not key.items() <= item.items()]
        kept[name] = others + items
    path.write_text(json.dumps(kept, indent=1))


def measure_case(executor: Any, settings: EngineSettings, case: str) -> None:
    """Measure one case; save what there is after every point."""
    bench = Bench(executor, settings, case)
    start_report = {**bench.key(), **asdict(executor.report())}
    found: dict[str, Any] = {"points": [], "solo": [bench.solo()], "starts": [start_report]}
    save(Path(settings.output), bench.key(), found)
    for point in bench.points():
        found["points"].append(point)
        save(Path(settings.output), bench.key(), found)
    rows = {row.decode_units: row.index for row in executor.info.partitions}
    if settings.switch:
        narrow, wide = (rows[sms] for sms in settings.switch)
        found["switches"] = [bench.switch(narrow, wide), bench.switch(wide, narrow)]
        print(found["switches"][0], found["switches"][1], flush=True)
        save(Path(settings.output), bench.key(), found)
    bench.load.close(executor)


def main() -> None:
    """Run all cases on one executor."""
    title = (__doc__ or "").splitlines()[0]
    settings = parse(EngineSettings, sys.argv[1:], {}, prog="bench engine", description=title)
    began = time.monotonic()
    executor = make_executor(settings)
    print(f"started in {time.monotonic() - began:.1f} s: {executor.report()}", flush=True)
    for note in executor.info.notes:
        print(note)
    gc.collect()
    gc.freeze()  # as the worker does: a full collection takes tens of milliseconds
    for case in settings.cases:
        measure_case(executor, settings, case)
    executor.close()


if __name__ == "__main__":
    main()
