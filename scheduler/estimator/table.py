"""A small measured table of splits: what each partition was seen to take, lately.

Learns decode iteration time per (partition, batch-size bucket) and prefill time per token and layer
per partition, from the worker's own device times, with exponential forgetting. What was not seen is
scaled from the nearest cell that was, in proportion to the units; before anything was seen, from a
proportional seed. Context length and reuse are not modelled: that is the fitted estimator's part.
"""

from dataclasses import dataclass
from typing import TypeVar

from protocol.control_link import WHOLE, DeviceWork, Lane, Partition
from scheduler.estimator.loads import DecodeLoad, PrefillLoad
from scheduler.estimator.works import Works
from scheduler.view import WorkerView

K = TypeVar("K")

WEIGHT = 0.2
"""Weight of a new measurement; the mean forgets with (1 - WEIGHT) per measurement."""
FORGET_S = 30.0
"""A cell not measured for so long says nothing any more: the load has changed since."""

GUARD = 1.2
"""Worst case over what was measured lately, contention included: P99 over P50 was up to 1.1 beside
steady prefill on an H200, and loads change."""

SEED_DECODE = {"SM": 1.2, "core": 0.04}
"""Unit-seconds of one decode iteration before anything is measured: an 8B model's 9.3 ms on 132 SMs
of an H200; a 135M model on one CPU core."""
SEED_PREFILL = {"SM": 1 / 290, "core": 1 / 500}
"""Unit-seconds of one prompt token through all layers: 38,600 tokens/s on the same 132 SMs."""


@dataclass(slots=True)
class Cell:
    """A forgetting mean."""

    mean: float
    at: float
    """When it was measured last, seconds."""
    rows: float = 1.0
    """Mean batch size of the measurements, for decode."""
    count: int = 1

    def add(self, value: float, rows: float, now: float) -> None:
        """Take a measurement; the first few are averaged, so that one outlier soon drowns."""
        self.count += 1
        weight = max(WEIGHT, 1 / self.count)
        self.mean += weight * (value - self.mean)
        self.rows += weight * (rows - self.rows)
        self.at = now


def bucket(rows: int) -> int:
    """Return the batch-size bucket of `rows`: the next power of two."""
    return 1 << max(0, rows - 1).bit_length()


