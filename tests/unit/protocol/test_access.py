"""Addresses that are refused before any socket is opened, and the rule that each error names."""

import os
from pathlib import Path

import pytest
import zmq

from protocol.transport import zeromq
from protocol.transport.access import CurveClient, CurveServer
from protocol.transport.base import AddressRefused


@pytest.fixture
def address(tmp_path_factory) -> str:
    directory = tmp_path_factory.mktemp("run")
    directory.chmod(0o700)
    return f"ipc://{directory}/s"


def test_a_run_directory_that_others_may_enter_is_refused(address):
    directory = Path(address.removeprefix("ipc://")).parent
    for mode in (0o755, 0o770, 0o701):
        directory.chmod(mode)
        with pytest.raises(AddressRefused, match=f"has mode {mode:#o}, it must be 0o700"):
            zeromq.bind(address)
        with pytest.raises(AddressRefused, match="it must be 0o700"):
            zeromq.connect(address, b"gw-1")


def test_a_run_directory_of_another_user_is_refused(address, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    with pytest.raises(AddressRefused, match="this is user 54321"):
        zeromq.bind(address)


def test_a_link_or_a_missing_directory_is_refused(address, tmp_path):
    directory = Path(address.removeprefix("ipc://")).parent
    (tmp_path / "link").symlink_to(directory)
    with pytest.raises(AddressRefused, match="is no directory"):
        zeromq.bind(f"ipc://{tmp_path}/link/s")
    with pytest.raises(AddressRefused, match="No such file"):
        zeromq.bind(f"ipc://{tmp_path}/absent/s")


def test_the_lock_is_not_followed_through_a_link(address, tmp_path):
    target = tmp_path / "precious"
    target.write_text("keep")
    Path(address.removeprefix("ipc://") + ".lock").symlink_to(target)
    with pytest.raises(AddressRefused, match="lock"):
        zeromq.bind(address)
    assert target.read_text() == "keep"


@pytest.mark.parametrize(
    "bad", ["inproc://x", "ipc://@abstract", "ipc://", "pgm://x", "/tmp/x", ""]
)
def test_other_schemes_are_refused(bad):
    with pytest.raises(AddressRefused, match="only ipc://PATH and tcp://HOST:PORT"):
        zeromq.bind(bad)


@pytest.mark.parametrize("identity", [b"", b"\0a", b"x" * 65])
def test_a_name_that_zeromq_would_not_take_is_refused(address, identity):
    with pytest.raises(AddressRefused, match="identity"):
        zeromq.connect(address, identity)


def test_tcp_without_keys_is_refused_on_both_sides():
    for opening in (
        lambda: zeromq.bind("tcp://127.0.0.1:0"),
        lambda: zeromq.connect("tcp://127.0.0.1:1", b"gw-1"),
    ):
        with pytest.raises(AddressRefused, match="TCP needs CURVE keys"):
            opening()


def test_keys_that_are_none_are_refused_and_secrets_are_not_shown():
    public, secret = zmq.curve_keypair()
    with pytest.raises(AddressRefused, match="secret_key has 5 characters"):
        CurveServer(b"short", frozenset())
    with pytest.raises(AddressRefused, match="server_key has 0 characters"):
        CurveClient(public, secret, b"")
    shown = repr(CurveClient(public, secret, public)) + repr(CurveServer(secret, frozenset()))
    assert secret.decode() not in shown


def test_keys_on_ipc_are_refused(address):
    public, secret = zmq.curve_keypair()
    with pytest.raises(AddressRefused, match="private directory for ipc"):
        zeromq.bind(address, CurveServer(secret, frozenset({public})))
