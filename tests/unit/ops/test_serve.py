"""What `tandem serve` refuses before it starts anything."""

import importlib.util
import socket
from collections.abc import Iterator

import pytest

from ops import serve
from ops.serve import CannotServe, check, read


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken.getsockname()[1]


def test_a_port_in_use_is_named_before_anything_starts(
    taken_port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert serve.main(["demo", "--port", str(taken_port)]) == 2
    error = capsys.readouterr().err
    assert f"127.0.0.1:{taken_port}" in error
    assert "in use" in error
    assert "--port" in error


def test_a_host_that_is_not_ours_is_refused() -> None:
    with pytest.raises(CannotServe, match=r"cannot listen on 192\.0\.2\.1:0"):
        check(read(["demo", "--host", "192.0.2.1", "--port", "0"], {}))


def test_without_torch_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(serve, "find_spec", lambda name: None if name == "torch" else find(name))
    with pytest.raises(CannotServe, match=r"tandem-serve\[worker\]"):
        check(read(["demo", "--port", "0"], {}))
    check(read(["demo", "--port", "0", "--device", "simulated"], {}))


def test_a_run_directory_that_others_can_read_is_refused(
    tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    shared = tmp_path_factory.mktemp("s")
    shared.chmod(0o755)
    assert serve.main(["demo", "--port", "0", "--run-dir", str(shared)]) == 2
    assert "0755" in capsys.readouterr().err
