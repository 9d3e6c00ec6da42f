"""Choose a GEMM algorithm by timing, where the heuristic is not good enough.

On the first group of a split, the heuristic told the SM count is within a few percent of the best. On
a remainder group, whose SMs do not all form clusters, and for small row counts, it can be far off.
Candidates come from the heuristic under several SM targets (it offers other tiles for each). Timing is
in two stages: a burst ranks all, then the leaders are timed again for longer, under the load that the
caller provides, because small tiles win a burst and lose once the GPU's power limit holds.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from worker.executors.cuda.kernels.gemm import WORKSPACE_BYTES, Gemm
from worker.executors.cuda.kernels.gemm_library import GemmError, Shape
from worker.executors.cuda.kernels.gemm_plans import GemmChoice, GemmKey

SMALL_CLUSTERS = frozenset({0, 2, 3, 5})
"""cuBLASLt's numbers of the cluster shapes auto, 1x1, 2x1 and 1x2: they fit any group of SMs."""


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """How long to look. Seconds are device time for one key."""

    per_target: int = 16
    """Candidates asked of the heuristic for each SM target."""
    leaders: int = 3
    burst_launches: int = 3
    sustained_s: float = 0.2
    weights: int = 4
    """Copies of the weight that launches rotate through, so that L2 does not flatter small ones."""


@dataclass(frozen=True, slots=True)
class Timed:
    """A choice with its time in seconds per launch."""

    choice: GemmChoice
    seconds: float


def candidates(gemm: Gemm, key: GemmKey, remainder: bool, per_target: int) -> list[GemmChoice]:
    """Return the distinct algorithms that the heuristic offers for `key` under several SM targets.

    `remainder`: keep only clusters that fit a remainder group.
    """
    library = gemm.plans.library
    targets = dict.fromkeys((key.sm_count, 0, 132, 96, 64))
    found: dict[bytes, GemmChoice] = {}
    for target in targets:
        shape = Shape(key.m, key.n, key.k, key.bias, target)
        for offer in library.candidates(shape, WORKSPACE_BYTES, per_target):
            small = library.describe(offer.algorithm)["cluster"] in SMALL_CLUSTERS
            if offer.algorithm not in found and (small or not remainder):
                choice = GemmChoice(offer.algorithm.hex(), key.sm_count, "search")
                found[offer.algorithm] = choice
    return list(found.values())


def search(
    gemm: Gemm,
    key: GemmKey,
    stream: torch.cuda.Stream,
    settings: SearchSettings,
    *,
    remainder: bool,
    under_load: Callable[[], None],
) -> list[Timed]:
    """Time candidates for `key` on `stream`, install and keep the best, return the leaders in order.

    `under_load` queues whatever is to run beside the sustained timing on another stream, for at least
    `settings.sustained_s`; it may do nothing. Raises GemmError when no candidate can run.
    """
    bench = _Bench(gemm, key, stream, settings)
    ranked = [
        Timed(choice, seconds)
        for choice in candidates(gemm, key, remainder, settings.per_target)
        if (seconds := bench.seconds(choice, settings.burst_launches)) is not None
    ]
    if not ranked:
        raise GemmError(f"no candidate runs {key.text()}")
    ranked.sort(key=lambda timed: timed.seconds)
    leaders = []
    for timed in ranked[: settings.leaders]:
        launches = max(settings.burst_launches, int(settings.sustained_s / timed.seconds))
        under_load()
        seconds = bench.seconds(timed.choice, launches)
        leaders.append(Timed(timed.choice, seconds if seconds is not None else float("inf")))
    leaders.sort(key=lambda timed: timed.seconds)
    best = leaders[0]
    tflops = 2e-12 * key.m * key.n * key.k / best.seconds
    choice = GemmChoice(best.choice.algorithm, best.choice.sm_target, "search", round(tflops, 1))
    gemm.plans.install(key, choice)
    return leaders


class _Bench:
    """Random operands for one key, and the time of a choice on them."""

    def __init__(
        self, gemm: Gemm, key: GemmKey, stream: torch.cuda.Stream, settings: SearchSettings
    ) -> None:
        self._gemm, self._key, self._stream = gemm, key, stream
        device = stream.device
        with torch.cuda.stream(stream):
            self._x = torch.randn(key.m, key.k, device=device, dtype=torch.bfloat16)
            self._weights = [
                torch.randn(key.n, key.k, device=device, dtype=torch.bfloat16)
                for _ in range(settings.weights)
            ]
            self._bias = torch.randn(key.n, device=device).bfloat16() if key.bias else None
            self._out = torch.empty(key.m, key.n, device=device, dtype=torch.bfloat16)

    def seconds(self, choice: GemmChoice, launches: int) -> float | None:
        """Return seconds per launch, or None when the algorithm is refused."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        try:
            self._gemm.plans.install(self._key, choice)
            with torch.cuda.stream(self._stream):
                self._launch(0)
                begin.record(self._stream)
                for index in range(launches):
                    self._launch(index)
                end.record(self._stream)
        except GemmError:
            return None
        end.synchronize()
        return begin.elapsed_time(end) / 1e3 / launches

    def _launch(self, index: int) -> None:
        weight = self._weights[index % len(self._weights)]
        self._gemm(self._x, weight, self._bias, sm_count=self._key.sm_count, out=self._out)
