"""Top-k, top-p and min-p as one threshold per row, found by bisection and not by sorting.

A full sort of a vocabulary costs more than the model's last product on a CPU; counting what lies
above a threshold takes 32 passes, needs no copy to the host, and is exact: the bisection runs over
the bit patterns of the logits themselves. Equal logits are kept or dropped together.
"""

import torch
from torch import Tensor

_PASSES = 33
"""Halvings that bring an interval of 2**32 + 1 keys down to one."""
_CANDIDATES = 1024
"""Most likely tokens that are sorted first on a CPU, where 32 passes cost more than that."""


def keep_top_k(logits: Tensor, top_k: Tensor) -> Tensor:
    """Drop (to -inf) what is below the k-th largest logit of a row; k = 0 keeps the row.

    `logits` is float32 [rows, vocab], `top_k` int64 [rows].
    """
    wanted = torch.where(top_k > 0, top_k, logits.shape[-1]).clamp(max=logits.shape[-1])
    keys = _ordered_keys(logits)
    threshold = _largest(keys, None, wanted.to(torch.float32))
    return logits.masked_fill(keys < threshold, -torch.inf)


def keep_top_p(logits: Tensor, top_p: Tensor) -> Tensor:
    """Keep the fewest most likely tokens whose probability reaches p; p = 1 keeps the row.

    `logits` is float32 [rows, vocab], `top_p` float32 [rows].
    """
    probabilities = torch.softmax(logits, dim=-1)
    keys = _ordered_keys(logits)
    wanted = top_p * probabilities.sum(-1)
    threshold = _largest(keys, probabilities, wanted)
    dropped = (keys < threshold) & (top_p < 1.0)[:, None]
    return logits.masked_fill(dropped, -torch.inf)


def keep_min_p(logits: Tensor, min_p: Tensor) -> Tensor:
    """Drop tokens less likely than `min_p` (float32 [rows]) times the most likely one."""
    floor = logits.amax(-1) + torch.log(min_p)
    return logits.masked_fill(logits < floor[:, None], -torch.inf)


def _ordered_keys(logits: Tensor) -> Tensor:
    """Map float32 to int32 so that integers order as the floats do."""
    bits = logits.contiguous().view(torch.int32)
    return torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


def _largest(keys: Tensor, weights: Tensor | None, wanted: Tensor) -> Tensor:
    """Return, for each row, the largest key t such that the weights of keys ≥ t reach `wanted`.

    `weights` None counts. int64 [rows, 1].
    """
    if keys.device.type == "cpu" and keys.shape[-1] > _CANDIDATES:
        return _among_candidates(keys, weights, wanted)
    return _bisect(keys, weights, wanted)


def _among_candidates(keys: Tensor, weights: Tensor | None, wanted: Tensor) -> Tensor:
    """Look at the most likely tokens first: nearly always enough, and on a CPU looking is free."""
    top, where = keys.topk(_CANDIDATES, dim=-1)
    each = torch.ones_like(top) if weights is None else weights.gather(-1, where)
    reached = each.cumsum(-1) >= wanted[:, None]
    threshold = top.gather(-1, reached.to(torch.int32).argmax(-1, keepdim=True)).to(torch.int64)
    rest = (~reached[:, -1]).nonzero()[:, 0]
    if len(rest):
        weighed = None if weights is None else weights[rest]
        threshold[rest] = _bisect(keys[rest], weighed, wanted[rest])
    return threshold


def _bisect(keys: Tensor, weights: Tensor | None, wanted: Tensor) -> Tensor:
    """See `_largest`. Nothing waits for the device."""
    low = torch.full((keys.shape[0], 1), -(2**31), dtype=torch.int64, device=keys.device)
    high = torch.full_like(low, 2**31)
    for _ in range(_PASSES):
        middle = (low + high) >> 1
        above = keys >= middle.to(torch.int32)
        total = above.sum(-1) if weights is None else (weights * above).sum(-1)
        enough = (total >= wanted)[:, None]
        low = torch.where(enough, middle, low)
        high = torch.where(enough, high, middle)
    return low
