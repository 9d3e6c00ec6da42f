"""Kept GEMM choices: keyed by what they depend on, and never trusted when they come from a file."""

import json
from pathlib import Path

import pytest

from worker.executors.cuda.kernels.gemm_plans import (
    M_BUCKETS,
    GemmChoice,
    GemmKey,
    GemmStore,
    bucket_of,
    bucket_table,
    file_name,
)

ALGORITHM = "ab" * 64
KEY = GemmKey(64, 4096, 14336, 36, False)


def choice(source: str = "heuristic", algorithm: str = ALGORITHM) -> GemmChoice:
    return GemmChoice(algorithm, 36, source)


def test_a_bucket_holds_its_rows_and_is_the_smallest_that_does() -> None:
    for rows in range(1, M_BUCKETS[-1] + 1):
        bucket = bucket_of(rows)
        assert bucket >= rows
        assert all(end < rows for end in M_BUCKETS if end < bucket)


def test_rows_beyond_the_largest_bucket_use_it() -> None:
    assert bucket_of(M_BUCKETS[-1] + 1) == M_BUCKETS[-1]


def test_no_rows_is_no_product() -> None:
    with pytest.raises(ValueError, match="at least 1, got 0"):
        bucket_of(0)


def test_the_launch_path_looks_buckets_up_in_a_table_that_agrees() -> None:
    table = bucket_table()
    assert len(table) == M_BUCKETS[-1] + 1
    assert all(table[rows] == bucket_of(rows) for rows in range(1, len(table)))


def test_keys_differ_in_text_wherever_they_differ() -> None:
    keys = [
        KEY,
        GemmKey(96, 4096, 14336, 36, False),
        GemmKey(64, 4608, 14336, 36, False),
        GemmKey(64, 4096, 14337, 36, False),
        GemmKey(64, 4096, 14336, 52, False),
        GemmKey(64, 4096, 14336, 36, True),
    ]
    assert len({key.text() for key in keys}) == len(keys)


def test_the_file_name_tells_gpu_version_and_driver_apart_and_is_a_plain_name() -> None:
    names = {
        file_name("NVIDIA H200", 130100, "580.159.04"),
        file_name("NVIDIA H100", 130100, "580.159.04"),
        file_name("NVIDIA H200", 130200, "580.159.04"),
        file_name("NVIDIA H200", 130100, "580.95"),
    }
    assert len(names) == 4
    assert all("/" not in name and " " not in name for name in names)


def test_choices_survive_a_restart(tmp_path: Path) -> None:
    store = GemmStore(tmp_path / "deep" / "gemm.json")
    store.put(KEY, GemmChoice(ALGORITHM, 36, "search", 41.5))
    store.save()
    assert GemmStore(store.path).get(KEY) == GemmChoice(ALGORITHM, 36, "search", 41.5)


def test_a_guess_never_replaces_a_measured_choice(tmp_path: Path) -> None:
    store = GemmStore(tmp_path / "gemm.json")
    store.put(KEY, choice("search"))
    store.put(KEY, choice("heuristic", "cd" * 64))
    kept = store.get(KEY)
    assert kept is not None
    assert kept.source == "search"


def test_a_measured_choice_replaces_any_other(tmp_path: Path) -> None:
    store = GemmStore(tmp_path / "gemm.json")
    store.put(KEY, choice("search"))
    store.put(KEY, choice("search", "cd" * 64))
    assert store.get(KEY) == choice("search", "cd" * 64)


def test_a_dropped_choice_is_gone_from_the_file_too(tmp_path: Path) -> None:
    store = GemmStore(tmp_path / "gemm.json")
    store.put(KEY, choice())
    store.save()
    store.drop(KEY)
    store.save()
    assert len(GemmStore(store.path)) == 0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "not json",
        "[]",
        "null",
        '{"schema": 999, "choices": {}}',
        '{"schema": 1, "choices": []}',
        '{"schema": 1, "choices": {"m64": {"algorithm": "abcd"}}}',
        json.dumps(
            {
                "schema": 1,
                "choices": {
                    "x": {"algorithm": "zz" * 64, "sm_target": 1, "source": "s", "tflops": 0}
                },
            }
        ),
        json.dumps(
            {
                "schema": 1,
                "choices": {"x": {"algorithm": "ab", "sm_target": 1, "source": "s", "tflops": 0}},
            }
        ),
    ],
)
def test_a_damaged_or_foreign_file_is_ignored_and_then_replaced(tmp_path: Path, text: str) -> None:
    path = tmp_path / "gemm.json"
    path.write_text(text)
    store = GemmStore(path)
    assert len(store) == 0
    store.put(KEY, choice())
    store.save()
    assert GemmStore(path).get(KEY) == choice()


def test_a_directory_that_cannot_be_written_does_not_stop_the_worker(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    store = GemmStore(blocked / "gemm.json")
    store.put(KEY, choice())
    store.save()
    assert store.get(KEY) == choice()
