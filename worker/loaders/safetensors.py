"""Checkpoints in Hugging Face's layout: config.json and safetensors, in one file or in shards.

Files are memory-mapped; a tensor's bytes are touched only while it is copied to its place.
"""

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from worker.loaders.assemble import LoadError
from worker.models.config import ModelConfig, config_from_hf

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


def read_config(folder: Path) -> ModelConfig:
    """Read the model's shape. Raises LoadError for broken JSON, UnsupportedModelError."""
    generation = folder / "generation_config.json"
    return config_from_hf(
        _read_json(folder / "config.json"), _read_json(generation) if generation.exists() else {}
    )


def read_shape(file: Path) -> ModelConfig:
    """Read the shape in a config.json by another name. Raises LoadError, UnsupportedModelError."""
    return config_from_hf(_read_json(file), {})


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise LoadError(f"{path.name} of {path.parent} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise LoadError(f"{path.name} of {path.parent} holds no JSON object")
    return content


class SafetensorsSource:
    """Tensors of a folder. Implements TensorSource."""

    def __init__(self, folder: Path) -> None:
        """Map the files. Raises LoadError when there are none, or when one is missing or broken."""
        self._files: dict[str, Any] = {}
        self._where: dict[str, str] = {}
        index = folder / INDEX
        if index.exists():
            listed = _read_json(index).get("weight_map")
            if not isinstance(listed, dict):
                raise LoadError(f"{INDEX} of {folder} has no weight_map")
            names = sorted(set(listed.values()))
        else:
            names = [SINGLE]
        for name in names:
            self._map(folder, name)

    def _map(self, folder: Path, name: str) -> None:
        if Path(name).name != name:
            raise LoadError(f"{INDEX} of {folder} names a file outside it: {name!r}")
        if not (folder / name).is_file():
            raise LoadError(f"{folder} has no file {name}; weights are read from safetensors only")
        try:
            file = safe_open(folder / name, framework="pt", device="cpu")
        except (OSError, SafetensorError) as error:
            raise LoadError(f"{name} of {folder} cannot be read: {error}") from error
        self._files[name] = file
        self._where.update(dict.fromkeys(file.keys(), name))

    def shape(self, name: str) -> tuple[int, ...] | None:
        """See TensorSource."""
        where = self._where.get(name)
        return None if where is None else tuple(self._files[where].get_slice(name).get_shape())

    def read(self, name: str) -> Tensor:
        """See TensorSource."""
        tensor: Tensor = self._files[self._where[name]].get_tensor(name)
        return tensor
