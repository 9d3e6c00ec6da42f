"""How to attend, given the new and the reused tokens of a batch and the SMs that it has.

flashinfer's Hopper kernel (FA3) is the fastest per tile, but cuts work only along queries and
heads: 512 new tokens of 32 heads are 128 tiles, however long the context, and 128 tiles on 112 SMs
take two rounds, the second nearly idle. Cutting the reused tokens into pieces that are attended to
apart and merged (split.py) fills the rounds. For a handful of new tokens FA3's tile of 128 queries
of one head is mostly padding; FA2 packs the heads that share a key head into one tile and splits
the context itself.

The decision compares a model of each kernel's time, whose constants were fitted to an H200: in 36
cases from 64 to 8,192 new tokens, 2,048 to 65,536 reused and 64 to 112 SMs it picks the kernel
that was measured fastest, or one within 7 % of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

TILE = 128
"""Queries of a tile: of one head (FA3), or packed over a key head's group (FA2)."""

FA3_DIMS = (64, 128, 256)
"""Head dimensions that FA3 is built for."""

PIECE_KEYS = (32768, 16384, 8192, 4096, 2048)
"""Lengths of a piece that are tried, in tokens."""


@dataclass(frozen=True, slots=True)
class Heads:
    """Attention heads of a model: query heads, key heads, and their size."""

    query: int
    key_value: int
    size: int


@dataclass(frozen=True, slots=True)
class KernelCosts:
    """Seconds that one SM takes, at a head dimension of 128, except for the two launch costs."""

    fa3_key: float
    """FA3: per key of a tile of 128 queries."""
    fa3_tile: float
    """FA3: prologue and epilogue of a tile."""
    fa3_launch: float
    fa2_key: float
    """FA2: per key of a tile of 128 packed queries, two tiles sharing the SM."""
    fa2_launch: float
    partial: float
    """Gather, write, read back and merge one partial row of one head."""
    split_launch: float
    """The other launches that a split batch needs, by the host or the device."""


H200_COSTS = KernelCosts(
    fa3_key=13.2e-9,
    fa3_tile=4e-6,
    fa3_launch=6e-6,
    fa2_key=26e-9,
    fa2_launch=12e-6,
    partial=24e-9,
    split_launch=30e-6,
)
"""As fitted. Another GPU changes the rates alike; the decision depends on their ratios."""


@dataclass(frozen=True, slots=True)
class AttentionChoice:
    """What to run: `fa2`, or `fa3` with row i's reused tokens in `pieces[i]` pieces (0: whole)."""

    kernel: Literal["fa2", "fa3"]
    pieces: tuple[int, ...]
    seconds: float
    """As the model predicts, for one layer."""

    @property
    def split(self) -> bool:
        """Whether any row is cut."""
        return any(self.pieces)


def prefill_backend(
    rows: Sequence[tuple[int, int]],
    sm_count: int,
    heads: Heads,
    costs: KernelCosts,
    max_partial_rows: int,
) -> AttentionChoice:
    """Choose for rows of (new tokens, reused tokens) on `sm_count` SMs.

    `max_partial_rows`: query rows of all pieces together at most, which bounds the scratch memory
    of a split (0: never split). Raises ValueError for no rows, a row without new tokens or no SM.
    """
    if not rows or sm_count < 1 or any(new < 1 or reused < 0 for new, reused in rows):
        raise ValueError(f"rows of (new ≥ 1, reused ≥ 0) on ≥ 1 SM, got {rows!r} on {sm_count}")
    whole = (0,) * len(rows)
    fa2 = AttentionChoice("fa2", whole, _fa2_seconds(rows, sm_count, heads, costs))
    if heads.size not in FA3_DIMS:
        return fa2
    fa3 = AttentionChoice("fa3", whole, _fa3_seconds(rows, whole, sm_count, heads, costs))
    choices = [fa3, fa2]
    for length in PIECE_KEYS:
        pieces = tuple(reused // length if reused >= 2 * length else 0 for _, reused in rows)
        partial_rows = sum(new * count for (new, _), count in zip(rows, pieces, strict=True))
        if any(pieces) and partial_rows <= max_partial_rows:
            seconds = _fa3_seconds(rows, pieces, sm_count, heads, costs)
            choices.append(AttentionChoice("fa3", pieces, seconds))
    return min(choices, key=lambda choice: choice.seconds)


def _fa3_seconds(
    rows: Sequence[tuple[int, int]],
    pieces: Sequence[int],
    sm_count: int,
    heads: Heads,
    costs: KernelCosts,
) -> float:
    """One launch over whole rows; or two, over pieces and over tails, and a merge."""
    tails, prefixes, partial = [], [], 0
    for (new, reused), count in zip(rows, pieces, strict=True):
        tiles = -(-new // TILE) * heads.query
        tails.append((tiles, (0 if count else reused) + new / 2))
        if count:
            prefixes.append((tiles * count, reused / count))
            partial += new * (count + 1) * heads.query
    seconds = costs.fa3_launch + _longest(tails, sm_count, heads, costs)
    if prefixes:
        seconds += _longest(prefixes, sm_count, heads, costs) + costs.split_launch
        seconds += partial * costs.partial / sm_count
    return seconds


def _longest(
    jobs: Sequence[tuple[int, float]], sm_count: int, heads: Heads, costs: KernelCosts
) -> float:
    """Time of the fullest SM for (tiles, keys of each): rounds of equal tiles, or an even share."""
    width = heads.size / 128
    times = [(tiles, keys * costs.fa3_key * width + costs.fa3_tile) for tiles, keys in jobs]
    work = sum(tiles * seconds for tiles, seconds in times)
    all_tiles = sum(tiles for tiles, _ in times)
    if len(times) == 1:
        return -(-all_tiles // sm_count) * work / all_tiles
    return max(work / sm_count, max(seconds for _, seconds in times))


def _fa2_seconds(
    rows: Sequence[tuple[int, int]], sm_count: int, heads: Heads, costs: KernelCosts
) -> float:
    """Tiles of packed heads, two to an SM; the context is split while that leaves room."""
    group = heads.query // heads.key_value
    tiles = [-(-new * group // TILE) for new, _ in rows]
    splits = max(1, 2 * sm_count // heads.key_value // sum(tiles))
    keys = [count * (reused + new / 2) for count, (new, reused) in zip(tiles, rows, strict=True)]
    blocks = sum(tiles) * heads.key_value * splits
    mean_keys = sum(keys) / sum(tiles) / splits
    rounds = -(-blocks // sm_count) if len(rows) == 1 else max(1.0, blocks / sm_count)
    return costs.fa2_launch + rounds * mean_keys * costs.fa2_key * heads.size / 128
