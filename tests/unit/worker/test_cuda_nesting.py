import pytest

from worker.executors.cuda.nesting import PartitionError, fitting, planning_notes, verify


def ids(first: int, end: int) -> frozenset[int]:
    return frozenset(range(first, end))


def test_sides_that_share_an_sm_are_refused() -> None:
    verify([ids(0, 112)], [ids(112, 132)])
    with pytest.raises(PartitionError, match=r"both sides run on SMs \[111\]"):
        verify([ids(0, 112)], [ids(111, 132)])


def test_a_row_that_is_not_inside_the_one_before_is_refused() -> None:
    verify([ids(0, 112), ids(0, 96)], [ids(112, 132), ids(96, 132)])
    with pytest.raises(PartitionError, match="row 2 is not nested in row 1"):
        verify([ids(0, 112), ids(20, 116)], [ids(112, 132), ids(0, 20)])


def test_counts_that_leave_a_side_too_small_are_left_out() -> None:
    assert fitting((128, 124, 112, 112, 4), 132) == [124, 112]


def test_kernels_that_ignore_partitions_are_a_warning_or_under_require_a_refusal() -> None:
    assert planning_notes(aware=True, require=True) == ()
    assert "flashinfer-jit-cache" in planning_notes(aware=False, require=False)[0]
    with pytest.raises(PartitionError, match="whole device"):
        planning_notes(aware=False, require=True)
