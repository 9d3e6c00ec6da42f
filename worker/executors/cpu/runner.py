"""Runs launches of one model: batches in, sampled tokens out. Called on the lanes' threads.

State is per slot (page table, last token, sampling), and a slot is in one lane at a time, so the
lanes need no lock between them. What a prefill batch parks between quanta belongs to its lane.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from worker.executors.base import (
    DecodeBatch,
    PrefillQuantum,
    PrefillRow,
    SampledToken,
    SlotInit,
    TableUpdate,
)
from worker.executors.cpu.attention import PagedAttention, Span
from worker.executors.cpu.pool import KvView, PageTables
from worker.models import decoder
from worker.models.rope import rope_table, rotation_tables
from worker.models.torch_ops import TorchOps
from worker.models.weights import Model
from worker.sampling.sampler import Sampler, sampled_tokens


class CpuOps(TorchOps):
    """The decoder's kernels for one batch."""

    def __init__(
        self, norm_eps: float, rotations: tuple[Tensor, Tensor], attention: PagedAttention
    ) -> None:
        super().__init__(norm_eps, rotations)
        self.attention = attention

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See Ops."""
        return self.attention(layer, q, k, v)


@dataclass(slots=True)
class _Parked:
    """A prefill batch between two quanta."""

    ops: CpuOps
    hidden: Tensor
    residual: Tensor | None
    next_layer: int


class Runner:
    """One model on the CPU, with the per-slot state of its requests."""

    def __init__(
        self, model: Model, view: KvView, max_slots: int, max_model_len: int, max_tokens: int
    ) -> None:
        """`max_tokens`: new tokens of one prefill batch at most."""
        config = model.config
        self._model, self._view = model, view
        self._dtype = model.weights.embed.dtype
        self._max_tokens = max_tokens
        self._max_model_len = max_model_len
        self._rotations = rotation_tables(rope_table(config.rope, config.head_dim, max_model_len))
        self._tables = PageTables(max_slots, -(-max_model_len // view.page_size))
        self._last_token = torch.zeros(max_slots, dtype=torch.int64)
        self._sampler = Sampler(
            max_slots, config.vocab_size, config.eos_token_ids, torch.device("cpu")
        )
        self._parked: dict[int, _Parked] = {}

    def decode(self, batch: DecodeBatch) -> tuple[SampledToken, ...]:
        """Run a decode iteration, with its fused chunks."""
        self._prepare(batch.inits, batch.tables)
        spans = [Span(s, at, 1) for s, at in zip(batch.slots, batch.positions, strict=True)]
        ops = self._ops([*spans, *map(_span, batch.chunks)])
        fed = self._last_token[torch.tensor(batch.slots, dtype=torch.int64)]
        tokens = torch.cat((fed, self._token_ids(batch.chunks)))
        layers = self._model.config.num_layers
        hidden, residual = self._run(ops, self._embed(ops, tokens), None, 0, layers)
        drawing = [*range(len(spans))]
        drawing += [len(spans) + i for i, chunk in enumerate(batch.chunks) if chunk.sample]
        slots = [*batch.slots, *(chunk.slot for chunk in batch.chunks if chunk.sample)]
        return self._draw(ops, hidden, residual, drawing, slots)

    def prefill(self, work: PrefillQuantum) -> tuple[SampledToken, ...]:
        """Run a quantum of a prefill batch, from where the one before parked it."""
        self._prepare(work.inits, work.tables)
        parked = self._resume(work)
        hidden, residual = self._run(
            parked.ops, parked.hidden, parked.residual, work.layer_start, work.layer_end
        )
        if work.layer_end < self._model.config.num_layers:
            self._parked[work.batch] = _Parked(parked.ops, hidden, residual, work.layer_end)
            return ()
        drawing = [i for i, row in enumerate(work.rows) if row.sample]
        slots = [work.rows[i].slot for i in drawing]
        return self._draw(parked.ops, hidden, residual, drawing, slots)

    def discard(self, batch: int) -> None:
        """Drop what a prefill batch parked. Unknown batches are no error."""
        self._parked.pop(batch, None)

    def _prepare(self, inits: Sequence[SlotInit], tables: Sequence[TableUpdate]) -> None:
        for init in inits:
            self._sampler.start(init)
        for update in tables:
            self._tables.update(update.slot, update.first, update.pages)

    def _resume(self, work: PrefillQuantum) -> _Parked:
        """Take what was parked, or embed the rows of a batch that begins."""
        if work.layer_start:
            parked = self._parked.pop(work.batch, None)
            if parked is None or parked.next_layer != work.layer_start:
                raise ValueError(
                    f"prefill batch {work.batch} is not parked at layer {work.layer_start}"
                )
            return parked
        new = sum(len(row.token_ids) for row in work.rows)
        if new > self._max_tokens:
            raise ValueError(f"a prefill batch of {new} tokens; at most {self._max_tokens}")
        ops = self._ops([_span(row) for row in work.rows])
        return _Parked(ops, self._embed(ops, self._token_ids(work.rows)), None, 0)

    def _ops(self, spans: list[Span]) -> CpuOps:
        """Make the kernels for a batch. Raises ValueError for what its slots have no room for."""
        for span in spans:
            if span.end > self._max_model_len:
                raise ValueError(f"{span.end} tokens in a sequence; at most {self._max_model_len}")
        attention = PagedAttention(self._view, self._tables, spans, self._dtype)
        return CpuOps(self._model.config.norm_eps, self._rotations, attention)

    def _token_ids(self, rows: Sequence[PrefillRow]) -> Tensor:
        """Concatenate new token ids. Raises ValueError outside the vocabulary."""
        ids = torch.tensor([i for row in rows for i in row.token_ids], dtype=torch.int64)
        size = self._model.config.vocab_size
        if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < size:
            raise ValueError(f"token id {int(ids.max())} is outside the vocabulary of {size}")
        return ids

    def _embed(self, ops: CpuOps, token_ids: Tensor) -> Tensor:
        return decoder.embed(ops, self._model, token_ids)

    def _run(
        self, ops: CpuOps, hidden: Tensor, residual: Tensor | None, first: int, end: int
    ) -> tuple[Tensor, Tensor | None]:
        positions = ops.attention.positions
        return decoder.run_layers(ops, self._model, hidden, residual, positions, first, end)

    def _draw(
        self,
        ops: CpuOps,
        hidden: Tensor,
        residual: Tensor | None,
        spans: list[int],
        slots: list[int],
    ) -> tuple[SampledToken, ...]:
        """Draw a token behind each of the given spans of the batch, and remember it."""
        if not spans:
            return ()
        rows = torch.tensor([ops.attention.last_rows[i] for i in spans])
        logits = decoder.logits(ops, self._model, hidden, residual, rows)
        plan = self._sampler.plan(slots)
        drawn = self._sampler.draw(logits, plan)
        self._last_token[plan.slots] = drawn.tokens
        return sampled_tokens(slots, plan, drawn)


def _span(row: PrefillRow) -> Span:
    return Span(row.slot, row.start, len(row.token_ids))
