"""Builds a decoder's fused weights from single tensors, wherever those come from.

Each fused matrix is allocated once, in its final type and on its device, and its parts are copied
into it one at a time: a load never holds more than one tensor besides the model. Everything that
is missing or misshapen is found before the first byte is read.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from worker.loaders.progress import Progress
from worker.models.config import ModelConfig
from worker.models.weights import LayerWeights, Weights

EMBED, FINAL_NORM, LM_HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"
_SHOWN = 5
"""Names that an error lists before it only counts."""


class LoadError(ValueError):
    """The files do not hold the model that their configuration describes."""


class TensorSource(Protocol):
    """Named tensors, by Hugging Face's names and in its layout ([out, in], half-split rotary)."""

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Return a tensor's shape, None when there is no such tensor."""
        ...

    def read(self, name: str) -> Tensor:
        """Return a tensor on the CPU, of any floating type; the caller copies it."""
        ...


@dataclass(frozen=True, slots=True)
class _Part:
    """One tensor of the files, and the shape that the configuration gives it."""

    name: str
    shape: tuple[int, ...]


_LayerParts = dict[str, tuple[_Part, ...]]
"""Field of LayerWeights: the tensors that are stacked in it."""


def assemble(
    config: ModelConfig,
    source: TensorSource,
    device: torch.device,
    dtype: torch.dtype,
    progress: Progress,
) -> Weights:
    """Return the model's weights on `device` in `dtype`.

    Raises LoadError that names the tensors which are missing or have another shape.
    """
    layers = [_layer_parts(config, index) for index in range(config.num_layers)]
    outer = _outer_parts(config)
    parts = [part for layer in layers for stack in layer.values() for part in stack]
    parts += outer.values()
    _check(parts, source)
    copier = _Copier(source, device, dtype, progress, sum(math.prod(p.shape) for p in parts))
    embed = copier.stack((outer[EMBED],))
    return Weights(
        embed=embed,
        layers=tuple(copier.layer(layer) for layer in layers),
        final_norm=copier.stack((outer[FINAL_NORM],)),
        lm_head=copier.stack((outer[LM_HEAD],)) if LM_HEAD in outer else embed,
    )


def tensor_names(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the name and shape of every tensor that a model of this shape is read from."""
    for index in range(config.num_layers):
        for stack in _layer_parts(config, index).values():
            yield from ((part.name, part.shape) for part in stack)
    yield from ((part.name, part.shape) for part in _outer_parts(config).values())


def _outer_parts(config: ModelConfig) -> dict[str, _Part]:
    matrix = (config.vocab_size, config.hidden_size)
    parts = {EMBED: _Part(EMBED, matrix), FINAL_NORM: _Part(FINAL_NORM, (config.hidden_size,))}
    if not config.tie_word_embeddings:
        parts[LM_HEAD] = _Part(LM_HEAD, matrix)
    return parts


def _layer_parts(config: ModelConfig, index: int) -> _LayerParts:
    def part(name: str, *shape: int) -> _Part:
        return _Part(f"model.layers.{index}.{name}", shape)

    hidden, ff = config.hidden_size, config.intermediate_size
    sizes = {"q": config.q_size, "k": config.kv_size, "v": config.kv_size}
    parts: _LayerParts = {
        "input_norm": (part("input_layernorm.weight", hidden),),
        "qkv": tuple(part(f"self_attn.{x}_proj.weight", n, hidden) for x, n in sizes.items()),
        "o": (part("self_attn.o_proj.weight", hidden, config.q_size),),
        "post_norm": (part("post_attention_layernorm.weight", hidden),),
        "gate_up": tuple(part(f"mlp.{x}_proj.weight", ff, hidden) for x in ("gate", "up")),
        "down": (part("mlp.down_proj.weight", hidden, ff),),
    }
    if config.qkv_bias:
        parts["qkv_bias"] = tuple(part(f"self_attn.{x}_proj.bias", n) for x, n in sizes.items())
    if config.qk_norm:
        for x in ("q", "k"):
            parts[f"{x}_norm"] = (part(f"self_attn.{x}_norm.weight", config.head_dim),)
    return parts


def _check(parts: list[_Part], source: TensorSource) -> None:
    missing = [part.name for part in parts if source.shape(part.name) is None]
    if missing:
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        raise LoadError(f"tensors missing: {', '.join(missing[:_SHOWN])}{more}")
    for part in parts:
        if source.shape(part.name) != part.shape:
            raise LoadError(
                f"tensor {part.name} is {source.shape(part.name)}, "
                f"and the configuration says {part.shape}"
            )


class _Copier:
    """Copies parts into fused tensors, and counts them."""

    def __init__(
        self,
        source: TensorSource,
        device: torch.device,
        dtype: torch.dtype,
        progress: Progress,
        elements: int,
    ) -> None:
        self._source, self._device, self._dtype = source, device, dtype
        self._progress, self._total = progress, elements * dtype.itemsize
        self._done = 0
        progress(0, self._total)

    def stack(self, parts: tuple[_Part, ...]) -> Tensor:
        """Stack parts along their first dimension."""
        rows = sum(part.shape[0] for part in parts)
        fused = torch.empty((rows, *parts[0].shape[1:]), dtype=self._dtype, device=self._device)
        first = 0
        for part in parts:
            view = fused[first : first + part.shape[0]]
            view.copy_(self._source.read(part.name))
            first += part.shape[0]
            self._done += view.numel() * self._dtype.itemsize
            self._progress(self._done, self._total)
        return fused

    def layer(self, parts: _LayerParts) -> LayerWeights:
        """Build one layer; what its family lacks is None."""
        stacks = {name: self.stack(stack) for name, stack in parts.items()}
        return LayerWeights(
            input_norm=stacks["input_norm"],
            qkv=stacks["qkv"],
            qkv_bias=stacks.get("qkv_bias"),
            q_norm=stacks.get("q_norm"),
            k_norm=stacks.get("k_norm"),
            o=stacks["o"],
            post_norm=stacks["post_norm"],
            gate_up=stacks["gate_up"],
            down=stacks["down"],
        )
