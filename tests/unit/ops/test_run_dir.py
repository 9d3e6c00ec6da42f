"""Run directories: private, found while they live, removed when they do not."""

import fcntl
import os
import stat
from pathlib import Path

import pytest

from ops import run_dir
from ops.run_dir import RunDirError


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {"XDG_RUNTIME_DIR": os.fspath(tmp_path)}


def test_a_run_directory_is_private_and_removed_at_the_end(environment: dict[str, str]) -> None:
    made = run_dir.create(environment)
    assert stat.S_IMODE(made.path.stat().st_mode) == 0o700
    made.close()
    assert not made.path.exists()


def test_the_newest_live_directory_is_found(environment: dict[str, str]) -> None:
    first, second = run_dir.create(environment), run_dir.create(environment)
    os.utime(first.path / run_dir.LOCK, ns=(1, 1))
    assert run_dir.find(environment) == second.path
    second.close()
    assert run_dir.find(environment) == first.path
    first.close()
    with pytest.raises(RunDirError, match="no server of yours runs"):
        run_dir.find(environment)


def test_what_a_killed_launcher_left_is_not_found_and_is_cleaned_up(
    environment: dict[str, str], tmp_path: Path
) -> None:
    dead = tmp_path / (run_dir.PREFIX + "dead")
    dead.mkdir(mode=0o700)
    (dead / run_dir.LOCK).touch()
    (dead / run_dir.ADMIN_SOCKET).touch()
    live = run_dir.create(environment)
    assert not dead.exists()
    assert run_dir.find(environment) == live.path
    live.close()


def test_a_live_directory_survives_the_start_of_another_server(
    environment: dict[str, str],
) -> None:
    live, other = run_dir.create(environment), run_dir.create(environment)
    assert live.path.exists()
    live.close()
    other.close()


def test_a_directory_that_is_still_being_made_is_left_alone(
    environment: dict[str, str], tmp_path: Path
) -> None:
    young = tmp_path / (run_dir.PREFIX + "young")
    young.mkdir()
    run_dir.create(environment).close()
    assert young.exists()


def test_a_named_directory_must_be_private(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o755)
    with pytest.raises(RunDirError, match="mode 0700, not 0755"):
        run_dir.use(shared)


def test_a_named_directory_is_made_kept_and_used_by_one_server_only(tmp_path: Path) -> None:
    path = tmp_path / "mine"
    made = run_dir.use(path)
    with pytest.raises(RunDirError, match="another server runs in it"):
        run_dir.use(path)
    made.close()
    assert path.exists()
    run_dir.use(path).close()


def test_a_path_too_long_for_a_socket_is_refused_with_its_length(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 100)
    with pytest.raises(RunDirError, match=r"more than 107"):
        run_dir.use(path)


def test_the_lock_is_not_inherited_by_children(environment: dict[str, str]) -> None:
    made = run_dir.create(environment)
    descriptor = made._lock
    assert fcntl.fcntl(descriptor, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    made.close()
