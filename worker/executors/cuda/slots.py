"""Device state of running requests: the last token, what sampling needs, and page tables.

Draws feed the next iteration on the device (`last`); the host reads them when the launch is done.
What the host writes when a request starts goes over a stream of its own, which nothing else uses:
such a copy waits for itself only, never for an iteration in flight.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from worker.executors.base import SampledToken, SlotInit, TableUpdate
from worker.executors.cuda.layout import PageTables
from worker.sampling.sampler import Drawn, DrawPlan, Sampler, sampled_tokens


@dataclass(slots=True)
class Draw:
    """Tokens drawn for slots, on their way to the host."""

    slots: tuple[int, ...]
    plan: DrawPlan
    drawn: Drawn
    """On the device; kept so that its memory is not reused before the copy."""
    copied: Drawn
    """In page-locked host memory; valid when the launch has completed."""

    def tokens(self) -> tuple[SampledToken, ...]:
        """Return one token for each slot."""
        return sampled_tokens(self.slots, self.plan, self.copied)


class Slots:
    """All slots of one model."""

    def __init__(
        self,
        sampler: Sampler,
        max_slots: int,
        pages_per_slot: int,
        device: torch.device,
    ) -> None:
        self.tables = PageTables(max_slots, pages_per_slot)
        self.last = torch.zeros(max_slots + 1, dtype=torch.int64, device=device)
        """Last token of each slot; the entry behind them is what padded rows feed."""
        self.padding = max_slots
        self._sampler = sampler
        self._uploads = torch.cuda.Stream(device)
        self._started = 0
        self._plans: dict[tuple[int, ...], tuple[int, DrawPlan]] = {}
        self.observe: Callable[[tuple[int, ...], Tensor], None] | None = None
        """Sees slots and logits of every draw, on the lane's stream; None in service."""

    def apply(self, inits: Sequence[SlotInit], updates: Sequence[TableUpdate]) -> None:
        """Take in what rides in a batch."""
        self.tables.update(updates)
        if not inits:
            return
        self._started += 1
        with torch.cuda.stream(self._uploads):
            for init in inits:
                self._sampler.start(init)
            self._uploads.synchronize()

    def plan(self, slots: tuple[int, ...]) -> DrawPlan:
        """Return how to draw for these slots; what the last calls asked for is kept."""
        known = self._plans.get(slots)
        if known is not None and known[0] == self._started:
            return known[1]
        with torch.cuda.stream(self._uploads):
            plan = self._sampler.plan(slots)
            self._uploads.synchronize()
        self._plans = {key: old for key, old in self._plans.items() if old[0] == self._started}
        self._plans[slots] = (self._started, plan)
        return plan

    def draw(self, logits: Tensor, slots: tuple[int, ...], plan: DrawPlan) -> Draw:
        """Draw from logits [len(slots), vocab] on the current stream, and start the copy."""
        if self.observe is not None:
            self.observe(slots, logits)
        drawn = self._sampler.draw(logits, plan)
        self.last.index_copy_(0, plan.slots, drawn.tokens)
        copied = Drawn(
            _to_host(drawn.tokens),
            None if drawn.drawn is None else _to_host(drawn.drawn),
            None if drawn.top_ids is None else _to_host(drawn.top_ids),
            None if drawn.top is None else _to_host(drawn.top),
        )
        return Draw(slots, plan, drawn, copied)


def _to_host(tensor: Tensor) -> Tensor:
    """Start a copy to page-locked memory."""
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
    return host.copy_(tensor, non_blocking=True)
