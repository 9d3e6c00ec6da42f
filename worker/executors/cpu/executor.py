"""The CPU as a device with two lanes: the default where there is no GPU, and what CI runs.

Launches are queued on their lane's threads; a completion goes to a deque and an eventfd, so that
the worker's loop waits for it with the same call as for its sockets.
"""

import functools
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from protocol.control_link import Lane
from worker.executors.base import (
    Completion,
    DecodeBatch,
    DeviceInfo,
    Launch,
    ModelShape,
    SampledToken,
)
from worker.executors.cpu import lanes, topology
from worker.executors.cpu.busy import BusyTimes
from worker.executors.cpu.pool import KvView, common_page_bytes
from worker.executors.cpu.runner import Runner
from worker.models.config import ModelConfig
from worker.models.weights import Model

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CpuSettings:
    """What the executor reserves."""

    cores: tuple[int, ...]
    """Cores to compute on (`topology.available_cores()`)."""
    page_size: int
    """Tokens."""
    num_pages: int
    max_slots: int
    max_model_len: int
    """Tokens of one sequence at most; a model that is trained for fewer keeps its own limit."""
    max_prefill_tokens: int


def pages_in(size: int, configs: list[ModelConfig], page_size: int, dtype: torch.dtype) -> int:
    """Return how many pages of these models fit in `size` bytes. Raises ValueError below 2."""
    each = common_page_bytes(configs, page_size, dtype)
    if size < 2 * each:
        raise ValueError(f"a KV pool of {size} bytes; 2 pages of {each} bytes are the least")
    return size // each


class CpuExecutor:
    """Two lanes of pinned threads over one KV pool. Implements `worker.executors.base.Executor`."""

    def __init__(self, models: Mapping[str, Model], settings: CpuSettings) -> None:
        """`models` by name, all of one dtype, on the CPU.

        Raises ValueError for none, for mixed dtypes, and for cores that are not the process's.
        """
        if not set(settings.cores) <= set(topology.available_cores()):
            raise ValueError(f"cores {settings.cores} are not all of {topology.available_cores()}")
        dtypes = {model.weights.embed.dtype for model in models.values()}
        if len(dtypes) != 1:
            raise ValueError(f"one dtype is needed for the KV pool, not {sorted(map(str, dtypes))}")
        self._settings = settings
        self._splits = topology.splits(settings.cores)
        self._runners = self._make_runners(models, dtypes.pop())
        self.info: DeviceInfo = self._describe(models)
        self._busy = BusyTimes()
        self._lock = threading.Lock()
        self._done: deque[Completion] = deque()
        self._wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lanes = {
            Lane.PREFILL: lanes.Lane("prefill", tuple(s.prefill for s in self._splits)),
            Lane.DECODE: lanes.Lane("decode", tuple(s.decode for s in self._splits)),
        }

    def _make_runners(self, models: Mapping[str, Model], dtype: torch.dtype) -> dict[str, Runner]:
        s = self._settings
        configs = [model.config for model in models.values()]
        stride = common_page_bytes(configs, s.page_size, dtype)
        buffer = torch.zeros(s.num_pages * stride, dtype=torch.uint8)
        return {
            name: Runner(
                model,
                KvView(buffer, stride, model.config, s.page_size, dtype),
                s.max_slots,
                min(s.max_model_len, model.config.max_model_len),
                s.max_prefill_tokens,
            )
            for name, model in models.items()
        }

    def _describe(self, models: Mapping[str, Model]) -> DeviceInfo:
        s = self._settings
        return DeviceInfo(
            unit="core",
            units=len(s.cores),
            partitions=tuple(split.partition for split in self._splits),
            models=tuple(_shape(name, m.config, s.max_model_len) for name, m in models.items()),
            num_pages=s.num_pages,
            page_size=s.page_size,
            max_slots=s.max_slots,
            max_prefill_tokens=s.max_prefill_tokens,
            device=topology.processor_name(),
            notes=topology.notes(s.cores),
        )

    def launch(self, work: Launch) -> None:
        """See Executor. What is wrong with a launch is said in its completion."""
        row = work.partition if 0 <= work.partition < len(self._splits) else 0
        self._lanes[work.lane].put(lanes.Job(row, functools.partial(self._run, work)))

    def discard(self, batch: int) -> None:
        """See Executor. Takes its turn behind the batch's own quanta."""
        for runner in self._runners.values():
            self._lanes[Lane.PREFILL].put(lanes.Job(0, functools.partial(runner.discard, batch)))

    def poll(self) -> list[Completion]:
        """See Executor."""
        try:
            os.eventfd_read(self._wakeup)
        except BlockingIOError:
            return []
        completions = []
        while self._done:
            completions.append(self._done.popleft())
        return completions

    def fileno(self) -> int:
        """See Executor."""
        return self._wakeup

    def close(self) -> None:
        """See Executor."""
        for lane in self._lanes.values():
            lane.close()
        os.close(self._wakeup)
        self._runners.clear()

    def _run(self, work: Launch) -> None:
        """Run a launch on the thread that its lane chose, and report it."""
        with self._lock:
            self._busy.begin(work.lane, time.monotonic())
        tokens: tuple[SampledToken, ...] = ()
        error = None
        try:
            tokens = self._compute(work)
        except Exception as failure:
            log.exception("launch %d failed", work.ticket)
            error = f"{type(failure).__name__}: {failure}"
        with self._lock:
            finished = time.monotonic()
            started, overlap_s = self._busy.end(work.lane, finished)
        units = self._units(work)
        self._done.append(
            Completion(work.ticket, work.lane, started, finished, units, overlap_s, tokens, error)
        )
        os.eventfd_write(self._wakeup, 1)

    def _compute(self, work: Launch) -> tuple[SampledToken, ...]:
        if not 0 <= work.partition < len(self._splits):
            raise ValueError(f"partition {work.partition} is not among {len(self._splits)}")
        runner = self._runners.get(work.model)
        if runner is None:
            raise ValueError(f"model {work.model!r} is not among {sorted(self._runners)}")
        return runner.decode(work) if isinstance(work, DecodeBatch) else runner.prefill(work)

    def _units(self, work: Launch) -> int:
        split = self._splits[min(max(work.partition, 0), len(self._splits) - 1)]
        return len(split.decode if work.lane is Lane.DECODE else split.prefill)


def _shape(name: str, config: ModelConfig, max_model_len: int) -> ModelShape:
    return ModelShape(
        name,
        config.num_layers,
        config.vocab_size,
        min(max_model_len, config.max_model_len),
        config.eos_token_ids,
    )
