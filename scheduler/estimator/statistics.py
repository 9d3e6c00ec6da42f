"""How far off predictions are: counts and errors of an estimator at work, for metrics."""

from msgspec import Struct

WEIGHT = 0.02
"""Of a new error in the forgetting means: about the last 50 count."""


class LaneErrors(Struct):
    """Solo-run predictions of one lane against device times, relative errors."""

    count: int = 0
    mean: float = 0.0
    """Forgetting mean of |predicted - measured| / measured."""
    bias: float = 0.0
    """The same with its sign: above 0 predicts too slow."""
    largest: float = 0.0
    """Ever."""

    def add(self, predicted: float, measured: float) -> None:
        """Take a pair, seconds."""
        if measured <= 0:
            return
        error = predicted / measured - 1
        self.count += 1
        weight = max(WEIGHT, 1 / self.count)
        self.mean += weight * (abs(error) - self.mean)
        self.bias += weight * (error - self.bias)
        self.largest = max(self.largest, abs(error))


class GuardErrors(Struct):
    """Worst-case estimates of decode iterations beside prefill."""

    count: int = 0
    exceeded: int = 0
    """Iterations that took longer than the worst case."""
    overestimate: float = 0.0
    """Forgetting mean of worst case / measured - 1."""

    def add(self, worst: float, measured: float) -> None:
        """Take a pair, seconds."""
        if measured <= 0:
            return
        self.count += 1
        self.exceeded += measured > worst
        weight = max(WEIGHT, 1 / self.count)
        self.overestimate += weight * (worst / measured - 1 - self.overestimate)


class Errors(Struct):
    """All of an estimator's."""

    prefill: LaneErrors
    decode: LaneErrors
    guard: GuardErrors


def none_yet() -> Errors:
    """Return the counts before anything was predicted."""
    return Errors(LaneErrors(), LaneErrors(), GuardErrors())
