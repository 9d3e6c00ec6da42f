"""The host arithmetic of CUDA batches: no device, no flashinfer."""

import numpy as np
import pytest
import torch

from worker.executors.base import PrefillRow, TableUpdate
from worker.executors.cuda.layout import PageTables, flatten, pad, pad_rows, page_rows
from worker.executors.cuda.staging import HostBuffers, pack, packed_size


def tables(*rows: tuple[int, ...]) -> PageTables:
    made = PageTables(len(rows), 8)
    made.update([TableUpdate(slot, 0, pages) for slot, pages in enumerate(rows)])
    return made


def test_page_rows_cover_exactly_the_tokens_asked_for():
    rows = page_rows(tables((5, 6, 7), (9,)), (0, 1), np.array([33, 16], np.int32), 16)
    assert rows.indptr.tolist() == [0, 3, 4]
    assert rows.last.tolist() == [1, 16]
    assert rows.indices.tolist() == [5, 6, 7, 9]


def test_a_row_takes_no_page_behind_its_length():
    rows = page_rows(tables((5, 6, 7)), (0,), np.array([16], np.int32), 16)
    assert rows.indices.tolist() == [5]
    assert rows.last.tolist() == [16]


def test_a_table_that_is_too_short_is_refused_by_name():
    with pytest.raises(ValueError, match="slot 0: 3 pages needed, 2 known"):
        page_rows(tables((5, 6)), (0,), np.array([33], np.int32), 16)


def test_an_update_voids_what_was_behind_it():
    made = tables((5, 6, 7))
    made.update([TableUpdate(0, 1, (8,))])
    assert made.pages(0, 2).tolist() == [5, 8]
    with pytest.raises(ValueError, match="3 pages needed, 2 known"):
        made.pages(0, 3)


def test_an_update_behind_the_tables_end_is_refused():
    with pytest.raises(ValueError, match="9 pages exceed a table of 8"):
        tables((1,)).update([TableUpdate(0, 0, tuple(range(9)))])


def test_padded_rows_hold_one_token_in_the_scratch_page():
    rows = page_rows(tables((5, 6), (7,)), (0, 1), np.array([20, 3], np.int32), 16)
    padded = pad_rows(rows, 4, 99)
    assert padded.indptr.tolist() == [0, 2, 3, 4, 5]
    assert padded.last.tolist() == [4, 3, 1, 1]
    assert padded.indices.tolist() == [5, 6, 7, 99, 99]


def test_rows_that_are_full_are_not_padded():
    rows = page_rows(tables((5,)), (0,), np.array([3], np.int32), 16)
    assert pad_rows(rows, 1, 99) is rows


def test_flatten_keeps_positions_rows_and_the_tokens_that_sample():
    flat = flatten(
        [PrefillRow(3, 10, (1, 2, 3), sample=False), PrefillRow(5, 0, (4, 5), sample=True)]
    )
    assert flat.ids.tolist() == [1, 2, 3, 4, 5]
    assert flat.positions.tolist() == [10, 11, 12, 0, 1]
    assert flat.row_of.tolist() == [0, 0, 0, 1, 1]
    assert flat.indptr.tolist() == [0, 3, 5]
    assert flat.lengths.tolist() == [13, 2]
    assert flat.sampled.tolist() == [4]
    assert flat.sampled_slots == (5,)


def test_flatten_of_nothing_is_empty():
    flat = flatten([])
    assert flat.indptr.tolist() == [0]
    assert flat.ids.tolist() == []


def test_pad_fills_behind_the_values():
    assert pad([1, 2], 4, 7).tolist() == [1, 2, 7, 7]


def test_packed_arrays_start_aligned_and_keep_their_values():
    arrays = [np.arange(5, dtype=np.int32), np.array([9], np.int32), np.arange(3, dtype=np.int32)]
    into = torch.zeros(packed_size(arrays), dtype=torch.int32)
    places = pack(arrays, into)
    assert [offset % 4 for offset, _ in places] == [0, 0, 0]
    for array, (offset, length) in zip(arrays, places, strict=True):
        assert into[offset : offset + length].tolist() == array.tolist()


def test_pack_refuses_a_buffer_that_is_too_small():
    with pytest.raises(ValueError, match="8 entries do not fit 7"):
        pack([np.arange(5, dtype=np.int32)], torch.zeros(7, dtype=torch.int32))


def test_a_host_buffer_in_use_is_not_handed_out_again():
    buffers = HostBuffers(lambda: torch.zeros(1))
    first, second = buffers.take(), buffers.take()
    assert first is not second
    buffers.give_back([first])
    assert buffers.take() is first
    assert buffers.made == 2
