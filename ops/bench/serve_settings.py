"""What a run of `tandem bench serve` is: its settings, and the schedule that follows from them.

Separate from the run, because everything that decides what is measured is fixed here, by seed and
before the first request is sent.
"""

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from ops.bench import arrivals, workloads
from ops.bench.arrivals import Arrivals
from ops.bench.metrics import Limits
from ops.bench.workloads import Item


class CannotBench(Exception):
    """The run cannot be done as asked. The message says what to change."""


class BenchSettings(Struct, frozen=True, kw_only=True):
    """What a run consists of."""

    url: Annotated[str | None, Meta(description="server's address, without /v1")] = None
    demo: Annotated[
        bool, Meta(description="start the embedded model, run a tiny trace, write a report")
    ] = False
    model: Annotated[
        str | None, Meta(description="model to ask for; default: the first that is listed")
    ] = None
    workload: Annotated[
        str, Meta(description="a file, or one of sharegpt, loogle, openthoughts (synthetic)")
    ] = "sharegpt"
    requests: Annotated[int, Meta(ge=0, description="requests to send; 0: all of the file")] = 200
    max_input_tokens: Annotated[
        int, Meta(ge=0, description="leave out requests with more input tokens; 0: none")
    ] = 0
    length_scale: Annotated[
        float, Meta(gt=0, le=1, description="factor of all lengths, for small models")
    ] = 1.0
    arrivals: Annotated[
        Arrivals, Meta(description="arrival times; trace: the file's own, stretched to --rate")
    ] = Arrivals.POISSON
    rate: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        Meta(description="requests a second; a trace needs none"),
    ] = None
    burstiness: Annotated[
        float, Meta(gt=0, description="shape of gamma arrivals: 1 is Poisson, less has bursts")
    ] = 1.0
    seed: Annotated[int, Meta(description="of lengths, contents and arrival times")] = 0
    salt: Annotated[
        str, Meta(description="other contents of equal lengths: no hits in what a run before left")
    ] = ""
    token_low: Annotated[int, Meta(ge=0, description="lowest token id in prompts")] = 1000
    token_high: Annotated[int, Meta(gt=0, description="token ids in prompts stay below")] = 30000
    slo_tbt_ms: Annotated[float, Meta(gt=0, description="objective: time between tokens")] = 50.0
    slo_ttft_ms: Annotated[float, Meta(ge=0, description="objective: time to first token")] = 1000.0
    slo_ttft_ms_per_token: Annotated[
        float, Meta(ge=0, description="added to it for each input token that is not cached")
    ] = 1.0
    gap_share: Annotated[
        float, Meta(ge=0, le=1, description="share of a request's gaps that must keep it")
    ] = 0.99
    drain_s: Annotated[
        float, Meta(ge=0, description="wait so long for answers after the last arrival")
    ] = 120.0
    label: Annotated[str, Meta(description="what the run is called in reports")] = ""
    note: Annotated[str, Meta(description="what else the report should say: hardware, flags")] = ""
    output: Annotated[str, Meta(description="file of the result")] = "bench.json"


@dataclass(frozen=True)
class Schedule:
    """Requests and their times, seconds from the start of the run."""

    items: list[Item]
    times: list[float]


def schedule(chosen: BenchSettings) -> Schedule:
    """Return what is sent and when, by settings and seed alone. Raises CannotBench,
    WorkloadError, ArrivalsError.
    """
    items = [workloads.scaled(item, chosen.length_scale) for item in _items(chosen)]
    rng = random.Random(f"{chosen.seed}/arrivals")
    if chosen.arrivals is Arrivals.TRACE:
        stamps = [item.arrival_s for item in items if item.arrival_s is not None]
        if len(stamps) < len(items):
            raise CannotBench(f"{chosen.workload} has no arrival times; choose other --arrivals")
        return Schedule(items, arrivals.traced(stamps, chosen.rate))
    if chosen.rate is None:
        raise CannotBench(f"--rate is missing; {chosen.arrivals} arrivals need one")
    shape = chosen.burstiness if chosen.arrivals is Arrivals.GAMMA else 1.0
    return Schedule(items, arrivals.drawn(len(items), chosen.rate, shape, rng))


def _items(chosen: BenchSettings) -> list[Item]:
    """Return the workload's requests that are short enough, as many as asked for."""
    most = chosen.max_input_tokens
    if chosen.workload in workloads.SYNTHETIC:
        rng = random.Random(f"{chosen.seed}/lengths")
        found = workloads.synthetic(chosen.workload, chosen.requests, rng)
    else:
        found = workloads.load(Path(chosen.workload))
    fit = [item for item in found if not most or item.input_tokens <= most]
    items = fit[: chosen.requests] if chosen.requests else fit
    if not items:
        raise CannotBench(
            f"{chosen.workload}: {len(found)} requests, none with at most {most} input tokens"
        )
    return items


def limits(chosen: BenchSettings) -> Limits:
    """Return the objectives, in seconds."""
    return Limits(
        tbt_s=chosen.slo_tbt_ms / 1e3,
        ttft_s=chosen.slo_ttft_ms / 1e3,
        ttft_per_token_s=chosen.slo_ttft_ms_per_token / 1e3,
        gap_share=chosen.gap_share,
    )
