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


def medians(result: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Return each setting's median over its windows, in the order of the run."""
    by_setting: dict[str, list[dict[str, float]]] = {}
    for window in result["windows"]:
        by_setting.setdefault(window["setting"], []).append(window)
    return {
        setting: {name: median(window[name] for window in windows) for name in METRICS}
        for setting, windows in by_setting.items()
    }


def gain(row: dict[str, float], solo: dict[str, Any]) -> float:
    """Return prefill rate over solo plus decode rate over solo (multiplexing gain)."""
    return (
        row["prefill_tok_s"] / solo["prefill"]["prefill_tok_s"]
        + row["decode_tok_s"] / solo["decode"]["decode_tok_s"]
    )


def table(result: dict[str, Any]) -> str:
    """Return the table, in Markdown."""
    lines = [
        "| setting | TBT P50, ms | P99 | max | prefill, tok/s | decode, tok/s | gain |",
        "|---|---|---|---|---|---|---|",
    ]
    for setting, row in medians(result).items():
        cells = [f"{row[name]:,.0f}" for name in METRICS]
        lines.append(f"| {setting} | {' | '.join(cells)} | {gain(row, result['solo']):.2f} |")
    return "\n".join(lines)


def draw(result: dict[str, Any], path: Path) -> None:
    """Draw prefill rate over P99 TBT: up and to the left is better."""
    figure, axes = pyplot.subplots(figsize=(7, 4.5))
    for setting, row in medians(result).items():
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
