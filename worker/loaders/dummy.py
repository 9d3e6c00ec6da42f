"""Random weights of a model's shape: load tests and profiles of models that are not at hand."""

import math

import torch
from torch import Tensor

from worker.loaders.assemble import tensor_names
from worker.models.config import ModelConfig


class DummySource:
    """Normally distributed matrices, norms near one. Implements TensorSource.

    A tensor depends on the seed, its name's place and the kind of device that draws it, so two
    loads are equal. Drawn where it is wanted: billions of numbers take a CPU minutes.
    """

    def __init__(self, config: ModelConfig, seed: int, device: torch.device) -> None:
        self._device = device
        self._shapes = dict(tensor_names(config))
        self._places = {name: place for place, name in enumerate(self._shapes)}
        self._seed = seed

    def shape(self, name: str) -> tuple[int, ...] | None:
        """See TensorSource."""
        return self._shapes.get(name)

    def read(self, name: str) -> Tensor:
        """See TensorSource."""
        shape = self._shapes[name]
        generator = torch.Generator(self._device).manual_seed(
            self._seed * 1_000_003 + self._places[name]
        )
        values = torch.randn(shape, generator=generator, device=self._device)
        if len(shape) == 1:
            return values * 0.1 + (0.0 if name.endswith(".bias") else 1.0)
        return values / math.sqrt(shape[-1])
