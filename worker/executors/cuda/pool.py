"""The KV pool: one flat device buffer, which a model reads through strided views of its pages.

Both lanes use it. A page holds one layer's keys and values of `page_size` tokens; pages of a model
are numbered the same in every layer. One page more than announced takes what padded rows write.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from worker.models.config import ModelConfig


def page_bytes(config: ModelConfig, page_size: int) -> int:
    """Bytes of one page of all layers, in bfloat16."""
    return config.num_layers * 2 * page_size * config.kv_size * 2


@dataclass(frozen=True, slots=True)
class KvPool:
    """Views of the pool for one model."""

    keys: tuple[Tensor, ...]
    """One for each layer: [pages + 1, page_size, nk, hd]."""
    values: tuple[Tensor, ...]
    num_pages: int

    @property
    def scratch_page(self) -> int:
        """The page that padded rows write to."""
        return self.num_pages

    def fill(self) -> None:
        """Write random keys and values, for benchmarks: zeros draw 3 to 4 % less power, and power
        is what limits prefill (docs/benchmarks/engine-h200).
        """
        for view in (*self.keys, *self.values):
            view.normal_()


def make_pool(
    config: ModelConfig, num_pages: int, page_size: int, device: torch.device, by_page: bool
) -> KvPool:
    """Allocate a pool. `by_page`: a page's layers lie together, else a layer's pages do."""
    layers, heads, size = config.num_layers, config.num_kv_heads, config.head_dim
    shape = (num_pages + 1, layers) if by_page else (layers, num_pages + 1)
    flat = torch.zeros(
        (num_pages + 1) * layers * 2 * page_size * heads * size, dtype=torch.bfloat16, device=device
    )
    view = flat.view(*shape, 2, page_size, heads, size)
    by_layer = view.transpose(0, 1) if by_page else view
    return KvPool(
        keys=tuple(by_layer[layer, :, 0] for layer in range(layers)),
        values=tuple(by_layer[layer, :, 1] for layer in range(layers)),
        num_pages=num_pages,
    )


class PoolTooSmall(ValueError):
    """Memory does not suffice. The message says how much is there and what it was to hold."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Device bytes, and what they go to."""

    total: int
    """Of the device."""
    used: int
    """By weights, workspaces, activations and graphs: what is in use before the pool is made."""
    parked: int
    """Kept free for suspended prefills."""
    utilization: float
    page: int
    """Of one page of all layers."""

    def num_pages(self, least: int) -> int:
        """Return pages that fit. Raises PoolTooSmall below `least`."""
        free = int(self.total * self.utilization) - self.used - self.parked
        pages = free // self.page - 1
        if pages < least:
            raise PoolTooSmall(
                f"{self.total >> 20} MiB × {self.utilization} less {self.used >> 20} MiB in use and"
                f" {self.parked >> 20} MiB for suspended prefills leaves {max(pages, 0)} pages of"
                f" {self.page >> 10} KiB; at least {least} are needed for one sequence"
            )
        return pages
