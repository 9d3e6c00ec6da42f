"""Real sockets: what they refuse, and that nothing is lost without a word."""

import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import zmq

from protocol.codec import MAX_MESSAGE_BYTES
from protocol.endpoint import Endpoint, Lost, Received, Up
from protocol.frame import HEADER_BYTES, Frame, pack
from protocol.link import LinkConfig
from protocol.transport import zeromq
from protocol.transport.access import CurveClient, CurveServer
from protocol.transport.base import SERVER, AddressInUse, AddressRefused
from tests.unit.protocol.world import Note
from tests.unit.protocol.zeromq_help import poll_until, receive, wait_until

CONFIG = LinkConfig(window=16, heartbeat_s=0.02, silence_s=60.0)


@pytest.fixture
def address(tmp_path_factory) -> str:
    directory = tmp_path_factory.mktemp("run")
    directory.chmod(0o700)
    return f"ipc://{directory}/s"


@pytest.fixture
def opened():
    """A list of what the test opened, closed after it."""
    things = []
    yield things
    for thing in things:
        thing.close()


def pair(address: str, opened: list) -> tuple[zeromq.ZeroMqTransport, zeromq.ZeroMqTransport]:
    opened += [zeromq.bind(address), zeromq.connect(address, b"gw-1")]
    return opened[-2], opened[-1]


