"""What is asked: lengths, arrival times and shared content of requests, from files or by dice.

Traces hold lengths and block hashes, no text. Equal hashes mean equal content, so prompts are made
block by block (`prompts`) and what a server's prefix cache finds is what the trace's users shared.
Synthetic workloads are truncated lognormals fitted to the means of MuxWise's Table 1.
"""

import csv
import gzip
import json
import lzma
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

BLOCK_TOKENS = 512
"""Tokens that one hash of a Mooncake trace stands for."""


class WorkloadError(ValueError):
    """A workload that is not there or cannot be read. The message names it, and the row."""


@dataclass(frozen=True, slots=True)
class Item:
    """One request of a workload. Lengths in tokens."""

    input_tokens: int
    output_tokens: int
    arrival_s: float | None = None
    """None: the workload has no arrival times."""
    blocks: tuple[int, ...] = ()
    """Names of its blocks of content, in order; empty: shares nothing but `shared`."""
    block_tokens: int = BLOCK_TOKENS
    shared: int = 0
    """First tokens that all requests of the workload have in common."""
    tag: str = ""


@dataclass(frozen=True, slots=True)
class Lognormal:
    """A lognormal truncated to [`least`, `most`], by drawing again. `mu`, `sigma`: of its log."""

    least: int
    most: int
    mu: float
    sigma: float

    def draw(self, rng: random.Random) -> int:
        """Return one length in tokens."""
        while True:
            value = round(rng.lognormvariate(self.mu, self.sigma))
            if self.least <= value <= self.most:
                return value


@dataclass(frozen=True, slots=True)
class Synthetic:
    """Independent input and output lengths."""

    input: Lognormal
    output: Lognormal
    shared: int = 0


SYNTHETIC = {
    "sharegpt": Synthetic(Lognormal(4, 1024, 5.099, 1.2), Lognormal(4, 1838, 4.742, 1.1)),
    "loogle": Synthetic(Lognormal(3380, 81000, 10.212, 0.6), Lognormal(2, 326, 2.267, 0.9)),
    "openthoughts": Synthetic(
        Lognormal(311, 4633, 6.369, 0.5), Lognormal(684, 32000, 8.820, 0.8), shared=243
    ),
}


def synthetic(name: str, count: int, rng: random.Random) -> list[Item]:
    """Return `count` requests of a fitted workload."""
    fit = SYNTHETIC[name]
    return [
        Item(fit.input.draw(rng), fit.output.draw(rng), shared=fit.shared, tag=name)
        for _ in range(count)
    ]


def load(path: Path) -> list[Item]:
    """Return all requests of a file, in its order: `.csv` or `.jsonl`, plain, `.gz` or `.xz`.

    JSON lines have input_length, output_length, and timestamp (ms) or arrival_s, hash_ids and tag
    as they like; CSV has input_tokens, output_tokens, and arrival_s if it likes. Raises
    WorkloadError.
    """
    read = _csv if ".csv" in path.suffixes else _jsonl
    try:
        with _open(path) as lines:
            return list(read(path, lines))
    except (OSError, EOFError, lzma.LZMAError) as error:
        raise WorkloadError(f"{path}: {error}") from error


def _open(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8")
    if path.suffix == ".xz":
        return lzma.open(path, "rt", encoding="utf-8")
    return path.open(encoding="utf-8")


def _jsonl(path: Path, lines: Iterable[str]) -> Iterator[Item]:
    for number, line in enumerate(lines, 1):
        try:
            yield _item(json.loads(line))
        except (ValueError, KeyError, TypeError) as error:
            raise WorkloadError(f"{path}, line {number}: {error!r}") from error


def _csv(path: Path, lines: Iterable[str]) -> Iterator[Item]:
    for number, row in enumerate(csv.DictReader(lines), 2):
        try:
            stamp = row.get("arrival_s")
            yield _checked(
                Item(
                    int(row["input_tokens"]),
                    int(row["output_tokens"]),
                    arrival_s=float(stamp) if stamp else None,
                )
            )
        except (ValueError, KeyError, TypeError) as error:
            raise WorkloadError(f"{path}, line {number}: {error!r}") from error


def _item(row: dict[str, Any]) -> Item:
    stamp = row.get("arrival_s")
    if stamp is None and "timestamp" in row:
        stamp = row["timestamp"] / 1e3
    return _checked(
        Item(
            int(row["input_length"]),
            int(row["output_length"]),
            arrival_s=stamp,
            blocks=tuple(row.get("hash_ids", ())),
            tag=row.get("tag", ""),
        )
    )


def _checked(item: Item) -> Item:
    if item.input_tokens < 1 or item.output_tokens < 1:
        raise ValueError(f"lengths {item.input_tokens} and {item.output_tokens} must be 1 at least")
    if item.blocks and len(item.blocks) * item.block_tokens < item.input_tokens:
        raise ValueError(
            f"{len(item.blocks)} blocks of {item.block_tokens} do not cover {item.input_tokens}"
        )
    return item


def scaled(item: Item, scale: float) -> Item:
    """Return a request with all lengths times `scale` (1 token at least), blocks too: what was
    shared stays shared.
    """
    if scale == 1:
        return item

    def size(tokens: int) -> int:
        return max(1, round(tokens * scale))

    # The block is rounded down to nothing below what its prompt needs: let the prompt give way.
    block = size(item.block_tokens)
    whole = len(item.blocks) * block if item.blocks else size(item.input_tokens)
    return replace(
        item,
        input_tokens=min(size(item.input_tokens), whole),
        output_tokens=size(item.output_tokens),
        block_tokens=block,
        shared=round(item.shared * scale),
    )
