"""The CPU executor's parts: the partition table, busy times, lanes, and the pool's tables."""

import itertools
import os
import subprocess
import sys
import threading

import pytest
import torch

from protocol.control_link import WHOLE, Partition
from protocol.control_link import Lane as Which
from worker.executors.cpu import topology
from worker.executors.cpu.busy import BusyTimes
from worker.executors.cpu.lanes import Job, Lane
from worker.executors.cpu.pool import PageTables, common_page_bytes, page_bytes
from worker.models.config import ModelConfig, RopeConfig

PATIENCE_S = 30.0


# --- topology ---


def test_two_cores_are_whole_or_one_each() -> None:
    table = topology.splits((0, 1))
    assert [s.partition for s in table] == [Partition(WHOLE, 2, 2), Partition(1, 1, 1)]
    assert not topology.notes((0, 1))


def test_one_core_is_shared_in_time_and_says_so() -> None:
    assert [s.partition for s in topology.splits((3,))] == [Partition(WHOLE, 1, 1)]
    assert "one core" in topology.notes((3,))[0]


@pytest.mark.parametrize("count", [2, 3, 8, 9, 10, 64, 192])
def test_rows_are_disjoint_cover_the_cores_and_are_nested(count: int) -> None:
    cores = tuple(range(100, 100 + count))
    table = topology.splits(cores)
    assert 2 <= len(table) <= topology.MAX_SPLITS + 1
    assert [s.index for s in table] == list(range(len(table)))
    for smaller, larger in itertools.pairwise(table[1:]):
        assert set(smaller.decode) < set(larger.decode)
        assert set(smaller.prefill) > set(larger.prefill)
    for split in table[1:]:
        assert split.prefill
        assert split.decode
        assert sorted(split.prefill + split.decode) == list(cores)
    assert len(table[1].decode) == 1
    assert len(table[-1].prefill) == 1


def test_no_core_is_refused() -> None:
    with pytest.raises(ValueError, match="no core"):
        topology.splits(())


