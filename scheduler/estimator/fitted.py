"""The estimator built from a profile: solo-run predictors, guard, and what running teaches.

Beside a worker that the profile was not taken for (another unit, another depth of model), it says
so once and leaves predicting to the measured table.
"""

import hashlib
import logging

import msgspec

from protocol.control_link import WHOLE, DeviceWork, Lane, Partition
from scheduler.estimator import solo
from scheduler.estimator.guard import Cell, Guard, cell_of, shape_of
from scheduler.estimator.loads import NOTHING, DecodeLoad, PrefillLoad
from scheduler.estimator.profile import Profile, ProfileError
from scheduler.estimator.soft_state import SoftState
from scheduler.estimator.statistics import none_yet
from scheduler.estimator.table import SplitTable
from scheduler.estimator.works import Works
from scheduler.view import WorkerView

log = logging.getLogger(__name__)

BESIDE = 0.5
"""Share of an iteration that a prefill must overlap for it to tell of contention."""
ALONE = 0.05
"""Share up to which it tells of the solo-run time."""
WEIGHT = 0.05
"""Of a new quantum in the forgetting ratio of measured to predicted prefill time."""


class FittedEstimator:
    """Implements `scheduler.estimator.base.Estimator`."""

    def __init__(self, profile: Profile) -> None:
        """Raises ProfileError for a profile without a fit."""
        if profile.fit is None:
            raise ProfileError(
                f"the profile of {profile.model.name} has no fit: {len(profile.prefill)} prefill "
                f"and {len(profile.decode)} decode samples; go on with `tandem profile`"
            )
        self.errors = none_yet()
        self._profile = profile
        self._prefill = solo.PrefillLane(profile.fit)
        self._decode = solo.DecodeLane(profile.fit)
        self._guard = Guard((cell_of(s.units, s.load, s.beside), s.slowdown) for s in profile.corun)
        self._ratios: dict[int, float] = {}
        """Measured over predicted prefill time, by units."""
        self._table = SplitTable()
        self._works = Works()
        self._beside = NOTHING
        """The prefill that ran last."""
        self._partitions: tuple[Partition, ...] = ()
        self._units: dict[tuple[Lane, int], int] = {}
        self._applies = False
        self._asked: tuple[DecodeLoad, PrefillLoad] | None = None
        self._worst: dict[int, float] = {}
        """Answers to `_asked`, by partition."""

    # --- predictions ---

    def decode_s(self, view: WorkerView, partition: int, load: DecodeLoad, now: float) -> float:
        """Return the solo-run time of one iteration (eq. 2): contention-free, as DRIFT wants it."""
        if not self._check(view):
            return self._table.decode_s(view, partition, load, now)
        return self._decode.seconds(self._units[Lane.DECODE, partition], load)

    def worst_decode_s(
        self, view: WorkerView, load: DecodeLoad, beside: PrefillLoad, now: float
    ) -> dict[int, float]:
        """Return the solo-run times with the guard's factors; more units are never slower."""
        if not self._check(view):
            return self._table.worst_decode_s(view, load, beside, now)
        if self._asked != (load, beside):
            self._asked, self._worst = (load, beside), self._all_worst(view, load, beside)
        return self._worst

    def _all_worst(
        self, view: WorkerView, load: DecodeLoad, beside: PrefillLoad
    ) -> dict[int, float]:
        worst: dict[int, float] = {}
        slowest = 0.0
        shape = shape_of(load, beside)
        for split in reversed(view.splits):
            guard = self._guard.worst(Cell(split.decode_units, *shape))
            slowest = max(slowest, self._decode.seconds(split.decode_units, load) * guard)
            worst[split.index] = slowest
        return dict(reversed(worst.items()))

    def prefill_s(
        self, view: WorkerView, partition: int, load: PrefillLoad, layers: int, now: float
    ) -> float:
        """Return the solo-run time (eq. 1) by layers, as far off as it was lately."""
        if not self._check(view):
            return self._table.prefill_s(view, partition, load, layers, now)
        if not load.new:
            return 0.0
        units = self._units[Lane.PREFILL, partition]
        seconds = self._prefill.seconds(units, load) * layers / self._profile.model.num_layers
        return seconds * self._ratios.get(units, 1.0)

    # --- learning ---

    def learn(self, view: WorkerView, now: float) -> None:
        """Take the device works that `view` has noted since the last call."""
        self._table.learn(view, now)
        rebooted, works = self._works.fresh(view)
        if rebooted:
            self._beside = NOTHING
        if not works or not self._check(view):
            return
        for work in works:
            if work.seconds <= 0:
                continue
            if work.lane is Lane.PREFILL:
                self._take_quantum(work)
            elif work.batch_size and not work.new_tokens:
                self._take_iteration(work)
        self._asked = None

    def _take_quantum(self, work: DeviceWork) -> None:
        self._beside = load = PrefillLoad.of_work(work)
        if not (load.new and work.layers):
            return
        share = work.layers / self._profile.model.num_layers
        predicted = self._prefill.seconds(work.units, load) * share
        ratio = self._ratios.get(work.units, 1.0)
        self.errors.prefill.add(predicted * ratio, work.seconds)
        self._ratios[work.units] = ratio + WEIGHT * (work.seconds / predicted - ratio)

    def _take_iteration(self, work: DeviceWork) -> None:
        load = DecodeLoad.of_work(work)
        predicted = self._decode.seconds(work.units, load)
        overlap = work.overlap_s / work.seconds
        if overlap <= ALONE:
            self.errors.decode.add(predicted, work.seconds)
        elif work.partition != WHOLE:
            cell = cell_of(work.units, load, self._beside)
            self.errors.guard.add(predicted * self._guard.worst(cell), work.seconds)
            if overlap >= BESIDE:
                self._guard.note(cell, max(1.0, work.seconds / predicted))

    # --- the worker that is predicted ---

    def _check(self, view: WorkerView) -> bool:
        """Whether the profile is one of this worker's device and model."""
        if view.partitions is self._partitions:
            return self._applies
        self._partitions, self._asked = view.partitions, None
        self._units = {(Lane.DECODE, p.index): p.decode_units for p in view.partitions}
        self._units |= {(Lane.PREFILL, p.index): p.prefill_units for p in view.partitions}
        self._units[Lane.DECODE, WHOLE] = self._units[Lane.PREFILL, WHOLE] = view.units
        hardware, model = self._profile.hardware, self._profile.model
        layers = {info.num_layers for info in view.models.values()}
        self._applies = view.unit == hardware.unit and layers == {model.num_layers}
        if not self._applies:
            log.warning(
                "the profile (%s, %d layers, %ss) is not of this worker (%s layers, %ss): "
                "predicting from measurements alone",
                *(model.name, model.num_layers, hardware.unit, sorted(layers), view.unit),
            )
        return self._applies

    # --- soft state ---

    def soft_state(self) -> SoftState:
        """Return what was learnt online."""
        return SoftState(
            profile=fingerprint(self._profile),
            cells=tuple(self._guard.learnt().items()),
            prefill=dict(self._ratios),
        )

    def restore(self, state: SoftState) -> bool:
        """Take back what was learnt beside the same profile; False if it was another one."""
        if state.profile != fingerprint(self._profile):
            log.info("soft state is of another profile: not used")
            return False
        self._guard.restore((Cell(*cell), recent) for cell, recent in state.cells)
        self._ratios |= state.prefill
        return True


def fingerprint(profile: Profile) -> str:
    """Return a name of the profile's content."""
    return hashlib.sha256(msgspec.msgpack.encode(profile)).hexdigest()[:16]
