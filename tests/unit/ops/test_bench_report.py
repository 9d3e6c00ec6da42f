"""Results are kept whole, and a report is one file that says what must be known to believe it."""

import pytest
from msgspec.structs import replace

from ops.bench import pictures, report
from ops.bench.metrics import Limits, Outcome
from ops.bench.result import FORMAT, Result, ResultError, load, save

LIMITS = Limits(tbt_s=0.05, ttft_s=1.0, ttft_per_token_s=0.0, gap_share=1.0)


def outcome(at: float, status: str = "finished", **more: object) -> Outcome:
    given = {
        "scheduled": at,
        "sent": at,
        "chunks": (at + 0.5, at + 0.53, at + 0.57),
        "ended": at + 1.0,
        "input_tokens": 10,
        "wanted_tokens": 3,
        "output_tokens": 3,
    }
    return Outcome(status=status, **(given | more))


def result(*outcomes: Outcome, label: str = "one <run>", **more: object) -> Result:
    given = {
        "created": "2026-01-01T00:00:00+00:00",
        "machine": {"python": "3.11"},
        "note": "a test",
        "settings": {"seed": 7, "url": "http://somewhere"},
        "limits": LIMITS,
        "lags": (0.001,),
    }
    return Result(format=FORMAT, label=label, outcomes=outcomes, **(given | more))


STEADY = result(*(outcome(float(t)) for t in range(20)))


def test_a_result_is_read_back_as_it_was(tmp_path):
    save(STEADY, tmp_path / "new" / "r.json")
    assert load(tmp_path / "new" / "r.json") == STEADY


@pytest.mark.parametrize("content", [b"", b"{}", b'{"summary": 1}'])
def test_what_is_no_result_is_named(tmp_path, content):
    path = tmp_path / "other.json"
    path.write_bytes(content)
    with pytest.raises(ResultError, match=r"other\.json"):
        load(path)


def test_a_result_of_another_format_is_refused(tmp_path):
    save(replace(STEADY, format=FORMAT + 1), tmp_path / "r.json")
    with pytest.raises(ResultError, match=f"format {FORMAT + 1}"):
        load(tmp_path / "r.json")


def test_the_table_has_the_figures_of_every_run():
    text = report.markdown([STEADY, replace(STEADY, label="two")])
    row = "1.000 | 20/20 | 0.500 / 0.500 | 30.0 / 40.0 / 40.0 | 35.0 / 35.0 | 0.570 | 100.0%"
    assert f"| one <run> | {row} |" in text
    assert f"| two | {row} |" in text
    assert "TTFT ≤ 1 s, and every gap ≤ 50 ms" in text
    assert "--seed: 7" in text


def test_a_steady_run_has_no_warning():
    assert report.warnings(STEADY, STEADY.summary) == []
    assert "Warning" not in report.markdown([STEADY])


@pytest.mark.parametrize(
    ("run", "says"),
    [
        (result(outcome(0.0, sent=0.2)), "generator fell behind"),
        (result(outcome(0.0), lags=(0.5,)), "generator fell behind"),
        (result(outcome(0.0), outcome(1.0, "rejected", chunks=())), "1 of 2 requests"),
        (result(outcome(0.0, output_tokens=9)), "3.00 tokens came in a piece"),
        (result(*(outcome(t, chunks=(99.0,)) for t in range(20))), "queue grew"),
    ],
)
def test_what_spoils_a_run_is_said_first(run, says):
    assert says in report.markdown([run])


def test_the_page_is_one_file_that_loads_nothing(tmp_path):
    report.write([STEADY, replace(STEADY, label="two")], tmp_path)
    page = (tmp_path / report.PAGE).read_text()
    assert page.count("<svg") == 4
    assert "one &lt;run&gt;" in page
    for loads in ("src=", "<link", "@import", "<script"):
        assert loads not in page
    assert (tmp_path / report.MARKDOWN).read_text() == report.markdown(
        [STEADY, replace(STEADY, label="two")]
    )


def test_runs_without_a_token_can_be_reported(tmp_path):
    report.write([result(outcome(0.0, "rejected", chunks=()))], tmp_path)
    assert "0/1" in (tmp_path / report.MARKDOWN).read_text()


def test_a_distribution_ends_at_its_largest_value_and_at_one():
    assert pictures.cdf([3.0, 1.0, 2.0, 4.0]) == [(1.0, 0.25), (2.0, 0.5), (3.0, 0.75), (4.0, 1.0)]
    many = pictures.cdf([float(i) for i in range(10_000)])
    assert len(many) == pictures.POINTS
    assert many[-1] == (9999.0, 1.0)


def test_wider_objectives_are_kept_by_more():
    slow = outcome(0.0, chunks=(0.5, 0.58))
    curve = dict(pictures.attained_by(result(outcome(0.0), slow)))
    assert curve[1.0] == 0.5
    assert curve[2.0] == 1.0
    assert curve[0.25] == 0.0
