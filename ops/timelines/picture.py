"""A recording as a picture, in the layout that a trace viewer gives it; for pages and reports."""

from pathlib import Path

from ops.timelines.trace import TRACKS, Recording
from protocol.control_link import Lane, QuantumDone

COLORS = {Lane.PREFILL: "#c2571a", Lane.DECODE: "#2b6ca3"}
SUSPENDED = "#7a3410"
LEFT_OUT_BELOW = 1e-6


def draw(recording: Recording, path: Path, seconds: float) -> None:
    """Draw the last `seconds`: both lanes, and what each runs on. Needs matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    works = recording.works
    end = max((work.started + work.seconds for work, _ in works), default=0.0)
    begin = end - seconds
    shown = [(work, event) for work, event in works if work.started + work.seconds > begin]
    figure, (lanes, split) = plt.subplots(
        2, 1, figsize=(11, 3.4), sharex=True, height_ratios=(2, 1), layout="constrained"
    )
    for work, event in shown:
        late = isinstance(event, QuantumDone) and event.suspended
        lanes.broken_barh(
            [((work.started - begin) * 1e3, work.seconds * 1e3)],
            (2 - TRACKS[work.lane] - 0.4, 0.8),
            facecolor=SUSPENDED if late else COLORS[work.lane],
            edgecolor="white",
            linewidth=0.6,
        )
    for decision in recording.decisions:
        if begin <= decision.at <= end:
            lanes.axvline((decision.at - begin) * 1e3, color="#777777", linewidth=0.7, zorder=0)
    lanes.set_yticks([1, 0], ["prefill", "decode"])
    lanes.set_title("launches of both lanes; grey lines: decisions of the scheduler", fontsize=9)
    for lane, color in COLORS.items():
        edges: list[tuple[float, int]] = [(0.0, 0)]
        for work, _ in sorted(shown, key=lambda pair: pair[0].started):
            if work.lane is lane:
                at = (work.started - begin) * 1e3
                if at - edges[-1][0] < LEFT_OUT_BELOW:
                    edges.pop()
                edges += [(at, work.units), (at + work.seconds * 1e3, 0)]
        split.step(
            *zip(*edges, strict=True), where="post", color=color, label=lane.value, linewidth=1
        )
    split.set_ylabel(f"{recording.snapshot.unit}s")
    split.set_xlabel("ms")
    split.set_xlim(0, seconds * 1e3)
    split.legend(fontsize=8, loc="upper right", ncols=2)
    figure.savefig(path, dpi=110)
    plt.close(figure)