def test_thread_environment_is_known_before_torch_is_imported() -> None:
    code = (
        "import sys, worker.executors.cpu.start as start; start.topology.thread_environment(); "
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
    assert topology.thread_environment()["OMP_WAIT_POLICY"] == "PASSIVE"


# --- busy times ---


def test_overlap_is_what_both_lanes_were_busy() -> None:
    busy = BusyTimes()
    busy.begin(Which.PREFILL, 0.0)
    busy.begin(Which.DECODE, 1.0)
    assert busy.end(Which.DECODE, 3.0) == (1.0, 2.0)
    busy.begin(Which.DECODE, 4.0)
    assert busy.end(Which.PREFILL, 5.0) == (0.0, 3.0)
    assert busy.end(Which.DECODE, 9.0) == (4.0, 1.0)


def test_lanes_in_turn_do_not_overlap() -> None:
    busy = BusyTimes()
    for lane, start in ((Which.PREFILL, 0.0), (Which.DECODE, 1.0), (Which.PREFILL, 2.0)):
        busy.begin(lane, start)
        assert busy.end(lane, start + 1.0) == (start, 0.0)


def test_lane_that_starts_twice_is_an_error() -> None:
    busy = BusyTimes()
    busy.begin(Which.DECODE, 0.0)
    with pytest.raises(ValueError, match="decode"):
        busy.begin(Which.DECODE, 1.0)


# --- lanes ---


def test_jobs_run_in_order_across_rows_one_at_a_time() -> None:
    cores = topology.available_cores()
    lane = Lane("test", (cores, cores, cores))
    seen: list[tuple[int, str]] = []
    inside = threading.Lock()

    def job(number: int) -> None:
        assert inside.acquire(blocking=False), "two jobs at once"
        seen.append((number, threading.current_thread().name))
        inside.release()

    rows = [0, 1, 1, 2, 0, 2, 1, 0] * 10
    for number, row in enumerate(rows):
        lane.put(Job(row, lambda number=number: job(number)))
    lane.close()
    assert seen == [(number, f"test-{row}") for number, row in enumerate(rows)]


def test_change_of_row_waits_for_nothing_but_the_running_job() -> None:
    cores = topology.available_cores()
    lane = Lane("test", (cores, cores))
    release, first, second = threading.Event(), threading.Event(), threading.Event()

    def hold() -> None:
        first.set()
        release.wait(PATIENCE_S)

    lane.put(Job(0, hold))
    lane.put(Job(1, second.set))
    assert first.wait(PATIENCE_S)
    assert not second.is_set()
    release.set()
    assert second.wait(PATIENCE_S)
    lane.close()


def test_threads_keep_to_their_cores_and_count_them() -> None:
    cores = topology.available_cores()
    choices = (cores, cores[:1], cores[-1:])
    lane = Lane("test", choices)
    seen: dict[int, tuple[set[int], int]] = {}

    def look(row: int) -> None:
        torch.ones(1 << 17).exp()  # a parallel region, if there is a team
        seen[row] = (os.sched_getaffinity(0), torch.get_num_threads())

    for row in range(3):
        lane.put(Job(row, lambda row=row: look(row)))
    lane.close()
    assert seen == {row: (set(own), len(own)) for row, own in enumerate(choices)}


def test_lanes_do_not_change_the_cores_of_the_process() -> None:
    before = (os.sched_getaffinity(0), torch.get_num_threads())
    Lane("test", (topology.available_cores()[:1],)).close()
    assert (os.sched_getaffinity(0), torch.get_num_threads()) == before


def test_unknown_row_is_refused() -> None:
    lane = Lane("test", (topology.available_cores(),))
    with pytest.raises(ValueError, match="partition 1"):
        lane.put(Job(1, lambda: None))
    lane.close()


# --- pool ---


def shape(layers: int, kv_heads: int, head_dim: int) -> ModelConfig:
    return ModelConfig(
        family="llama",
        vocab_size=8,
        hidden_size=8,
        intermediate_size=8,
        num_layers=layers,
        num_heads=kv_heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        norm_eps=1e-5,
        rope=RopeConfig(1e4),
        max_position_embeddings=64,
        tie_word_embeddings=True,
    )


def test_page_holds_keys_and_values_of_all_layers() -> None:
    assert page_bytes(shape(30, 3, 64), 16, torch.float32) == 30 * 2 * 3 * 64 * 16 * 4


def test_common_page_fits_each_model_in_whole_rows() -> None:
    shapes = [shape(30, 3, 64), shape(5, 7, 48)]
    size = common_page_bytes(shapes, 16, torch.float32)
    assert size >= max(page_bytes(s, 16, torch.float32) for s in shapes)
    for s in shapes:
        assert size % (16 * s.head_dim * 4) == 0


def test_table_entries_behind_an_update_are_void() -> None:
    tables = PageTables(2, 4)
    tables.update(1, 0, (5, 6, 7))
    tables.update(1, 1, (9,))
    tables.check(1, 2)
    with pytest.raises(ValueError, match="slot 1 has 2 pages, and needs 3"):
        tables.check(1, 3)
    assert tables.first([1], [2]).tolist() == [[5, 9]]


def test_table_refuses_gaps_and_excess() -> None:
    tables = PageTables(1, 4)
    with pytest.raises(ValueError, match="slot 0: entries 1 to 2"):
        tables.update(0, 1, (3,))
    with pytest.raises(ValueError, match="exceed 4"):
        tables.update(0, 0, range(5))


def test_padding_of_a_short_table_repeats_its_own_first_page() -> None:
    tables = PageTables(2, 4)
    tables.update(0, 0, (7, 8, 9))
    tables.update(1, 0, (3, 2, 1))
    assert tables.first([0, 1], [3, 1]).tolist() == [[7, 8, 9], [3, 3, 3]]
