"""Takes a profile: cell after cell until all are measured or the budget is spent.

What is measured is in the profile at once, so a session that was stopped goes on where it was. A
cell that the device cannot do is noted and left out; several in a row end the session.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import ceil
from statistics import median

from msgspec.structs import replace

from ops.profiling.grid import (
    Cell,
    DecodeCell,
    Limits,
    PairCell,
    PrefillCell,
    cells,
    limits_of,
    uneven,
)
from ops.profiling.launches import PROMPTS, Driver, LaunchFailed
from scheduler.estimator.fitting import TooFewSamplesError, fit
from scheduler.estimator.profile import (
    CorunSample,
    DecodeSample,
    PrefillSample,
    Profile,
    ProfileError,
)
from worker.executors.base import Completion, DeviceInfo

WARM_S = 0.05
"""Device time before what counts: kernels are loaded, and the clock has settled under the power
limit of this work (it moves within tens of milliseconds)."""
LEAST_S = 0.15
"""Device time that counts, for a solo run."""
LEAST, MOST = 3, 12
"""Solo runs that count, whatever they take; a long prefill alone counts less often."""
LONG_S = 0.5
"""From here on a prefill counts once beside the one that warms up."""
WARM = 3
"""Iterations before those that count."""
PAIR_ITERATIONS = 16
OVERLAPPED = 0.8
"""Share of an iteration beside which a prefill must have run."""
GIVE_UP = 5
"""Cells that fail in a row, after which the device is taken for broken."""

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
        self,
        info: DeviceInfo,
        driver: Driver,
        base: Profile,
        clock: Callable[[], float],
        spent_s: float = 0.0,
    ) -> None:
        """`base`: an empty profile or one to go on with. `spent_s`: on starting the device, which
        counts too. Raises ProfileError if `base` is of another device or model.
        """
        if base.partitions != info.partitions or base.model.num_layers != info.models[0].num_layers:
            raise ProfileError(
                f"the profile to go on with is of {base.model.name} ({base.model.num_layers} "
                f"layers, {len(base.partitions)} partitions), this is {info.models[0].name} "
                f"({info.models[0].num_layers} layers, {len(info.partitions)} partitions)"
            )
        self._info, self._driver, self._clock = info, driver, clock
        self._limits: Limits = limits_of(info, PROMPTS)
        self._profile = replace(base, seconds=base.seconds + spent_s)
        self._known = {key_of(sample) for sample in _samples(base)}
        self._solo: dict[tuple[int, int, int], float] = {}
        """Seconds of solo iterations measured in this session, by (units, rows, context)."""
        self._failed = 0
        """In a row."""

    def run(self, budget_s: float) -> Iterator[Step]:
        """Yield after each cell, until `budget_s` more seconds are spent or nothing is left.

        Raises LaunchFailed when one cell after the other fails.
        """
        began, spent = self._clock(), self._profile.seconds
        todo = [c for c in cells(self._info, self._limits) if self._key(c) not in self._known]
        for index, cell in enumerate(todo, 1):
            if self._clock() - began >= budget_s:
                return
            self._try(cell)
            seconds = spent + self._clock() - began
            self._profile = replace(self._profile, seconds=seconds)
            yield Step(index, len(todo), seconds, self._profile, cell)

    def measured(self) -> Profile:
        """Return the profile as far as it is, without a new fit."""
        return self._profile

    def finish(self) -> Profile:
        """Return the profile, with its fit if there are samples enough for one."""
        return fitted(self._profile)

    # --- cells ---

    def _try(self, cell: Cell) -> None:
        try:
            self._measure(cell)
        except (LaunchFailed, RuntimeError, ValueError) as error:
            self._failed += 1
            note = f"{cell}: {error}"
            if self._failed >= GIVE_UP:
                raise LaunchFailed(f"{self._failed} cells in a row, the last {note}") from error
            found = self._profile
            self._profile = replace(found, failures=(*found.failures, note[:500]))
            self._driver.settle()
        else:
            self._failed = 0

    def _measure(self, cell: Cell) -> None:
        match cell:
            case PrefillCell():
                prefill = self._prefill(cell)
                found = self._profile
                self._profile = replace(found, prefill=(*found.prefill, prefill))
            case DecodeCell():
                decode = self._decode(cell)
                found = self._profile
                self._profile = replace(found, decode=(*found.decode, decode))
            case PairCell():
                pair = self._pair(cell)
                found = self._profile
                self._profile = replace(found, corun=(*found.corun, pair))

    def _prefill(self, cell: PrefillCell) -> PrefillSample:
        first = self._driver.prefills(cell.partition, cell.prompts, 1)[0]
        if first >= LONG_S:
            times = self._driver.prefills(cell.partition, cell.prompts, 1)
        else:
            warm = ceil(WARM_S / first) if first < WARM_S else 0
            count = min(MOST, max(LEAST, ceil(LEAST_S / first)))
            times = self._driver.prefills(cell.partition, cell.prompts, warm + count)[warm:]
        return PrefillSample(
            units=self._info.partitions[cell.partition].prefill_units,
            prompts=cell.prompts,
            seconds=median(times),
            repeats=len(times),
            held_out=cell.held_out,
        )

    def _decode(self, cell: DecodeCell) -> DecodeSample:
        contexts = (cell.context,) * cell.rows
        if cell.uneven:
            contexts = uneven(cell, self._limits)
        seconds, count = self._alone(cell.partition, contexts)
        units = self._info.partitions[cell.partition].decode_units
        self._solo[units, cell.rows, sum(contexts)] = seconds
        return DecodeSample(
            units=units,
            rows=cell.rows,
            context=sum(contexts),
            seconds=seconds,
            repeats=count,
            held_out=cell.held_out,
            longest=max(contexts) if cell.uneven else 0,
        )

    def _alone(self, partition: int, contexts: tuple[int, ...]) -> tuple[float, int]:
        """Return the median of solo iterations, and how many counted."""
        first = min(self._driver.iterations(partition, contexts, WARM))
        warm = 1 + ceil(WARM_S / first) if first < WARM_S else 1
        count = min(MOST, max(LEAST, ceil(LEAST_S / first)))
        times = self._driver.iterations(partition, contexts, warm + count)[warm:]
        return median(times), len(times)

    def _pair(self, cell: PairCell) -> CorunSample:
        split = self._info.partitions[cell.partition]
        contexts = (cell.context,) * cell.rows
        solo = self._solo.get((split.decode_units, cell.rows, sum(contexts)))
        if solo is None:
            solo, _ = self._alone(cell.partition, contexts)
            self._solo[split.decode_units, cell.rows, sum(contexts)] = solo
        prompt = (cell.new, cell.reused)
        count = WARM + PAIR_ITERATIONS
        done = self._driver.both(cell.partition, prompt, contexts, count)
        times = sorted(_beside(done[WARM:]) or _beside(done) or [solo])
        return CorunSample(
            units=split.decode_units,
            prefill_units=split.prefill_units,
            prompts=(prompt,),
            rows=cell.rows,
            context=cell.rows * cell.context,
            seconds=times[-2] if len(times) > 2 else times[-1],
            solo_s=solo,
            repeats=len(times),
        )

    def _key(self, cell: Cell) -> Key:
        partition = self._info.partitions[cell.partition]
        match cell:
            case PrefillCell(prompts=prompts):
                return (partition.prefill_units, prompts)
            case DecodeCell(rows=rows, context=context):
                total = sum(uneven(cell, self._limits)) if cell.uneven else rows * context
                return (partition.decode_units, rows, total)
            case PairCell(new=new, reused=reused, rows=rows, context=context):
                return (partition.decode_units, ((new, reused),), rows, rows * context)


Sample = PrefillSample | DecodeSample | CorunSample


def fitted(found: Profile) -> Profile:
    """Return the profile with a fit of its samples, if there are enough for one."""
    try:
        return replace(found, fit=fit(found))
    except TooFewSamplesError:
        return found


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
