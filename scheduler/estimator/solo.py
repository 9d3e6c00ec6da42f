"""Solo-run predictors: the linear models of MuxWise eq. 1 and 2, one for each partition size.

Coefficients are never negative, so that a longer context never predicts faster, and of two
partitions the larger one is never predicted slower. Plain arithmetic: asked at every decision.
"""

from collections.abc import Callable, Sequence
from math import exp, log
from typing import Generic, TypeVar

from scheduler.estimator.loads import DecodeLoad, PrefillLoad
from scheduler.estimator.profile import Piece, UnitsFit

L = TypeVar("L", DecodeLoad, PrefillLoad)

PREFILL_TERMS, DECODE_TERMS = 4, 3


def prefill_terms(load: PrefillLoad) -> tuple[float, ...]:
    """Return Σn², Σn·r, Σn, 1 (eq. 1)."""
    return (load.squared, load.times_reused, load.new, 1.0)


def decode_terms(load: DecodeLoad) -> tuple[float, ...]:
    """Return Σr, bs, 1 (eq. 2)."""
    return (load.context, load.rows, 1.0)


def shrunk_prefill(load: PrefillLoad, new: float) -> tuple[float, ...]:
    """Return the terms of a batch of the same shape with only `new` tokens to compute."""
    share = new / load.new
    return (load.squared * share * share, load.times_reused * share, new, 1.0)


def shrunk_decode(load: DecodeLoad, rows: float) -> tuple[float, ...]:
    """Return the terms of an iteration over the same context with only `rows` rows."""
    return (load.context, rows, 1.0)


def prefill_s(pieces: Sequence[Piece], load: PrefillLoad) -> float:
    """Return seconds of `load` through all layers, never less than a shorter prompt takes."""
    floor = 0.0
    for piece in pieces[:-1]:
        if load.new <= piece.upto:
            return max(floor, _dot(piece.theta, prefill_terms(load)))
        floor = max(floor, _dot(piece.theta, shrunk_prefill(load, piece.upto)))
    return max(floor, _dot(pieces[-1].theta, prefill_terms(load)))


def decode_s(pieces: Sequence[Piece], load: DecodeLoad) -> float:
    """Return seconds of an iteration, never less than one with fewer rows takes."""
    floor = 0.0
    for piece in pieces[:-1]:
        if load.rows <= piece.upto:
            return max(floor, _dot(piece.theta, decode_terms(load)))
        floor = max(floor, _dot(piece.theta, shrunk_decode(load, piece.upto)))
    return max(floor, _dot(pieces[-1].theta, decode_terms(load)))


def _dot(theta: Sequence[float], terms: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(theta, terms, strict=True))


class Predictor(Generic[L]):
    """One lane's predictor over all partition sizes."""

    def __init__(
        self, fits: Sequence[UnitsFit], evaluate: Callable[[Sequence[Piece], L], float]
    ) -> None:
        self._evaluate: Callable[[Sequence[Piece], L], float] = evaluate
        self._fits = sorted(fits, key=lambda fit: fit.units)
        self._units = [fit.units for fit in self._fits]
        self._load: L | None = None
        self._times: list[float] = []

    def seconds(self, units: int, load: L) -> float:
        """Return seconds on `units`: between two sizes that were profiled on a straight line of
        logarithms, below the smallest in inverse proportion, above the largest as there.
        """
        times, known = self._at_all(load), self._units
        if units >= known[-1]:
            return times[-1]
        if units <= known[0]:
            return times[0] * known[0] / max(1, units)
        above = next(i for i, size in enumerate(known) if size >= units)
        if known[above] == units:
            return times[above]
        low, high = known[above - 1], known[above]
        share = log(units / low) / log(high / low)
        return exp((1 - share) * log(times[above - 1]) + share * log(times[above]))

    def _at_all(self, load: L) -> list[float]:
        """Return seconds on every profiled size, the smallest first, none above the one before."""
        if load != self._load:
            times, slowest = [], 1e-9
            for fit in reversed(self._fits):
                slowest = max(slowest, self._evaluate(fit.pieces, load))
                times.append(slowest)
            self._load, self._times = load, times[::-1]
        return self._times


def prefill_lane(fits: Sequence[UnitsFit]) -> Predictor[PrefillLoad]:
    """Return the predictor of eq. 1."""
    return Predictor(fits, prefill_s)


def decode_lane(fits: Sequence[UnitsFit]) -> Predictor[DecodeLoad]:
    """Return the predictor of eq. 2."""
    return Predictor(fits, decode_s)
