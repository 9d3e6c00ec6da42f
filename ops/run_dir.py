"""The run directory of one server: its sockets, readable by nobody else, and how to find it again.

A launcher holds a lock in it for as long as it lives, so a directory that a killed launcher left is
told from a live one without guessing from process ids.
"""

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

PREFIX = "tandem-"
LOCK = "launcher.lock"
ADMIN_SOCKET = "admin.sock"
LONGEST_SOCKET_PATH = 107
"""Bytes of a Unix socket's path on Linux."""


class RunDirError(Exception):
    """No usable run directory. The message says which and why."""


def base_dir(environment: Mapping[str, str]) -> Path:
    """Return where run directories are made: XDG_RUNTIME_DIR, else the temporary directory."""
    runtime = environment.get("XDG_RUNTIME_DIR", "")
    if runtime and os.path.isdir(runtime) and os.access(runtime, os.W_OK):
        return Path(runtime)
    return Path(tempfile.gettempdir())


class RunDir:
    """A run directory that this process owns. Removed by `close`, unless the operator named it."""

    def __init__(self, path: Path, *, remove: bool) -> None:
        self.path, self._remove = path, remove
        longest = len(os.fsencode(path / ADMIN_SOCKET))
        if longest > LONGEST_SOCKET_PATH:
            raise RunDirError(
                f"{path}: sockets in it have paths of {longest} bytes, "
                f"more than {LONGEST_SOCKET_PATH}; give a shorter --run-dir"
            )
        self._lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise RunDirError(f"{path}: another server runs in it") from None

    @property
    def admin_socket(self) -> Path:
        """Where the launcher listens."""
        return self.path / ADMIN_SOCKET

    def close(self) -> None:
        """Remove the directory and give up the lock."""
        if self._remove:
            shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def create(environment: Mapping[str, str]) -> RunDir:
    """Make a new run directory, mode 0700, and remove those that killed launchers left."""
    base = base_dir(environment)
    for path in _ours(base):
        _remove_if_dead(path)
    return RunDir(Path(tempfile.mkdtemp(prefix=PREFIX, dir=base)), remove=True)


def use(path: Path) -> RunDir:
    """Take the directory that the operator named. Raises RunDirError."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    info = path.stat()
    if info.st_uid != os.getuid() or stat.S_IMODE(info.st_mode) & 0o077:
        raise RunDirError(
            f"{path}: must belong to you and have mode 0700, not {stat.S_IMODE(info.st_mode):04o}"
        )
    return RunDir(path, remove=False)


def find(environment: Mapping[str, str]) -> Path:
    """Return this user's newest live run directory. Raises RunDirError."""
    live = [path for path in _ours(base_dir(environment)) if is_live(path)]
    if not live:
        raise RunDirError(
            f"no server of yours runs (none in {base_dir(environment)}); start one with "
            "`tandem serve`, or name its --run-dir"
        )
    return max(live, key=lambda path: (path / LOCK).stat().st_mtime_ns)


def is_live(path: Path) -> bool:
    """Whether a launcher holds the directory's lock."""
    try:
        lock = os.open(path / LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def _ours(base: Path) -> Iterator[Path]:
    for path in base.glob(PREFIX + "*"):
        try:
            info = path.lstat()
        except FileNotFoundError:
            continue
        if stat.S_ISDIR(info.st_mode) and info.st_uid == os.getuid():
            yield path


def _remove_if_dead(path: Path) -> None:
    """Remove a directory whose lock nobody holds. One without a lock is still being made."""
    try:
        RunDir(path, remove=True).close() if (path / LOCK).exists() else None
    except (RunDirError, OSError):
        return
