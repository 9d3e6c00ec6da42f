"""Solo-run predictors: MuxWise eq. 1 and 2 for each partition size, piecewise where kernels are.

Matrix products go up in steps of their tiles, so what a batch takes by its new tokens (a decode
batch by its rows) is a measured line, read at the next tile (the next size that is captured). What
attention adds is linear in the sums of the equations, in bands, with coefficients that are never
negative: a longer context never predicts faster, and of two partitions the larger one never slower.
Plain arithmetic: asked at every decision.
"""

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Sequence
from math import ceil, exp, log
from operator import mul
from typing import Generic, TypeVar

from scheduler.estimator.loads import DecodeLoad, PrefillLoad
from scheduler.estimator.profile import Fit, Line, UnitsFit

L = TypeVar("L", DecodeLoad, PrefillLoad)

NEW_BANDS = (128, 512, 2048)
"""New tokens of a prompt up to which each more of them costs attention more than one beyond."""
CONTEXT_BANDS = (4096, 32768, 262144)
"""Ends of the bands of the context of all rows."""
MANY_ROWS = (16, 64)
"""Rows from which on a token of context may cost more: sequences are no longer cut over SMs."""
QUERY_TILE = 128
"""Queries of one head that attention takes together."""
REMEMBERED = 256
"""Loads whose answers are kept, before all are forgotten."""
PREFILL_TERMS = 4 + len(NEW_BANDS)
DECODE_TERMS = 1 + len(CONTEXT_BANDS) + len(MANY_ROWS)


