"""Profiles made from a law of our own, so that tests know what the right prediction is."""

import random
from itertools import product

from msgspec.structs import replace

from protocol.control_link import Partition
from scheduler.estimator.fitting import fit
from scheduler.estimator.profile import (
    CorunSample,
    DecodeSample,
    Hardware,
    PrefillSample,
    Profile,
    Shape,
)
from tests.unit.scheduler.world import H200, LAYERS

PREFILL_SIDES = (68, 84, 100, 116, 132)
DECODE_SIDES = (16, 32, 48, 64, 132)
SLOWDOWN = 1.3


def prefill_law(units, prompts):
    """Seconds: compute by units, on top of what a batch costs at least."""
    new = sum(n for n, _ in prompts)
    pairs = sum(n * (r + n / 2) for n, r in prompts)
    return 1e-3 + (new / 42_000 + 2.5e-10 * pairs) * 132 / units


def decode_law(units, rows, context):
    """Seconds: memory traffic, until half of the units draw the whole bandwidth."""
    return (5e-3 + 2e-5 * rows + 2e-8 * context) * max(1.0, 66 / units)


def prefill_samples(noise=0.0, seed=0):
    rng = random.Random(seed)
    return tuple(
        PrefillSample(
            units=units,
            prompts=((new, reused),) * count,
            seconds=prefill_law(units, ((new, reused),) * count) * rng.uniform(1, 1 + noise),
        )
        for units in PREFILL_SIDES
        for new, reused, count in product((64, 512, 1024, 2048, 8192), (0, 4096, 32768), (1, 2))
    )


def decode_samples(noise=0.0, seed=0):
    rng = random.Random(seed)
    return tuple(
        DecodeSample(
            units=units,
            rows=rows,
            context=rows * each,
            seconds=decode_law(units, rows, rows * each) * rng.uniform(1, 1 + noise),
        )
        for units in DECODE_SIDES
        for rows, each in product((1, 4, 16, 64, 128, 256), (256, 2048, 8192))
    )


def corun_samples(slowdown=SLOWDOWN):
    return tuple(
        CorunSample(
            units=units,
            prefill_units=132 - units,
            prompts=((new, reused),),
            rows=64,
            context=64 * 2048,
            seconds=decode_law(units, 64, 64 * 2048) * slowdown,
            solo_s=decode_law(units, 64, 64 * 2048),
        )
        for units in DECODE_SIDES[:-1]
        for new, reused in product((2048, 32768), (0, 32768))
    )


def profile(*, noise=0.0, slowdown=SLOWDOWN, layers=LAYERS, unit="SM", fitted=True):
    taken = Profile(
        taken_at="2026-01-01T00:00:00Z",
        seconds=60.0,
        hardware=Hardware(name="H200", unit=unit, units=132),
        software={"torch": "2"},
        model=Shape(name="m", num_layers=layers, max_model_len=131072),
        partitions=tuple(Partition(p.index, p.prefill_units, p.decode_units) for p in H200),
        prefill=prefill_samples(noise),
        decode=decode_samples(noise),
        corun=corun_samples(slowdown),
    )
    return replace(taken, fit=fit(taken)) if fitted else taken
