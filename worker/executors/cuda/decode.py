"""The decode lane: one token for each running request, and prompt chunks that ride along.

Pure decode replays a CUDA graph captured on the partition's own stream (a graph keeps the SMs that
it was captured on). Steps with chunks run eagerly: with an iteration in flight ahead of them the
host has the length of an iteration to launch the next one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from worker.executors.base import DecodeBatch
from worker.executors.cuda.attention import INT_WORKSPACE, DevicePages, Plan
from worker.executors.cuda.config import CudaConfig, bucket_for
from worker.executors.cuda.kernels.attention_choice import H200_COSTS, Heads, prefill_backend
from worker.executors.cuda.kernels.sm_count import planned_for
from worker.executors.cuda.lane import LaneQueue, Launched
from worker.executors.cuda.layout import Pages, flatten, pad, pad_rows, page_rows
from worker.executors.cuda.ops import CudaOps, Placement, Segment
from worker.executors.cuda.partitions import Side
from worker.executors.cuda.slots import Slots
from worker.executors.cuda.staging import HostBuffers, Ints, pack, pinned
from worker.models.decoder import embed, logits, run_layers
from worker.models.weights import Model


@dataclass(frozen=True, slots=True)
class Inputs:
    """What graphs read, at fixed addresses: views of one device buffer."""

    flat: Tensor
    slots: Tensor
    positions: Tensor
    indptr: Tensor
    last: Tensor
    indices: Tensor
    row_of: Tensor
    qo_indptr: Tensor

    def arrays(self, slots: Ints, positions: Ints, pages: Pages) -> list[Ints]:
        """Return host arrays in the order of the views, each as long as its view but the last."""
        rows = len(self.slots)
        indptr = np.full(rows + 1, pages.indptr[-1], dtype=np.int32)
        indptr[: len(pages.indptr)] = pages.indptr
        last = pad(pages.last.tolist(), rows, 1)
        return [pad(slots.tolist(), rows, 0), pad(positions.tolist(), rows, 0), indptr, last,
                pages.indices]  # fmt: skip


def make_inputs(rows: int, entries: int, device: torch.device) -> Inputs:
    """Make the graph inputs for up to `rows` rows and `entries` page-table entries."""
    lengths = (rows, rows, rows + 1, rows, entries)
    offsets = np.cumsum([0, *(-(-n // 4) * 4 for n in lengths)]).tolist()
    flat = torch.zeros(offsets[-1], dtype=torch.int32, device=device)
    views = [flat[o : o + n] for o, n in zip(offsets, lengths, strict=False)]
    row_of = torch.arange(rows, dtype=torch.int32, device=device)
    qo_indptr = torch.arange(rows + 1, dtype=torch.int32, device=device)
    return Inputs(flat, *views, row_of, qo_indptr)


@dataclass(slots=True)
class Captured:
    """A graph and the layout of the plan that it reads."""

    graph: torch.cuda.CUDAGraph
    info: Any
    logits: Tensor


class DecodeLane:
    """Launches decode iterations."""

    def __init__(
        self, model: Model, config: CudaConfig, ops: CudaOps, slots: Slots, queue: LaneQueue
    ) -> None:
        self._model, self._config, self._ops = model, config, ops
        self._slots, self._queue = slots, queue
        device = model.weights.embed.device
        entries = config.max_slots * config.pages_per_slot
        self._inputs = make_inputs(config.max_slots, entries, device)
        size = self._inputs.flat.numel() + 4 * config.max_prefill_tokens + 4096
        self._metadata = torch.zeros(size, dtype=torch.int32, device=device)
        self._host = HostBuffers(lambda: pinned(size, torch.int32, device))
        self._plans = HostBuffers(lambda: pinned(INT_WORKSPACE, torch.uint8, device))
        self._graphs: dict[tuple[int, int], Captured] = {}
        self._pool: Any = None
        self._scratch = 0

    def bind(self, scratch_page: int) -> None:
        """Say which page padded rows write to."""
        self._scratch = scratch_page

    # --- graphs ---

    def sizes(self) -> tuple[int, ...]:
        """Return the rows that graphs are captured for."""
        return self._config.buckets

    def capture(self, partition: int, rows: int) -> None:
        """Capture the graph of `rows` rows on a partition's stream. Waits for the device."""
        side, work = self._queue.side(partition), self._plans.take()
        with torch.cuda.stream(side.stream), planned_for(side.sms):
            empty = pad_rows(
                Pages(*(np.zeros(n, np.int32) for n in (1, 0, 0))), rows, self._scratch
            )
            plan = self._plan_rows(rows, empty, work, side)
            self._forward(rows, plan, side)  # loads modules and picks algorithms before capture
            side.stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            result = self._forward(rows, plan, side)
            graph.capture_end()
            side.stream.synchronize()
        self._pool = self._pool or graph.pool()
        self._plans.give_back([work])
        self._graphs[partition, rows] = Captured(graph, list(plan.info), result)

    def drop_graphs(self) -> None:
        """Forget all graphs; none of them runs."""
        self._graphs.clear()
        self._pool = None

    def _plan_rows(self, rows: int, pages: Pages, staged: Tensor, side: Side) -> Plan:
        """Plan attention of single-token rows that read the graph inputs."""
        inputs = self._inputs
        views = DevicePages(
            inputs.qo_indptr[: rows + 1],
            inputs.indptr[: rows + 1],
            inputs.indices,
            inputs.last[:rows],
        )
        heads = self._model.config.num_kv_heads
        return self._ops.attention.plan(
            "fa2",
            np.arange(rows + 1, dtype=np.int32),
            pages,
            views,
            staged,
            graph=True,
            split=rows * heads < 2 * side.sms,
        )

    def _forward(self, rows: int, plan: Plan, side: Side) -> Tensor:
        """Run all layers on rows of the graph inputs; return their logits."""
        inputs, model, ops = self._inputs, self._model, self._ops
        positions = inputs.positions[:rows]
        ops.place(
            Placement(
                inputs.row_of[:rows], positions, plan.pages, [Segment(0, rows, plan)], side.sms
            )
        )
        hidden = embed(ops, model, self._slots.last[inputs.slots[:rows]])
        state = run_layers(ops, model, hidden, None, positions, 0, model.config.num_layers)
        return logits(ops, model, *state, None)

    # --- launching ---

    def launch(self, batch: DecodeBatch) -> None:
        """Queue an iteration. Raises ValueError for a batch that is over a limit."""
        tokens = len(batch.slots) + sum(len(chunk.token_ids) for chunk in batch.chunks)
        if len(batch.slots) > self._config.max_slots or tokens > self._config.max_prefill_tokens:
            raise ValueError(
                f"{len(batch.slots)} rows and {tokens} tokens exceed {self._config.max_slots} rows"
                f" and {self._config.max_prefill_tokens} tokens of one forward"
            )
        self._slots.apply(batch.inits, batch.tables)
        side = self._queue.side(batch.partition)
        with self._queue.launching(batch.ticket, batch.partition) as work, planned_for(side.sms):
            bucket = bucket_for(self._config.buckets, len(batch.slots))
            if batch.chunks or bucket is None:
                self._launch_fused(batch, work)
            else:
                self._launch_rows(batch, work, bucket)

    def _launch_rows(self, batch: DecodeBatch, work: Launched, rows: int) -> None:
        draw_plan = self._slots.plan(batch.slots)
        positions = np.asarray(batch.positions, dtype=np.int32)
        pages = page_rows(self._slots.tables, batch.slots, positions + 1, self._config.page_size)
        pages = pad_rows(pages, rows, self._scratch)
        slots = pad(batch.slots, rows, self._slots.padding)
        inputs, host = self._inputs, work.stage(self._host)
        places = pack(inputs.arrays(slots, pad(positions.tolist(), rows, 0), pages), host)
        used = sum(places[-1])
        inputs.flat[:used].copy_(host[:used], non_blocking=True)
        plan = self._plan_rows(rows, pages, work.stage(self._plans), work.side)
        captured = self._graphs.get((batch.partition, rows))
        work.start.record()
        if captured is None:
            result = self._forward(rows, plan, work.side)
        else:
            if list(plan.info) != captured.info:
                raise RuntimeError(f"plan {list(plan.info)} does not fit graph {captured.info}")
            captured.graph.replay()
            result = captured.logits
        work.draw = self._slots.draw(result[: len(batch.slots)], batch.slots, draw_plan)

    def _launch_fused(self, batch: DecodeBatch, work: Launched) -> None:
        """Run decode rows and prompt chunks as one batch, rows first."""
        chunks, rows = flatten(batch.chunks), len(batch.slots)
        drawing = (*batch.slots, *chunks.sampled_slots)
        draw_plan = self._slots.plan(drawing) if drawing else None
        positions = np.asarray(batch.positions, dtype=np.int32)
        slots = (*batch.slots, *(chunk.slot for chunk in batch.chunks))
        lengths = np.concatenate((positions + 1, chunks.lengths))
        pages = page_rows(self._slots.tables, slots, lengths, self._config.page_size)
        qo_indptr = np.concatenate((np.arange(rows, dtype=np.int32), rows + chunks.indptr))
        arrays = [
            np.asarray(batch.slots, dtype=np.int32),
            chunks.ids,
            np.concatenate((positions, chunks.positions)),
            np.concatenate((np.arange(rows, dtype=np.int32), rows + chunks.row_of)),
            qo_indptr,
            chunks.indptr,
            pages.indptr,
            pages.last,
            np.concatenate((np.arange(rows, dtype=np.int32), rows + chunks.sampled)),
            pages.indices,
        ]
        host = work.stage(self._host)
        places = pack(arrays, host)
        used = sum(places[-1])
        self._metadata[:used].copy_(host[:used], non_blocking=True)
        on_device = [self._metadata[offset : offset + length] for offset, length in places]
        segments = self._segments(work, rows, chunks.indptr, qo_indptr, pages, on_device)
        work.start.record()
        result = self._forward_fused(on_device, segments, work.side)
        if result is not None and draw_plan is not None:
            work.draw = self._slots.draw(result, drawing, draw_plan)

    def _segments(
        self,
        work: Launched,
        rows: int,
        chunk_indptr: Ints,
        qo_indptr: Ints,
        pages: Pages,
        on_device: Sequence[Tensor],
    ) -> list[Segment]:
        """Plan attention of rows and chunks, apart.

        In one call all rows would have tiles of the same height: with 8 chunk tokens that takes as
        long, with 64 a tenth longer (docs/benchmarks/engine-h200/kernels.md).
        """
        _, _, _, _, qo, chunk_qo, indptr, last, _, indices = on_device
        tokens = int(qo_indptr[-1])
        attention = self._ops.attention
        new = np.diff(chunk_indptr)
        if len(new) == 0:
            whole = DevicePages(qo, indptr, indices, last)
            plan = attention.plan("fa2", qo_indptr, pages, whole, work.stage(self._plans))
            return [Segment(0, tokens, plan)]
        held = (np.diff(pages.indptr) - 1) * self._config.page_size + pages.last
        reused = held[rows:] - new
        choice = prefill_backend(
            list(zip(new.tolist(), reused.tolist(), strict=True)),
            work.side.sms,
            self._heads,
            H200_COSTS,
            max_partial_rows=0,
        )
        if rows == 0:
            whole = DevicePages(qo, indptr, indices, last)
            plan = attention.plan(choice.kernel, qo_indptr, pages, whole, work.stage(self._plans))
            return [Segment(0, tokens, plan)]
        ones = DevicePages(qo[: rows + 1], indptr[: rows + 1], indices, last[:rows])
        first = Pages(pages.indptr[: rows + 1], pages.last[:rows], pages.indices)
        row_plan = attention.plan(
            "fa2", qo_indptr[: rows + 1], first, ones, work.stage(self._plans), use=0
        )
        rest = DevicePages(chunk_qo, indptr[rows:], indices, last[rows:])
        behind = Pages(pages.indptr[rows:], pages.last[rows:], pages.indices)
        chunk_plan = attention.plan(
            choice.kernel, chunk_indptr, behind, rest, work.stage(self._plans), use=1
        )
        return [Segment(0, rows, row_plan), Segment(rows, tokens, chunk_plan)]

    @property
    def _heads(self) -> Heads:
        config = self._model.config
        return Heads(config.num_heads, config.num_kv_heads, config.head_dim)

    def _forward_fused(
        self, on_device: Sequence[Tensor], segments: Sequence[Segment], side: Side
    ) -> Tensor | None:
        """Run all layers; return the logits that are drawn from, None when none are."""
        slots, ids, positions, row_of, qo, _, indptr, last, drawing, indices = on_device
        model, ops = self._model, self._ops
        pages = DevicePages(qo, indptr, indices, last)
        ops.place(Placement(row_of, positions, pages, segments, side.sms))
        tokens = torch.cat((self._slots.last[slots], ids.long()))
        hidden = embed(ops, model, tokens)
        state = run_layers(ops, model, hidden, None, positions, 0, model.config.num_layers)
        return logits(ops, model, *state, drawing) if len(drawing) else None
