"""What is sent and when: by the file or the seed, and by nothing else."""

import gzip
import json
import lzma
import random
from pathlib import Path
from statistics import fmean, pstdev

import pytest

from ops.bench.arrivals import Arrivals, ArrivalsError, drawn, traced
from ops.bench.prompts import Prompts, Vocabulary, bodies
from ops.bench.serve_settings import BenchSettings, CannotBench, schedule
from ops.bench.workloads import SYNTHETIC, Item, WorkloadError, load, scaled, synthetic

MOONCAKE = [
    {"timestamp": 0, "input_length": 1030, "output_length": 5, "hash_ids": [0, 1, 2]},
    {"timestamp": 3000, "input_length": 1536, "output_length": 7, "hash_ids": [0, 1, 3]},
    {"timestamp": 3000, "input_length": 100, "output_length": 9, "hash_ids": [4]},
]
PEER = [{"arrival_s": 0.25, "input_length": 259, "output_length": 24, "tag": "sharegpt"}]


def lines(rows: list[dict]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(lines(MOONCAKE))
    return path


# --- arrivals ---


def test_poisson_gaps_have_the_asked_mean_and_a_deviation_as_large():
    times = drawn(20_000, 4.0, 1.0, random.Random(1))
    gaps = [b - a for a, b in zip([0.0, *times], times, strict=False)]
    assert fmean(gaps) == pytest.approx(0.25, rel=0.03)
    assert pstdev(gaps) == pytest.approx(0.25, rel=0.03)
    assert max(gaps) > 3 * 0.25  # not capped


def test_gamma_gaps_vary_by_the_root_of_burstiness():
    times = drawn(20_000, 4.0, 0.25, random.Random(1))
    gaps = [b - a for a, b in zip([0.0, *times], times, strict=False)]
    assert fmean(gaps) == pytest.approx(0.25, rel=0.05)
    assert pstdev(gaps) == pytest.approx(0.25 * 2, rel=0.05)


def test_the_same_seed_gives_the_same_times():
    assert drawn(50, 1.0, 1.0, random.Random(7)) == drawn(50, 1.0, 1.0, random.Random(7))
    assert drawn(50, 1.0, 1.0, random.Random(7)) != drawn(50, 1.0, 1.0, random.Random(8))


def test_a_trace_is_stretched_to_a_rate_and_keeps_its_bursts():
    assert traced([3.0, 3.0, 6.0, 9.0], 2.0) == pytest.approx([0.0, 0.0, 1.0, 2.0])
    assert traced([3.0, 3.0, 9.0], None) == [0.0, 0.0, 6.0]


@pytest.mark.parametrize("stamps", [[1.0, 0.5], [2.0, 2.0]])
def test_a_trace_that_cannot_be_stretched_is_refused(stamps):
    with pytest.raises(ArrivalsError):
        traced(stamps, 1.0)


@pytest.mark.parametrize(("rate", "burstiness"), [(0.0, 1.0), (1.0, 0.0)])
def test_a_process_without_a_rate_is_refused(rate, burstiness):
    with pytest.raises(ArrivalsError, match="above 0"):
        drawn(3, rate, burstiness, random.Random(0))


# --- files ---


@pytest.mark.parametrize(
    ("name", "pack"),
    [("t.jsonl", bytes), ("t.jsonl.gz", gzip.compress), ("t.jsonl.xz", lzma.compress)],
)
def test_mooncake_lines_are_read_plain_and_compressed(tmp_path, name, pack):
    path = tmp_path / name
    path.write_bytes(pack(lines(MOONCAKE)))
    assert load(path)[1] == Item(1536, 7, arrival_s=3.0, blocks=(0, 1, 3))


def test_lines_with_arrival_seconds_and_a_tag_are_read(tmp_path):
    path = tmp_path / "peer.jsonl"
    path.write_bytes(lines(PEER))
    assert load(path) == [Item(259, 24, arrival_s=0.25, tag="sharegpt")]


def test_csv_is_read_with_and_without_arrival_times(tmp_path):
    with_times, without = tmp_path / "a.csv.gz", tmp_path / "b.csv"
    with_times.write_bytes(gzip.compress(b"arrival_s,input_tokens,output_tokens\n0.5,374,44\n"))
    without.write_text("input_tokens,output_tokens\n74,918\n")
    assert load(with_times) == [Item(374, 44, arrival_s=0.5)]
    assert load(without) == [Item(74, 918)]


@pytest.mark.parametrize(
    "row",
    [
        {"output_length": 5},
        {"input_length": 0, "output_length": 5},
        {"input_length": 513, "output_length": 5, "hash_ids": [1]},
    ],
)
def test_a_line_that_is_wrong_is_named(tmp_path, row):
    path = tmp_path / "bad.jsonl"
    path.write_bytes(lines([*PEER, row]))
    with pytest.raises(WorkloadError, match="line 2"):
        load(path)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(WorkloadError, match=r"none\.jsonl"):
        load(tmp_path / "none.jsonl")


# --- dice ---


@pytest.mark.parametrize("name", SYNTHETIC)
def test_synthetic_lengths_keep_their_bounds_and_their_median(name):
    fit = SYNTHETIC[name]
    items = synthetic(name, 4000, random.Random(3))
    for lengths, law in (
        (sorted(i.input_tokens for i in items), fit.input),
        (sorted(i.output_tokens for i in items), fit.output),
    ):
        assert law.least <= lengths[0] <= lengths[-1] <= law.most
        assert 0.75 < lengths[2000] / 2.718281828**law.mu < 1.33  # truncation moves it


# --- prompts ---

VOCABULARY = Vocabulary(10, 90)


def test_a_prompt_is_as_long_as_the_trace_says_and_within_the_vocabulary(trace):
    for index, item in enumerate(load(trace)):
        ids = Prompts("0", VOCABULARY).tokens(item, index)
        assert len(ids) == item.input_tokens
        assert set(ids) <= set(range(10, 90))


def test_equal_hashes_are_equal_tokens_and_others_are_not(trace):
    first, second, third = (
        Prompts("0", VOCABULARY).tokens(i, n) for n, i in enumerate(load(trace))
    )
    assert first[:1024] == second[:1024]
    assert first[1024:1030] != second[1024:1030]
    assert first[:100] != third


def test_prompts_are_the_seeds():
    item = Item(50, 1)
    assert Prompts("1", VOCABULARY).tokens(item, 0) == Prompts("1", VOCABULARY).tokens(item, 0)
    assert Prompts("1", VOCABULARY).tokens(item, 0) != Prompts("2", VOCABULARY).tokens(item, 0)
    assert Prompts("1", VOCABULARY).tokens(item, 0) != Prompts("1", VOCABULARY).tokens(item, 1)


def test_a_common_beginning_is_common_to_all_and_no_longer_than_it_says():
    one, two = (Prompts("0", VOCABULARY).tokens(Item(60, 1, shared=20), n) for n in (0, 1))
    assert one[:20] == two[:20]
    assert one[20:] != two[20:]
    assert len(Prompts("0", VOCABULARY).tokens(Item(5, 1, shared=20), 0)) == 5


@pytest.mark.parametrize("scale", [0.001, 0.1, 0.125, 0.5, 1.0])
def test_scaled_requests_share_what_they_shared(trace, scale):
    first, second, _ = (scaled(item, scale) for item in load(trace))
    prompts = Prompts("0", VOCABULARY)
    one, two = prompts.tokens(first, 0), prompts.tokens(second, 1)
    assert (len(one), len(two)) == (first.input_tokens, second.input_tokens)
    common = min(2 * first.block_tokens, len(one), len(two))
    assert one[:common] == two[:common]
    assert first.output_tokens == max(1, round(5 * scale))


def test_a_body_asks_for_exactly_the_tokens_of_the_trace():
    (body,) = bodies("m", [Item(3, 7)], Prompts("0", VOCABULARY))
    asked = json.loads(body)
    assert len(asked["prompt"]) == 3
    assert (asked["model"], asked["max_tokens"], asked["ignore_eos"]) == ("m", 7, True)
    assert asked["stream"] is True
    assert asked["stream_options"] == {"include_usage": True}


def test_salt_changes_contents_and_nothing_else(trace):
    plain, salted = (BenchSettings(workload=str(trace), rate=1.0, salt=salt) for salt in ("", "b"))
    assert schedule(plain) == schedule(salted)
    ours, other = (Prompts(f"{c.seed}{c.salt}", VOCABULARY) for c in (plain, salted))
    item = load(trace)[0]
    assert ours.tokens(item, 0) != other.tokens(item, 0)


# --- schedules ---


def test_a_schedule_is_the_same_every_time():
    chosen = BenchSettings(workload="loogle", requests=20, rate=1.0, seed=5)
    assert schedule(chosen) == schedule(chosen)


def test_another_rate_changes_the_times_and_not_the_requests():
    slow = schedule(BenchSettings(workload="sharegpt", requests=20, rate=1.0))
    fast = schedule(BenchSettings(workload="sharegpt", requests=20, rate=2.0))
    assert slow.items == fast.items
    assert fast.times == pytest.approx([time / 2 for time in slow.times])


def test_requests_that_are_too_long_are_left_out_before_they_are_counted(trace):
    chosen = BenchSettings(
        workload=str(trace), requests=2, max_input_tokens=1100, arrivals=Arrivals.TRACE
    )
    found = schedule(chosen)
    assert [item.input_tokens for item in found.items] == [1030, 100]
    assert found.times == [0.0, 3.0]


def test_what_cannot_be_scheduled_says_what_to_change(trace):
    with pytest.raises(CannotBench, match="--rate"):
        schedule(BenchSettings(workload="sharegpt"))
    with pytest.raises(CannotBench, match="no arrival times"):
        schedule(BenchSettings(workload="sharegpt", arrivals=Arrivals.TRACE))
    with pytest.raises(CannotBench, match="at most 5"):
        schedule(BenchSettings(workload=str(trace), max_input_tokens=5, rate=1.0))
