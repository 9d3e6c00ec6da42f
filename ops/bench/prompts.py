"""Token ids from a workload's requests, as bodies of /v1/completions, ready before a run starts.

A block of content is drawn from the seed and its name alone, so equal names give equal tokens in
every request and every run. Bodies are bytes: encoding 100,000 numbers between two tokens of
another stream would be measured as the server's delay.
"""

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from ops.bench.workloads import Item

SHARED, OWN = "shared", "own"
"""Names of content: a workload's common beginning, and what only one request has."""


@dataclass(frozen=True)
class Vocabulary:
    """Token ids that prompts consist of: [`low`, `high`), without special tokens."""

    low: int
    high: int


class Prompts:
    """Makes prompts of one seed."""

    def __init__(self, seed: str, vocabulary: Vocabulary) -> None:
        self._seed, self._ids = seed, range(vocabulary.low, vocabulary.high)
        self._block = cache(self._draw)

    def tokens(self, item: Item, index: int) -> list[int]:
        """Return the token ids of request number `index`."""
        ids: list[int] = []
        for name, length in self._parts(item, index):
            ids += self._block(name, length)
        return ids[: item.input_tokens]

    def _parts(self, item: Item, index: int) -> Iterator[tuple[str, int]]:
        """Yield name and length of each part of a prompt."""
        if item.blocks:
            yield from ((str(name), item.block_tokens) for name in item.blocks)
            return
        shared = min(item.shared, item.input_tokens)
        yield SHARED, shared
        yield f"{OWN}{index}", item.input_tokens - shared

    def _draw(self, name: str, length: int) -> list[int]:
        return random.Random(f"{self._seed}/{name}").choices(self._ids, k=length)


def bodies(model: str, items: Sequence[Item], prompts: Prompts) -> list[bytes]:
    """Return the JSON body of each request: greedy, streamed, exactly `output_tokens` long."""
    return [
        json.dumps(
            {
                "model": model,
                "prompt": prompts.tokens(item, index),
                "max_tokens": item.output_tokens,
                "ignore_eos": True,
                "temperature": 0,
                "skip_special_tokens": False,
                "stream": True,
                "stream_options": {"include_usage": True},
            },
            separators=(",", ":"),
        ).encode()
        for index, item in enumerate(items)
    ]
