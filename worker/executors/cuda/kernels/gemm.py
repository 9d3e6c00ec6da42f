"""Linear layers on a partition: cuBLASLt told how many SMs it has (MuxWise 3.2.1's missing half).

torch's matmul lets cuBLAS plan a persistent grid for the whole GPU: on 112 of 132 SMs that costs
4 to 40 %. Here each product is planned for the partition's SM count, the algorithm is chosen before
the first launch and kept (gemm_plans.py), and a launch neither allocates workspace nor asks a
heuristic, so that it can be captured in a CUDA graph. Each lane has its own `Gemm`, because split-K
algorithms write to its workspace: two lanes through one workspace would corrupt each other.
"""

import logging
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from worker.executors.cuda.kernels.gemm_library import (
    Candidate,
    GemmError,
    GemmLibrary,
    Shape,
)
from worker.executors.cuda.kernels.gemm_plans import (
    M_BUCKETS,
    GemmChoice,
    GemmKey,
    GemmStore,
    bucket_of,
    bucket_table,
)

log = logging.getLogger(__name__)

WORKSPACE_BYTES = 32 << 20
"""Per lane: what cuBLAS itself takes on Hopper."""

Progress = Callable[[int, int], None]
"""Called with (done, all)."""


SMALL_CLUSTERS = frozenset({0, 2, 3, 5})
"""cuBLASLt's numbers of the cluster shapes auto, 1x1, 2x1 and 1x2: they fit any group of SMs."""

OFFERS = 16
"""Candidates asked of the heuristic, for one SM target."""


class GemmPlans:
    """The plans of one process, shared by its lanes: (rows' bucket, n, k, SMs, bias) to a plan.

    `remainders` are the SM counts of partitions that are what a split left over. Not all of their
    SMs form clusters, which the heuristic does not know: told such a count it picks clusters of
    four or eight that leave SMs idle (64 rows on 20 SMs: less than half of the best).
    """

    def __init__(self, library: GemmLibrary, store: GemmStore, remainders: Iterable[int]) -> None:
        self.library = library
        self.store = store
        self.remainders = frozenset(remainders)
        self.addresses: dict[tuple[int, int, int, int, bool], int] = {}

    def add(self, key: GemmKey) -> int:
        """Plan `key` by the kept choice if it is still valid, else by the heuristic.

        Raises GemmError when cuBLASLt knows no algorithm for it.
        """
        index = (key.m, key.n, key.k, key.sm_count, key.bias)
        if index not in self.addresses:
            self.install(key, self._valid_choice(key) or self.by_heuristic(key))
        return self.addresses[index]

    def install(self, key: GemmKey, choice: GemmChoice) -> None:
        """Use `choice` for `key`, and keep it on disk at the next save."""
        self.use(key, choice)
        self.store.put(key, choice)

    def use(self, key: GemmKey, choice: GemmChoice) -> None:
        """Use `choice` for `key` from the next launch on. A graph captured before keeps the old."""
        index = (key.m, key.n, key.k, key.sm_count, key.bias)
        shape = Shape(key.m, key.n, key.k, key.bias, choice.sm_target)
        plan = self.library.make_plan(shape, bytes.fromhex(choice.algorithm))
        previous = self.addresses.get(index)
        self.addresses[index] = plan
        if previous is not None:
            self.library.drop_plan(previous)

    def _valid_choice(self, key: GemmKey) -> GemmChoice | None:
        choice = self.store.get(key)
        if choice is None:
            return None
        shape = Shape(key.m, key.n, key.k, key.bias, choice.sm_target)
        needed = self.library.workspace_needed(shape, bytes.fromhex(choice.algorithm))
        if needed is not None and needed <= WORKSPACE_BYTES:
            return choice
        log.info("kept GEMM choice for %s is no longer valid", key.text())
        self.store.drop(key)
        return None

    def by_heuristic(self, key: GemmKey) -> GemmChoice:
        """Return what is best without timing anything.

        On a first group: the heuristic's first, told the SM count. On a remainder: the first with
        small clusters that it offers for the whole device, launched for the SM count.
        """
        on_remainder = key.sm_count in self.remainders
        target = 0 if on_remainder else key.sm_count
        found = [offer.algorithm for offer in self.offers(key, target)]
        if not found:
            raise GemmError(f"cuBLASLt has no algorithm for {key.text()}")
        best = next((a for a in found if self.fits(a)), found[0]) if on_remainder else found[0]
        return GemmChoice(best.hex(), key.sm_count, "heuristic")

    def offers(self, key: GemmKey, target: int) -> list[Candidate]:
        """Return what the heuristic offers for `key` when told `target` SMs (0: nothing)."""
        shape = Shape(key.m, key.n, key.k, key.bias, target)
        return self.library.candidates(shape, WORKSPACE_BYTES, OFFERS)

    def fits(self, algorithm: bytes) -> bool:
        """Return whether the algorithm's clusters fit any group of SMs."""
        return self.library.describe(algorithm)["cluster"] in SMALL_CLUSTERS


