"""One child process: readiness pipe, error output by lines, and death with its parent.

The kernel kills the child when the launcher dies (PR_SET_PDEATHSIG), so that even a launcher that
is killed leaves nothing behind. Exits are found by the launcher on SIGCHLD, without a thread,
because the death signal belongs to the thread that forked. Linux only.
"""

import asyncio
import ctypes
import os
import signal
import subprocess
from collections import deque
from collections.abc import Callable, Mapping, Sequence

PR_SET_PDEATHSIG = 1
LAST_LINES = 20
"""Lines of error output that are kept for a message."""
LONGEST_LINE = 64 * 1024

_libc = ctypes.CDLL(None, use_errno=True)


class LineReader:
    """Lines from a pipe, given to `take` as they come. Closes the descriptor at its end."""

    def __init__(self, descriptor: int, take: Callable[[bytes], None]) -> None:
        self._descriptor, self._take, self._rest = descriptor, take, b""
        os.set_blocking(descriptor, False)
        asyncio.get_running_loop().add_reader(descriptor, self.read)

    def read(self) -> None:
        """Take what is there. Never blocks."""
        while self._descriptor >= 0:
            try:
                data = os.read(self._descriptor, LONGEST_LINE)
            except BlockingIOError:
                return
            if not data:
                self.close()
                return
            *lines, self._rest = (self._rest + data).split(b"\n")
            if len(self._rest) > LONGEST_LINE:
                lines, self._rest = [*lines, self._rest], b""
            for line in lines:
                self._take(line)

    def close(self) -> None:
        """Give up the descriptor; an unfinished line counts as one."""
        if self._descriptor < 0:
            return
        asyncio.get_running_loop().remove_reader(self._descriptor)
        os.close(self._descriptor)
        self._descriptor = -1
        if self._rest:
            self._take(self._rest)


def _die_with(parent: int) -> Callable[[], None]:
    """Return what a child does before exec: ask to be killed when `parent` dies."""

    def before_exec() -> None:
        failed = _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0
        # The parent may have died between the fork and the call.
        if failed or os.getppid() != parent:
            os._exit(127)

    return before_exec


class Process:
    """A started child. `command` is given the number of its readiness descriptor.

    Raises OSError when it cannot be started.
    """

    def __init__(
        self,
        command: Callable[[int], Sequence[str]],
        environment: Mapping[str, str],
        take_report: Callable[[bytes], None],
        take_line: Callable[[str], None],
    ) -> None:
        self._take_line = take_line
        self._last: deque[str] = deque(maxlen=LAST_LINES)
        ready, ready_child = os.pipe()
        try:
            self._process = subprocess.Popen(
                command(ready_child),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(ready_child,),
                env=dict(environment),
                process_group=0,  # Ctrl-C is for the launcher, which then ends us in order
                preexec_fn=_die_with(os.getpid()),
            )
        except OSError:
            os.close(ready)
            raise
        finally:
            os.close(ready_child)
        assert self._process.stdout is not None
        self._readers = (
            LineReader(ready, take_report),
            LineReader(os.dup(self._process.stdout.fileno()), self._line),
        )
        self._process.stdout.close()

    def _line(self, line: bytes) -> None:
        text = line.decode("utf-8", "replace").rstrip()
        self._last.append(text)
        self._take_line(text)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def last_words(self) -> str:
        """The last lines that it wrote."""
        return "\n".join(self._last)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; one that has ended is not an error."""
        self._process.send_signal(number)

    def ended(self) -> int | None:
        """Return the exit status (minus the signal) once it has ended and all it said was read."""
        status = self._process.poll()
        if status is not None:
            for reader in self._readers:
                reader.read()
                reader.close()
        return status
