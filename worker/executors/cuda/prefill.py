"""The prefill lane: prompts go through the layers in quanta, and may be suspended between them.

Quanta are launched eagerly; a layer of a long prompt runs for milliseconds, its launch takes a
fraction of one. What lies between two quanta of a batch (`hidden`, `residual`) stays in the lane's
buffers while the same batch goes on, and is copied aside only when another batch comes between.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from worker.executors.base import PrefillQuantum
from worker.executors.cuda.attention import INT_WORKSPACE, DevicePages, Plan
from worker.executors.cuda.config import CudaConfig
from worker.executors.cuda.kernels.attention_choice import (
    H200_COSTS,
    Heads,
    prefill_backend,
)
from worker.executors.cuda.kernels.sm_count import planned_for
from worker.executors.cuda.kernels.split import Split, cut
from worker.executors.cuda.lane import LaneQueue, Launched
from worker.executors.cuda.layout import Pages, Tokens, flatten, page_rows
from worker.executors.cuda.ops import CudaOps, Placement, Segment
from worker.executors.cuda.partitions import Side
from worker.executors.cuda.slots import Slots
from worker.executors.cuda.staging import HostBuffers, pack, packed_size, pinned
from worker.models.decoder import logits, run_layers
from worker.models.weights import Model

PARTIAL_ROWS = 4096
"""Query rows of all pieces of a batch whose reused context is cut (67 MB for Llama-3.1-8B)."""


@dataclass(slots=True)
class Batch:
    """A prefill batch between its first and its last quantum."""

    tokens: Tokens
    pages: Pages
    row_of: Tensor
    positions: Tensor
    sampled: Tensor
    on_device: DevicePages
    hidden: Tensor
    """Output of the last quantum: the lane's buffer, or the batch's own once parked."""
    residual: Tensor | None = None
    layers_done: int = 0
    parked: bool = True
    """Whether `hidden` is the batch's own."""
    plan: Plan | None = None
    planned_sms: int = 0


