"""Paged attention in torch: write new keys and values, gather each sequence's rows, attend.

Decode rows are gathered together, padded to the longest of their group, with the query heads of
one key-value head as that head's "tokens", so that grouped-query attention repeats nothing. Prefill
rows go one by one, causally. Indices are made once per batch; a layer only adds its offset.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from worker.executors.cpu.pool import KvView, PageTables

_SHORT = 8
"""Pages up to which decode rows share a group whatever their lengths."""


@dataclass(frozen=True, slots=True)
class Span:
    """New tokens of one sequence in a flat batch: positions start .. start + length - 1."""

    slot: int
    start: int
    length: int

    @property
    def end(self) -> int:
        """Tokens of the sequence once these are written."""
        return self.start + self.length


@dataclass(frozen=True, slots=True)
class _DecodeGroup:
    """Rows of one token each whose contexts are of similar length."""

    rows: Tensor | slice
    count: int
    gather: Tensor
    """Row of (sequence, head, page) in a page's layer 0 keys: int64 [count × heads × pages]."""
    mask: Tensor
    """Added to the scores: [count, 1, 1, pages × page_size]."""


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Consecutive rows of one sequence."""

    rows: slice
    gather: Tensor
    context: int
    mask: Tensor | None
    """bool [length, context]; None: plainly causal."""


class PagedAttention:
    """Attention for one batch: `spans` in the order of its rows, one-token rows first or mixed."""

    def __init__(
        self, view: KvView, tables: PageTables, spans: Sequence[Span], dtype: torch.dtype
    ) -> None:
        """Raises ValueError when a span lies outside its slot's page table."""
        self._view = view
        self._dtype = dtype
        for span in spans:
            tables.check(span.slot, self._pages(span))
        lengths = torch.tensor([span.length for span in spans])
        ends = lengths.cumsum(0)
        starts = (ends - lengths).tolist()
        self.positions = torch.cat([torch.arange(span.start, span.end) for span in spans])
        """Of each row, in its sequence: int64 [tokens]."""
        self.last_rows: list[int] = (ends - 1).tolist()
        """The row of each span's last token."""
        slots = torch.tensor([span.slot for span in spans]).repeat_interleave(lengths)
        self._write = self._write_index(tables, slots)
        single = [i for i, span in enumerate(spans) if span.length == 1]
        self._groups = [
            self._group(tables, [spans[i] for i in members], [starts[i] for i in members])
            for members in _by_length(single, spans, view.page_size)
        ]
        self._chunks = [
            self._chunk(tables, span, starts[i]) for i, span in enumerate(spans) if span.length > 1
        ]

    def _pages(self, span: Span) -> int:
        return -(-span.end // self._view.page_size)

    def _write_index(self, tables: PageTables, slots: Tensor) -> Tensor:
        """Entry of (token, head) in layer 0 keys: int64 [tokens × heads]."""
        size = self._view.page_size
        rows = tables.at(slots, self.positions // size) * self._view.rows_per_page
        entries = rows * size + self.positions % size
        return (entries[:, None] + torch.arange(self._view.heads) * size).flatten()

    def _gather_index(self, pages: Tensor) -> Tensor:
        """Turn page numbers [sequences, pages] into rows of layer 0 keys, flat, by head."""
        rows = (pages * self._view.rows_per_page)[:, None, :]
        return (rows + torch.arange(self._view.heads)[None, :, None]).flatten()

    def _group(self, tables: PageTables, spans: list[Span], rows: list[int]) -> _DecodeGroup:
        pages = tables.first([s.slot for s in spans], [self._pages(s) for s in spans])
        ends = torch.tensor([span.end for span in spans])
        beyond = torch.arange(pages.shape[1] * self._view.page_size) >= ends[:, None]
        mask = torch.zeros(beyond.shape, dtype=self._dtype).masked_fill_(beyond, -torch.inf)
        together = rows == list(range(rows[0], rows[0] + len(rows)))
        return _DecodeGroup(
            rows=slice(rows[0], rows[0] + len(rows)) if together else torch.tensor(rows),
            count=len(rows),
            gather=self._gather_index(pages),
            mask=mask[:, None, None, :],
        )

    def _chunk(self, tables: PageTables, span: Span, row: int) -> _Chunk:
        pages = tables.first([span.slot], [self._pages(span)])
        mask = None
        if span.start:
            positions = torch.arange(span.start, span.end)
            mask = torch.arange(span.end) <= positions[:, None]
        return _Chunk(slice(row, row + span.length), self._gather_index(pages), span.end, mask)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See `worker.models.ops.Ops.attend`."""
        view = self._view
        keys, values = view.first_row(layer, values=False), view.first_row(layer, values=True)
        view.tokens.index_copy_(
            0, self._write + keys * view.page_size, k.reshape(-1, view.head_dim)
        )
        view.tokens.index_copy_(
            0, self._write + values * view.page_size, v.reshape(-1, view.head_dim)
        )
        out = torch.empty((q.shape[0], q.shape[1] * view.head_dim), dtype=q.dtype)
        for group in self._groups:
            out[group.rows] = self._decode(group, q[group.rows], keys, values)
        for chunk in self._chunks:
            out[chunk.rows] = self._prefill(chunk, q[chunk.rows], keys, values)
        return out

    def _gathered(self, index: Tensor, sequences: int) -> Tensor:
        """Copy rows of the pool: [sequences, heads, tokens, head_dim]."""
        view = self._view
        rows = torch.index_select(view.rows, 0, index)
        return rows.view(sequences, view.heads, -1, view.head_dim)

    def _decode(self, group: _DecodeGroup, q: Tensor, keys: int, values: int) -> Tensor:
        view = self._view
        q = q.reshape(group.count, view.heads, -1, view.head_dim)
        k = self._gathered(group.gather + keys, group.count)
        v = self._gathered(group.gather + values, group.count)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=group.mask)
        return out.reshape(group.count, -1)

    def _prefill(self, chunk: _Chunk, q: Tensor, keys: int, values: int) -> Tensor:
        k = self._gathered(chunk.gather + keys, 1)[:, :, : chunk.context]
        v = self._gathered(chunk.gather + values, 1)[:, :, : chunk.context]
        out = F.scaled_dot_product_attention(
            q.transpose(0, 1)[None],
            k,
            v,
            attn_mask=chunk.mask,
            is_causal=chunk.mask is None,
            enable_gqa=True,
        )
        return out[0].transpose(0, 1).flatten(1)


def _by_length(members: list[int], spans: Sequence[Span], page_size: int) -> list[list[int]]:
    """Group spans so that padding at most doubles a context (above `_SHORT` pages)."""
    groups: dict[int, list[int]] = {}
    for i in members:
        pages = -(-spans[i].end // page_size)
        groups.setdefault(max(pages - 1, _SHORT - 1).bit_length(), []).append(i)
    return [groups[size] for size in sorted(groups)]
