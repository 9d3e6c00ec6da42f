"""`tandem bench report`: runs of `tandem bench serve` as a page without a network and as Markdown.

Every figure is computed from the times in the result files, so that runs of different days stand in
one table by one definition.
"""

import argparse
import sys
from collections.abc import Sequence
from html import escape
from pathlib import Path

from ops.bench.metrics import Summary
from ops.bench.result import Result, ResultError, load

PAGE, MARKDOWN = "index.html", "report.md"
NEEDED = "pip install 'tandem-serve[bench]'"
COLUMNS = (
    "run",
    "rate sent, 1/s",
    "finished",
    "TTFT P50/P99, s",
    "TBT P50/P99/max, ms",
    "TPOT P50/P99, ms",
    "E2E P50, s",
    "SLO attained",
    "goodput, 1/s",
    "tokens/s",
)
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 75rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; display: block; overflow-x: auto; }
td, th { border: 1px solid #ccc; padding: .25rem .6rem; text-align: right; white-space: nowrap; }
td:first-child, th:first-child { text-align: left; }
.warning { background: #fff3cd; padding: .4rem .8rem; }
pre { background: #f6f6f6; padding: .8rem; overflow-x: auto; white-space: pre-wrap; }
svg { max-width: 100%; height: auto; }
"""


def main() -> None:
    """Write the report. Exit status 2: a file is no result, or matplotlib is missing."""
    parser = argparse.ArgumentParser("tandem bench report", description=__doc__)
    parser.add_argument("results", nargs="+", type=Path, help="files of `tandem bench serve`")
    parser.add_argument("--output", type=Path, help="folder; default: that of the first file")
    chosen = parser.parse_args()
    folder = chosen.output or chosen.results[0].parent
    try:
        write([load(path) for path in chosen.results], folder)
    except ResultError as error:
        print(f"tandem bench report: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except ModuleNotFoundError as error:
        print(f"tandem bench report: {error}; {NEEDED}", file=sys.stderr)
        raise SystemExit(2) from None
    print(folder / PAGE)


def write(results: Sequence[Result], folder: Path) -> None:
    """Write both files. Raises ModuleNotFoundError without matplotlib."""
    from ops.bench import pictures

    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARKDOWN).write_text(markdown(results), encoding="utf-8")
    drawn = [(title, pictures.svg(figure)) for title, figure in pictures.all_of(results)]
    (folder / PAGE).write_text(page(results, drawn), encoding="utf-8")


def row(result: Result, s: Summary) -> list[str]:
    """Return the cells of one run, as COLUMNS names them."""
    return [
        result.label,
        f"{s.offered_rps:.3f}",
        f"{s.finished}/{s.requests}",
        f"{s.ttft.p50:.3f} / {s.ttft.p99:.3f}",
        f"{1e3 * s.tbt.p50:.1f} / {1e3 * s.tbt.p99:.1f} / {1e3 * s.tbt.max:.1f}",
        f"{1e3 * s.tpot.p50:.1f} / {1e3 * s.tpot.p99:.1f}",
        f"{s.e2e.p50:.3f}",
        f"{s.slo_attainment:.1%}",
        f"{s.goodput_rps:.3f}",
        f"{s.output_tokens_per_s:,.0f}",
    ]


def warnings(result: Result, s: Summary) -> list[str]:
    """Return what a reader must know before believing the figures of a run."""
    found = []
    if s.fell_behind:
        found.append(
            f"{result.label}: the generator fell behind (P99 {1e3 * s.lateness.p99:.1f} ms late in "
            f"sending, {1e3 * s.loop_lag.p99:.1f} ms in noticing); its delays are in the figures"
        )
    if s.queue_grew:
        found.append(
            f"{result.label}: the queue grew while requests came; the percentiles would be worse "
            "had the run been longer"
        )
    if missing := s.rejected + s.failed + s.unfinished:
        found.append(
            f"{result.label}: {missing} of {s.requests} requests count as missed ({s.rejected} "
            f"rejected, {s.failed} failed, {s.unfinished} unfinished)"
        )
    if s.tokens_per_chunk > 1.05:
        found.append(
            f"{result.label}: {s.tokens_per_chunk:.2f} tokens came in a piece on average; "
            "TBT is of pieces"
        )
    return found


def objectives(result: Result) -> str:
    """Say what counts as attained."""
    limits = result.limits
    ttft = f"TTFT ≤ {limits.ttft_s:g} s"
    if limits.ttft_per_token_s:
        ttft += f" + {1e3 * limits.ttft_per_token_s:g} ms for each input token not cached"
    share = f"{limits.gap_share:.0%} of a request's gaps" if limits.gap_share < 1 else "every gap"
    return f"{ttft}, and {share} ≤ {1e3 * limits.tbt_s:g} ms"


def facts(result: Result) -> list[str]:
    """Return what repeats a run, one line a fact."""
    chosen = {key: value for key, value in result.settings.items() if value not in (None, "")}
    pairs = [("created", result.created), ("note", result.note), *result.machine.items()]
    return [
        f"{result.label}",
        *(f"  {key}: {value}" for key, value in pairs if value),
        *(f"  --{key.replace('_', '-')}: {value}" for key, value in chosen.items()),
    ]


def markdown(results: Sequence[Result]) -> str:
    """Return the summary: table, warnings, objectives, how to repeat it."""
    summaries = [result.summary for result in results]
    rows = [row(result, s) for result, s in zip(results, summaries, strict=True)]
    lines = ["# Benchmark", "", f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    lines += [f"| {' | '.join(cells)} |" for cells in rows]
    found = [w for r, s in zip(results, summaries, strict=True) for w in warnings(r, s)]
    lines += ["", *(f"**Warning:** {warning}." for warning in found)]
    told = dict.fromkeys(f"Attained: {objectives(result)}." for result in results)
    lines += ["", *told, "", "```", *(line for r in results for line in facts(r)), "```", ""]
    return "\n".join(lines)


def page(results: Sequence[Result], pictures: Sequence[tuple[str, str]]) -> str:
    """Return the page: all of it in one file, pictures too."""
    summaries = [result.summary for result in results]
    head = "".join(f"<th>{escape(name)}</th>" for name in COLUMNS)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row(r, s)) + "</tr>\n"
        for r, s in zip(results, summaries, strict=True)
    )
    found = [w for r, s in zip(results, summaries, strict=True) for w in warnings(r, s)]
    told = dict.fromkeys(objectives(result) for result in results)
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            f"<title>Benchmark</title><style>{STYLE}</style></head><body><h1>Benchmark</h1>",
            *(f'<p class="warning">{escape(warning)}</p>' for warning in found),
            f"<table><tr>{head}</tr>{body}</table>",
            *(f"<p>Attained: {escape(text)}.</p>" for text in told),
            *(f"<h2>{escape(title)}</h2>\n{svg}" for title, svg in pictures),
            "<h2>How it was measured</h2>",
            *(f"<pre>{escape(chr(10).join(facts(result)))}</pre>" for result in results),
            "</body></html>\n",
        ]
    )
