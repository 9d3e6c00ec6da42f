"""Cut the reused context of prefill rows into pieces that the batched kernel sees as sequences.

Each piece becomes a sequence of its own whose queries are its row's, repeated, and which attends
without a mask (all of its keys lie before the new tokens). What remains, the tail (new tokens, and
reused ones that do not fill a page), is attended to causally as usual; merge.py puts both together.
Starts point into the batch's own page list, so that no page table is copied.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Rows:
    """Sequences as a kernel is planned for them, int32 on the host.

    The planner of FA3 takes from `indptr` only where each sequence starts, and its length from
    `lengths`, so sequences may overlap and leave pages out.
    """

    qo_indptr: Ints
    """[rows + 1]: where each row's queries start."""
    indptr: Ints
    """[rows + 1]: where each row's pages start in the batch's page list; the last entry is void."""
    lengths: Ints
    """[rows]: keys, in tokens."""


@dataclass(frozen=True, slots=True)
class Split:
    """A batch cut in two: its tails, and the pieces before them."""

    tails: Rows
    pieces: Rows
    gather: Ints
    """[partial rows]: the query that each partial row repeats."""
    first: Ints
    """[queries]: where each query's partial rows start,"""
    step: Ints
    """how far apart they are,"""
    count: Ints
    """and how many there are."""


def cut(
    new: Sequence[int],
    reused: Sequence[int],
    pieces: Sequence[int],
    indptr: Ints,
    page_size: int,
) -> Split | None:
    """Cut row i's reused tokens, at page boundaries, into at most `pieces[i]` pieces.

    `indptr` [rows + 1] says where each row's pages start. None when no row fills a page.
    """
    queries: list[int] = []
    starts: list[int] = []
    lengths: list[int] = []
    gather, first, step, count = [], [], [], []
    at = partial = 0
    pages = [
        held // page_size if wanted else 0 for held, wanted in zip(reused, pieces, strict=True)
    ]
    for row, (tokens, whole) in enumerate(zip(new, pages, strict=True)):
        parts = min(pieces[row], whole)
        edges = [whole * part // parts for part in range(parts + 1)] if parts else []
        for begin, end in pairwise(edges):
            queries.append(tokens)
            starts.append(int(indptr[row]) + begin)
            lengths.append((end - begin) * page_size)
        gather.append(np.tile(np.arange(at, at + tokens, dtype=np.int32), parts))
        first.append(np.arange(partial, partial + tokens, dtype=np.int32))
        step.append(np.full(tokens, tokens, dtype=np.int32))
        count.append(np.full(tokens, parts, dtype=np.int32))
        at += tokens
        partial += tokens * parts
    if not starts:
        return None
    kept = np.asarray(pages, dtype=np.int32)
    tails = Rows(
        _offsets(new),
        np.append(indptr[:-1] + kept, indptr[-1]).astype(np.int32),
        np.asarray(reused, dtype=np.int32) + np.asarray(new, dtype=np.int32) - kept * page_size,
    )
    cut_rows = Rows(
        _offsets(queries),
        np.asarray([*starts, 0], dtype=np.int32),
        np.asarray(lengths, dtype=np.int32),
    )
    joined = [np.concatenate(part) for part in (gather, first, step, count)]
    return Split(tails, cut_rows, *joined)


def _offsets(lengths: Sequence[int]) -> Ints:
    return np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
