"""A profile: what was measured of one model on one device, and the fit made of it. A JSON file.

Raw samples are kept, so that a better fit needs no device. Written by `tandem profile`
(`ops/profile.py`), read by the scheduler; MuxWise 3.3.2 describes both halves.
"""

import os
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from protocol.control_link import Partition
from scheduler.estimator.loads import DecodeLoad, PrefillLoad

VERSION = 1

Positive = Annotated[float, Meta(gt=0)]
Natural = Annotated[int, Meta(ge=0)]
Units = Annotated[int, Meta(ge=1)]


class ProfileError(ValueError):
    """The file is no profile that can be used. The message names it and says why."""


class Hardware(Struct, frozen=True, kw_only=True):
    """What it was taken on."""

    name: str
    unit: str
    """What a partition counts: `SM` or `core`."""
    units: Units
    notes: tuple[str, ...] = ()


class Shape(Struct, frozen=True, kw_only=True):
    """The model that was run."""

    name: str
    num_layers: Units
    max_model_len: Units
    vocab_size: Natural = 0
    """0: not known."""
    num_heads: Natural = 0
    """Query heads; 0: not known."""
    tensor_parallel: Units = 1
    """Devices that it was spread over."""


class Rate(Struct, frozen=True, kw_only=True):
    """What kernels reach on one side of a split, for roofline policies (DuetServe 4.2)."""

    units: Units
    side: str
    """`prefill` or `decode` of a split, or `whole`: where the units lie matters a little."""
    read_bytes_s: Positive
    """From the device's memory, much more than its caches hold."""
    flop_s: Positive
    """Of a large bfloat16 matrix product of the model's own, planned for the units."""


class PrefillSample(Struct, frozen=True, kw_only=True):
    """A solo prefill through all layers."""

    units: Units
    prompts: Annotated[tuple[tuple[Natural, Natural], ...], Meta(min_length=1)]
    """(new, reused) tokens of each prompt."""
    seconds: Positive
    """Device time, median of the repeats."""
    repeats: Units = 1
    held_out: bool = False
    """Off the grid, to measure the fit by: never fitted to."""

    @property
    def load(self) -> PrefillLoad:
        """Return the sums."""
        return PrefillLoad.of_prompts(self.prompts)


class DecodeSample(Struct, frozen=True, kw_only=True):
    """A solo decode iteration."""

    units: Units
    rows: Units
    context: Natural
    """Tokens attended to, over all rows."""
    seconds: Positive
    repeats: Units = 1
    held_out: bool = False
    longest: Natural = 0
    """Context of the longest row; 0: all rows have the same. Uneven samples are not fitted to."""

    @property
    def load(self) -> DecodeLoad:
        """Return the sums."""
        return DecodeLoad(self.rows, self.context)


class CorunSample(Struct, frozen=True, kw_only=True):
    """Decode iterations beside a prefill on the other side of a split."""

    units: Units
    """Of decode."""
    prefill_units: Units
    prompts: Annotated[tuple[tuple[Natural, Natural], ...], Meta(min_length=1)]
    rows: Units
    context: Natural
    seconds: Positive
    """The second slowest iteration of those that the prefill overlapped for most of their time: a
    lone outlier is not the worst that happens, as in the guard."""
    solo_s: Positive
    """Median of the same iteration on the same units alone, measured close to it."""
    repeats: Units = 1

    @property
    def beside(self) -> PrefillLoad:
        """Return the sums of the prefill."""
        return PrefillLoad.of_prompts(self.prompts)

    @property
    def load(self) -> DecodeLoad:
        """Return the sums of the iteration."""
        return DecodeLoad(self.rows, self.context)

    @property
    def slowdown(self) -> float:
        """Return the factor on the solo time, at least 1."""
        return max(1.0, self.seconds / self.solo_s)


class Line(Struct, frozen=True, array_like=True):
    """Seconds by size, as measured, rising."""

    sizes: Annotated[tuple[Positive, ...], Meta(min_length=1)]
    """New tokens of a prefill, or rows; ascending."""
    seconds: Annotated[tuple[Positive, ...], Meta(min_length=1)]


class UnitsFit(Struct, frozen=True, array_like=True):
    """The fit of one lane on so many units."""

    units: Units
    line: Line
    theta: tuple[Annotated[float, Meta(ge=0)], ...]
    """Seconds by the terms of `solo.prefill_terms` or `solo.decode_terms`."""


class Deviation(Struct, frozen=True):
    """Relative error |predicted - measured| / measured on samples that the fit has not seen."""

    largest: float
    mean: float
    samples: Natural


class Fit(Struct, frozen=True, kw_only=True):
    """Solo-run predictors, and how far off they are on held-out samples."""

    prefill: Annotated[tuple[UnitsFit, ...], Meta(min_length=1)]
    decode: Annotated[tuple[UnitsFit, ...], Meta(min_length=1)]
    tile: Units
    """Rows that matrix products take at a time; 1: no steps."""
    heads: Natural
    """Query heads, whose tiles attention works off in rounds; 0: no steps."""
    most_new: Units
    """New tokens of the largest prefill that was profiled: longer prompts go in chunks."""
    row_sizes: tuple[Units, ...]
    """As in the profile."""
    prefill_deviation: Deviation
    decode_deviation: Deviation
    uneven_deviation: Deviation = Deviation(0.0, 0.0, 0)
    """Of iterations over rows of very different contexts, which the terms cannot tell apart."""


class Profile(Struct, frozen=True, kw_only=True):
    """One model on one device."""

    version: int = VERSION
    taken_at: str
    """Date and time, ISO 8601, UTC."""
    seconds: Annotated[float, Meta(ge=0)]
    """How long it took, over all its runs."""
    hardware: Hardware
    software: dict[str, str]
    model: Shape
    partitions: Annotated[tuple[Partition, ...], Meta(min_length=1)]
    row_sizes: tuple[Units, ...] = ()
    """A decode batch takes as long as one of the next of these sizes; empty: any is its own."""
    prefill: tuple[PrefillSample, ...] = ()
    decode: tuple[DecodeSample, ...] = ()
    corun: tuple[CorunSample, ...] = ()
    rates: tuple[Rate, ...] = ()
    """Empty where kernels are not ours to launch (the CPU)."""
    failures: tuple[str, ...] = ()
    """Cells that could not be measured, and why."""
    fit: Fit | None = None
    """None while the profile is not complete enough for one."""


def load(path: Path) -> Profile:
    """Read a profile. Raises ProfileError."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ProfileError(f"profile {path}: {error.strerror}") from None
    try:
        found = msgspec.json.decode(data, type=Profile)
    except msgspec.DecodeError as error:
        raise ProfileError(f"profile {path}: {error}") from None
    if found.version != VERSION:
        raise ProfileError(f"profile {path}: version {found.version}, this reads {VERSION}")
    return found


def save(path: Path, profile: Profile) -> None:
    """Write a profile, so that a reader sees the old file or the new one and never half of one."""
    write_atomically(path, msgspec.json.format(msgspec.json.encode(profile), indent=1))


def write_atomically(path: Path, data: bytes) -> None:
    """Replace the file at `path` by `data`. Raises OSError."""
    aside = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with aside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)
