"""When prefill batches will be done, and when they should be: what preemption is decided by.

One object per decision: a view, an estimator, and the partition that prefill runs on.
"""

from dataclasses import dataclass

from protocol.control_link import RequestView
from scheduler.batching import Members
from scheduler.estimator.base import Estimator
from scheduler.estimator.loads import DecodeLoad, PrefillLoad
from scheduler.policy import Objectives
from scheduler.view import WorkerView


@dataclass(frozen=True, slots=True)
class Outlook:
    """Predictions of one moment, in seconds; times are on the worker's clock, which is the
    scheduler's too (one host).
    """

    view: WorkerView
    estimator: Estimator
    objectives: Objectives
    partition: int
    """Where both lanes run."""
    now: float

    def seconds(self, requests: tuple[RequestView, ...]) -> float:
        """Return how long these prompts take together, from layer 0."""
        return self.prefill_s(PrefillLoad.of_requests(requests))

    def prefill_s(self, load: PrefillLoad) -> float:
        """Return how long a prefill takes through all layers."""
        return self.estimator.prefill_s(
            self.view, self.partition, load, self.view.num_layers, self.now
        )

    def decode_s(self, load: DecodeLoad) -> float:
        """Return how long an iteration takes."""
        return self.estimator.decode_s(self.view, self.partition, load, self.now)

    def left(self, batch: Members, chunk: int) -> float:
        """Return how long a batch still takes. Layers that are done count when its tokens, at most
        `chunk`, go through them together; else they are a small part of it.
        """
        requests = self._members(batch)
        whole = self.seconds(requests)
        started = next((b for b in self.view.batches if b.batch == batch), None)
        tokens = PrefillLoad.of_requests(requests).new
        if started is None or not started.layers_total or tokens > chunk:
            return whole
        return whole * (1 - started.layers_done / started.layers_total)

    def due(self, batch: Members) -> float:
        """Return when the first of a batch's first tokens is due; never, if all are out."""
        waiting = (r for r in self._members(batch) if not r.output_tokens)
        return min((self.due_of(r) for r in waiting), default=float("inf"))

    def due_of(self, request: RequestView) -> float:
        """Return when the first token of `request` is due."""
        return request.arrival + self.objectives.ttft_of(request)

    def _members(self, batch: Members) -> tuple[RequestView, ...]:
        return tuple(self.view.requests[ref] for ref in batch)
