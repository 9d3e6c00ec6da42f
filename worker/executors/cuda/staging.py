"""Host buffers that the device reads later: page-locked, and reused only when it has read them.

A copy to the device is queued, not done, when the call returns. With iterations in flight, the
buffer of the one before must therefore stay as it is: each launch holds what it staged until its
completion, so there are as many buffers as launches in flight, and no wait anywhere.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Ints = NDArray[np.int32]

ALIGN = 4
"""Packed arrays start at a multiple of this many int32 (16 bytes): kernels read vectors."""


@dataclass(slots=True)
class HostBuffers:
    """A free list of equal host buffers of one dtype and shape."""

    make: Callable[[], Tensor]
    free: list[Tensor] = field(default_factory=list)
    made: int = 0

    def take(self) -> Tensor:
        """Return a buffer that no launch in flight uses; one more is made when none is free."""
        if self.free:
            return self.free.pop()
        self.made += 1
        return self.make()

    def give_back(self, buffers: Sequence[Tensor]) -> None:
        """Take back buffers of a completed launch."""
        self.free.extend(buffers)


def pinned(shape: int | tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a host tensor, page-locked when `device` is a GPU."""
    return torch.empty(shape, dtype=dtype, pin_memory=device.type == "cuda")


def packed_size(arrays: Sequence[Ints]) -> int:
    """Return int32 entries that `pack` needs for these arrays."""
    return sum(-(-len(array) // ALIGN) * ALIGN for array in arrays)


def pack(arrays: Sequence[Ints], into: Tensor) -> list[tuple[int, int]]:
    """Write arrays one after the other, aligned; return (offset, length) of each.

    `into` is int32 on the host. Raises ValueError when it is too small.
    """
    if packed_size(arrays) > into.numel():
        raise ValueError(f"{packed_size(arrays)} entries do not fit {into.numel()} staged ones")
    view = into.numpy()
    places, offset = [], 0
    for array in arrays:
        view[offset : offset + len(array)] = array
        places.append((offset, len(array)))
        offset += -(-len(array) // ALIGN) * ALIGN
    return places
