"""Draws `frontier.json` of the engine benchmark, and writes its table and verdicts as Markdown.

`python -m ops.bench.engine_report docs/benchmarks/engine-h200`: one picture and one table a case.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Point = dict[str, Any]
MODES = ("multiplexed", "hybrid", "chunked", "shared", "exclusive")
CONTENDERS = ("multiplexed", "hybrid")
"""Modes that make up the multiplexed frontier."""


def cases(points: Sequence[Point]) -> list[tuple[str, int, int]]:
    """Return (model, new, reused) of each case, in order of appearance."""
    return list(dict.fromkeys((p["model"], p["new"], p["reused"]) for p in points))


def of_case(points: Sequence[Point], case: tuple[str, int, int]) -> list[Point]:
    """Return the points of a case."""
    return [p for p in points if (p["model"], p["new"], p["reused"]) == case]


def best_within(points: Sequence[Point], modes: Sequence[str], tbt_ms: float) -> Point | None:
    """Return the point of most prefill among those of `modes` whose P99 TBT is at most `tbt_ms`."""
    fit = [p for p in points if p["mode"] in modes and p["tbt_p99_ms"] <= tbt_ms]
    return max(fit, key=lambda p: p["prefill_tok_s"], default=None)


def frontier_ratios(points: Sequence[Point], tbts: Sequence[float]) -> list[tuple[float, float]]:
    """Return (TBT, multiplexed / chunked prefill rate) where chunked has a point at all."""
    ratios = []
    for tbt in tbts:
        ours, theirs = (best_within(points, m, tbt) for m in (CONTENDERS, ("chunked",)))
        if theirs is not None:
            rate = 0.0 if ours is None else ours["prefill_tok_s"]
            ratios.append((tbt, rate / theirs["prefill_tok_s"]))
    return ratios


def table(points: Sequence[Point]) -> str:
    """Return the points of one case as a Markdown table."""
    lines = [
        "| mode | decode SMs | chunk | TBT P50/P99, ms | prefill, tok/s | decode, tok/s | G |",
        "|---|---|---|---|---|---|---|",
    ]
    for p in points:
        lines.append(
            f"| {p['mode']} | {p['decode_sms']} | {p['chunk'] or ''} |"
            f" {p['tbt_p50_ms']:.1f}/{p['tbt_p99_ms']:.1f} | {p['prefill_tok_s']:,.0f} |"
            f" {p['decode_tok_s']:,.0f} | {p['gain']:.2f} |"
        )
    return "\n".join(lines)


def draw(points: Sequence[Point], title: str, path: Path) -> None:
    """Draw prefill rate over P99 TBT, and gain over decode SMs, side by side."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.2))
    for mode in MODES:
        chosen = sorted((p for p in points if p["mode"] == mode), key=lambda p: p["tbt_p99_ms"])
        if not chosen:
            continue
        style = "o-" if mode in ("multiplexed", "chunked") else "s"
        x, y = [p["tbt_p99_ms"] for p in chosen], [p["prefill_tok_s"] for p in chosen]
        left.plot(x, y, style, label=mode, markersize=5)
        for p in chosen:
            label = str(p["chunk"] or p["decode_sms"])
            left.annotate(label, (p["tbt_p99_ms"], p["prefill_tok_s"]), fontsize=7)
        if mode in CONTENDERS:
            right.plot([p["decode_sms"] for p in chosen], [p["gain"] for p in chosen], "o",
                       label=mode)  # fmt: skip
    left.set(xlabel="TBT P99, ms", ylabel="prefill, tokens/s", title=title)
    left.set_xlim(0, 80)
    right.set(
        xlabel="SMs of decode", ylabel="multiplexing gain G", title="sum of both rates / solo"
    )
    right.axhline(1.0, color="grey", linewidth=0.8)
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def draw_switch(switch: Point, path: Path) -> None:
    """Draw both lanes around a change of the split: one bar a launch, its colour the SMs."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(11, 2.4))
    colours = pyplot.get_cmap("viridis")
    for place, lane in enumerate(("prefill", "decode")):
        for start, end, units in switch[lane]:
            axes.barh(place, end - start, left=start, height=0.7, edgecolor="white",
                      color=colours(units / 132))  # fmt: skip
            axes.text((start + end) / 2, place, str(units), ha="center", va="center", fontsize=7)
    axes.axvline(0.0, color="red", linewidth=1)
    axes.set_yticks((0, 1), ("prefill", "decode"))
    axes.set(xlabel="ms from the change of the split; bars carry the SMs of their launch")
    axes.set_title(
        f"{switch['model']}: decode from {switch['from_decode_sms']} to"
        f" {switch['to_decode_sms']} SMs in the middle of a prefill", fontsize=9
    )  # fmt: skip
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def main() -> None:
    """Draw every case of a folder's frontier.json; write `tables.md` beside it."""
    parser = argparse.ArgumentParser(description="Draw the engine's frontier.")
    parser.add_argument("folder", type=Path, help="holds frontier.json; pictures go there")
    folder = parser.parse_args().folder
    found = json.loads((folder / "frontier.json").read_text())
    points = found["points"]
    for switch in found.get("switches", [])[:1]:
        draw_switch(switch, folder / "switch.png")
    parts = []
    for case in cases(points):
        name, chosen = f"{case[0]}-{case[1]}-{case[2]}", of_case(points, case)
        draw(chosen, f"{case[0]}: {case[1]} new + {case[2]} reused", folder / f"{name}.png")
        ratios = frontier_ratios(chosen, (12, 15, 20, 25, 30, 35, 40, 45))
        told = ", ".join(f"{tbt:g} ms {ratio:.2f}" for tbt, ratio in ratios)
        parts.append(
            f"## {case[0]}, {case[1]} new on {case[2]} reused\n\n![frontier]({name}.png)\n\n"
            f"{table(chosen)}\n\nBest prefill rate within a P99 TBT, multiplexed or hybrid over "
            f"chunked: {told}.\n"
        )
    (folder / "tables.md").write_text("\n".join(parts))


if __name__ == "__main__":
    main()
