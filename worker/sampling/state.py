"""What a draw needs of each request, in arrays on the device, one row for each slot.

Written once when a request takes its slot; counters and penalty counts then move on the device, so
that an iteration can be launched before the one before it has been seen by the host.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from protocol.sampling import MAX_LOGIT_BIAS, MAX_STOP_TOKEN_IDS
from worker.executors.base import SlotInit

MAX_END_IDS = 32
"""End-of-sequence ids of one model at most."""

TEMPERATURE, TOP_P, MIN_P, REPETITION, PRESENCE, FREQUENCY = range(6)
"""Columns of `floats`."""
SEED, INDEX, TOP_K, MIN_TOKENS = range(4)
"""Columns of `integers`; INDEX is the output index of the next draw."""


class SamplingState:
    """Arrays [max_slots, …] on one device."""

    def __init__(self, max_slots: int, vocab_size: int, device: torch.device) -> None:
        def array(width: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros((max_slots, width), dtype=dtype, device=device)

        self.vocab_size = vocab_size
        self.device = device
        self.floats = array(6, torch.float32)
        self.integers = array(4, torch.int64)
        self.bias_ids = array(MAX_LOGIT_BIAS, torch.int64)
        self.bias = array(MAX_LOGIT_BIAS, torch.float32)
        """Zero behind a request's own entries: a batch reads as many as its widest row has."""
        self.end_ids = array(MAX_STOP_TOKEN_IDS + MAX_END_IDS, torch.int64)
        """Padded with -1."""
        self.counts = array(vocab_size, torch.int32)
        """Occurrences in the output, of requests with penalties."""
        self.in_prompt = array(vocab_size, torch.bool)

    def start(self, init: SlotInit, eos_token_ids: Sequence[int]) -> None:
        """Fill a slot. Raises ValueError for a token id that the vocabulary does not have."""
        s, slot = init.sampling, init.slot
        self._check(init, eos_token_ids)
        self._put(
            self.floats[slot],
            [
                s.temperature,
                s.top_p,
                s.min_p,
                s.repetition_penalty,
                s.presence_penalty,
                s.frequency_penalty,
            ],
        )
        self._put(self.integers[slot], [s.seed, len(init.output), s.top_k, s.min_tokens])
        if s.logit_bias:
            self.bias[slot] = 0.0
            self._put(self.bias_ids[slot], [entry.token for entry in s.logit_bias])
            self._put(self.bias[slot], [entry.bias for entry in s.logit_bias])
        if s.min_tokens:
            ends = s.stop_token_ids if s.ignore_eos else (*s.stop_token_ids, *eos_token_ids)
            self.end_ids[slot] = -1
            self._put(self.end_ids[slot], ends)
        if s.has_penalties:
            self._count(slot, init.prompt, init.output)

    def _put(self, row: Tensor, values: Sequence[float]) -> None:
        """Write the first entries of a row."""
        row[: len(values)] = torch.tensor(values, dtype=row.dtype)

    def _count(self, slot: int, prompt: Sequence[int], output: Sequence[int]) -> None:
        self.in_prompt[slot] = False
        self.in_prompt[slot, torch.tensor(prompt, dtype=torch.int64, device=self.device)] = True
        seen = torch.bincount(torch.tensor(output, dtype=torch.int64), minlength=self.vocab_size)
        self.counts[slot] = seen.to(torch.int32)

    def _check(self, init: SlotInit, eos_token_ids: Sequence[int]) -> None:
        s = init.sampling
        if len(eos_token_ids) > MAX_END_IDS:
            raise ValueError(
                f"{len(eos_token_ids)} end-of-sequence ids; at most {MAX_END_IDS} are kept"
            )
        named = [entry.token for entry in s.logit_bias]
        named += s.stop_token_ids if s.min_tokens else ()
        named += (*init.prompt, *init.output) if s.has_penalties else ()
        if named and max(named) >= self.vocab_size:
            raise ValueError(f"token id {max(named)} is outside the vocabulary {self.vocab_size}")
