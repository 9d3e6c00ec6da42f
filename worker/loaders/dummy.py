"""Random weights of a model's shape: load tests and profiles of models that are not at hand."""

import math

import torch
from torch import Tensor

from worker.loaders.assemble import tensor_names
from worker.models.config import ModelConfig


class DummySource:
    """Normally distributed matrices, norms near one. Implements TensorSource.

    A tensor depends on the seed and its name's place only, so two loads are equal.
    """

    def __init__(self, config: ModelConfig, seed: int) -> None:
        self._shapes = dict(tensor_names(config))
        self._places = {name: place for place, name in enumerate(self._shapes)}
        self._seed = seed

    def shape(self, name: str) -> tuple[int, ...] | None:
        """See TensorSource."""
        return self._shapes.get(name)

    def read(self, name: str) -> Tensor:
        """See TensorSource."""
        shape = self._shapes[name]
        generator = torch.Generator().manual_seed(self._seed * 1_000_003 + self._places[name])
        values = torch.randn(shape, generator=generator)
        if len(shape) == 1:
            return values * 0.1 + (0.0 if name.endswith(".bias") else 1.0)
        return values / math.sqrt(shape[-1])
