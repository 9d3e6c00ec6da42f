"""Merge attention over pieces of a context into attention over the whole.

Softmax over a union of keys is the average of the softmaxes over its parts, weighted by their
exponentiated log-sum-exps (the state merge of FlashInfer and of flash decoding). flashinfer's own
merge wants all pieces of a row side by side; ours gathers them from where the kernel left them.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _merge(  # type: ignore[no-untyped-def]
    tail,
    tail_lse,
    partial,
    partial_lse,
    first,
    step,
    count,
    out,
    HEADS: tl.constexpr,  # noqa: N803
    DIM: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
):
    row = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = heads < HEADS
    cell = tl.arange(0, DIM)[None, :]
    here = (row * HEADS + heads)[:, None] * DIM + cell
    top = tl.load(tail_lse + row * HEADS + heads, mask=inside, other=0.0)
    value = tl.load(tail + here, mask=inside[:, None], other=0.0).to(tl.float32)
    weight = tl.full((BLOCK,), 1.0, tl.float32)
    source = tl.load(first + row).to(tl.int64)
    stride = tl.load(step + row).to(tl.int64)
    for _ in range(tl.load(count + row)):
        at = source * HEADS + heads
        lse = tl.load(partial_lse + at, mask=inside, other=0.0)
        piece = tl.load(partial + at[:, None] * DIM + cell, mask=inside[:, None], other=0.0)
        highest = tl.maximum(top, lse)
        keep = tl.exp2(top - highest)
        add = tl.exp2(lse - highest)
        value = value * keep[:, None] + piece.to(tl.float32) * add[:, None]
        weight = weight * keep + add
        top = highest
        source += stride
    merged = (value / weight[:, None]).to(tl.bfloat16)
    tl.store(out + here, merged, mask=inside[:, None])


def merge_pieces(
    tail: tuple[Tensor, Tensor],
    partial: tuple[Tensor, Tensor],
    index: tuple[Tensor, Tensor, Tensor],
    out: Tensor,
) -> None:
    """Write to `out` [rows, heads, dim] the merge of `tail` and, per row, its partial rows.

    `tail` and `partial` are (values [·, heads, dim] bf16, log2-sum-exps [·, heads] float32), all
    contiguous. `index` is (first, step, count), int32 [rows]: row i's partial rows are
    first[i] + j * step[i] for j < count[i].
    """
    rows, heads, dim = tail[0].shape
    block = min(8, triton.next_power_of_2(heads))
    grid = (rows, triton.cdiv(heads, block))
    with torch.cuda.device(out.device):
        _merge[grid](*tail, *partial, *index, out, HEADS=heads, DIM=dim, BLOCK=block, num_warps=4)