@contextmanager
def raw_dealer(address: str) -> Iterator[zmq.Socket]:
    """A socket without our options and manners."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as raw:
        raw.linger = 0
        raw.connect(address)
        yield raw


def introduce(binder, client) -> None:
    """Let the binder know the client."""
    wait_until(lambda: client.send(SERVER, b"hello"), client.fileno())
    assert receive(binder) == (client._socket.identity, b"hello")


def test_frames_go_both_ways_with_the_connecting_sides_name(address, opened):
    binder, client = pair(address, opened)
    introduce(binder, client)
    assert binder.send(b"gw-1", b"back")
    assert receive(client) == (SERVER, b"back")
    assert binder.binds
    assert not client.binds


def test_nobody_there_is_told_the_sender_at_once(address, opened):
    client = zeromq.connect(address, b"gw-1")
    opened.append(client)
    assert not client.send(SERVER, b"x")
    opened.append(zeromq.bind(address))
    assert not opened[-1].send(b"stranger", b"x")
    assert opened[-1].receive() is None


def test_nothing_queued_for_an_absent_binder_reaches_its_successor(address, opened):
    client = zeromq.connect(address, b"gw-1")
    opened.append(client)
    assert not client.send(SERVER, b"early")
    binder = zeromq.bind(address)
    opened.append(binder)
    introduce(binder, client)
    assert binder.receive() is None


@pytest.mark.parametrize("from_binder", [True, False])
def test_a_peer_that_does_not_read_gets_all_that_was_taken_once_it_reads(
    address, opened, from_binder
):
    binder, client = pair(address, opened)
    introduce(binder, client)
    sender, peer, reader = (binder, b"gw-1", client) if from_binder else (client, SERVER, binder)
    taken = 0
    while sender.send(peer, taken.to_bytes(4, "big") + bytes(1000)):
        taken += 1
        assert taken < 10 * zeromq.HIGH_WATER_MARK, "never full"
    seen: list[int] = []

    def all_read() -> bool:
        while (arrived := reader.receive()) is not None:
            seen.append(int.from_bytes(arrived[1][:4], "big"))
        return len(seen) >= taken

    wait_until(all_read, reader.fileno())
    assert seen == list(range(taken))


def test_a_second_peer_of_a_name_does_not_take_over(address, opened):
    binder, client = pair(address, opened)
    introduce(binder, client)
    impostor = zeromq.connect(address, b"gw-1")
    opened.append(impostor)
    for number in range(50):
        impostor.send(SERVER, b"it is me")
        assert binder.send(b"gw-1", bytes([number]))
        assert receive(client, impostor, binder) == (SERVER, bytes([number]))


def test_a_second_bind_is_refused_and_names_the_holder(address, opened):
    first = zeromq.bind(address)
    opened.append(first)
    with pytest.raises(AddressInUse, match=f"bound by process {os.getpid()}"):
        zeromq.bind(address)
    first.close()
    opened.append(zeromq.bind(address))


def test_a_second_bind_by_another_process_is_refused(address, opened):
    opened.append(zeromq.bind(address))
    program = f"from protocol.transport import zeromq; zeromq.bind({address!r})"
    result = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[3],
    )
    assert result.returncode == 1
    assert f"AddressInUse: {address} is bound by process {os.getpid()}" in result.stderr


def test_a_socket_file_and_a_lock_file_of_a_dead_process_do_no_harm(address, opened):
    path = Path(address.removeprefix("ipc://"))
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    Path(f"{path}.lock").write_text("12345\n")
    assert path.exists()
    binder, client = pair(address, opened)
    introduce(binder, client)


def test_the_length_of_a_path_is_checked_and_its_limit_works(address, opened):
    directory = Path(address.removeprefix("ipc://")).parent
    name = "s" * (107 - len(str(directory)) - 1)
    with pytest.raises(AddressRefused, match="the path has 108 bytes, the limit is 107"):
        zeromq.bind(f"ipc://{directory}/{name}s")
    pair_at_limit = pair(f"ipc://{directory}/{name}", opened)
    introduce(*pair_at_limit)


def test_over_tcp_only_listed_keys_get_through(opened):
    server_public, server_secret = zmq.curve_keypair()
    public, secret = zmq.curve_keypair()
    stranger_public, stranger_secret = zmq.curve_keypair()
    binder = zeromq.bind("tcp://127.0.0.1:0", CurveServer(server_secret, frozenset({public})))
    friend = zeromq.connect(binder.address, b"friend", CurveClient(public, secret, server_public))
    stranger = zeromq.connect(
        binder.address, b"stranger", CurveClient(stranger_public, stranger_secret, server_public)
    )
    with_wrong_server = zeromq.connect(
        binder.address, b"confused", CurveClient(public, secret, stranger_public)
    )
    opened += [binder, friend, stranger, with_wrong_server]
    with raw_dealer(binder.address) as plain:
        arrived = []

        def friend_came_through() -> bool:
            for outsider in (stranger, with_wrong_server):
                assert not outsider.send(SERVER, b"let me in")
            plain.send(b"no keys at all", zmq.NOBLOCK)
            friend.send(SERVER, b"hello")
            while (frame := binder.receive()) is not None:
                arrived.append(frame)
            return len(arrived) >= 20

        wait_until(friend_came_through, binder.fileno())
    assert set(arrived) == {(b"friend", b"hello")}


def test_random_bytes_on_the_socket_disturb_nobody(address, opened):
    binder = Endpoint[Note, Note](zeromq.bind(address), Note, CONFIG)
    client = Endpoint[Note, Note](zeromq.connect(address, b"gw-1"), Note, CONFIG)
    opened += [binder, client]
    events: list = []
    poll_until(lambda: (client, Up(SERVER)) in events, events, binder, client)
    dice = random.Random(7)
    for number in range(200):
        with socket.socket(socket.AF_UNIX) as raw:
            raw.connect(address.removeprefix("ipc://"))
            opening = b"GET / HTTP/1.1\r\n" if number % 3 == 0 else b"\x05\x01"
            raw.sendall(opening + dice.randbytes(4096))
        events += [(binder, event) for event in binder.poll(time.monotonic())]
    said = Note("gw-1", 0)
    assert client.send(said, time.monotonic())
    poll_until(lambda: (binder, Received(b"gw-1", said)) in events, events, binder, client)
    assert {type(e) for who, e in events if who is binder} <= {Up, Received}
    assert binder.peers() == [b"gw-1"]


def test_messages_of_strange_shapes_are_counted_and_disturb_nobody(address, opened):
    binder = Endpoint[Note, Note](zeromq.bind(address), Note, CONFIG)
    opened.append(binder)
    good = pack(Frame(5, 0, 0, 0, 0, 0, None))
    shapes = [[b""], [b"", b""], [b"a", b"b", b"c"], [good, good], [bytes(HEADER_BYTES)]]
    with raw_dealer(address) as raw:
        for shape in shapes * 20:
            raw.send_multipart(shape)
        poll_until(lambda: binder.statistics().malformed == 100, [], binder)
    assert binder.peers() == []


def test_a_message_over_the_limit_costs_its_sender_the_connection_and_others_nothing(
    address, opened
):
    binder, client = pair(address, opened)
    introduce(binder, client)
    with raw_dealer(address) as raw:
        monitor = raw.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        raw.send(bytes(HEADER_BYTES + MAX_MESSAGE_BYTES + 1))
        assert monitor.poll(30_000)
        raw.disable_monitor()
    assert client.send(SERVER, bytes(HEADER_BYTES + MAX_MESSAGE_BYTES))
    assert len(receive(binder)[1]) == HEADER_BYTES + MAX_MESSAGE_BYTES
    assert binder.receive() is None


def test_a_slow_reader_loses_nothing_without_a_word(address, opened):
    binder = Endpoint[Note, Note](zeromq.bind(address), Note, CONFIG)
    client = Endpoint[Note, Note](zeromq.connect(address, b"gw-1"), Note, CONFIG)
    opened += [binder, client]
    events: list = []
    poll_until(lambda: (client, Up(SERVER)) in events, events, binder, client)
    taken = [binder.send(Note("w", n), time.monotonic(), b"gw-1") for n in range(1000)]
    assert sum(taken) == CONFIG.window
    del events[:]
    poll_until(lambda: (binder, Lost(b"gw-1")) in events, events, binder, client)
    heard = [event for who, event in events if who is client]
    assert heard == [*(Received(SERVER, Note("w", n)) for n in range(16)), Lost(SERVER)]


def test_a_binder_that_dies_mid_stream_is_lost_and_its_successor_is_up(address, opened):
    """The binder is a process that is killed; the stream to it goes on into the next one."""
    client = Endpoint[Note, Note](zeromq.connect(address, b"gw-1"), Note, CONFIG)
    opened.append(client)
    program = (
        "import sys, time\n"
        "from tests.unit.protocol.test_zeromq import CONFIG, Endpoint, Note, Received, zeromq\n"
        f"endpoint = Endpoint(zeromq.bind({address!r}), Note, CONFIG)\n"
        "while True:\n"
        "    for event in endpoint.poll(time.monotonic()):\n"
        "        if isinstance(event, Received):\n"
        "            echo = Note(sys.argv[1], event.message.n)\n"
        "            endpoint.send(echo, time.monotonic(), event.peer)\n"
    )
    events: list = []
    said = 0
    for life in ("1", "2"):
        process = subprocess.Popen(
            [sys.executable, "-c", program, life], cwd=Path(__file__).parents[3]
        )
        try:
            stop_at = said + 500

            def stream(stop_at: int = stop_at, life: str = life) -> bool:
                nonlocal said
                said += client.send(Note("gw", said), time.monotonic())
                return any(e.message.sender == life for e in echoes(events)) and said > stop_at

            poll_until(stream, events, client)
        finally:
            process.kill()
            process.wait()
    kinds = [type(event) for _, event in events]
    assert kinds.count(Up) == 2
    second = [type(e) for _, e in events].index(Up, 1)
    by_life = {"1": events[:second], "2": events[second:]}
    for life, part in by_life.items():
        heard = echoes(part)
        assert heard
        assert {event.message.sender for event in heard} == {life}
        numbers = [event.message.n for event in heard]
        assert numbers == sorted(set(numbers))


def echoes(events: list) -> list[Received]:
    return [event for _, event in events if isinstance(event, Received)]


def test_close_is_quick_with_peers_gone_and_may_be_repeated(address):
    binder, client = zeromq.bind(address), zeromq.connect(address, b"gw-1")
    introduce(binder, client)
    binder.close()
    for _ in range(100):
        client.send(SERVER, b"into the void")
    start = time.monotonic()
    client.close()
    client.close()
    assert time.monotonic() - start < 5.0
    assert not client.send(SERVER, b"x")
    assert client.receive() is None
    assert client.fileno() == -1


def test_close_does_not_wait_for_a_peer_that_does_not_read(address, opened):
    binder, client = pair(address, opened)
    introduce(binder, client)
    while binder.send(b"gw-1", bytes(1000)):
        pass
    start = time.monotonic()
    binder.close()
    assert time.monotonic() - start < 5.0


def test_closing_leaves_no_descriptor_behind(address):
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = descriptors()
    for _ in range(5):
        binder, client = zeromq.bind(address), zeromq.connect(address, b"gw-1")
        introduce(binder, client)
        client.close()
        binder.close()
        with pytest.raises(AddressRefused):
            zeromq.bind(address + "/absent/s")
    assert descriptors() == before
