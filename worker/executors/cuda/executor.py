"""The CUDA executor: builds partitions, lanes, graphs and pool in the order that memory wants, and
implements `worker.executors.base.Executor` over them.

Memory first goes to what cannot shrink (weights, which are there already, workspaces, activations,
graphs); the KV pool takes what is left of the configured share.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch

from protocol.control_link import Lane
from worker.executors.base import (
    Completion,
    DecodeBatch,
    DeviceInfo,
    Launch,
    ModelShape,
)
from worker.executors.cuda.attention import Attention, loaders
from worker.executors.cuda.clock import DeviceClock, Overlap
from worker.executors.cuda.config import CudaConfig
from worker.executors.cuda.decode import DecodeLane
from worker.executors.cuda.kernels.attention_choice import Heads
from worker.executors.cuda.kernels.verify import plans_for_partition
from worker.executors.cuda.lane import LaneQueue, completions
from worker.executors.cuda.nesting import planning_notes
from worker.executors.cuda.ops import CudaOps
from worker.executors.cuda.partitions import PartitionTable, make_table
from worker.executors.cuda.pool import KvPool, MemoryPlan, make_pool, page_bytes
from worker.executors.cuda.prefill import PARTIAL_ROWS, PrefillLane
from worker.executors.cuda.product import Product, make_products
from worker.executors.cuda.slots import Slots
from worker.models.rope import rope_table
from worker.models.weights import Model
from worker.sampling.sampler import Sampler

T = TypeVar("T")

log = logging.getLogger(__name__)

Progress = Callable[[str, int, int], None]
"""Called with (what, done, all) while the executor starts."""

POOL_BY_PAGE = False
"""Layout of the pool: False keeps a layer's pages together (docs/benchmarks/engine-h200)."""
TRIAL_GRAPHS = 3
MAX_LOGITS = 512
"""Rows of logits with a buffer of their own; a prefill batch with more prompts allocates."""


@dataclass(frozen=True, slots=True)
class StartReport:
    """What starting took, in seconds and bytes."""

    seconds: dict[str, float]
    graphs: int
    graph_bytes: int
    pool_bytes: int
    partition_bytes: tuple[int, ...]


