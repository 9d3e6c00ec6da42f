"""How to attend, given the new and the reused tokens of a prefill batch and the SMs it has.

flashinfer's Hopper kernel (FA3) is the fastest per tile, but it cuts work only along queries and
heads: 512 new tokens of 32 heads are 128 tiles, however long the context, and 128 tiles on 116 SMs take
two rounds of which the second is nearly idle. Cutting the reused tokens into pieces that are attended
to separately and merged by their log-sum-exp fills the rounds. For a handful of new tokens FA3's tile
of 128 queries of one head is mostly padding; the older kernel (FA2) packs the heads that share a key
head into one tile and splits the context itself.

The decision is a model of both times with constants measured on an H200 (docs/decisions.md); only
their ratios matter. Pure arithmetic, once per batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

TILE = 128
"""Queries of a tile, of one head (FA3) or packed over a key head's group (FA2)."""


@dataclass(frozen=True, slots=True)
class Heads:
    """Attention heads of a model: query heads, key heads, and their dimension."""

    query: int
    key: int
    dim: int


@dataclass(frozen=True, slots=True)
class KernelCosts:
    """Seconds on one SM, for a tile of 128 queries at a head dimension of 128."""

    fa3_per_key: float = 15.2e-9
    """FA3: per key of a tile."""
    fa3_per_tile: float = 3.0e-6
    """FA3: prologue and epilogue of a tile."""
    fa2_per_key: float = 27e-9
    """FA2: per key of a tile of 128 packed queries."""
    fa2_per_tile: float = 4.0e-6
    merge_per_row_head: float = 6e-9
    """Gather, write, read back and merge one partial row of one head."""
    split_launches: float = 12e-6
    """The extra launches of a split batch, in seconds (not divided among the SMs)."""


@dataclass(frozen=True, slots=True)
class PrefillChoice:
    """What to run: `fa2`, or `fa3` with row i's reused tokens in `pieces[i]` pieces (0: whole)."""

    backend: str
    pieces: tuple[int, ...]
    seconds: float
    """As the model predicts."""

    @property
    def split(self) -> bool:
        """Whether any row is cut."""
        return any(self.pieces)


PIECE_KEYS = (32768, 16384, 8192, 4096, 2048, 1024)
"""Lengths of a piece that are tried, in tokens."""

MAX_PARTIAL_ROWS = 8192
"""Partial query rows of a split batch at most: bounds its scratch memory."""


def prefill_backend(
    rows: Sequence[tuple[int, int]], sm_count: int, heads: Heads, costs: KernelCosts
) -> PrefillChoice:
    """Choose for a batch of (new tokens, reused tokens) rows on `sm_count` SMs.

    Raises ValueError for an empty batch, a row without new tokens or fewer than one SM.
    """
    if not rows or sm_count < 1 or any(new < 1 or reused < 0 for new, reused in rows):
        raise ValueError(f"rows of (new ≥ 1, reused ≥ 0) on ≥ 1 SM, got {rows!r} on {sm_count}")
    whole = (0,) * len(rows)
    choices = [
        PrefillChoice("fa3", whole, _fa3_seconds(rows, whole, sm_count, heads, costs)),
        PrefillChoice("fa2", whole, _fa2_seconds(rows, sm_count, heads, costs)),
    ]
    longest = max(reused for _, reused in rows)
    for length in PIECE_KEYS:
        pieces = tuple(-(-reused // length) if reused > length // 2 else 0 for _, reused in rows)
        partial_rows = sum(new * count for (new, _), count in zip(rows, pieces, strict=True))
        if length < 2 * longest and any(pieces) and partial_rows <= MAX_PARTIAL_ROWS:
            seconds = _fa3_seconds(rows, pieces, sm_count, heads, costs)
            choices.append(PrefillChoice("fa3", pieces, seconds))
    return min(choices, key=lambda choice: choice.seconds)


def _fa3_seconds(
    rows: Sequence[tuple[int, int]],
    pieces: Sequence[int],
    sm_count: int,
    heads: Heads,
    costs: KernelCosts,
) -> float:
    """Two launches, prefix pieces and tail, each as long as its fullest SM, and the merge."""
    tail, prefix, partial = [], [], 0
    for (new, reused), count in zip(rows, pieces, strict=True):
        tiles = -(-new // TILE) * heads.query
        tail.append((tiles, (0 if count else reused) + new / 2))
        if count:
            prefix.append((tiles * count, reused / count))
            partial += new * (count + 1) * heads.query
    width = heads.dim / 128
    seconds = _makespan(tail, sm_count, costs.fa3_per_key * width, costs.fa3_per_tile)
    if prefix:
        seconds += _makespan(prefix, sm_count, costs.fa3_per_key * width, costs.fa3_per_tile)
        seconds += partial * costs.merge_per_row_head / sm_count + costs.split_launches
    return seconds


def _fa2_seconds(
    rows: Sequence[tuple[int, int]], sm_count: int, heads: Heads, costs: KernelCosts
) -> float:
    """Tiles of packed heads; the kernel splits the context, so that work spreads evenly."""
    group = heads.query // heads.key
    total = 0.0
    for new, reused in rows:
        tiles = -(-new * group // TILE) * heads.key
        keys = (reused + new / 2) * costs.fa2_per_key * heads.dim / 128
        total += tiles * (keys + costs.fa2_per_tile)
    return total / sm_count + costs.fa2_per_tile


def _makespan(
    jobs: Sequence[tuple[int, float]], sm_count: int, per_key: float, per_tile: float
) -> float:
    """Time of the fullest SM for (tiles, keys of each) jobs: even share, in whole tiles."""
    tiles = sum(count for count, _ in jobs)
    work = sum(count * (keys * per_key + per_tile) for count, keys in jobs)
    if len(jobs) == 1:
        return -(-tiles // sm_count) * work / tiles
    return max(work / sm_count, max(keys for _, keys in jobs) * per_key + per_tile)
