"""A cut batch, piece by piece and merged, attends to exactly what the whole batch attends to."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from worker.executors.cuda.kernels.split import Rows, Split, cut

PAGE = 4


def indptr_of(lengths: list[int]) -> np.ndarray:
    pages = [-(-length // PAGE) for length in lengths]
    return np.concatenate(([0], np.cumsum(pages))).astype(np.int32)


def attend(rows: Rows, q: Tensor, pages: Tensor, *, causal: bool) -> tuple[Tensor, Tensor]:
    """What a batched kernel does, with keys as values: outputs and natural log-sum-exps."""
    outs, lses = [], []
    for row in range(len(rows.lengths)):
        mine = q[rows.qo_indptr[row] : rows.qo_indptr[row + 1]]
        length = int(rows.lengths[row])
        start = int(rows.indptr[row])
        keys = pages[start : start + -(-length // PAGE)].reshape(-1, q.shape[1])[:length]
        scores = mine @ keys.T
        if causal:
            at = torch.arange(length - len(mine), length)
            scores = scores.masked_fill(torch.arange(length) > at[:, None], -torch.inf)
        outs.append(scores.softmax(-1) @ keys)
        lses.append(scores.logsumexp(-1))
    return torch.cat(outs), torch.cat(lses)


def merged(split: Split, q: Tensor, pages: Tensor) -> Tensor:
    tails, tail_lse = attend(split.tails, q, pages, causal=True)
    parts, part_lse = attend(split.pieces, q[split.gather.tolist()], pages, causal=False)
    rows = []
    for i in range(len(q)):
        places = [int(split.first[i]) + j * int(split.step[i]) for j in range(split.count[i])]
        lse = torch.stack([tail_lse[i], *(part_lse[at] for at in places)])
        values = torch.stack([tails[i], *(parts[at] for at in places)])
        rows.append(lse.softmax(0) @ values)
    return torch.stack(rows)


spans = st.lists(
    st.tuples(st.integers(1, 5), st.integers(0, 40), st.integers(0, 6)), min_size=1, max_size=4
)


@settings(deadline=None)
@given(spans, st.integers(0, 2**16))
def test_pieces_and_tails_together_equal_the_whole(
    batch: list[tuple[int, int, int]], seed: int
) -> None:
    new, reused, pieces = (list(column) for column in zip(*batch, strict=True))
    lengths = [n + r for n, r in zip(new, reused, strict=True)]
    indptr = indptr_of(lengths)
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(sum(new), 8, generator=generator, dtype=torch.float64)
    pages = torch.randn(int(indptr[-1]), PAGE, 8, generator=generator, dtype=torch.float64)
    split = cut(new, reused, pieces, indptr, PAGE)
    if split is None:
        assert not any(n and r >= PAGE for n, r in zip(pieces, reused, strict=True))
        return
    starts = np.concatenate(([0], np.cumsum(new))).astype(np.int32)
    whole = Rows(starts, indptr, np.asarray(lengths, dtype=np.int32))
    expected, _ = attend(whole, q, pages, causal=True)
    torch.testing.assert_close(merged(split, q, pages), expected)


def test_a_row_is_cut_into_as_many_pieces_as_asked_for_of_nearly_equal_length() -> None:
    split = cut([3], [100], [4], indptr_of([103]), PAGE)
    assert split is not None
    assert split.pieces.lengths.tolist() == [24, 24, 24, 28]
    assert split.tails.lengths.tolist() == [3]
    assert split.tails.indptr.tolist() == [25, 26]


def test_tokens_that_do_not_fill_a_page_stay_with_the_tail() -> None:
    split = cut([2], [9], [1], indptr_of([11]), PAGE)
    assert split is not None
    assert split.pieces.lengths.tolist() == [8]
    assert split.tails.lengths.tolist() == [3]


def test_an_uncut_row_keeps_its_whole_context_in_the_tail() -> None:
    split = cut([1, 2], [8, 7], [2, 0], indptr_of([9, 9]), PAGE)
    assert split is not None
    assert split.tails.lengths.tolist() == [1, 9]
    assert split.count.tolist() == [2, 0, 0]
