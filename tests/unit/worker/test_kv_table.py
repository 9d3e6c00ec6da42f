"""Page tables: growth, what the device is told, and which pages can be found."""

import pytest

from worker.kv.pool import OutOfPages, PagePool
from worker.kv.table import PageTable, pages_for


@pytest.mark.parametrize(
    ("tokens", "pages"), [(0, 0), (1, 1), (3, 1), (4, 1), (5, 2), (8, 2), (9, 3)]
)
def test_pages_for_tokens_rounds_up(tokens, pages):
    assert pages_for(tokens, 4) == pages


def test_a_table_grows_by_what_is_missing_and_not_at_all_when_that_is_too_much():
    pool = PagePool(4)
    table = PageTable(pool, 4, [])
    table.grow(5)
    assert (len(table.pages), table.capacity) == (2, 8)
    table.grow(8)
    assert len(table.pages) == 2
    with pytest.raises(OutOfPages):
        table.grow(17)
    assert (len(table.pages), table.capacity, pool.available) == (2, 8, 2)


def test_the_device_is_told_each_entry_once():
    pool = PagePool(4)
    table = PageTable(pool, 4, [])
    table.grow(8)
    assert table.unsent() == (0, tuple(table.pages))
    table.grow(9)
    assert table.unsent() == (2, tuple(table.pages[2:]))
    assert table.unsent() == (3, ())


def test_only_full_written_pages_can_be_found():
    pool = PagePool(4)
    table = PageTable(pool, 4, [])
    table.grow(12)
    table.name([b"a", b"b", b"c"], computed=7)
    assert pool.find(b"a") == table.pages[0]
    assert pool.find(b"b") is None
    table.name([b"a", b"b", b"c"], computed=8)
    assert pool.find(b"b") == table.pages[1]


def test_pages_without_a_name_stay_unnamed_until_they_have_one():
    pool = PagePool(4)
    table = PageTable(pool, 4, [])
    table.grow(8)
    table.name([b"a"], computed=8)
    table.name([b"a", b"b"], computed=8)
    assert pool.find(b"b") == table.pages[1]


def test_shared_pages_come_first_and_are_released_with_the_rest():
    pool = PagePool(4)
    first = PageTable(pool, 4, [])
    first.grow(4)
    first.name([b"a"], computed=4)
    second = PageTable(pool, 4, first.pages)
    second.grow(6)
    assert second.pages[0] == first.pages[0]
    assert pool.references(first.pages[0]) == 2
    first.release()
    second.release()
    assert (pool.referenced, pool.cached, pool.free) == (0, 1, 3)
    assert second.capacity == 0
