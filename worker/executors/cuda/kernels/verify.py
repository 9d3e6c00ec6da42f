"""Find out whether the attention kernels that were loaded know about partitions.

A prebuilt flashinfer module takes precedence over one compiled with our header and would silently
plan for the whole GPU. Looking at files cannot exclude that; asking for a plan can.
"""

import torch

from worker.executors.cuda.kernels.attention_choice import Heads
from worker.executors.cuda.kernels.sm_count import planned_for

_PADDED_BATCH = 0
"""Place of the padded batch size in a prefill plan of flashinfer 0.7."""

_FEW = 16
"""SMs: the smallest partition that Tandem makes."""


def plans_for_partition(heads: Heads, device: torch.device) -> bool:
    """Return whether an attention plan for few SMs differs from one for the whole device.

    In graph mode the planner sizes its grid by twice the SM count, divided by the key heads, for a
    single short row. Needs the GPU; takes the time to load (or compile) the FA2 kernel.
    """
    import flashinfer

    def grid(sm_count: int) -> int:
        workspace = torch.empty(32 << 20, dtype=torch.uint8, device=device)
        one = torch.tensor([0, 1], dtype=torch.int32, device=device)
        wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(
            workspace,
            use_cuda_graph=True,
            qo_indptr_buf=one.clone(),
            paged_kv_indptr_buf=one.clone(),
            paged_kv_indices_buf=one.clone(),
            paged_kv_last_page_len_buf=one[1:].clone(),
            backend="fa2",
        )
        with planned_for(sm_count):
            wrapper.plan(
                *(one, one, one[:1], one[1:], heads.query, heads.key_value, heads.size, 16),
                causal=True,
                q_data_type=torch.bfloat16,
                kv_data_type=torch.bfloat16,
            )
        return int(wrapper._plan_info[_PADDED_BATCH])

    return grid(_FEW) != grid(0)
