"""Host arithmetic of a batch: which token sits where, in which pages. Numpy only, no device.

A flat batch is rows of new tokens, one row per sequence; attention kernels want them as compressed
rows: `qo_indptr` over tokens, `kv_indptr` over page-table entries, and how full each last page is.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from worker.executors.base import PrefillRow, TableUpdate
from worker.executors.cuda.staging import Ints


class PageTables:
    """The page table of every slot, on the host; entries behind a slot's length are void."""

    def __init__(self, slots: int, pages_per_slot: int) -> None:
        self._entries = np.zeros((slots, pages_per_slot), dtype=np.int32)
        self._length = [0] * slots

    def update(self, updates: Sequence[TableUpdate]) -> None:
        """Apply updates in order. Raises ValueError for pages behind the table's end."""
        for change in updates:
            end = change.first + len(change.pages)
            if end > self._entries.shape[1]:
                raise ValueError(f"{end} pages exceed a table of {self._entries.shape[1]}")
            self._entries[change.slot, change.first : end] = change.pages
            self._length[change.slot] = end

    def pages(self, slot: int, count: int) -> Ints:
        """Return the first `count` pages of a slot. Raises ValueError when it has fewer."""
        if count > self._length[slot]:
            raise ValueError(f"slot {slot}: {count} pages needed, {self._length[slot]} known")
        return self._entries[slot, :count]


@dataclass(frozen=True, slots=True)
class Pages:
    """Page tables of a batch as compressed rows."""

    indptr: Ints
    """[rows + 1]"""
    last: Ints
    """[rows]: tokens in the last page, 1 … page size."""
    indices: Ints
    """[indptr[-1]]"""


def page_rows(tables: PageTables, slots: Sequence[int], lengths: Ints, page_size: int) -> Pages:
    """Return the pages that hold the first lengths[i] (at least 1) tokens of slots[i]."""
    counts = -(-lengths // page_size)
    indptr = np.zeros(len(slots) + 1, dtype=np.int32)
    np.cumsum(counts, out=indptr[1:])
    rows = [tables.pages(s, n) for s, n in zip(slots, counts.tolist(), strict=True)]
    indices = np.concatenate(rows) if rows else np.zeros(0, dtype=np.int32)
    last = (lengths - (counts - 1) * page_size).astype(np.int32)
    return Pages(indptr, last, indices)


def pad_rows(pages: Pages, rows: int, scratch_page: int) -> Pages:
    """Add rows of one token in `scratch_page` until there are `rows`."""
    missing = rows - len(pages.last)
    if missing == 0:
        return pages
    behind = pages.indptr[-1] + np.arange(1, missing + 1, dtype=np.int32)
    return Pages(
        np.concatenate((pages.indptr, behind)),
        np.concatenate((pages.last, np.ones(missing, dtype=np.int32))),
        np.concatenate((pages.indices, np.full(missing, scratch_page, dtype=np.int32))),
    )


def pad(values: Sequence[int], rows: int, fill: int) -> Ints:
    """Return values as int32, filled up to `rows`."""
    padded = np.full(rows, fill, dtype=np.int32)
    padded[: len(values)] = values
    return padded


@dataclass(frozen=True, slots=True)
class Tokens:
    """New tokens of several prompts, flat."""

    ids: Ints
    positions: Ints
    row_of: Ints
    """[tokens]: row that each token belongs to."""
    indptr: Ints
    """[rows + 1]: where each row's tokens start."""
    lengths: Ints
    """[rows]: tokens of the sequence once these are written."""
    sampled: Ints
    """Index of the last token of each row that samples."""
    sampled_slots: tuple[int, ...]


def flatten(rows: Sequence[PrefillRow]) -> Tokens:
    """Lay the rows of a prefill batch one behind the other."""
    counts = np.array([len(row.token_ids) for row in rows], dtype=np.int32)
    starts = np.array([row.start for row in rows], dtype=np.int32)
    indptr = np.zeros(len(rows) + 1, dtype=np.int32)
    np.cumsum(counts, out=indptr[1:])
    row_of = np.repeat(np.arange(len(rows), dtype=np.int32), counts)
    within = np.arange(int(indptr[-1]), dtype=np.int32) - indptr[row_of]
    ids = [np.asarray(row.token_ids, dtype=np.int32) for row in rows]
    sampling = [index for index, row in enumerate(rows) if row.sample]
    return Tokens(
        ids=np.concatenate(ids) if ids else np.zeros(0, dtype=np.int32),
        positions=starts[row_of] + within,
        row_of=row_of,
        indptr=indptr,
        lengths=starts + counts,
        sampled=(indptr[1:][sampling] - 1).astype(np.int32),
        sampled_slots=tuple(rows[index].slot for index in sampling),
    )
