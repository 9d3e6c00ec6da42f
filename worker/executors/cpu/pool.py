"""The KV pool on the CPU: one flat byte buffer, cut into pages that any hosted model can use.

A page of a model is, in order, for each layer: keys of all heads, then values of all heads. Each
(layer, keys or values, head) is one contiguous *row* of page_size × head_dim numbers: gathering a
sequence copies whole rows, and lands in the layout [head, token, dim] that attention reads fastest.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from worker.models.config import ModelConfig


def page_bytes(config: ModelConfig, page_size: int, dtype: torch.dtype) -> int:
    """Return the bytes that one page of `page_size` tokens takes in this model."""
    return config.num_layers * 2 * config.kv_size * page_size * dtype.itemsize


def common_page_bytes(configs: Sequence[ModelConfig], page_size: int, dtype: torch.dtype) -> int:
    """Return the bytes of a page that fits each model, a whole number of rows in each."""
    rows = math.lcm(*(page_size * c.head_dim * dtype.itemsize for c in configs))
    most = max(page_bytes(config, page_size, dtype) for config in configs)
    return -(-most // rows) * rows


class KvView:
    """One model's view of the pool."""

    def __init__(
        self,
        buffer: Tensor,
        page_stride: int,
        config: ModelConfig,
        page_size: int,
        dtype: torch.dtype,
    ) -> None:
        """`buffer` is uint8 [pages × page_stride]."""
        row_bytes = page_size * config.head_dim * dtype.itemsize
        self.page_size = page_size
        self.rows = buffer.view(dtype).view(-1, page_size * config.head_dim)
        """[rows, page_size × head_dim]"""
        self.tokens = self.rows.view(-1, config.head_dim)
        """[rows × page_size, head_dim]: entry row · page_size + offset is one head of one token."""
        self.rows_per_page = page_stride // row_bytes
        self.heads = config.num_kv_heads
        self.head_dim = config.head_dim

    def first_row(self, layer: int, values: bool) -> int:
        """Return the row, within a page, of head 0 of a layer's keys or values."""
        return (2 * layer + int(values)) * self.heads


class PageTables:
    """Page tables of all slots, on the host."""

    def __init__(self, max_slots: int, max_pages: int) -> None:
        self._pages = torch.zeros((max_slots, max_pages), dtype=torch.int64)
        self._lengths = [0] * max_slots

    def update(self, slot: int, first: int, pages: Sequence[int]) -> None:
        """Write entries `first` on; those behind are void. Raises ValueError for a gap."""
        end = first + len(pages)
        if first > self._lengths[slot] or end > self._pages.shape[1]:
            raise ValueError(
                f"slot {slot}: entries {first} to {end} do not follow {self._lengths[slot]} "
                f"or exceed {self._pages.shape[1]}"
            )
        self._pages[slot, first:end] = torch.tensor(pages, dtype=torch.int64)
        self._lengths[slot] = end

    def check(self, slot: int, pages: int) -> None:
        """Raise ValueError when a slot's table holds fewer than `pages` entries."""
        if pages > self._lengths[slot]:
            raise ValueError(f"slot {slot} has {self._lengths[slot]} pages, and needs {pages}")

    def at(self, slots: Tensor, entries: Tensor) -> Tensor:
        """Return the page at each (slot, entry): int64, of the arguments' common shape."""
        return self._pages[slots, entries]

    def first(self, slots: Sequence[int], counts: Sequence[int]) -> Tensor:
        """Return the first entries of each slot's table: [slots, max(counts)].

        Behind a slot's own count its first page is repeated: a reader masks it, and other
        sequences' numbers never get near.
        """
        pages = self._pages[torch.tensor(slots, dtype=torch.int64), : max(counts)]
        behind = torch.arange(pages.shape[1]) >= torch.tensor(counts)[:, None]
        return torch.where(behind, pages[:, :1], pages)
