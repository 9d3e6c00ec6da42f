"""Tells what was decided and why: the last plans, on a Unix socket in the run directory.

Read-only: whoever connects gets one JSON line and the end. The socket takes its well-known name
when the scheduler acts, so that during a swap the name is always that of the acting one; the
directory's mode says who may read.
"""

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec import Struct

from scheduler.estimator.statistics import Errors

SOCKET = "explain.sock"
KEPT = 256
"""Decisions remembered."""


class Decision(Struct, frozen=True, kw_only=True):
    """One plan that was sent."""

    at: float
    """The scheduler's monotonic clock, seconds."""
    seq: int
    event: int
    """The newest event that it knew of."""
    sharing: str
    layers: int
    """Per quantum; 0: all."""
    batches: int
    reason: str


class Explanation(Struct, frozen=True, kw_only=True):
    """What a scheduler says of itself."""

    policy: str
    pid: int
    epoch: int
    now: float
    """On the clock of the decisions."""
    latest: str
    """Reason of the newest plan that it made, sent or the same as the one that stands."""
    decisions: tuple[Decision, ...]
    """Oldest first."""
    errors: Errors | None = None
    """Of the predictions from a profile."""


class Window:
    """The socket. `tell` is called for each who asks."""

    def __init__(self, folder: Path, tell: Callable[[], Explanation]) -> None:
        self._named = folder / SOCKET
        self._path = folder / f"explain.{os.getpid()}"
        self._tell = tell
        self._server: asyncio.Server | None = None
        self._inode = 0

    async def open(self) -> None:
        """Listen, under a name of its own."""
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
        self._server = await asyncio.start_unix_server(self._serve, self._path)
        self._inode = self._path.stat().st_ino

    def publish(self) -> None:
        """Take the well-known name from whoever had it."""
        os.replace(self._path, self._named)

    def close(self) -> None:
        """Stop listening; give up the name unless another one has it by now."""
        if self._server is None:
            return
        self._server.close()
        for path in (self._path, self._named):
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_ino == self._inode:
                    path.unlink()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            writer.write(msgspec.json.encode(self._tell()) + b"\n")
            await writer.drain()
        writer.close()
