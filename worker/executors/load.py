"""A model's weights as the settings ask for them, onto any device: for all torch executors."""

from collections.abc import Callable

import torch

from protocol.model_files import LoadFormat, ModelFiles
from worker import loaders
from worker.models.weights import Model
from worker.settings import WorkerSettings

DUMMY_SEED = 0

Tell = Callable[[str, int, int], None]
"""Called with a stage of the start, and how much of how many is done (0: no count)."""


def load_weights(
    settings: WorkerSettings,
    name: str,
    files: ModelFiles,
    device: torch.device,
    dtype: torch.dtype,
    tell: Tell,
) -> Model:
    """Read the weights, or make random ones. Raises LoadError and UnsupportedModelError."""
    # Under a launcher the reports are enough: it shows the bar.
    bar = loaders.TerminalProgress(name) if settings.ready_fd is None else loaders.silent

    def progress(done: int, total: int) -> None:
        bar(done, total)
        tell("loading weights", done, total)

    if settings.load_format is LoadFormat.DUMMY:
        config = loaders.load_config(files)
        return Model(config, loaders.load_dummy(config, DUMMY_SEED, device, dtype, progress))
    return Model(*loaders.load_model(files, device, dtype, progress))
