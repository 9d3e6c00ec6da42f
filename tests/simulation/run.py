"""Lives by the thousand: `python -m tests.simulation.run --seeds 0:1000`.

A failing seed is lived again with one fault less, then another, until none can be left out; what
is printed is the shortest story that still fails, and how to live it again.
"""

import argparse
import logging
import multiprocessing
import os
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from tests.simulation.setting import Setting, draw
from tests.simulation.world import World

MAX_SHOWN = 3
"""Failing seeds that are shrunk and told; of more only the number."""


@dataclass(frozen=True)
class Outcome:
    """How a life went."""

    seed: int
    error: str
    """Empty: all was well."""
    trace: str
    events: int
    log: tuple[str, ...]


def live(setting: Setting) -> Outcome:
    """Live once."""
    world = World(setting)
    error = ""
    try:
        world.live()
    except Exception as problem:
        error = f"{type(problem).__name__}: {problem}"
    history = world.history
    return Outcome(setting.seed, error, world.trace(), history.events, tuple(history.log))


def shrink(setting: Setting) -> Setting:
    """Return a failing life without the faults, and then the calls, that it does not need."""
    for name in ("faults", "calls"):
        index = 0
        while index < len(entries := getattr(setting, name)):
            fewer = replace(setting, **{name: entries[:index] + entries[index + 1 :]})
            if live(fewer).error:
                setting = fewer
            else:
                index += 1
    return setting


def story(failed: Outcome) -> str:
    """Return what to read about a failing seed."""
    least = shrink(draw(failed.seed))
    again = live(least)
    lines = [
        f"seed {failed.seed}: {failed.error}",
        f"  again: python -m tests.simulation.run --seeds {failed.seed}:{failed.seed + 1}",
        f"  shrunk to {len(least.faults)} faults and {len(least.calls)} calls: {again.error}",
        *(f"  {fault}" for fault in least.faults),
        *(f"  {call}" for call in least.calls),
        *(f"    {line}" for line in again.log[-30:]),
    ]
    return "\n".join(lines)


def live_seed(seed: int) -> Outcome:
    """Live the life of `seed`; its log only when it fails."""
    outcome = live(draw(seed))
    return outcome if outcome.error else replace(outcome, log=())


def run(seeds: Iterable[int], jobs: int) -> tuple[int, int, list[Outcome]]:
    """Return how many lives were lived, their events, and those that failed."""
    lives = events = 0
    failed = []
    with multiprocessing.get_context("spawn").Pool(jobs, _quiet) as pool:
        for outcome in pool.imap_unordered(live_seed, seeds, chunksize=25):
            lives += 1
            events += outcome.events
            if outcome.error:
                failed.append(outcome)
    return lives, events, failed


def _quiet() -> None:
    logging.disable(logging.CRITICAL)
    os.nice(5)


def main(arguments: Sequence[str] | None = None) -> int:
    """Live, report, and return how many failed, 1 at most."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.run")
    parser.add_argument("--seeds", default="0:1000", help="first:end")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--trace", action="store_true", help="print each life's hash, in order")
    chosen = parser.parse_args(arguments)
    first, _, end = chosen.seeds.partition(":")
    seeds = range(int(first), int(end or int(first) + 1))
    logging.disable(logging.CRITICAL)
    if chosen.trace:
        for seed in seeds:
            print(seed, live(draw(seed)).trace)
        return 0
    began = time.monotonic()
    lives, events, failed = run(seeds, chosen.jobs)
    for outcome in sorted(failed, key=lambda outcome: outcome.seed)[:MAX_SHOWN]:
        print(story(outcome))
    seconds = time.monotonic() - began
    print(f"{lives} lives, {events} worker events, {len(failed)} failed, {seconds:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
