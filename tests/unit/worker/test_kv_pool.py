"""The page pool: against a naive model over random operations, and by example."""

import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from hypothesis.strategies import data, integers

from worker.kv.pool import OutOfPages, PagePool

PAGES = 12


class PoolAgainstModel(RuleBasedStateMachine):
    """The model: who holds what, which content is where, and in which order it was last let go."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(PAGES)
        self.holders: list[list[int]] = []
        self.content: dict[int, bytes] = {}
        self.idle: list[int] = []

    def held(self, page: int) -> int:
        return sum(holder.count(page) for holder in self.holders)

    @rule(count=integers(0, PAGES + 2))
    def take(self, count: int) -> None:
        free = PAGES - len({p for h in self.holders for p in h}) - len(self.idle)
        if count > free + len(self.idle):
            with pytest.raises(OutOfPages):
                self.pool.take(count)
            return
        pages = self.pool.take(count)
        assert len(set(pages)) == count
        evicted = [self.idle.pop(0) for _ in range(max(0, count - free))]
        for page in pages:
            assert self.held(page) == 0
            assert page not in self.idle
            self.content.pop(page, None)
        assert set(evicted) <= set(pages), "the least recently used go first"
        self.holders.append(pages)

    @precondition(lambda self: self.content)
    @rule(data=data())
    def share(self, data) -> None:
        named = sorted(self.content)
        page = named[data.draw(integers(0, len(named) - 1))]
        assert self.pool.find(self.content[page]) == page
        self.pool.share([page])
        if page in self.idle:
            self.idle.remove(page)
        self.holders.append([page])

    @precondition(lambda self: self.holders)
    @rule(data=data())
    def release(self, data) -> None:
        holder = self.holders.pop(data.draw(integers(0, len(self.holders) - 1)))
        self.pool.release(holder)
        for page in reversed(holder):
            if not self.held(page) and page in self.content:
                self.idle.append(page)

    @precondition(lambda self: any(self.holders))
    @rule(data=data(), content=integers(0, 9))
    def name(self, data, content: int) -> None:
        pages = [page for holder in self.holders for page in holder]
        page = pages[data.draw(integers(0, len(pages) - 1))]
        text = b"%d" % content
        new = page not in self.content and text not in self.content.values()
        assert self.pool.name(page, text) is new
        if new:
            self.content[page] = text

    @invariant()
    def agrees(self) -> None:
        assert self.pool.check() == []
        for page in range(PAGES):
            assert self.pool.references(page) == self.held(page)
            assert self.pool.is_idle(page) == (page in self.idle)
        assert self.pool.cached == len(self.idle)
        assert self.pool.free + self.pool.cached + self.pool.referenced == PAGES
        for page, text in self.content.items():
            assert self.pool.find(text) == page


PoolAgainstModel.TestCase.settings = settings(
    max_examples=200, stateful_step_count=60, deadline=None, derandomize=True, database=None
)
TestPoolAgainstModel = PoolAgainstModel.TestCase


def test_too_many_pages_are_refused_with_both_numbers_and_nothing_is_taken():
    pool = PagePool(3)
    pool.take(1)
    with pytest.raises(OutOfPages, match="3 pages wanted, 2 available"):
        pool.take(3)
    assert pool.available == 2


def test_the_same_page_twice_is_released_twice_or_not_at_all():
    pool = PagePool(2)
    [page] = pool.take(1)
    pool.release([page])
    with pytest.raises(ValueError, match="nobody holds it"):
        pool.release([page])
    assert pool.check() == []


def test_a_free_page_can_be_neither_shared_nor_named():
    pool = PagePool(2)
    with pytest.raises(ValueError, match="page 1 is free"):
        pool.share([1])
    with pytest.raises(ValueError, match="page 1 is named"):
        pool.name(1, b"x")


def test_of_one_sequence_the_end_is_evicted_before_the_beginning():
    pool = PagePool(3)
    pages = pool.take(3)
    for number, page in enumerate(pages):
        pool.name(page, b"%d" % number)
    pool.release(pages)
    pool.take(2)
    assert [pool.find(b"%d" % number) for number in range(3)] == [pages[0], None, None]
    assert pool.evicted == 2


def test_a_content_has_one_page_and_its_copy_goes_back_unnamed():
    pool = PagePool(2)
    first, second = pool.take(2)
    assert pool.name(first, b"x")
    assert not pool.name(second, b"x")
    pool.release([second])
    assert (pool.free, pool.cached) == (1, 0)
    assert pool.find(b"x") == first


def test_a_pool_without_pages_is_refused():
    with pytest.raises(ValueError, match="0 pages"):
        PagePool(0)


def test_check_finds_what_is_wrong():
    pool = PagePool(3)
    pool.take(1)
    pool._free.append(pool._free[0])
    pool._references[0] = -1
    found = " ".join(pool.check())
    assert "twice" in found
    assert "negative" in found
