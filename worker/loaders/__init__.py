"""Weights from files: GGUF, safetensors, or random ones of the right shape."""

import torch

from protocol.model_files import ModelFiles
from worker.loaders.assemble import LoadError, TensorSource, assemble
from worker.loaders.dummy import DummySource
from worker.loaders.gguf import GgufSource
from worker.loaders.progress import Progress, TerminalProgress, silent
from worker.loaders.safetensors import SafetensorsSource, read_config, read_shape
from worker.models.config import ModelConfig
from worker.models.weights import Weights

__all__ = [
    "LoadError",
    "Progress",
    "TerminalProgress",
    "load_config",
    "load_dummy",
    "load_model",
    "silent",
]


def load_config(files: ModelFiles) -> ModelConfig:
    """Read a model's shape, no weights. Raises LoadError, UnsupportedModelError."""
    if files.kind == "gguf":
        return GgufSource(files.path).config
    return read_shape(files.path) if files.kind == "shape" else read_config(files.path)


def load_model(
    files: ModelFiles, device: torch.device, dtype: torch.dtype, progress: Progress
) -> tuple[ModelConfig, Weights]:
    """Load a model's weights to `device` in `dtype`.

    Raises LoadError when the files are broken or incomplete, UnsupportedModelError when they ask
    for something that is not here.
    """
    if files.kind == "shape":
        raise LoadError(f"{files.name} is a shape without weights; give --load-format dummy")
    if files.kind == "gguf":
        source = GgufSource(files.path)
        return source.config, assemble(source.config, source, device, dtype, progress)
    config = read_config(files.path)
    tensors: TensorSource = SafetensorsSource(files.path)
    return config, assemble(config, tensors, device, dtype, progress)


def load_dummy(
    config: ModelConfig, seed: int, device: torch.device, dtype: torch.dtype, progress: Progress
) -> Weights:
    """Make random weights for `config`, the same for the same seed."""
    return assemble(config, DummySource(config, seed, device), device, dtype, progress)
