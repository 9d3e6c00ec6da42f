"""The page of a profile: what was measured, how well the fit tells it, how much contention costs.

`tandem profile-report --profile FILE --output DIR` writes `DIR/README.md` and its pictures.
"""

import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct

from ops import config
from scheduler.estimator import solo
from scheduler.estimator.profile import Fit, Profile, ProfileError, load

Pair = tuple[float, float]


class ReportSettings(Struct, frozen=True, kw_only=True):
    """Which profile, and where to."""

    profile: Annotated[str, Meta(description="file that `tandem profile` wrote")]
    output: Annotated[str, Meta(description="folder of the page")]


def main(arguments: Sequence[str]) -> int:
    """Write the page; return the exit status."""
    chosen = config.parse(
        ReportSettings, arguments, prog="tandem profile-report", description=__doc__
    )  # fmt: skip
    try:
        found = load(Path(chosen.profile))
    except ProfileError as error:
        print(f"tandem profile-report: {error}", file=sys.stderr)
        return 1
    folder = Path(chosen.output)
    folder.mkdir(parents=True, exist_ok=True)
    pictures = draw(found, folder)
    (folder / "README.md").write_text(page(found, pictures))
    print(folder / "README.md")
    return 0


def page(found: Profile, pictures: Sequence[str]) -> str:
    """Return the page as Markdown."""
    hardware, model = found.hardware, found.model
    splits = ", ".join(f"{p.prefill_units} + {p.decode_units}" for p in found.partitions if p.index)
    software = ", ".join(f"{name} {number}" for name, number in sorted(found.software.items()))
    parts = [
        f"# Profile of {model.name} on {hardware.name}",
        f"Taken {found.taken_at} in {found.seconds:.0f} s on {hardware.units} {hardware.unit}s; "
        f"splits (prefill + decode): {splits or 'none'}. {software}.",
        f"{len(found.prefill)} solo prefills, {len(found.decode)} solo iterations, "
        f"{len(found.corun)} pairs.",
        fit_table(found.fit),
        contention_table(found),
        *(f"![{name}]({name}.svg)" for name in pictures),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def fit_table(fit: Fit | None) -> str:
    """Return the errors on held-out samples."""
    if fit is None:
        return "There are too few samples for a fit."
    lines = [
        "| | largest error | mean error | held out |",
        "|---|---|---|---|",
        *(
            f"| {lane} | {off.largest:.1%} | {off.mean:.1%} | {off.samples} |"
            for lane, off in (
                ("prefill", fit.prefill_deviation),
                ("decode", fit.decode_deviation),
                ("decode, rows of very different contexts", fit.uneven_deviation),
            )
            if off.samples
        ),
    ]
    return "\n".join(lines)


def contention_table(found: Profile) -> str:
    """Return how much slower iterations were beside a prefill, by decode's units."""
    if not found.corun:
        return ""
    lines = ["| decode units | pairs | median slowdown | worst |", "|---|---|---|---|"]
    for units, values in sorted(slowdowns(found).items()):
        middle = sorted(values)[len(values) // 2]
        lines.append(f"| {units} | {len(values)} | {middle:.2f} | {max(values):.2f} |")
    return "\n".join(lines)


def slowdowns(found: Profile) -> dict[int, list[float]]:
    """Return the slowdown of each pair by decode's units."""
    by_units: dict[int, list[float]] = defaultdict(list)
    for sample in found.corun:
        by_units[sample.units].append(sample.slowdown)
    return by_units


def predictions(found: Profile) -> dict[str, list[Pair]]:
    """Return (measured, predicted) seconds of every solo sample, by lane."""
    if found.fit is None:
        return {}
    prefill, decode = solo.PrefillLane(found.fit), solo.DecodeLane(found.fit)
    return {
        "prefill": [(s.seconds, prefill.seconds(s.units, s.load)) for s in found.prefill],
        "decode": [(s.seconds, decode.seconds(s.units, s.load)) for s in found.decode],
    }


def draw(found: Profile, folder: Path) -> list[str]:
    """Draw into `folder`; return the pictures' names."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot

    drawn = []
    if told := predictions(found):
        figure, axes = pyplot.subplots(1, 2, figsize=(10, 4.2))
        for each, (lane, pairs) in zip(axes, told.items(), strict=True):
            _draw_errors(each, lane, pairs)
        drawn.append(_save(figure, folder, "fit"))
    if found.corun:
        figure, axis = pyplot.subplots(figsize=(6, 4))
        _draw_slowdowns(axis, slowdowns(found), found.hardware.unit)
        drawn.append(_save(figure, folder, "contention"))
    return drawn


def _draw_errors(axes: Any, lane: str, pairs: Sequence[Pair]) -> None:
    axes.plot(
        [1e3 * measured for measured, _ in pairs],
        [100 * (predicted / measured - 1) for measured, predicted in pairs],
        ".",
        markersize=4,
    )
    axes.axhline(0, color="grey", linewidth=0.8)
    axes.set(xscale="log", xlabel="measured, ms", ylabel="predicted - measured, %", title=lane)
    axes.grid(alpha=0.3)


def _draw_slowdowns(axes: Any, by_units: dict[int, list[float]], unit: str) -> None:
    units = sorted(by_units)
    axes.boxplot([by_units[each] for each in units], whis=(0, 100))
    axes.set_xticks(range(1, len(units) + 1), [str(each) for each in units])
    axes.set(xlabel=f"decode's {unit}s", ylabel="slowdown of an iteration beside prefill")
    axes.grid(alpha=0.3, axis="y")


def _save(figure: Any, folder: Path, name: str) -> str:
    from matplotlib import pyplot

    figure.tight_layout()
    figure.savefig(folder / f"{name}.svg")
    pyplot.close(figure)
    return name
