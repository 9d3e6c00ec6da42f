"""Draws the next token of each row of a batch, on the device that the logits are on.

`plan` looks at what the rows' requests ask for (known to the host) and `draw` does only that; it
copies nothing back, so launches can be queued behind each other. The order of operations is that of
`protocol.sampling.Sampling`; greedy rows in a mixed batch pay for an argmax and nothing more.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from protocol.data_link import TokenLogprobs
from protocol.sampling import Sampling
from worker.executors.base import SampledToken, SlotInit
from worker.sampling import filters, state
from worker.sampling.random import uniform
from worker.sampling.state import SamplingState

GREEDY_BELOW = 1e-5
"""A temperature below this is greedy: dividing by it would overflow."""
LEAST_LOGPROB = -9999.0
"""What stands for the logarithm of zero, which JSON cannot write."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a batch that share a feature, and their slots: int64 [n] on the device."""

    rows: Tensor
    slots: Tensor


@dataclass(frozen=True, slots=True)
class DrawPlan:
    """What a batch of draws needs; None: no row asks for it."""

    slots: Tensor
    """int64 [rows], each slot at most once."""
    biased: Rows | None
    bias_width: int
    penalized: Rows | None
    held: Rows | None
    """min_tokens: rows whose end ids may be suppressed."""
    random: Rows | None
    top_k: bool
    top_p: bool
    min_p: bool
    logprobs: Rows | None
    logprob_counts: tuple[tuple[int, int], ...]
    """(row, how many of the most likely tokens), in the order of `logprobs`."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """Tensors of one draw, on the device."""

    tokens: Tensor
    """int64 [rows]"""
    drawn: Tensor | None = None
    """Log-probability of the drawn token: float32 [logprob rows]."""
    top_ids: Tensor | None = None
    """int64 [logprob rows, most that any row wants]"""
    top: Tensor | None = None

    def cpu(self) -> "Drawn":
        """Copy to the host, waiting for the device."""
        return Drawn(*(None if t is None else t.cpu() for t in self._all()))  # type: ignore[arg-type]

    def _all(self) -> tuple[Tensor | None, ...]:
        return (self.tokens, self.drawn, self.top_ids, self.top)


class Sampler:
    """Sampling of all slots of one model on one device."""

    def __init__(
        self,
        max_slots: int,
        vocab_size: int,
        eos_token_ids: tuple[int, ...],
        device: torch.device,
    ) -> None:
        self._state = SamplingState(max_slots, vocab_size, device)
        self._eos = eos_token_ids
        self._wishes: dict[int, Sampling] = {}
        self._device = device

    def start(self, init: SlotInit) -> None:
        """A request takes a slot. Raises ValueError for ids outside the vocabulary."""
        self._state.start(init, self._eos)
        self._wishes[init.slot] = init.sampling

    def plan(self, slots: Sequence[int]) -> DrawPlan:
        """Return what drawing for these slots takes. Raises KeyError for a slot never started."""
        wishes = [self._wishes[slot] for slot in slots]
        random = [w.temperature >= GREEDY_BELOW for w in wishes]
        drawing = [w for w, is_random in zip(wishes, random, strict=True) if is_random]
        return DrawPlan(
            slots=self._index(slots),
            biased=self._rows(slots, [bool(w.logit_bias) for w in wishes]),
            bias_width=max((len(w.logit_bias) for w in wishes), default=0),
            penalized=self._rows(slots, [w.has_penalties for w in wishes]),
            held=self._rows(slots, [w.min_tokens > 0 for w in wishes]),
            random=self._rows(slots, random),
            top_k=any(w.top_k > 0 for w in drawing),
            top_p=any(w.top_p < 1.0 for w in drawing),
            min_p=any(w.min_p > 0.0 for w in drawing),
            logprobs=self._rows(slots, [w.logprobs is not None for w in wishes]),
            logprob_counts=tuple(
                (row, w.logprobs) for row, w in enumerate(wishes) if w.logprobs is not None
            ),
        )

    def _index(self, values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self._device)

    def _rows(self, slots: Sequence[int], chosen: list[bool]) -> Rows | None:
        rows = [row for row, is_chosen in enumerate(chosen) if is_chosen]
        if not rows:
            return None
        return Rows(self._index(rows), self._index([slots[row] for row in rows]))

    def draw(self, logits: Tensor, plan: DrawPlan) -> Drawn:
        """Draw a token for each row of `logits` [rows, vocab] and count it.

        Float32 logits are overwritten. Nothing waits for the device.
        """
        logits = logits.float()
        self._adjust(logits, plan)
        tokens = logits.argmax(-1)
        if plan.random is not None:
            tokens[plan.random.rows] = self._draw_random(logits, plan, plan.random)
        self._state.integers[plan.slots, state.INDEX] += 1
        if plan.penalized is not None:
            drawn = tokens[plan.penalized.rows]
            self._state.counts[plan.penalized.slots, drawn] += 1
        if plan.logprobs is None:
            return Drawn(tokens)
        return self._with_logprobs(logits, tokens, plan, plan.logprobs)

    def _adjust(self, logits: Tensor, plan: DrawPlan) -> None:
        """Bias, penalties, and the hold on end ids, in place."""
        arrays = self._state
        if plan.biased is not None:
            slots, width = plan.biased.slots, plan.bias_width
            where = (plan.biased.rows[:, None], arrays.bias_ids[slots, :width])
            logits.index_put_(where, arrays.bias[slots, :width], accumulate=True)
        if plan.penalized is not None:
            rows, slots = plan.penalized.rows, plan.penalized.slots
            logits[rows] = self._penalize(logits[rows], slots)
        if plan.held is not None:
            slots, ends = plan.held.slots, arrays.end_ids[plan.held.slots]
            numbers = arrays.integers[slots]
            early = numbers[:, state.INDEX] < numbers[:, state.MIN_TOKENS]
            hold = torch.zeros(ends.shape, dtype=logits.dtype, device=logits.device)
            hold.masked_fill_(early[:, None] & (ends >= 0), -torch.inf)
            where = (plan.held.rows[:, None], ends.clamp(min=0))
            logits.index_put_(where, hold, accumulate=True)

    def _penalize(self, logits: Tensor, slots: Tensor) -> Tensor:
        """Repetition (prompt and output), then frequency and presence (output)."""
        arrays = self._state
        numbers = arrays.floats[slots]
        counts = arrays.counts[slots]
        written = counts > 0
        seen = written | arrays.in_prompt[slots]
        repetition = numbers[:, state.REPETITION, None]
        repeated = torch.where(logits > 0, logits / repetition, logits * repetition)
        logits = torch.where(seen, repeated, logits)
        logits -= numbers[:, state.FREQUENCY, None] * counts
        logits -= numbers[:, state.PRESENCE, None] * written
        return logits

    def _draw_random(self, logits: Tensor, plan: DrawPlan, random: Rows) -> Tensor:
        """Filter the chosen rows and invert their cumulative distribution at (seed, index)."""
        floats, integers = self._state.floats[random.slots], self._state.integers[random.slots]
        scaled = logits[random.rows] / floats[:, state.TEMPERATURE, None]
        if plan.top_k:
            scaled = filters.keep_top_k(scaled, integers[:, state.TOP_K])
        if plan.top_p:
            scaled = filters.keep_top_p(scaled, floats[:, state.TOP_P])
        if plan.min_p:
            scaled = filters.keep_min_p(scaled, floats[:, state.MIN_P])
        cumulative = torch.softmax(scaled, dim=-1).cumsum(-1, dtype=torch.float64)
        total = cumulative[:, -1]
        at = uniform(integers[:, state.SEED], integers[:, state.INDEX]) * total
        at = torch.minimum(at, torch.nextafter(total, torch.zeros_like(total)))
        return torch.searchsorted(cumulative, at[:, None], right=True)[:, 0]

    def _with_logprobs(self, logits: Tensor, tokens: Tensor, plan: DrawPlan, which: Rows) -> Drawn:
        """Log-probabilities of the adjusted logits, before temperature."""
        logprobs = torch.log_softmax(logits[which.rows], dim=-1)
        drawn = logprobs.gather(-1, tokens[which.rows, None])[:, 0]
        most = max(count for _, count in plan.logprob_counts)
        top, ids = logprobs.topk(min(most, logprobs.shape[-1]), dim=-1)
        return Drawn(tokens, drawn, ids, top)


def sampled_tokens(slots: Sequence[int], plan: DrawPlan, drawn: Drawn) -> tuple[SampledToken, ...]:
    """Turn a draw that is on the host into what a completion carries, one for each row."""
    logprobs: dict[int, TokenLogprobs] = {}
    if drawn.drawn is not None and drawn.top_ids is not None and drawn.top is not None:
        values = drawn.drawn.clamp(min=LEAST_LOGPROB).tolist()
        ids, top = drawn.top_ids.tolist(), drawn.top.clamp(min=LEAST_LOGPROB).tolist()
        for i, (row, count) in enumerate(plan.logprob_counts):
            logprobs[row] = TokenLogprobs(values[i], tuple(ids[i][:count]), tuple(top[i][:count]))
    return tuple(
        SampledToken(slot, token, logprobs.get(row))
        for row, (slot, token) in enumerate(zip(slots, drawn.tokens.tolist(), strict=True))
    )
