"""When requests come: seconds from the start of a run, by a seeded process or from a trace.

Open loop: the times are fixed before the first request is sent, so that a slow server cannot slow
down what it is measured with. Gaps are exponential or gamma, never capped and never rescaled to hit
the asked rate: a cap makes the real load higher than the stated one.
"""

import random
from collections.abc import Sequence
from enum import StrEnum
from itertools import pairwise


class ArrivalsError(ValueError):
    """These arrivals cannot be made. The message names the value."""


class Arrivals(StrEnum):
    """How arrival times are made."""

    POISSON = "poisson"
    GAMMA = "gamma"
    TRACE = "trace"


def drawn(count: int, rate: float, burstiness: float, rng: random.Random) -> list[float]:
    """Return `count` times in seconds whose gaps are gamma distributed with mean 1 / `rate`.

    The coefficient of variation of a gap is `burstiness` ** -0.5: 1 is a Poisson process, less has
    bursts, more is steadier (the parameter of vLLM's benchmark). The first request comes after one
    gap. Raises ArrivalsError.
    """
    if rate <= 0 or burstiness <= 0:
        raise ArrivalsError(f"rate {rate} and burstiness {burstiness} must be above 0")
    times, now = [], 0.0
    for _ in range(count):
        now += rng.gammavariate(burstiness, 1 / (rate * burstiness))
        times.append(now)
    return times


def traced(stamps: Sequence[float], rate: float | None) -> list[float]:
    """Return a trace's times, the first at 0, stretched so that they come at `rate` a second.

    Bursts stay bursts: every gap is multiplied by the same factor. None: as recorded. n requests
    over a span count as n / span. Raises ArrivalsError for stamps that fall or do not spread.
    """
    if any(b < a for a, b in pairwise(stamps)):
        raise ArrivalsError("arrival times of the trace are not in order")
    start = stamps[0] if stamps else 0.0
    times = [stamp - start for stamp in stamps]
    if rate is None or not times:
        return times
    if rate <= 0 or times[-1] <= 0:
        raise ArrivalsError(f"cannot stretch {len(times)} requests over {times[-1]} s to {rate}/s")
    factor = len(times) / times[-1] / rate
    return [time * factor for time in times]
