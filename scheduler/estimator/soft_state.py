"""What was learnt online, in a file: it survives a scheduler's restart.

Losing it costs accuracy for a while, nothing else (DESIGN 1). It belongs to one profile; beside
another one it is ignored. A file that cannot be read is as good as none.
"""

import logging
from pathlib import Path
from typing import Annotated, Protocol

import msgspec
from msgspec import Meta, Struct

from scheduler.estimator.guard import Cell, Recent
from scheduler.estimator.profile import write_atomically

log = logging.getLogger(__name__)

PERIOD_S = 10.0
"""Seconds between two writes."""

Ratio = Annotated[float, Meta(gt=0)]


class SoftState(Struct, frozen=True, kw_only=True):
    """One estimator's memory."""

    profile: str
    """Fingerprint of the profile."""
    cells: tuple[tuple[Cell, Recent], ...] = ()
    prefill: dict[int, Ratio] = {}
    """Measured over predicted prefill time, by units."""


def read(path: Path) -> SoftState | None:
    """Return what the file holds; None, with a warning, if it cannot be used."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=SoftState)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        log.warning("soft state %s is not used: %s", path, error)
        return None


def write(path: Path, state: SoftState) -> bool:
    """Replace the file whole; False, with a warning, if that fails."""
    try:
        write_atomically(path, msgspec.json.encode(state))
    except OSError as error:
        log.warning("soft state %s is not written: %s", path, error)
        return False
    return True


class Learner(Protocol):
    """What has something to remember."""

    def soft_state(self) -> SoftState | None:
        """Return what was learnt; None: nothing that is worth keeping."""
        ...

    def restore(self, state: SoftState) -> bool:
        """Take it back; False if it is of something else."""
        ...


class Keeper:
    """Writes a learner's memory to its file now and then, and at the end."""

    def __init__(self, path: Path, learner: Learner) -> None:
        self._path, self._learner = path, learner
        self._written_at: float | None = None

    def restore(self) -> bool:
        """Give the learner what the file holds; False if that is of no use."""
        state = read(self._path)
        return state is not None and self._learner.restore(state)

    def tick(self, now: float) -> None:
        """Write if the last time is `PERIOD_S` ago. The first call only starts the period."""
        if self._written_at is None or now - self._written_at >= PERIOD_S:
            if self._written_at is not None:
                self.save()
            self._written_at = now

    def save(self) -> None:
        """Write now."""
        state = self._learner.soft_state()
        if state is not None:
            write(self._path, state)
