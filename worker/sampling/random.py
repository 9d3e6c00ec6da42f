"""Uniform numbers that are a pure function of (seed, index): no generator state anywhere.

A request's draw i is then the same whatever else is in the batch, on whichever device, and after
a retraction or a crash. The hash is SplitMix64's finalizer (Steele, Lea and Flood 2014, section 4),
applied to the seed and then to the index, in torch integer arithmetic, which wraps at 64 bits.
"""

import torch
from torch import Tensor


def _signed(value: int) -> int:
    """The int64 with the bits of an unsigned 64-bit constant."""
    return value - (1 << 64) if value >= 1 << 63 else value


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_FIRST = _signed(0xBF58476D1CE4E5B9)
_SECOND = _signed(0x94D049BB133111EB)


def _shift(z: Tensor, bits: int) -> Tensor:
    """Logical right shift of int64."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def _mix(z: Tensor) -> Tensor:
    z = (z ^ _shift(z, 30)) * _FIRST
    z = (z ^ _shift(z, 27)) * _SECOND
    return z ^ _shift(z, 31)


def uniform(seed: Tensor, index: Tensor) -> Tensor:
    """Return float64 in [0, 1) for each pair of int64 seed and index (same shape)."""
    bits = _mix(_mix(seed + _GOLDEN) + (index + 1) * _GOLDEN)
    return _shift(bits, 11).to(torch.float64) * 2.0**-53
