"""What single kernels reach on each side of each split: read bandwidth and matrix products.

A roofline policy needs both by SM count (DuetServe 4.2). CUDA only, and imported only there; the
sides take turns, so that a clock that drifts under the power limit drifts for all.
"""

import ctypes
from collections.abc import Callable, Iterator
from statistics import median
from typing import NamedTuple

import torch

from protocol.control_link import Lane
from scheduler.estimator.profile import Rate
from worker.executors.base import Executor
from worker.executors.cuda import driver
from worker.executors.cuda.executor import CudaExecutor
from worker.executors.cuda.partitions import Side
from worker.executors.cuda.product import Product

READ = """
extern "C" __global__ void read_all(const uint4* data, long long count, unsigned int* out) {
    unsigned int seen = 0;
    long long step = (long long)gridDim.x * blockDim.x;
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i + 3 * step < count; i += 4 * step) {
        uint4 a = data[i], b = data[i + step], c = data[i + 2 * step], d = data[i + 3 * step];
        seen ^= a.x ^ a.y ^ a.z ^ a.w ^ b.x ^ b.y ^ b.z ^ b.w;
        seen ^= c.x ^ c.y ^ c.z ^ c.w ^ d.x ^ d.y ^ d.z ^ d.w;
    }
    if (seen == 0x5eed5eedu) out[0] = seen;
}
"""
BLOCKS, THREADS = 4, 512
"""Of the read kernel, for each SM."""
READ_BYTES = 2 << 30
ROUNDS = 3
EACH_S = 0.05
"""Device time of a kernel's launches in a round."""
Launch = Callable[[], None]


class _Job(NamedTuple):
    """One side and what is launched on it."""

    side: Side
    name: str
    read: Launch
    multiply: Launch
    flop: int


def rates(executor: Executor) -> tuple[Rate, ...]:
    """Measure every side. Takes about five seconds; nothing else may run on the device."""
    assert isinstance(executor, CudaExecutor)
    with torch.inference_mode():
        jobs = list(_jobs(executor))
        times: list[list[tuple[float, float]]] = [[] for _ in jobs]
        for number in range(ROUNDS + 1):
            for job, seen in zip(jobs, times, strict=True):
                pair = (_seconds(job.side, job.read), _seconds(job.side, job.multiply))
                if number:  # the first round loads kernels and warms up
                    seen.append(pair)
        torch.cuda.synchronize()
    return tuple(
        Rate(
            units=job.side.sms,
            side=job.name,
            read_bytes_s=READ_BYTES / median(read for read, _ in seen),
            flop_s=job.flop / median(product for _, product in seen),
        )
        for job, seen in zip(jobs, times, strict=True)
    )


def _jobs(executor: CudaExecutor) -> Iterator[_Job]:
    data = torch.randint(-(2**31), 2**31 - 1, (READ_BYTES // 4,), dtype=torch.int32, device="cuda")
    out = torch.zeros(1, dtype=torch.int32, device="cuda")
    kernel = driver.compile_kernel(READ, "read_all", executor.device.index or 0)
    weight = executor.widest_weight()
    rows = executor.info.max_prefill_tokens
    x = torch.randn((rows, weight.shape[1]), dtype=weight.dtype, device="cuda")
    product_out = torch.empty((rows, weight.shape[0]), dtype=weight.dtype, device="cuda")
    torch.cuda.synchronize()
    flop = 2 * rows * weight.shape[0] * weight.shape[1]
    for lane, side, product, name in _sides(executor):

        def read(side: Side = side) -> None:
            arguments = (
                (data.data_ptr(), READ_BYTES // 16, out.data_ptr()),
                (ctypes.c_void_p, ctypes.c_longlong, ctypes.c_void_p),
            )
            driver.launch(kernel, BLOCKS * side.sms, THREADS, side.stream, arguments)

        def multiply(side: Side = side, product: Product = product) -> None:
            product(x, weight, None, product_out, side.sms)

        assert lane in (Lane.PREFILL, Lane.DECODE)
        yield _Job(side, name, read, multiply, flop)


def _sides(executor: CudaExecutor) -> Iterator[tuple[Lane, Side, Product, str]]:
    for index, pair in enumerate(executor.table.pairs):
        for lane in (Lane.PREFILL, Lane.DECODE):
            if index == 0 and lane is Lane.DECODE:
                continue  # the whole device again
            name = lane.value if index else "whole"
            yield lane, pair.side(lane), executor.product(lane), name


def _seconds(side: Side, launch: Launch) -> float:
    """Return seconds a launch, over as many as fill `EACH_S`."""
    with torch.cuda.stream(side.stream):
        once = _timed(side, launch, 1)
        count = max(1, min(64, round(EACH_S / once)))
        return _timed(side, launch, count)


def _timed(side: Side, launch: Launch, count: int) -> float:
    begin = torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)
    begin.record(side.stream)
    for _ in range(count):
        launch()
    end.record(side.stream)
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3 / count
