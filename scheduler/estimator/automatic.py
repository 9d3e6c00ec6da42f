"""The estimator for whatever worker there is: fitted where a profile matches it, else measured.

Which one is decided when a worker is first seen, and again when another one takes its place.
"""

import logging
from collections.abc import Sequence
from pathlib import Path

from scheduler.estimator import library
from scheduler.estimator.base import Estimator
from scheduler.estimator.fitted import FittedEstimator
from scheduler.estimator.loads import DecodeLoad, PrefillLoad
from scheduler.estimator.soft_state import SoftState
from scheduler.estimator.statistics import Errors
from scheduler.estimator.table import SplitTable
from scheduler.view import WorkerView

log = logging.getLogger(__name__)


class AutomaticEstimator:
    """Implements `scheduler.estimator.base.Estimator` by one of the two."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = tuple(folders)
        self._chosen: Estimator = SplitTable()
        self._boot: str | None = None
        self._remembered: SoftState | None = None

    @property
    def errors(self) -> Errors | None:
        """Of the predictions from a profile, where one is used."""
        return self._chosen.errors if isinstance(self._chosen, FittedEstimator) else None

    def learn(self, view: WorkerView, now: float) -> None:
        """See Estimator. Called before anything is asked of a view."""
        if view.boot != self._boot:
            self._boot = view.boot
            self._choose(view)
        self._chosen.learn(view, now)

    def decode_s(self, view: WorkerView, partition: int, load: DecodeLoad, now: float) -> float:
        """See Estimator."""
        return self._chosen.decode_s(view, partition, load, now)

    def worst_decode_s(
        self, view: WorkerView, load: DecodeLoad, beside: PrefillLoad, now: float
    ) -> dict[int, float]:
        """See Estimator."""
        return self._chosen.worst_decode_s(view, load, beside, now)

    def prefill_s(
        self, view: WorkerView, partition: int, load: PrefillLoad, layers: int, now: float
    ) -> float:
        """See Estimator."""
        return self._chosen.prefill_s(view, partition, load, layers, now)

    def _choose(self, view: WorkerView) -> None:
        found = library.find(view, self._folders)
        if found is None:
            log.info(
                "no profile of %s on %s (%d %ss): predicting from measurements alone",
                *(sorted(view.models), view.device or "this device", view.units, view.unit),
            )
            self._chosen = SplitTable()
            return
        log.info(
            "profile of %s on %s, of %s", found.model.name, found.hardware.name, found.taken_at
        )
        self._chosen = FittedEstimator(found)
        if self._remembered is not None:
            self._chosen.restore(self._remembered)

    # --- soft state ---

    def soft_state(self) -> SoftState | None:
        """Return what was learnt online; None where nothing keeps."""
        if isinstance(self._chosen, FittedEstimator):
            return self._chosen.soft_state()
        return self._remembered

    def restore(self, state: SoftState) -> bool:
        """Keep `state` for the worker that it is of."""
        self._remembered = state
        return True
