"""What a policy asks of a latency estimator, whatever it is built from.

Solo-run times with what multiplexing adds already in them where it was measured; the caller
multiplies by its own guard. The profile-built estimator (MuxWise 3.3) fits the same interface.
"""

from typing import Protocol

from scheduler.view import WorkerView


class Estimator(Protocol):
    """Predicts device seconds per partition."""

    def learn(self, view: WorkerView, now: float) -> None:
        """Take the device works that `view` has noted since the last call."""
        ...

    def decode_s(self, view: WorkerView, partition: int, rows: int, now: float) -> float:
        """Return seconds of one decode iteration of `rows` requests on `partition`."""
        ...

    def prefill_s(
        self, view: WorkerView, partition: int, tokens: int, layers: int, now: float
    ) -> float:
        """Return seconds that `tokens` new tokens take through `layers` layers on `partition`."""
        ...
