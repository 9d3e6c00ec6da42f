import socket
import threading

import msgspec
import pytest

from ops import explain
from scheduler.estimator.statistics import none_yet
from scheduler.explain import SOCKET, Decision, Explanation


def decision(seq, at):
    return Decision(
        at=at, seq=seq, event=seq, sharing="", layers=4, batches=1, reason=f"because {seq}"
    )


def told(**more):
    given = {
        "policy": "muxwise",
        "pid": 42,
        "epoch": 3,
        "now": 100.0,
        "latest": "because it is so",
        "decisions": tuple(decision(n, 90.0 + n) for n in range(1, 6)),
    }
    return Explanation(**(given | more))


def answering(path, data):
    """Answer one connection with `data`."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(str(path))
    server.listen()

    def serve():
        with server, server.accept()[0] as connection:
            connection.sendall(data)

    thread = threading.Thread(target=serve)
    thread.start()
    return thread


def test_the_last_decisions_are_shown_with_their_age_the_newest_last():
    lines = explain.text(told(), 2).splitlines()
    assert lines[0] == "muxwise  (process 42, epoch 3)"
    assert [line.split() for line in lines[1:3]] == [
        ["-6.0", "s", "plan", "4:", "because", "4"],
        ["-5.0", "s", "plan", "5:", "because", "5"],
    ]
    assert lines[3] == "  now: because it is so"


def test_errors_of_predictions_are_shown_where_a_profile_predicts():
    errors = none_yet()
    for measured in [1.0] * 99 + [2.0]:
        errors.guard.add(1.5, measured)
        errors.decode.add(1.02, 1.0)
    shown = explain.text(told(errors=errors), 1)
    assert "decode alone 2.0% of 100" in shown
    assert "exceeded by 1.00% of 100" in shown
    assert "predictions" not in explain.text(told(), 1)


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_the_command_asks_the_socket_in_the_run_directory(tmp_path, capsys, flags):
    thread = answering(tmp_path / SOCKET, msgspec.json.encode(told()))
    assert explain.main([f"--run-dir={tmp_path}", *flags]) == 0
    thread.join()
    out = capsys.readouterr().out
    if flags:
        assert msgspec.json.decode(out, type=Explanation) == told()
    else:
        assert "plan 5: because 5" in out


@pytest.mark.parametrize(
    ("data", "why"), [(None, "no scheduler explains itself there"), (b"", "ended before")]
)
def test_nobody_there_is_an_error(tmp_path, capsys, data, why):
    thread = answering(tmp_path / SOCKET, data) if data is not None else None
    assert explain.main([f"--run-dir={tmp_path}"]) == 1
    if thread:
        thread.join()
    assert why in capsys.readouterr().err