class SplitTable:
    """Implements `scheduler.estimator.base.Estimator`."""

    def __init__(self) -> None:
        self.decode: dict[tuple[int, int], Cell] = {}
        """Seconds an iteration by (partition, batch-size bucket)."""
        self.prefill: dict[int, Cell] = {}
        """Seconds per new token and layer by partition."""
        self._works = Works()
        self._units = _Units()
        self._asked: tuple[float, int] | None = None
        """When decode times were asked for last, and for how many rows."""
        self._rates: tuple[float, list[tuple[int, float]]] | None = None
        """Prefill cells that are not too old, and when that was."""
        self._answers: dict[int, float] = {}
        """By partition, WHOLE among them."""

    def learn(self, view: WorkerView, now: float) -> None:
        """Take the device works that `view` has noted since the last call."""
        rebooted, works = self._works.fresh(view)
        if rebooted:
            self.decode.clear()
            self.prefill.clear()
        for work in works:
            self._take(work, now)
        self._asked = self._rates = None

    def _take(self, work: DeviceWork, now: float) -> None:
        if work.lane is Lane.PREFILL and work.new_tokens and work.layers:
            cost = work.seconds / (work.new_tokens * work.layers)
            _add(self.prefill, work.partition, cost, work.batch_size, now)
        elif work.lane is Lane.DECODE and work.batch_size and not work.new_tokens:
            key = (work.partition, bucket(work.batch_size))
            _add(self.decode, key, work.seconds, work.batch_size, now)

    def decode_s(self, view: WorkerView, partition: int, load: DecodeLoad, now: float) -> float:
        """Return seconds of one decode iteration on `partition`, beside prefill if it was so.

        From the cell that needs the least extrapolation; no less for fewer rows than measured.
        Such a guess errs towards the slow side for fewer units, and is replaced by a measurement
        once it is tried.
        """
        asked = (now, load.rows)
        if self._asked != asked:
            self._asked, self._answers = asked, self._answer(view, now, max(1, load.rows))
        answer = self._answers.get(partition)
        return self._answers[WHOLE] if answer is None else answer

    def _answer(self, view: WorkerView, now: float, rows: int) -> dict[int, float]:
        """Return seconds of an iteration of `rows` rows by partition."""
        units = self._units.of(view, Lane.DECODE)
        cells = self._cells(units, view.units, now, rows)
        seed = SEED_DECODE.get(view.unit, 1.0)
        return {partition: _nearest(cells, own, seed) / own for partition, own in units.items()}

    def _cells(
        self, units: dict[int, int], all_units: int, now: float, rows: int
    ) -> list[tuple[int, float, float]]:
        """Return what the cells that are not too old say of an iteration of `rows` rows: their
        units, how far their rows are off, their unit-seconds.
        """
        found = []
        for (partition, _), cell in self.decode.items():
            if now - cell.at > FORGET_S:
                continue
            size, growth = units.get(partition, all_units), _growth(cell.rows, rows)
            seconds = cell.mean * growth if cell.rows < rows else cell.mean
            found.append((size, growth, seconds * size))
        return found

    def worst_decode_s(
        self, view: WorkerView, load: DecodeLoad, beside: PrefillLoad, now: float
    ) -> dict[int, float]:
        """Return the measured times with a fixed guard, whatever runs beside."""
        return {p.index: GUARD * self.decode_s(view, p.index, load, now) for p in view.splits}

    def prefill_s(
        self, view: WorkerView, partition: int, load: PrefillLoad, layers: int, now: float
    ) -> float:
        """Return seconds that `load` takes through `layers` layers on `partition`."""
        if self._rates is None or self._rates[0] != now:
            self._rates = (now, self._unit_rates(view, now))
        own = self._units.of(view, Lane.PREFILL).get(partition, view.units)
        rates = self._rates[1]
        if rates:
            _, rate = min((_apart(size, own), rate) for size, rate in rates)
            return rate / own * load.new * layers
        total = max((model.num_layers for model in view.models.values()), default=1)
        seed = SEED_PREFILL.get(view.unit, 1.0) / own
        return seed * load.new * layers / max(1, total)

    def _unit_rates(self, view: WorkerView, now: float) -> list[tuple[int, float]]:
        """Return (units, unit-seconds of a token and layer) of the cells that are not too old."""
        units = self._units.of(view, Lane.PREFILL)
        fresh = [(units.get(k, view.units), c) for k, c in self.prefill.items()
                 if now - c.at <= FORGET_S]  # fmt: skip
        return [(size, cell.mean * size) for size, cell in fresh]


def _add(cells: dict[K, Cell], key: K, value: float, rows: float, now: float) -> None:
    if key in cells:
        cells[key].add(value, rows, now)
    else:
        cells[key] = Cell(value, now, rows)


def _apart(a: float, b: float) -> float:
    """Distance of two positive sizes as a ratio, at least 1."""
    return max(a, b) / min(a, b)


def _growth(a: float, b: float) -> float:
    """How an iteration's time grows between batch sizes, when half of it grows with the rows."""
    return (1 + _apart(a, b)) / 2


def _nearest(cells: list[tuple[int, float, float]], own: int, seed: float) -> float:
    """Return the unit-seconds of the cell that is least far from `own` units; else `seed`."""
    least, answer = float("inf"), seed
    for size, growth, unit_seconds in cells:
        stretch = growth * (size / own if size > own else own / size)
        if stretch < least:
            least, answer = stretch, unit_seconds
    return answer


class _Units:
    """Units of each lane by partition, at least 1; made anew only for another table."""

    def __init__(self) -> None:
        self._partitions: tuple[Partition, ...] | None = None
        self._by_lane: dict[Lane, dict[int, int]] = {}

    def of(self, view: WorkerView, lane: Lane) -> dict[int, int]:
        """Return the units of one lane by partition."""
        if self._partitions is not view.partitions:
            self._partitions = view.partitions
            decode = {p.index: max(1, p.decode_units) for p in view.partitions}
            prefill = {p.index: max(1, p.prefill_units) for p in view.partitions}
            whole = {WHOLE: view.units}
            self._by_lane = {Lane.DECODE: decode | whole, Lane.PREFILL: prefill | whole}
        return self._by_lane[lane]