class CudaExecutor:
    """Two lanes on one GPU. Implements Executor; calls come from the thread that made it."""

    def __init__(self, name: str, model: Model, config: CudaConfig, progress: Progress) -> None:
        """Take over a model whose weights are on the device.

        Raises PartitionError under `require_partitions`, PoolTooSmall when memory does not suffice.
        """
        self._device = torch.device("cuda", config.device)
        self._config, self._model, self._name = config, model, name
        self._seconds: dict[str, float] = {}
        torch.cuda.set_device(self._device)
        with torch.inference_mode():
            self._timed("kernels", lambda: self._load_kernels(progress))
            self._table: PartitionTable = self._timed("partitions", self._make_table)
            self._plan_notes = self._timed("planning", self._check_planning)
            self._timed("lanes", lambda: self._make_lanes(progress))
            estimate = self._timed("trial graphs", self._estimate_graphs)
            self._pool = self._timed("pool", lambda: self._make_pool(estimate))
            before = self._in_use()
            self._timed("graphs", lambda: self._capture(progress))
            self._graph_bytes = self._in_use() - before
        torch.cuda.synchronize()
        reference = torch.cuda.Event(enable_timing=True)
        reference.record()
        torch.cuda.synchronize()
        self._clock, self._overlap = DeviceClock(reference), Overlap()
        self._log_start()

    def _log_start(self) -> None:
        """Say what was realized: SMs and memory of each partition, graphs, pool, and times."""
        for pair in self._table.pairs[1:]:
            sms = f"{pair.prefill.sms}+{pair.decode.sms}"
            log.info("partition %s SMs, verified: %.1f MiB", sms, pair.memory / 2**20)
        report = self.report()
        times = ", ".join(f"{what} {seconds:.1f} s" for what, seconds in report.seconds.items())
        graphs, pool = report.graph_bytes / 2**20, report.pool_bytes / 2**30
        log.info("%d graphs %.0f MiB, pool %.1f GiB; %s", report.graphs, graphs, pool, times)

    def _timed(self, what: str, action: Callable[[], T]) -> T:
        began = time.monotonic()
        result = action()
        self._seconds[what] = time.monotonic() - began
        return result

    def _in_use(self) -> int:
        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info(self._device)
        return total - free

    # --- start ---

    def _load_kernels(self, progress: Progress) -> None:
        """Compile or load flashinfer's modules, one after the other (each build is parallel)."""
        steps = loaders(self._model.config.head_dim)
        for done, load in enumerate(steps):
            progress("kernels", done, len(steps))
            load()
        progress("kernels", len(steps), len(steps))

    def _make_table(self) -> PartitionTable:
        config = self._config
        table = make_table(config.device, config.prefill_sms, config.require_partitions)
        for note in table.notes:
            log.warning("%s", note)
        return table

    def _check_planning(self) -> tuple[str, ...]:
        """Find out whether the attention kernels that were loaded plan for a partition's SMs."""
        if len(self._table.pairs) == 1:
            return ()
        shape = self._model.config
        heads = Heads(shape.num_heads, shape.num_kv_heads, shape.head_dim)
        aware = plans_for_partition(heads, self._device)
        notes = planning_notes(aware, self._config.require_partitions)
        for note in notes:
            log.warning("%s", note)
        return notes

    def _make_lanes(self, progress: Progress) -> None:
        config, shape = self._config, self._model.config
        sampler = Sampler(config.max_slots, shape.vocab_size, shape.eos_token_ids, self._device)
        self._slots = Slots(sampler, config.max_slots, config.pages_per_slot, self._device)
        rotary = rope_table(shape.rope, shape.head_dim, config.max_model_len).to(self._device)
        products, self._product_notes = make_products(
            self._model, self._table, config.buckets, config.max_prefill_tokens, progress
        )
        self._prefill_queue = LaneQueue(Lane.PREFILL, self._table)
        self._decode_queue = LaneQueue(Lane.DECODE, self._table)
        prefill_ops = self._make_ops(rotary, products[0], 2, PARTIAL_ROWS)
        decode_ops = self._make_ops(rotary, products[1], 2, 0)
        self._products = products
        common = (self._model, config)
        self._prefill = PrefillLane(*common, prefill_ops, self._slots, self._prefill_queue)
        self._decode = DecodeLane(*common, decode_ops, self._slots, self._decode_queue)
        self._ops = (prefill_ops, decode_ops)

    def _make_ops(
        self, rotary: torch.Tensor, product: Product, plans: int, partial_rows: int
    ) -> CudaOps:
        shape, config = self._model.config, self._config
        heads = Heads(shape.num_heads, shape.num_kv_heads, shape.head_dim)
        attention = Attention(heads, config.page_size, self._device, plans, partial_rows)
        ops = CudaOps(
            self._model,
            rotary,
            attention,
            product,
            max_tokens=config.max_prefill_tokens,
            max_logits=max(MAX_LOGITS, config.max_slots),
        )
        ops.reserve()
        return ops

    def _capture(self, progress: Progress) -> None:
        """Capture every decode graph over the pool that is bound."""
        wanted = [
            (partition, rows)
            for rows in reversed(self._decode.sizes())
            for partition in range(len(self._table.pairs))
        ]
        for done, (partition, rows) in enumerate(wanted):
            progress("decode graphs", done, len(wanted))
            self._decode.capture(partition, rows)
        progress("decode graphs", len(wanted), len(wanted))

    def _bind(self, pool: KvPool) -> None:
        for ops in self._ops:
            ops.bind(pool)
        self._decode.bind(pool.scratch_page)

    def _estimate_graphs(self) -> int:
        """Return device bytes that all graphs will take, from a few over a pool of one page.

        Graphs hold the pool's address, so they cannot be captured before the pool is sized.
        """
        sizes = self._decode.sizes()
        config = self._config
        self._bind(make_pool(self._model.config, 1, config.page_size, self._device, POOL_BY_PAGE))
        if not sizes:
            return 0
        before = self._in_use()
        trial = sizes[-TRIAL_GRAPHS:]
        for rows in reversed(trial):
            self._decode.capture(0, rows)
        taken = self._in_use() - before
        self._decode.drop_graphs()
        return -(-taken * len(sizes) * len(self._table.pairs) // len(trial))

    def _make_pool(self, graph_bytes: int) -> KvPool:
        config, shape = self._config, self._model.config
        torch.cuda.empty_cache()
        page = page_bytes(shape, config.page_size)
        width = shape.hidden_size * 2 * 2  # hidden and residual, bfloat16
        plan = MemoryPlan(
            total=torch.cuda.mem_get_info(self._device)[1],
            used=self._in_use() + graph_bytes,
            parked=config.parked_batches * config.max_prefill_tokens * width,
            utilization=config.memory_utilization,
            page=page,
        )
        pages = config.num_pages or plan.num_pages(config.pages_per_slot)
        pool = make_pool(shape, pages, config.page_size, self._device, POOL_BY_PAGE)
        self._bind(pool)
        return pool

    # --- Executor ---

    @property
    def info(self) -> DeviceInfo:
        """See Executor."""
        config, shape = self._config, self._model.config
        model = ModelShape(
            name=self._name,
            num_layers=shape.num_layers,
            vocab_size=shape.vocab_size,
            max_model_len=config.max_model_len,
            eos_token_ids=shape.eos_token_ids,
            num_heads=shape.num_heads,
        )
        return DeviceInfo(
            unit="SM",
            units=self._table.pairs[0].prefill.sms,
            partitions=self._table.announced(),
            models=(model,),
            num_pages=self._pool.num_pages,
            page_size=config.page_size,
            max_slots=config.max_slots,
            max_prefill_tokens=config.max_prefill_tokens,
            row_sizes=config.buckets,
            device=torch.cuda.get_device_name(self._device),
            notes=(*self._table.notes, *self._plan_notes, *self._product_notes),
        )

    @property
    def pool(self) -> KvPool:
        """The KV pool, for benchmarks that fill it and tests that compare it."""
        return self._pool

    @property
    def device(self) -> torch.device:
        """The GPU."""
        return self._device

    @property
    def table(self) -> PartitionTable:
        """The partitions with their streams, for benchmarks of single kernels."""
        return self._table

    def product(self, lane: Lane) -> Product:
        """Return a lane's matrix products, for benchmarks; nothing may run on the lane."""
        return self._products[0 if lane is Lane.PREFILL else 1]

    def widest_weight(self) -> torch.Tensor:
        """Return a matrix [n, k] of the first layer, the one with the most rows."""
        return self._model.weights.layers[0].gate_up

    @property
    def slots(self) -> Slots:
        """Device state of requests, for tests that look at logits."""
        return self._slots

    @property
    def parked_batches(self) -> int:
        """Prefill batches that are started and not finished."""
        return len(self._prefill)

    def report(self) -> StartReport:
        """Return what starting took."""
        return StartReport(
            seconds=dict(self._seconds),
            graphs=len(self._decode.sizes()) * len(self._table.pairs),
            graph_bytes=self._graph_bytes,
            pool_bytes=(self._pool.num_pages + 1)
            * page_bytes(self._model.config, self._config.page_size),
            partition_bytes=tuple(pair.memory for pair in self._table.pairs),
        )

    def launch(self, work: Launch) -> None:
        """See Executor. Raises ValueError for work over a limit, before anything is queued."""
        with torch.inference_mode():
            if isinstance(work, DecodeBatch):
                self._decode.launch(work)
            else:
                self._prefill.launch(work)

    def discard(self, batch: int) -> None:
        """See Executor."""
        self._prefill.discard(batch)

    def poll(self) -> list[Completion]:
        """See Executor. Raises RuntimeError once the device has failed."""
        queues = (self._decode_queue, self._prefill_queue)
        return completions(queues, self._clock, self._overlap)

    def fileno(self) -> int | None:
        """See Executor: CUDA has no descriptor for an event."""
        return None

    def close(self) -> None:
        """See Executor."""
        torch.cuda.synchronize(self._device)
        self._decode.drop_graphs()
