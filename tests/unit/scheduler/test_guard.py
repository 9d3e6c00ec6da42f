import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.estimator.guard import UNKNOWN, WINDOW, Cell, Guard, cell_of, level
from scheduler.estimator.loads import DecodeLoad, PrefillLoad

HERE = Cell(16, 1, 0, 64, 0)


@pytest.mark.parametrize(
    ("tokens", "size"),
    [(0, 0), (2048, 0), (2049, 1), (8192, 1), (32768, 2), (131072, 3), (131073, 4), (10**9, 4)],
)
def test_levels_are_powers_of_four_from_2k_on(tokens, size):
    assert level(tokens) == size


def test_a_cell_goes_by_rows_and_by_context_of_a_row():
    beside = PrefillLoad.of_prompts([(4096, 20_000)])
    assert cell_of(32, DecodeLoad(33, 33 * 3000), beside) == Cell(32, 1, 2, 64, 1)


def test_a_profiled_cell_has_the_worst_of_its_samples():
    guard = Guard([(HERE, 1.1), (HERE, 1.25), (HERE, 0.9)])
    assert guard.worst(HERE) == 1.25


def test_where_nothing_at_all_is_known_the_papers_worst_counts():
    assert Guard([]).worst(HERE) == UNKNOWN


def test_an_empty_cell_lies_between_the_lighter_and_the_heavier_ones():
    light, heavy = Cell(16, 0, 0, 1, 0), Cell(16, 4, 4, 256, 4)
    guard = Guard([(light, 1.05), (heavy, 1.4), (Cell(32, 4, 4, 256, 4), 2.0)])
    assert guard.worst(HERE) == 1.4
    assert Guard([(light, 1.05), (Cell(16, 0, 4, 1, 0), 1.2)]).worst(HERE) == 1.2
    assert guard.worst(Cell(48, 1, 0, 64, 0)) == 2.0, "another partition's cells, if it has none"


cells = st.builds(
    Cell,
    st.sampled_from((16, 32)),
    st.integers(0, 4),
    st.integers(0, 4),
    st.sampled_from((1, 8, 64, 256)),
    st.integers(0, 4),
)


@given(
    st.dictionaries(cells, st.floats(1, 3), max_size=20), cells, st.tuples(*[st.integers(0, 2)] * 4)
)
@settings(deadline=None, max_examples=300)
def test_of_two_empty_cells_the_heavier_one_is_never_the_better_one(known, cell, more):
    units, *load = cell
    heavier = Cell(units, *(a + b for a, b in zip(load, more, strict=True)))
    if cell in known or heavier in known:
        return
    guard = Guard(known.items())
    assert 1 <= guard.worst(cell) <= guard.worst(heavier)


def test_a_lone_outlier_changes_nothing():
    guard = Guard([(HERE, 1.2)])
    guard.note(HERE, 9.0)
    assert guard.worst(HERE) == 1.2
    for _ in range(2 * WINDOW):
        guard.note(HERE, 1.1)
    guard.note(HERE, 9.0)
    assert guard.worst(HERE) == 1.1


def test_what_happens_again_counts_at_once():
    guard = Guard([(HERE, 1.2)])
    guard.note(HERE, 1.6)
    guard.note(HERE, 1.7)
    assert guard.worst(HERE) == 1.6


def test_what_does_not_happen_any_more_is_forgotten():
    guard = Guard([(HERE, 1.2)])
    for _ in range(10):
        guard.note(HERE, 3.0)
    assert guard.worst(HERE) == 3.0
    for _ in range(2 * WINDOW):
        guard.note(HERE, 1.05)
    assert guard.worst(HERE) == 1.05


def test_when_nothing_changes_less_than_one_percent_exceeds_the_worst():
    rng = random.Random(1)
    guard, exceeded, rounds = Guard([]), 0, 20_000
    for _ in range(rounds):
        slowdown = 1 + rng.expovariate(20)
        exceeded += slowdown > guard.worst(HERE)
        guard.note(HERE, slowdown)
    assert exceeded < 0.01 * rounds


def test_cells_without_a_sample_learn_from_their_neighbours():
    lighter = Cell(16, 0, 0, 64, 0)
    guard = Guard([(lighter, 1.1)])
    assert guard.worst(HERE) == 1.1
    for _ in range(WINDOW + 1):
        guard.note(lighter, 1.5)
    assert guard.worst(HERE) == 1.5


def test_what_was_learnt_can_be_given_to_another_guard():
    guard = Guard([(HERE, 1.2)])
    for _ in range(WINDOW + 1):
        guard.note(HERE, 1.5)
    other = Guard([(HERE, 1.2)])
    other.restore(guard.learnt().items())
    assert other.worst(HERE) == 1.5
