"""How the device is split between the lanes: the smallest part that is enough for decode.

MuxWise 3.4.2 and DRIFT's Partition: best fit for decode, the rest to prefill, in quanta that last
as long as an iteration. What keeps a split from flapping is here too.
"""

from dataclasses import dataclass
from math import ceil

from protocol.control_link import Disjoint, Exclusive, Lane, Partition
from scheduler.estimator.loads import DecodeLoad, PrefillLoad
from scheduler.outlook import Outlook

LAYER_SLACK = 0.25
"""Relative change of the layers per quantum that is not worth a new plan."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A split and what it was chosen among. Seconds."""

    split: Partition
    why: str
    """kept, fixed, or best effort."""
    worst: dict[int, float]
    """Predicted time of an iteration by partition."""
    allowed: float

    def explain(self, splits: tuple[Partition, ...], unit: str) -> str:
        """Say what was chosen, predicted and allowed, and why no other split."""
        chosen = self.split
        smaller = [p for p in splits if p.decode_units < chosen.decode_units]
        larger = [p for p in splits if p.decode_units > chosen.decode_units]
        rejected = [
            f"{p.decode_units} ({1e3 * self.worst[p.index]:.1f} ms: "
            f"{'too slow' if self.worst[p.index] > self.allowed else 'held'})"
            for p in smaller
        ]
        if larger:
            times = "/".join(f"{1e3 * self.worst[p.index]:.1f}" for p in larger)
            units = "/".join(str(p.decode_units) for p in larger)
            rejected.append(f"{units} ({times} ms: leaves less to prefill)")
        return (
            f"decode {chosen.decode_units}, prefill {chosen.prefill_units} {unit}s (split "
            f"{chosen.index}): predicted {1e3 * self.worst[chosen.index]:.1f} ms, "
            f"allowed {1e3 * self.allowed:.1f} ms: {self.why}; "
            f"rejected for decode: {', '.join(rejected) or 'none'}"
        )


class Splitter:
    """Grows decode's part at once, shrinks it only with margin and after a while."""

    def __init__(self, margin: float, hold_s: float, fixed: int = 0) -> None:
        """`margin`: share of the objective to spare before decode shrinks. `hold_s`: seconds for
        which a split holds before it shrinks. `fixed`: partition to keep; 0: choose.
        """
        self._margin, self._hold_s, self._fixed = margin, hold_s, fixed
        self._current: int | None = None
        self._since = 0.0

    def choose(
        self, splits: tuple[Partition, ...], worst: dict[int, float], allowed: float, now: float
    ) -> Choice:
        """Return the split for iterations that are predicted to take `worst`. `splits` are those to
        choose from, at least one, fewest decode units first.
        """
        fixed = next((p for p in splits if p.index == self._fixed), None)
        split = fixed or self._held(splits, worst, allowed, now)
        if split.index != self._current:
            self._current, self._since = split.index, now
        within = worst[split.index] <= allowed
        return Choice(split, "fixed" if fixed else "kept" if within else "best effort", worst,
                      allowed)  # fmt: skip

    def _held(
        self, splits: tuple[Partition, ...], worst: dict[int, float], allowed: float, now: float
    ) -> Partition:
        best = smallest(splits, worst, allowed)
        current = next((p for p in splits if p.index == self._current), None)
        if current is None or best.decode_units >= current.decode_units:
            return best
        if worst[current.index] > allowed:
            return best  # a smaller one is predicted to keep what the current one does not
        spare = smallest(splits, worst, allowed * (1 - self._margin))
        rested = now - self._since >= self._hold_s
        return spare if rested and spare.decode_units < current.decode_units else current


def smallest(splits: tuple[Partition, ...], worst: dict[int, float], allowed: float) -> Partition:
    """Return the split with the fewest decode units whose worst case, seconds, is within `allowed`.

    When none is: the fastest one, the largest of equals. `splits` are in ascending order.
    """
    for split in splits:
        if worst[split.index] <= allowed:
            return split
    return min(reversed(splits), key=lambda p: worst[p.index])


def sharing(choice: Choice | None) -> Disjoint | Exclusive:
    """Return how lanes share the device; without a split they take turns."""
    return Disjoint(choice.split.index) if choice else Exclusive(Lane.PREFILL, 1, 1)


def explain(choice: Choice | None, splits: tuple[Partition, ...], unit: str) -> str:
    """Say what was chosen among `splits`."""
    if choice is None:
        return "no disjoint partition here: lanes take turns"
    return choice.explain(splits, unit)


class Quanta:
    """Layers per quantum, as many as last as long as a decode iteration."""

    def __init__(self, *, layer_wise: bool, least: int) -> None:
        """`layer_wise`: False for whole prefills. `least`: layers at least."""
        self._layer_wise, self._least = layer_wise, least
        self._before = 0

    def layers(
        self, outlook: Outlook, head: PrefillLoad, decode: DecodeLoad, alone_s: float
    ) -> int:
        """Return N_PL = ceil(T_d * N_T / T_P) for the batch `head`; 0: all layers.

        With nothing to decode a quantum takes about `alone_s`, so that a newcomer, a change of
        split or an abort never waits for longer. A number much like the last one is not worth a
        new plan.
        """
        if not self._layer_wise:
            return 0
        total = outlook.view.num_layers
        if not head.new:
            return min(self._before or total, total)
        aim = outlook.decode_s(decode) if decode.rows else alone_s
        prefill_s = outlook.prefill_s(head)
        layers = ceil(aim * total / prefill_s) if prefill_s > 0 else total
        layers = min(max(layers, self._least), total)
        if abs(layers - self._before) > LAYER_SLACK * self._before:
            self._before = layers
        return min(self._before, total)
