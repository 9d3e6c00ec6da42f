"""Rotary position tables, computed once per model in float64 and kept in float32.

Sources: RoFormer (Su et al. 2021); linear scaling (position interpolation, Chen et al. 2023);
llama3 scaling as published with Llama 3.1.
"""

import math

import torch
from torch import Tensor

from worker.models.config import RopeConfig


def rope_frequencies(rope: RopeConfig, head_dim: int) -> Tensor:
    """Return radians per position of each pair of dimensions: float64 [head_dim / 2]."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim
    frequencies = rope.theta**-exponents
    if rope.kind == "linear":
        frequencies = frequencies / rope.factor
    elif rope.kind == "llama3":
        frequencies = _llama3(frequencies, rope)
    if rope.divisors:
        frequencies = frequencies / torch.tensor(rope.divisors, dtype=torch.float64)
    return frequencies


def _llama3(frequencies: Tensor, rope: RopeConfig) -> Tensor:
    """Slow rotations are divided by `factor`, fast ones kept, those between are interpolated."""
    turns = rope.original_max_positions * frequencies / (2 * math.pi)
    span = rope.high_freq_factor - rope.low_freq_factor
    keep = ((turns - rope.low_freq_factor) / span).clamp(0.0, 1.0)
    return keep * frequencies + (1 - keep) * frequencies / rope.factor


def rope_table(rope: RopeConfig, head_dim: int, positions: int) -> Tensor:
    """Return float32 [positions, head_dim]: cosines in the first half of a row, then sines.

    Pair i of a head is its dimensions (i, i + head_dim / 2): the layout of Hugging Face's weights.
    """
    frequencies = rope_frequencies(rope, head_dim).float()
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), frequencies)
    return torch.cat((angles.cos(), angles.sin()), dim=-1)


def rotation_tables(table: Tensor) -> tuple[Tensor, Tensor]:
    """Widen a `rope_table` to (cos, sin), each [positions, head_dim], the sines signed.

    A head x then turns to x · cos + roll(x, head_dim / 2) · sin.
    """
    half = table.shape[-1] // 2
    cos, sin = table[:, :half], table[:, half:]
    return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)
