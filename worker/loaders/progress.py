"""How far a load has come: a bar on a terminal, plain lines in a log."""

import sys
from collections.abc import Callable

from tqdm import tqdm

Progress = Callable[[int, int], None]
"""Called with bytes of weights done and in all: first with 0, last with done == all."""

_LINES = 10
"""Lines that a load writes to a log."""


def silent(done: int, total: int) -> None:
    """Report nothing."""


class TerminalProgress:
    """Writes to standard error. Use one for each load."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._bar: tqdm | None = None
        self._line = -1

    def __call__(self, done: int, total: int) -> None:
        """See Progress."""
        if sys.stderr.isatty():
            self._draw(done, total)
        elif (line := done * _LINES // max(total, 1)) > self._line:
            self._line = line
            text = f"{self._title}: {done / 2**20:.0f} of {total / 2**20:.0f} MiB"
            print(text, file=sys.stderr, flush=True)

    def _draw(self, done: int, total: int) -> None:
        if self._bar is None:
            self._bar = tqdm(total=total, desc=self._title, unit="B", unit_scale=True)
        self._bar.update(done - self._bar.n)
        if done >= total:
            self._bar.close()
