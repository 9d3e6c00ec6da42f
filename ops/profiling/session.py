"""Takes a profile: cell after cell until all are measured or the budget is spent.

What is measured is in the profile at once, so a session that was stopped goes on where it was.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median

from msgspec.structs import replace

from ops.profiling.grid import Cell, DecodeCell, PairCell, PrefillCell, cells, limits_of
from ops.profiling.launches import PROMPTS, Driver
from scheduler.estimator.fitting import TooFewSamplesError, fit
from scheduler.estimator.profile import (
    CorunSample,
    DecodeSample,
    PrefillSample,
    Profile,
    ProfileError,
)
from worker.executors.base import Completion, DeviceInfo

REPEATS = 3
"""Of a solo prefill; the first warms up when there is another."""
ITERATIONS = 8
PAIR_ITERATIONS = 16
WARM = 2
"""Iterations before those that count."""
OVERLAPPED = 0.8
"""Share of an iteration beside which a prefill must have run."""
LONG_S = 1.0
"""A prefill that takes so long is measured once."""

Key = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """How far a session is."""

    done: int
    total: int
    """Cells."""
    seconds: float
    profile: Profile
    cell: Cell


class Session:
    """Measures an executor. `clock` is in seconds."""

    def __init__(
        self, info: DeviceInfo, driver: Driver, base: Profile, clock: Callable[[], float]
    ) -> None:
        """`base`: an empty profile or one to go on with. Raises ProfileError if it is of another
        device or model.
        """
        if base.partitions != info.partitions or base.model.num_layers != info.models[0].num_layers:
            raise ProfileError(
                f"the profile to go on with is of {base.model.name} ({base.model.num_layers} "
                f"layers, {len(base.partitions)} partitions), this is {info.models[0].name} "
                f"({info.models[0].num_layers} layers, {len(info.partitions)} partitions)"
            )
        self._info, self._driver, self._clock = info, driver, clock
        self._profile = base
        self._known = {key_of(sample) for sample in _samples(base)}
        self._solo: dict[tuple[int, int, int], float] = {}
        """Seconds of solo iterations measured in this session, by (units, rows, context)."""

    def run(self, budget_s: float) -> Iterator[Step]:
        """Yield after each cell, until `budget_s` more seconds are spent or nothing is left."""
        began, spent = self._clock(), self._profile.seconds
        todo = [c for c in cells(self._info, limits_of(self._info, PROMPTS))
                if self._key(c) not in self._known]  # fmt: skip
        for index, cell in enumerate(todo, 1):
            if self._clock() - began >= budget_s:
                return
            self._measure(cell)
            seconds = spent + self._clock() - began
            self._profile = replace(self._profile, seconds=seconds)
            yield Step(index, len(todo), seconds, self._profile, cell)

    def finish(self) -> Profile:
        """Return the profile, with its fit if there are samples enough for one."""
        found = self._profile
        try:
            return replace(found, fit=fit(found.prefill, found.decode))
        except TooFewSamplesError:
            return found

    # --- cells ---

    def _measure(self, cell: Cell) -> None:
        found = self._profile
        match cell:
            case PrefillCell():
                sample = self._prefill(cell)
                self._profile = replace(found, prefill=(*found.prefill, sample))
            case DecodeCell():
                units = self._info.partitions[cell.partition].decode_units
                alone = DecodeSample(
                    units=units,
                    rows=cell.rows,
                    context=cell.rows * cell.context,
                    seconds=self._alone(cell.partition, cell.rows, cell.context),
                    repeats=ITERATIONS,
                )
                self._profile = replace(found, decode=(*found.decode, alone))
            case PairCell():
                pair = self._pair(cell)
                self._profile = replace(found, corun=(*found.corun, pair))

    def _prefill(self, cell: PrefillCell) -> PrefillSample:
        prompts = ((cell.new, cell.reused),) * cell.prompts
        times = self._driver.prefills(cell.partition, prompts, 1)
        if times[0] < LONG_S:
            times = self._driver.prefills(cell.partition, prompts, REPEATS)
        return PrefillSample(
            units=self._info.partitions[cell.partition].prefill_units,
            prompts=prompts,
            seconds=median(times),
            repeats=len(times),
        )

    def _alone(self, partition: int, rows: int, context: int) -> float:
        times = self._driver.iterations(partition, rows, context, WARM + ITERATIONS)
        units = self._info.partitions[partition].decode_units
        self._solo[units, rows, context] = median(times[WARM:])
        return self._solo[units, rows, context]

    def _pair(self, cell: PairCell) -> CorunSample:
        split = self._info.partitions[cell.partition]
        solo = self._solo.get((split.decode_units, cell.rows, cell.context))
        if solo is None:
            solo = self._alone(cell.partition, cell.rows, cell.context)
        prompt = (cell.new, cell.reused)
        count = WARM + PAIR_ITERATIONS
        done = self._driver.both(cell.partition, prompt, cell.rows, cell.context, count)
        times = _beside(done[WARM:]) or _beside(done) or [solo]
        return CorunSample(
            units=split.decode_units,
            prefill_units=split.prefill_units,
            prompts=(prompt,),
            rows=cell.rows,
            context=cell.rows * cell.context,
            seconds=max(times),
            solo_s=solo,
            repeats=len(times),
        )

    def _key(self, cell: Cell) -> Key:
        partition = self._info.partitions[cell.partition]
        match cell:
            case PrefillCell(new=new, reused=reused, prompts=count):
                return (partition.prefill_units, ((new, reused),) * count)
            case DecodeCell(rows=rows, context=context):
                return (partition.decode_units, rows, rows * context)
            case PairCell(new=new, reused=reused, rows=rows, context=context):
                return (partition.decode_units, ((new, reused),), rows, rows * context)


Sample = PrefillSample | DecodeSample | CorunSample


def _samples(found: Profile) -> Iterator[Sample]:
    yield from found.prefill
    yield from found.decode
    yield from found.corun


def key_of(sample: Sample) -> Key:
    """Return what tells a sample's cell from others."""
    match sample:
        case PrefillSample(units=units, prompts=prompts):
            return (units, prompts)
        case DecodeSample(units=units, rows=rows, context=context):
            return (units, rows, context)
        case CorunSample(units=units, prompts=prompts, rows=rows, context=context):
            return (units, prompts, rows, context)


def _beside(done: list[Completion]) -> list[float]:
    """Return the times of iterations that a prefill ran beside for most of the time."""
    spans = ((c.finished - c.started, c.overlap_s) for c in done)
    return [seconds for seconds, overlap in spans if overlap >= OVERLAPPED * seconds]
