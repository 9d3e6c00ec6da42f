"""What a policy asks of a latency estimator, whatever it is built from.

Three numbers: how long decode takes, how long at worst beside a given prefill, and how long prefill
takes. Without a profile they come from `table.py`; with one from `fitted.py`.
"""

from typing import Protocol

from scheduler.estimator.loads import DecodeLoad, PrefillLoad
from scheduler.view import WorkerView


class Estimator(Protocol):
    """Predicts device seconds per partition."""

    def learn(self, view: WorkerView, now: float) -> None:
        """Take the device works that `view` has noted since the last call."""
        ...

    def decode_s(self, view: WorkerView, partition: int, load: DecodeLoad, now: float) -> float:
        """Return seconds of one decode iteration on `partition`, contention left out where the
        estimator knows it apart (DRIFT 3.4).
        """
        ...

    def worst_decode_s(
        self, view: WorkerView, load: DecodeLoad, beside: PrefillLoad, now: float
    ) -> dict[int, float]:
        """Return seconds of one decode iteration at worst, by split, while a prefill of `beside`
        runs on the other side (MuxWise 3.3.2). All splits at once: every decision compares them.
        """
        ...

    def prefill_s(
        self, view: WorkerView, partition: int, load: PrefillLoad, layers: int, now: float
    ) -> float:
        """Return seconds that `load` takes through `layers` layers on `partition`."""
        ...
