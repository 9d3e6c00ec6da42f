import gzip
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ops import timeline
from ops.timelines.figures import lane_figures, lines
from ops.timelines.picture import draw
from ops.timelines.trace import DEVICE, SCHEDULER, TRACKS, Heard, Recording, trace
from protocol.control_link import (
    Arrived,
    DeviceWork,
    Lane,
    Left,
    Partition,
    PoolState,
    PrefillDone,
    Progress,
    QuantumDone,
    RequestState,
    RequestView,
    Snapshot,
    StepDone,
)
from protocol.ids import RequestRef
from scheduler.explain import Decision
from tests.contract.samples import SAMPLES

REF = RequestRef("r1")
POOL = PoolState(total=10, free=10, cached=0)
SNAPSHOT = msgspec.structs.replace(
    next(message for message in SAMPLES if isinstance(message, Snapshot)),
    unit="SM",
    units=132,
    partitions=(Partition(index=0, prefill_units=132, decode_units=132),),
    requests=(),
)


def work(lane: Lane, started: float, seconds: float, units: int, **more: Any) -> DeviceWork:
    given = {"new_tokens": 0, "new_squared": 0, "new_times_reused": 0, "reused_tokens": 0}
    sizes = {"batch_size": 4, "context_tokens": 64, "layers": 2}
    return DeviceWork(
        lane=lane,
        partition=0,
        units=units,
        seconds=seconds,
        started=started,
        **(given | sizes | more),
    )


def step(started: float, seconds: float = 0.010, units: int = 20, **more: Any) -> Heard:
    done = StepDone(1, work(Lane.DECODE, started, seconds, units, **more), (), POOL)
    return Heard(started + seconds, done)


def quantum(started: float, seconds: float, units: int, **more: Any) -> Heard:
    done = QuantumDone(1, (REF,), 2, 4, work(Lane.PREFILL, started, seconds, units, **more), ())
    return Heard(started + seconds, done)


def view() -> RequestView:
    return RequestView(
        ref=REF,
        model="m",
        tenant="",
        state=RequestState.QUEUED,
        prompt_tokens=100,
        computed=0,
        cached=16,
        output_tokens=0,
        max_tokens=8,
        arrival=50.0,
    )


@pytest.fixture
def recording() -> Recording:
    heard = (
        Heard(50.0, Arrived(1, view())),
        quantum(50.0, 0.030, 112, overlap_s=0.015),
        step(50.005, queued_s=0.001),
        step(50.0151, queued_s=0.009),
        Heard(50.030, PrefillDone(2, (Progress(REF, 100, 1),), POOL)),
        step(50.100, units=100),
        Heard(50.110, Left(3, REF, "length", POOL)),
    )
    decision = Decision(
        at=50.02, seq=7, event=1, sharing="112 + 20", layers=2, batches=1, reason="decode is late"
    )
    return Recording(SNAPSHOT, heard, (decision,), 1.0)


def of(recording: Recording, phase: str) -> list[dict[str, Any]]:
    return [record for record in trace(recording)["traceEvents"] if record["ph"] == phase]


def test_both_lanes_are_tracks_with_every_launch_where_it_ran(recording: Recording) -> None:
    spans = of(recording, "X")
    assert Counter(span["tid"] for span in spans) == {
        TRACKS[Lane.PREFILL]: 1,
        TRACKS[Lane.DECODE]: 3,
    }
    first = spans[0]
    assert (first["pid"], first["ts"], first["dur"]) == (DEVICE, 0.0, 30000.0)
    assert first["name"] == "layers 0…2 of 4"
    assert first["args"]["beside_other_lane"] == 0.5
    assert [span["ts"] for span in spans[1:]] == [5000.0, 15100.0, 100000.0]


def test_the_split_is_a_counter_of_what_each_lane_runs_on(recording: Recording) -> None:
    counted = [(record["ts"], record["args"]) for record in of(recording, "C")]
    assert counted[0] == (0.0, {"prefill": 112, "decode": 0})
    assert counted[1] == (5000.0, {"prefill": 112, "decode": 20})
    assert counted[-1] == (110000.0, {"prefill": 0, "decode": 0})


def test_decisions_are_instants_with_their_reason_and_older_ones_are_left_out(
    recording: Recording,
) -> None:
    older = replace(
        recording,
        decisions=(*recording.decisions, msgspec.structs.replace(recording.decisions[0], at=1.0)),
    )
    (instant,) = of(older, "i")
    assert (instant["pid"], instant["ts"], instant["name"]) == (
        SCHEDULER,
        20000.0,
        "decode is late",
    )


def test_a_request_is_a_span_from_arrival_to_end_with_its_first_token_in_it(
    recording: Recording,
) -> None:
    (begin,), (first,), (end,) = (of(recording, phase) for phase in "bne")
    assert begin["id"] == first["id"] == end["id"]
    assert (begin["ts"], first["ts"], end["ts"]) == (0.0, 30000.0, 110000.0)
    assert end["args"] == {"reason": "length"}


def test_bubbles_are_the_time_in_which_a_lane_ran_nothing(recording: Recording) -> None:
    prefill = lane_figures(recording, Lane.PREFILL)
    decode = lane_figures(recording, Lane.DECODE)
    assert prefill is not None
    assert decode is not None
    assert prefill.bubble_ratio == pytest.approx(0.0, abs=1e-9)
    assert decode.bubble_ratio == pytest.approx(1 - 0.030 / 0.105)
    assert decode.mean_units == pytest.approx((20 + 20 + 100) / 3)
    assert "mean of the lanes" in lines(recording)[-1]


def test_a_gap_counts_where_the_next_launch_waited_for_the_device(recording: Recording) -> None:
    decode = lane_figures(recording, Lane.DECODE)
    assert decode is not None
    # 0.1 ms before the second; the third was launched long after the second had ended.
    assert decode.gap_p99_s == pytest.approx(1e-4)


def test_a_lane_that_ran_nothing_has_no_figures() -> None:
    empty = Recording(SNAPSHOT, ())
    assert lane_figures(empty, Lane.DECODE) is None
    assert lines(empty) == ["prefill  nothing ran", "decode   nothing ran"]
    assert trace(empty)["traceEvents"]


def test_a_trace_is_packed_by_its_name(recording: Recording, tmp_path: Path) -> None:
    timeline.write(recording, tmp_path / "t.json.gz")
    timeline.write(recording, tmp_path / "t.json")
    plain = json.loads((tmp_path / "t.json").read_bytes())
    assert json.loads(gzip.decompress((tmp_path / "t.json.gz").read_bytes())) == plain


def test_a_picture_shows_the_end_of_it(recording: Recording, tmp_path: Path) -> None:
    draw(recording, tmp_path / "t.png", 0.05)
    draw(Recording(SNAPSHOT, ()), tmp_path / "empty.png", 0.05)
    shown, empty = ((tmp_path / name).read_bytes() for name in ("t.png", "empty.png"))
    assert shown.startswith(b"\x89PNG")
    assert shown != empty


def test_without_a_worker_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    asked = ["--run-dir", str(folder), "--seconds", "0.05"]
    assert timeline.main([*asked, "--output", str(tmp_path / "t.json")]) == 1
    assert "tandem timeline:" in capsys.readouterr().err
