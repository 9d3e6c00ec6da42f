"""What a process tells whoever started it: stages of its start, readiness, or why it gave up.

One JSON line each on a pipe that the parent passes as `--ready-fd`: typed, unlike a log line that
is searched for words, and closed by the kernel when the process dies.
"""

import os
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

ReadyFd = Annotated[
    int, Meta(ge=0, description="descriptor for readiness reports (the launcher's)")
]


class Stage(Struct, frozen=True, tag=True):
    """The start goes on; the launcher extends its deadline."""

    name: str
    done: int = 0
    total: int = 0
    """0: no count; else a progress bar has done of total."""


class Ready(Struct, frozen=True, tag=True):
    """The process serves. `facts` are for the operator: address, pool size, partitions."""

    facts: dict[str, str | int | float]


class Stopped(Struct, frozen=True, tag=True):
    """The process will exit by itself; `fenced` means that another one has taken its place."""

    reason: str
    fenced: bool = False


Report = Stage | Ready | Stopped

EXIT_CONFIG = 2
"""Exit status for a configuration that can never work: restarting is of no use."""


class Reporter:
    """Writes reports; a process started by hand (no descriptor) reports to nobody."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor

    def send(self, report: Report) -> None:
        """Write one report. A parent that has gone is not an error."""
        if self._descriptor is None:
            return
        try:
            os.write(self._descriptor, msgspec.json.encode(report) + b"\n")
        except OSError:
            self._descriptor = None


def parse_report(line: bytes) -> Report:
    """Read one line of reports. Raises msgspec.DecodeError when it is none."""
    report: Report = msgspec.json.decode(line, type=Report)
    return report
