"""The picture and the table of a CPU-lanes benchmark, from its `results.json`.

`python -m ops.bench.cpu_lanes_report DIR` draws `DIR/lanes.svg` and prints the table as Markdown.
"""

import json
import sys
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot

METRICS = ("tbt_p50_ms", "tbt_p99_ms", "tbt_max_ms", "prefill_tok_s", "decode_tok_s")


def medians(windows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Return each setting's median over its windows, in the order of the run."""
    by_setting: dict[str, list[dict[str, float]]] = {}
    for window in windows:
        by_setting.setdefault(window["setting"], []).append(window)
    return {
        setting: {name: median(window[name] for window in group) for name in METRICS}
        for setting, group in by_setting.items()
    }


def solo_rates(result: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """Return (prefill, decode) rates of each lane alone, by setting, tokens per second."""
    alone = {}
    for setting in dict.fromkeys(window["setting"] for window in result["solo"]):
        group = [window for window in result["solo"] if window["setting"] == setting]
        alone[setting] = (
            median(w["prefill_tok_s"] for w in group if w["prefill_tok_s"]),
            median(w["decode_tok_s"] for w in group if not w["prefill_tok_s"]),
        )
    return alone


def table(result: dict[str, Any]) -> str:
    """Return both tables, in Markdown: the settings, and the lanes alone."""
    alone = solo_rates(result)
    prefill, decode = next(iter(alone.values()))
    lines = [
        "| setting | TBT P50, ms | P99 | max | prefill, tok/s | decode, tok/s | gain |",
        "|---|---|---|---|---|---|---|",
    ]
    for setting, row in medians(result["windows"]).items():
        cells = " | ".join(f"{row[name]:,.0f}" if row[name] else "–" for name in METRICS)
        gain = row["prefill_tok_s"] / prefill + row["decode_tok_s"] / decode
        lines.append(f"| {setting} | {cells} | {gain:.2f} |")
    lines += ["", "| one lane alone | prefill, tok/s | decode, tok/s |", "|---|---|---|"]
    lines += [f"| {name} | {p:,.0f} | {d:,.0f} |" for name, (p, d) in alone.items()]
    return "\n".join(lines)


def draw(result: dict[str, Any], path: Path) -> None:
    """Draw prefill rate over P99 TBT: up and to the left is better."""
    figure, axes = pyplot.subplots(figsize=(7, 4.5))
    for setting, row in medians(result["windows"]).items():
        if not row["decode_tok_s"]:
            continue  # streams stood still: there is no time between tokens
        mark = "s" if setting.startswith("muxwise") else "o"
        axes.plot(row["tbt_p99_ms"], row["prefill_tok_s"], mark, label=setting)
    axes.set_xscale("log")
    axes.set_xlabel("time between tokens, P99 (ms)")
    axes.set_ylabel("prefill (tokens/s)")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    """Draw and print."""
    folder = Path(sys.argv[1])
    result = json.loads((folder / "results.json").read_text())
    draw(result, folder / "lanes.svg")
    print(table(result))


if __name__ == "__main__":
    main()
