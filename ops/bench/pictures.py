"""The pictures of a report. The only module of `tandem bench serve` that needs matplotlib."""

import io
from collections.abc import Callable, Iterator, Sequence

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ops.bench.metrics import over_time, running, waiting
from ops.bench.result import Result

POINTS = 300
"""Points of a curve: more are not seen."""
SIZE = (9.0, 4.0)

Curve = list[tuple[float, float]]
Values = Callable[[Result], tuple[list[float], float | None]]
"""The values of a run, and their limit if it is one for all."""


def all_of(results: Sequence[Result]) -> Iterator[tuple[str, Figure]]:
    """Yield title and figure of each picture."""
    yield "Time to first token", _distribution(results, "seconds from scheduled arrival", _ttft)
    yield "Time between tokens", _distribution(results, "milliseconds, all gaps", _tbt)
    yield "Objectives kept", _attainment(results)
    yield "Requests over time", _queue(results)


def svg(figure: Figure) -> str:
    """Return a figure as an element of a page, and let go of it."""
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None})
    pyplot.close(figure)
    text = file.getvalue()
    return text[text.index("<svg") :]


def cdf(values: Sequence[float]) -> Curve:
    """Return (value, share of the values that are at most that) at POINTS ranks, the last too."""
    ordered = sorted(values)
    count = len(ordered)
    ranks = sorted({-(-count * point // POINTS) for point in range(1, POINTS + 1)})
    return [(ordered[rank - 1], rank / count) for rank in ranks if rank]


def attained_by(result: Result) -> Curve:
    """Return (factor, attainment) with all objectives times that factor, 0.25 to 4."""
    limits = result.limits
    curve = []
    for step in range(-8, 9):
        factor = 2 ** (step / 4)
        wider = type(limits)(
            tbt_s=limits.tbt_s * factor,
            ttft_s=limits.ttft_s * factor,
            ttft_per_token_s=limits.ttft_per_token_s * factor,
            gap_share=limits.gap_share,
        )
        kept = sum(map(wider.kept, result.outcomes))
        curve.append((factor, kept / len(result.outcomes)))
    return curve


def _ttft(result: Result) -> tuple[list[float], float | None]:
    limit = None if result.limits.ttft_per_token_s else result.limits.ttft_s
    return [o.ttft for o in result.outcomes if o.chunks], limit


def _tbt(result: Result) -> tuple[list[float], float | None]:
    gaps = [1e3 * gap for o in result.outcomes for gap in o.gaps]
    return gaps, 1e3 * result.limits.tbt_s


def _distribution(results: Sequence[Result], unit: str, values_of: Values) -> Figure:
    figure, axes = _axes()
    limits: set[float] = set()
    for result in results:
        values, limit = values_of(result)
        limits |= {limit} if limit is not None else set()
        if values:
            axes.plot(*zip(*cdf(values), strict=True), label=result.label)
    for limit in limits:
        axes.axvline(limit, color="grey", linestyle="--", linewidth=1)
    axes.set_xlabel(unit)
    axes.set_ylabel("share")
    axes.set_xscale("log")
    return _finished(figure, axes)


def _attainment(results: Sequence[Result]) -> Figure:
    """Draw attainment against rate, or for a single rate against wider and tighter objectives."""
    figure, axes = _axes()
    series: dict[str, Curve] = {}
    for result in results:
        summary = result.summary
        series.setdefault(result.label, []).append((summary.offered_rps, summary.slo_attainment))
    if any(len(points) > 1 for points in series.values()):
        for label, points in series.items():
            axes.plot(*zip(*sorted(points), strict=True), "o-", label=label)
        axes.set_xlabel("requests a second")
    else:
        for result in results:
            axes.plot(*zip(*attained_by(result), strict=True), label=result.label)
        axes.axvline(1.0, color="grey", linestyle="--", linewidth=1)
        axes.set_xscale("log", base=2)
        axes.set_xlabel("all objectives times")
    axes.set_ylabel("requests that keep them")
    axes.set_ylim(-0.02, 1.02)
    return _finished(figure, axes)


def _queue(results: Sequence[Result]) -> Figure:
    figure, axes = _axes()
    for result in results:
        end = max(o.ended for o in result.outcomes)
        for count, style in ((waiting, "-"), (running, ":")):
            points = over_time(count, result.outcomes, end, POINTS)
            label = f"{result.label}: {count.__name__}"
            axes.plot(*zip(*points, strict=True), style, label=label, drawstyle="steps-post")
    axes.set_xlabel("seconds")
    axes.set_ylabel("requests")
    return _finished(figure, axes)


def _axes() -> tuple[Figure, Axes]:
    figure, axes = pyplot.subplots(figsize=SIZE)
    return figure, axes


def _finished(figure: Figure, axes: Axes) -> Figure:
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8)
    figure.tight_layout()
    return figure