def tiled(new: float, tile: int) -> float:
    """Return new tokens rounded up to what products take: half a tile for few of them, else one."""
    step = tile // 2 if new <= 4 * tile and tile > 1 else tile
    return -(-new // step) * step


def prefill_terms(load: PrefillLoad, units: int, heads: int) -> tuple[float, ...]:
    """Return what is linear in a prefill's time: Σn², Σr, Σr·min(n, band) …, Σn·r, and Σr by the
    rounds in which `units` work off the tiles of one prompt (`heads` 0: no such steps).

    n is the mean over reused tokens: batches are known by their sums.
    """
    reused = load.reused
    if not reused:
        return (load.squared,) + (0.0,) * (PREFILL_TERMS - 1)
    new = load.times_reused / reused
    bands = [reused * (new if new < band else band) for band in NEW_BANDS]
    rounds = 0.0
    if heads:
        prompts = max(1, load.rows)
        if prompts == 1:
            rounds = reused * ceil(ceil(new / QUERY_TILE) * heads / units)
        else:
            rounds = max(reused / prompts, load.times_reused / QUERY_TILE * heads / units)
    return (load.squared, reused, *bands, load.times_reused, rounds)


def decode_terms(load: DecodeLoad) -> tuple[float, ...]:
    """Return what is linear in an iteration's time: Σr by bands, Σr once there are many rows."""
    context, low = load.context, 0
    terms: list[float] = []
    for high in CONTEXT_BANDS:
        terms.append(min(context, high) - low if context > low else 0)
        low = high
    terms.append(max(0, context - low))
    terms += [context if load.rows >= many else 0 for many in MANY_ROWS]
    return tuple(terms)


def read(line: Line, size: float) -> float:
    """Return seconds at `size`: between two points on the straight line, below the first as there,
    beyond the last as the last two go on.
    """
    sizes, seconds = line.sizes, line.seconds
    at = bisect_left(sizes, size)
    if at == 0 or len(sizes) == 1:
        return seconds[0]
    at = min(at, len(sizes) - 1)
    low, high = sizes[at - 1], sizes[at]
    share = (size - low) / (high - low)
    return seconds[at - 1] + share * (seconds[at] - seconds[at - 1])


def dot(theta: Sequence[float], terms: Sequence[float]) -> float:
    """Return the sum of products."""
    return float(sum(map(mul, theta, terms)))


class Predictor(ABC, Generic[L]):
    """One lane's predictor over all partition sizes."""

    def __init__(self, fits: Sequence[UnitsFit]) -> None:
        self._fits = sorted(fits, key=lambda fit: fit.units)
        self._units = [fit.units for fit in self._fits]
        self._known: dict[L, list[float]] = {}
        """Answers, by load: a decision asks for the same ones as the one before."""
        self._between: dict[int, tuple[int, float]] = {}
        """For sizes between two that were profiled: the upper one, and how far up it is."""

    def seconds(self, units: int, load: L) -> float:
        """Return seconds on `units`: between two sizes that were profiled on a straight line of
        logarithms, below the smallest in inverse proportion, above the largest as there.
        """
        times, known = self._at_all(load), self._units
        if units >= known[-1]:
            return times[-1]
        if units <= known[0]:
            return times[0] * known[0] / max(1, units)
        if units not in self._between:
            above = bisect_left(known, units)
            low, high = known[above - 1], known[above]
            self._between[units] = (above, log(units / low) / log(high / low))
        above, share = self._between[units]
        if share == 1.0:
            return times[above]
        slow, fast = times[above - 1], times[above]
        return slow * exp(share * log(fast / slow))

    @abstractmethod
    def evaluate(self, load: L) -> list[float]:
        """Return seconds on the units of each fit, the smallest first."""
        ...

    def _at_all(self, load: L) -> list[float]:
        """Return seconds on every profiled size, the smallest first, none above the one before."""
        times = self._known.get(load)
        if times is None:
            slowest, times = 1e-9, self.evaluate(load)
            for at in range(len(times) - 1, -1, -1):
                times[at] = slowest = max(slowest, times[at])
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            self._known[load] = times
        return times


class PrefillLane(Predictor[PrefillLoad]):
    """Predicts prefills (eq. 1)."""

    def __init__(self, fit: Fit) -> None:
        super().__init__(fit.prefill)
        self._tile, self._heads, self._most = fit.tile, fit.heads, fit.most_new

    def evaluate(self, load: PrefillLoad) -> list[float]:
        """See Predictor. A prompt longer than what was profiled goes through in chunks of that."""
        if load.new <= self._most or load.rows > 1:
            return [self._at_once(fit, load) for fit in self._fits]
        return [self._in_chunks(fit, load) for fit in self._fits]

    def _in_chunks(self, fit: UnitsFit, load: PrefillLoad) -> float:
        most = self._most
        chunks, rest = divmod(load.new, most)
        before = chunks * load.reused + most * (chunks * (chunks - 1) // 2)
        whole = PrefillLoad(most, most * most, most * before, before)
        line = read(fit.line, tiled(most, self._tile)) + fit.theta[0] * most * most
        terms = prefill_terms(whole, fit.units, self._heads)[1:]
        seconds = chunks * line + dot(fit.theta[1:], terms)
        if rest:
            reused = load.reused + chunks * most
            last = PrefillLoad(rest, rest * rest, rest * reused, reused)
            seconds += self._at_once(fit, last)
        return seconds

    def _at_once(self, fit: UnitsFit, load: PrefillLoad) -> float:
        terms = prefill_terms(load, fit.units, self._heads)
        return read(fit.line, tiled(load.new, self._tile)) + dot(fit.theta, terms)


class DecodeLane(Predictor[DecodeLoad]):
    """Predicts iterations (eq. 2)."""

    def __init__(self, fit: Fit) -> None:
        super().__init__(fit.decode)
        self._row_sizes = fit.row_sizes

    def evaluate(self, load: DecodeLoad) -> list[float]:
        """See Predictor."""
        rows, terms = row_size(self._row_sizes, load.rows), decode_terms(load)
        return [read(fit.line, rows) + dot(fit.theta, terms) for fit in self._fits]


def row_size(sizes: Sequence[int], rows: int) -> int:
    """Return the size that so many rows run as."""
    at = bisect_left(sizes, rows)
    return sizes[at] if at < len(sizes) else rows