class PrefillLane:
    """Launches prefill quanta."""

    def __init__(
        self, model: Model, config: CudaConfig, ops: CudaOps, slots: Slots, queue: LaneQueue
    ) -> None:
        self._model, self._config, self._ops = model, config, ops
        self._slots, self._queue = slots, queue
        self._device = model.weights.embed.device
        self._home = queue.side(0).stream
        """Memory is taken on behalf of one stream, so that the others keep no cache of their own;
        the lane's order makes that safe."""
        device = self._device
        self._plans = HostBuffers(lambda: pinned(INT_WORKSPACE, torch.uint8, device))
        self._batches: dict[int, Batch] = {}
        self._active: Batch | None = None

    def __len__(self) -> int:
        """Batches between their first quantum and their last."""
        return len(self._batches)

    def discard(self, batch: int) -> None:
        """Drop a batch that will not go on."""
        if self._batches.pop(batch, None) is self._active:
            self._active = None

    def launch(self, quantum: PrefillQuantum) -> None:
        """Queue a quantum. Raises ValueError for one that is over a limit or out of turn."""
        self._check(quantum)
        self._slots.apply(quantum.inits, quantum.tables)
        side = self._queue.side(quantum.partition)
        with (
            self._queue.launching(quantum.ticket, quantum.partition) as work,
            planned_for(side.sms),
        ):
            self._launch(quantum, work)

    def _check(self, quantum: PrefillQuantum) -> None:
        count = sum(len(row.token_ids) for row in quantum.rows)
        if count > self._config.max_prefill_tokens:
            raise ValueError(
                f"batch {quantum.batch}: {count} tokens exceed the limit of"
                f" {self._config.max_prefill_tokens}"
            )
        known = self._batches.get(quantum.batch)
        done = 0 if known is None else known.layers_done
        if quantum.layer_start != done or not done < quantum.layer_end <= self._layers:
            raise ValueError(
                f"batch {quantum.batch}: layers {quantum.layer_start} to {quantum.layer_end} asked"
                f" for, {done} of {self._layers} done"
            )

    @property
    def _layers(self) -> int:
        return self._model.config.num_layers

    def _launch(self, quantum: PrefillQuantum, work: Launched) -> None:
        first = quantum.layer_start == 0
        batch = self._start(quantum, work) if first else self._batches[quantum.batch]
        self._switch_to(batch)
        is_last = quantum.layer_end == self._layers
        drawing = batch.tokens.sampled_slots if is_last else ()
        draw_plan = self._slots.plan(drawing) if drawing else None
        plan = self._plan(batch, work)
        work.start.record()
        self._run(batch, quantum.layer_end, plan, work.side)
        if draw_plan is not None:
            rows = logits(self._ops, self._model, batch.hidden, batch.residual, batch.sampled)
            work.draw = self._slots.draw(rows, drawing, draw_plan)
        if is_last:
            self.discard(quantum.batch)

    def _start(self, quantum: PrefillQuantum, work: Launched) -> Batch:
        """Bring a batch's description to the device, and embed its tokens."""
        tokens = flatten(quantum.rows)
        slots = [row.slot for row in quantum.rows]
        pages = page_rows(self._slots.tables, slots, tokens.lengths, self._config.page_size)
        arrays = [tokens.ids, tokens.positions, tokens.row_of, tokens.indptr, tokens.sampled,
                  pages.indptr, pages.last, pages.indices]  # fmt: skip
        size = packed_size(arrays)
        host = work.stage(HostBuffers(lambda: pinned(size, torch.int32, self._device)))
        places = pack(arrays, host)
        metadata = self._empty((size,), torch.int32)
        metadata.copy_(host, non_blocking=True)
        ids, positions, row_of, qo, sampled, indptr, last, indices = (
            metadata[offset : offset + length] for offset, length in places
        )
        embedding = self._model.weights.embed
        hidden = self._empty((len(tokens.ids), embedding.shape[1]), embedding.dtype)
        torch.index_select(embedding, 0, ids, out=hidden)
        on_device = DevicePages(qo, indptr, indices, last)
        batch = Batch(tokens, pages, row_of, positions, sampled, on_device, hidden)
        self._batches[quantum.batch] = batch
        return batch

    def _empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        with torch.cuda.stream(self._home):
            return torch.empty(shape, dtype=dtype, device=self._device)

    def _switch_to(self, batch: Batch) -> None:
        """Save what the batch before left in the lane's buffers, if it will go on."""
        before = self._active
        if before is not None and before is not batch and not before.parked:
            own = self._empty(tuple(before.hidden.shape), before.hidden.dtype)
            before.hidden = own.copy_(before.hidden)
            before.parked = True
        self._active = batch

    def _plan(self, batch: Batch, work: Launched) -> Plan:
        """Plan the batch's attention, unless it was the last one planned, for as many SMs."""
        if batch.plan is None or batch.planned_sms != work.side.sms:
            batch.plan = self._plan_for(batch, work)
            batch.planned_sms = work.side.sms
            for other in self._batches.values():
                if other is not batch:
                    other.plan = None  # the workspace now holds this batch's
        return batch.plan

    def _plan_for(self, batch: Batch, work: Launched) -> Plan:
        """Choose how this batch attends on the side's SMs, and cut it into work."""
        config, attention = self._model.config, self._ops.attention
        new = np.diff(batch.tokens.indptr)
        reused = batch.tokens.lengths - new
        rows = list(zip(new.tolist(), reused.tolist(), strict=True))
        heads = Heads(config.num_heads, config.num_kv_heads, config.head_dim)
        room = PARTIAL_ROWS if len(batch.tokens.ids) <= PARTIAL_ROWS else 0
        choice = prefill_backend(rows, work.side.sms, heads, H200_COSTS, room)
        split = cut(
            new.tolist(),
            reused.tolist(),
            choice.pieces,
            batch.pages.indptr,
            self._config.page_size,
        )
        if split is None:
            return attention.plan(
                choice.kernel,
                batch.tokens.indptr,
                batch.pages,
                batch.on_device,
                work.stage(self._plans),
            )
        staged = (work.stage(self._plans), work.stage(self._plans))
        return attention.plan_split(split, batch.on_device, staged, self._upload(split, work))

    def _upload(self, split: Split, work: Launched) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Bring to the device where a split's partial rows come from and go to."""
        arrays = [split.gather, split.first, split.step, split.count]
        size = packed_size(arrays)
        host = work.stage(HostBuffers(lambda: pinned(size, torch.int32, self._device)))
        (a, n), (b, rows), (c, _), (d, _) = pack(arrays, host)
        index = self._empty((size,), torch.int32)
        index.copy_(host, non_blocking=True)
        return index[a : a + n], index[b : b + rows], index[c : c + rows], index[d : d + rows]

    def _run(self, batch: Batch, layer_end: int, plan: Plan, side: Side) -> None:
        segment = Segment(0, len(batch.tokens.ids), plan)
        self._ops.place(
            Placement(batch.row_of, batch.positions, batch.on_device, [segment], side.sms)
        )
        batch.hidden, batch.residual = run_layers(
            self._ops,
            self._model,
            batch.hidden,
            batch.residual,
            batch.positions,
            batch.layers_done,
            layer_end,
        )
        batch.layers_done, batch.parked = layer_end, False
