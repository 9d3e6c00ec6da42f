"""Decode rows and chunks of prompts in one attention launch, for fused iterations.

Attending to the chunk in a launch of its own costs the decode lane a second kernel with its own ramp
and tail in every layer (34B: 6 to 8 ms an iteration for 16 tokens). flashinfer's persistent kernel
takes rows of any length, gives long ones tiles of 128 packed queries and single ones tiles of 16, and
spreads the work over a fixed grid, so that one captured graph serves every batch of a bucket.

The grid is cooperative: all of its CTAs must be resident at once. Planned for the partition's SM count
they are, whereas planned for the whole GPU the launch is refused on a green context (hazard H5).
"""

from collections.abc import Sequence

import torch
from flashinfer.attention import _core
from flashinfer.utils import MaskMode, PosEncodingMode, TensorLayout
from torch import Tensor

from worker.executors.cuda.kernels.attention_choice import Heads
from worker.executors.cuda.kernels.sm_count import planned_for

FLOAT_WORKSPACE_BYTES = 384 << 20
INT_WORKSPACE_BYTES = 8 << 20
"""What flashinfer's own wrapper takes; a plan copies the used part of it to the device."""


class MixedAttention:
    """The mixed batches of one lane and partition. `run` may be captured, after a first `plan`.

    `pages` is the device buffer [max pages] int32 of the batch's page numbers, row after row, which
    the caller fills before each run. `depth` is how many plans may be waiting for the device.
    """

    def __init__(
        self,
        heads: Heads,
        page_size: int,
        max_rows: int,
        pages: Tensor,
        sm_count: int,
        depth: int,
        workspace: Tensor,
    ) -> None:
        self._heads, self._page_size, self._sm_count = heads, page_size, sm_count
        self._pages = pages
        self._float = workspace
        self._int = torch.empty(INT_WORKSPACE_BYTES, dtype=torch.uint8, device=pages.device)
        self._hosts = [
            torch.empty(INT_WORKSPACE_BYTES, dtype=torch.uint8, pin_memory=True)
            for _ in range(depth)
        ]
        self._turn = 0
        self._lse = torch.empty((max_rows, heads.query), device=pages.device)
        self._scale = heads.dim**-0.5
        dtype = torch.bfloat16
        self._module = _core.get_holistic_attention_module(
            *(dtype, dtype, dtype, torch.int32, heads.dim, heads.dim),
            *(PosEncodingMode["NONE"].value, False, False),
        )
        self._info: list[int] = []

    def plan(self, query_lengths: Sequence[int], key_lengths: Sequence[int]) -> None:
        """Plan the next run: row i's queries are the last query_lengths[i] of key_lengths[i] keys.

        The plan reaches the device on the current stream. Raises RuntimeError when the layout that
        a captured graph relies on would change (it does not, for one model and SM count).
        """
        queries = torch.zeros(len(query_lengths) + 1, dtype=torch.int32)
        keys = torch.tensor(key_lengths, dtype=torch.int32)
        used = torch.zeros(len(key_lengths) + 1, dtype=torch.int32)
        torch.cumsum(torch.tensor(query_lengths, dtype=torch.int32), 0, out=queries[1:])
        torch.cumsum((keys + self._page_size - 1) // self._page_size, 0, out=used[1:])
        host = self._hosts[self._turn]
        self._turn = (self._turn + 1) % len(self._hosts)
        with planned_for(self._sm_count):
            info = self._module.plan(
                *(self._float, self._int, host, queries, used, keys, len(key_lengths)),
                *(self._heads.query, self._heads.key, self._heads.dim, True),
            )
        if self._info and list(info) != self._info:
            raise RuntimeError(f"plan layout changed from {self._info} to {list(info)}")
        self._info = list(info)
        self._plan_info = info

    def run(self, q: Tensor, k_cache: Tensor, v_cache: Tensor, out: Tensor) -> None:
        """Attend from q [rows, heads, dim] to this layer's pages; write `out`, of q's shape.

        The caches are [pages, page size, key heads, dim] with the same strides.
        """
        with planned_for(self._sm_count):
            self._module.run(
                *(self._float, self._int, self._plan_info, q, k_cache, v_cache, self._pages),
                *(out, self._lse[: q.shape[0]], MaskMode.CAUSAL.value, TensorLayout["NHD"].value),
                *(self._heads.query, self._heads.key, self._page_size),
                *(1.0, self._scale, 0.0, None, None),
            )