class Gemm:
    """The linear layers of one lane. Launches come from one thread, on the current stream.

    `buckets` are the row counts that plans are made for, ascending; see gemm_plans.M_BUCKETS.
    """

    def __init__(
        self, plans: GemmPlans, device: torch.device, buckets: tuple[int, ...] = M_BUCKETS
    ) -> None:
        self.plans = plans
        self.buckets = buckets
        self.unplanned = 0
        """Launches whose shape `prepare` had not seen: each made a plan on the way."""
        self._table = bucket_table(buckets)
        self._workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        self._lane = plans.library.make_lane(self._workspace)
        self._run = plans.library.run
        self._addresses = plans.addresses
        self._device = device.index if device.index is not None else torch.cuda.current_device()

    def prepare(
        self,
        shapes: Iterable[tuple[int, int]],
        sm_counts: Iterable[int],
        m_buckets: Sequence[int],
        progress: Progress,
        bias: Iterable[bool] = (False,),
    ) -> None:
        """Plan every (n, k) of `shapes` for every SM count and bucket; keep the choices on disk.

        Nothing is timed here (gemm_search does that). Raises GemmError for an impossible shape.
        """
        keys = [
            GemmKey(bucket_of(m, self.buckets), n, k, sm_count, with_bias)
            for n, k in dict.fromkeys(shapes)
            for sm_count in dict.fromkeys(sm_counts)
            for m in dict.fromkeys(m_buckets)
            for with_bias in dict.fromkeys(bias)
        ]
        for done, key in enumerate(keys, start=1):
            self.plans.add(key)
            progress(done, len(keys))
        self.plans.store.save()

    def __call__(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        sm_count: int,
        out: Tensor | None = None,
    ) -> Tensor:
        """Return x · weightᵀ (+ bias) on the current stream: bf16 [m, k], [n, k] to [m, n].

        `weight` is contiguous; rows of x (and `out`) may be strided, and start at multiples of
        16 bytes. `sm_count` is that of the partition that the current stream belongs to.
        """
        m, k = x.shape
        n = weight.shape[0]
        table = self._table
        index = (table[m] if m < len(table) else table[-1], n, k, sm_count, bias is not None)
        plan = self._addresses.get(index)
        if plan is None:
            plan = self._plan_late(index)
        if out is None:
            out = torch.empty((m, -(-n // 8) * 8), dtype=x.dtype, device=x.device)[:, :n]
        status = self._run(
            self._lane,
            plan,
            m,
            x.data_ptr(),
            x.stride(0),
            weight.data_ptr(),
            None if bias is None else bias.data_ptr(),
            out.data_ptr(),
            out.stride(0),
            torch._C._cuda_getCurrentRawStream(self._device),
        )
        if status:
            raise GemmError(_refusal(status, x, weight, bias, out))
        return out

    def close(self) -> None:
        """Free the lane. Nothing that was launched through it may still run."""
        if self._lane:
            self.plans.library.close_lane(self._lane)
            self._lane = 0

    def _plan_late(self, index: tuple[int, int, int, int, bool]) -> int:
        if torch.cuda.is_current_stream_capturing():
            raise GemmError(f"{GemmKey(*index).text()} was not prepared before graph capture")
        self.unplanned += 1
        return self.plans.add(GemmKey(*index))


def _refusal(status: int, x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> str:
    """Say what was wrong with a launch that cuBLASLt refused: it only gives a number."""
    tensors = {"x": x, "weight": weight, "bias": bias, "out": out}
    told = [
        f"{name} {tuple(tensor.shape)} strides {tensor.stride()} {tensor.dtype}"
        + ("" if tensor.data_ptr() % 16 == 0 else " not 16-byte aligned")
        for name, tensor in tensors.items()
        if tensor is not None
    ]
    return f"cuBLASLt matmul: status {status}; " + "; ".join(told)
