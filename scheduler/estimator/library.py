"""Finds a worker's profile: by its device, its model's shape and the devices it is spread over.

Profiles lie in two folders: the user's own, where `tandem profile` puts them, and the package's. A
model is known by its shape and not by its name, since fine-tuned ones are as fast as their base.
"""

import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from scheduler.estimator.profile import Profile, ProfileError, load
from scheduler.view import WorkerView

log = logging.getLogger(__name__)

SHIPPED = Path(__file__).resolve().parents[1] / "profiles"


def folders(environment: Mapping[str, str]) -> tuple[Path, ...]:
    """Return where profiles are looked for, the user's own folder first."""
    return (own_folder(environment), SHIPPED)


def own_folder(environment: Mapping[str, str]) -> Path:
    """Return the user's folder: $XDG_DATA_HOME/tandem/profiles, ~/.local/share without that."""
    base = environment.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "tandem" / "profiles"


def file_name(model: str, device: str, tensor_parallel: int) -> str:
    """Return a profile's file name, as `llama-3.1-8b.nvidia-h200.tp1.json`."""
    parts = (re.sub(r"[^a-z0-9.]+", "-", each.lower()).strip("-.") for each in (model, device))
    return ".".join([*parts, f"tp{tensor_parallel}", "json"])


def find(view: WorkerView, where: Iterable[Path]) -> Profile | None:
    """Return the profile of this worker: of those in the first folder that has one, one of the same
    model name before others, then the newest.
    """
    for folder in where:
        found = [profile for profile in _all(folder) if matches(profile, view)]
        if found:
            return max(found, key=lambda p: (p.model.name in view.models, p.taken_at))
    return None


def matches(profile: Profile, view: WorkerView) -> bool:
    """Whether a profile is of the view's device and of its one model's shape."""
    hardware, shape = profile.hardware, profile.model
    device = (hardware.name, hardware.unit, hardware.units)
    shapes = {(model.num_layers, model.vocab_size) for model in view.models.values()}
    return (
        profile.fit is not None
        and device == (view.device, view.unit, view.units)
        and shapes == {(shape.num_layers, shape.vocab_size)}
        and shape.tensor_parallel == 1  # what a worker runs on
    )


def _all(folder: Path) -> Iterator[Profile]:
    try:
        names = sorted(entry for entry in os.listdir(folder) if entry.endswith(".json"))
    except OSError:
        return
    for name in names:
        try:
            yield load(folder / name)
        except ProfileError as error:
            log.warning("not used: %s", error)
