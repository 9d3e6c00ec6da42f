"""Choose GEMM algorithms by timing, where the heuristic is not good enough.

On a remainder group, whose SMs do not all form clusters, timing finds algorithms up to 1.6 times as
fast as the best guess; on a first group up to 8 %. It has two stages: a burst ranks all candidates,
then the leaders are timed again for longer, in turns, because small tiles win a burst and lose once
the GPU's power limit holds, and because clocks drift. A choice is kept on disk (gemm_plans.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from worker.executors.cuda.kernels.gemm import Gemm, Progress
from worker.executors.cuda.kernels.gemm_library import GemmError
from worker.executors.cuda.kernels.gemm_plans import GemmChoice, GemmKey


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """How long to look. Seconds are device time."""

    leaders: int = 3
    """Candidates that are timed again; the heuristic's own choice is one more."""
    rounds: int = 3
    """Turns in which the leaders are timed."""
    burst_s: float = 0.0005
    sustained_s: float = 0.01
    """Per leader, over all rounds."""
    sustained_large_s: float = 0.12
    """The same for products of `large_rows` or more, which the power limit slows."""
    large_rows: int = 512


@dataclass(frozen=True, slots=True)
class Timed:
    """A choice with its time in seconds per launch."""

    choice: GemmChoice
    seconds: float


def tune(
    gemm: Gemm,
    wanted: Sequence[tuple[GemmKey, Sequence[Tensor], torch.cuda.Stream]],
    settings: SearchSettings,
    progress: Progress,
) -> int:
    """Search for every key that has no searched choice yet; return how many were searched.

    With each key come the matrices that launches rotate through (those of several layers, so that
    no cache flatters a candidate) and the stream of its partition. The device is otherwise idle.
    About 0.1 s a key, 0.4 s from `settings.large_rows` on; choices are saved after every 64.
    """
    searched = 0
    for done, (key, weights, stream) in enumerate(wanted, start=1):
        kept = gemm.plans.store.get(key)
        if kept is None or kept.source != "search":
            search(gemm, key, weights, stream, settings)
            searched += 1
            if searched % 64 == 0:
                gemm.plans.store.save()
        progress(done, len(wanted))
    gemm.plans.store.save()
    return searched


def search(
    gemm: Gemm,
    key: GemmKey,
    weights: Sequence[Tensor],
    stream: torch.cuda.Stream,
    settings: SearchSettings,
) -> list[Timed]:
    """Time candidates for `key` on `stream`, install the best, and return the leaders, best first.

    Raises GemmError when no candidate can run.
    """
    bench = _Bench(gemm, key, weights[: _rotation(key, settings)], stream)
    known = gemm.plans.by_heuristic(key)
    ranked = [
        Timed(choice, seconds)
        for choice in candidates(gemm, key)
        if (seconds := bench.seconds(choice, settings.burst_s)) is not None
    ]
    ranked.sort(key=lambda timed: timed.seconds)
    leaders = [timed.choice for timed in ranked[: settings.leaders]]
    if known.algorithm not in {choice.algorithm for choice in leaders}:
        leaders.append(known)
    large = key.m >= settings.large_rows
    each = (settings.sustained_large_s if large else settings.sustained_s) / settings.rounds
    times = dict.fromkeys(leaders, 0.0)
    for _ in range(settings.rounds):
        for choice in leaders:
            times[choice] += bench.seconds(choice, each) or float("inf")
    final = sorted(
        (Timed(choice, total / settings.rounds) for choice, total in times.items()),
        key=lambda timed: timed.seconds,
    )
    best = final[0]
    if best.seconds == float("inf"):
        raise GemmError(f"no candidate runs {key.text()}")
    tflops = round(2e-12 * key.m * key.n * key.k / best.seconds, 1)
    gemm.plans.install(
        key, GemmChoice(best.choice.algorithm, best.choice.sm_target, "search", tflops)
    )
    return final


def candidates(gemm: Gemm, key: GemmKey) -> list[GemmChoice]:
    """Return the distinct algorithms that the heuristic offers for `key` under several SM targets.

    It offers other tiles for each. All are launched for the key's own SM count.
    """
    found: dict[bytes, GemmChoice] = {}
    for target in dict.fromkeys((key.sm_count, *OTHER_TARGETS)):
        for offer in gemm.plans.offers(key, target):
            choice = GemmChoice(offer.algorithm.hex(), key.sm_count, "search")
            found.setdefault(offer.algorithm, choice)
    return list(found.values())


OTHER_TARGETS = (0, 132, 96, 64)
"""SM targets that candidates are asked for, besides the partition's own."""

L2_TIMES_FOUR = 256 << 20
"""Bytes of weights that launches rotate through where reading them is what takes the time."""


def _rotation(key: GemmKey, settings: SearchSettings) -> int:
    """Return how many matrices to rotate through."""
    if key.m >= settings.large_rows:
        return 2
    return min(8, 2 + L2_TIMES_FOUR // (2 * key.n * key.k))


class _Bench:
    """Random input for one key, and the time of a choice on it.

    Launches are replayed from a graph: a product of 30 µs is otherwise limited by the host.
    """

    def __init__(
        self, gemm: Gemm, key: GemmKey, weights: Sequence[Tensor], stream: torch.cuda.Stream
    ) -> None:
        self._gemm, self._key, self._weights, self._stream = gemm, key, weights, stream
        like = weights[0]
        with torch.cuda.stream(stream):
            self._x = like.new_empty(key.m, key.k).normal_()
            self._bias = like.new_empty(key.n).normal_() if key.bias else None
            self._out = like.new_empty(key.m, key.n)

    def seconds(self, choice: GemmChoice, least_s: float) -> float | None:
        """Return seconds per launch over at least `least_s`, or None when it is refused."""
        try:
            self._gemm.plans.use(self._key, choice)
            with torch.cuda.stream(self._stream):
                self._launch_all()
                graph = torch.cuda.CUDAGraph()
                graph.capture_begin(capture_error_mode="thread_local")
                self._launch_all()
                graph.capture_end()
        except GemmError:
            return None
        once = self._timed(graph, 1)
        replays = int(least_s / (once * len(self._weights)))
        return self._timed(graph, replays) if replays > 1 else once

    def _timed(self, graph: torch.cuda.CUDAGraph, replays: int) -> float:
        begin = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        with torch.cuda.stream(self._stream):
            begin.record(self._stream)
            for _ in range(replays):
                graph.replay()
            end.record(self._stream)
        end.synchronize()
        milliseconds: float = begin.elapsed_time(end)
        return milliseconds / 1e3 / replays / len(self._weights)

    def _launch_all(self) -> None:
        for weight in self._weights:
            self._gemm(self._x, weight, self._bias, sm_count=self._key.sm_count, out=self._out)
