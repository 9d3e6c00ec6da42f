"""What the engine benchmark's page is computed from."""

from typing import Any

from ops.bench.engine_report import best_within, cases, frontier_ratios, of_case, table


def point(mode: str, tbt: float, prefill: float, model: str = "m") -> dict[str, Any]:
    return {
        "model": model,
        "new": 8192,
        "reused": 0,
        "mode": mode,
        "decode_sms": 36,
        "chunk": 256 if mode == "chunked" else None,
        "tbt_p50_ms": tbt,
        "tbt_p99_ms": tbt,
        "prefill_tok_s": prefill,
        "decode_tok_s": 1000.0,
        "gain": 1.1,
    }


POINTS = [
    point("multiplexed", 20.0, 300.0),
    point("hybrid", 30.0, 400.0),
    point("chunked", 18.0, 200.0),
    point("chunked", 40.0, 500.0),
    point("chunked", 5.0, 900.0, model="other"),
]


def test_cases_are_told_apart():
    assert cases(POINTS) == [("m", 8192, 0), ("other", 8192, 0)]
    assert len(of_case(POINTS, ("m", 8192, 0))) == 4


def test_the_best_point_within_a_limit_has_the_most_prefill():
    assert best_within(POINTS[:4], ("multiplexed", "hybrid"), 30.0) == POINTS[1]
    assert best_within(POINTS[:4], ("multiplexed", "hybrid"), 29.0) == POINTS[0]
    assert best_within(POINTS[:4], ("chunked",), 10.0) is None


def test_ratios_start_where_chunked_has_a_point_and_zero_means_none_of_ours():
    ratios = dict(frontier_ratios(POINTS[:4], (10.0, 18.0, 20.0, 45.0)))
    assert ratios == {18.0: 0.0, 20.0: 1.5, 45.0: 0.8}


def test_the_table_has_a_line_for_each_point():
    assert len(table(POINTS).splitlines()) == 2 + len(POINTS)
