"""The in-memory network does to frames what the driver says, and nothing else."""

import pytest

from protocol.transport.base import SERVER, AddressInUse
from protocol.transport.memory import MemoryTransport, Network


def drain(transport: MemoryTransport) -> list[bytes]:
    frames = []
    while (arrived := transport.receive()) is not None:
        frames.append(arrived[1])
    return frames


def connected() -> tuple[Network, MemoryTransport, MemoryTransport]:
    network = Network(latency_s=1.0, reconnect_s=0.5)
    binder = network.bind("w")
    return network, binder, network.connect("w", b"a")


def test_frames_arrive_in_order_after_the_latency_with_the_senders_name():
    network, binder, client = connected()
    assert client.send(SERVER, b"1")
    assert client.send(SERVER, b"2")
    assert binder.send(b"a", b"back")
    network.advance(0.9)
    assert binder.receive() is None
    assert network.next_event() == 1.0
    network.advance(1.0)
    assert [binder.receive(), binder.receive(), binder.receive()] == [
        (b"a", b"1"),
        (b"a", b"2"),
        None,
    ]
    assert client.receive() == (SERVER, b"back")


def test_frames_of_several_peers_come_in_the_order_of_arrival():
    network, binder, client = connected()
    other = network.connect("w", b"b")
    other.send(SERVER, b"1")
    client.send(SERVER, b"2")
    other.send(SERVER, b"3")
    network.advance(1.0)
    assert drain(binder) == [b"1", b"2", b"3"]


def test_shorter_latency_does_not_overtake():
    network, binder, client = connected()
    client.send(SERVER, b"slow")
    network.latency_s = 0.1
    client.send(SERVER, b"fast")
    network.advance(0.5)
    assert drain(binder) == []
    network.advance(1.0)
    assert drain(binder) == [b"slow", b"fast"]


def test_nobody_there_is_told_the_sender():
    network = Network(latency_s=1.0)
    client = network.connect("w", b"a")
    assert not client.send(SERVER, b"x")
    assert not network.bind("w").send(b"stranger", b"x")


def test_a_full_queue_refuses_and_loses_nothing_that_it_took():
    network = Network(latency_s=1.0, capacity=3)
    binder = network.bind("w")
    client = network.connect("w", b"a")
    assert [client.send(SERVER, bytes([n])) for n in range(5)] == [True] * 3 + [False] * 2
    network.advance(5.0)
    assert not client.send(SERVER, b"unread frames count")
    assert drain(binder) == [b"\0", b"\1", b"\2"]
    assert client.send(SERVER, b"x")


@pytest.mark.parametrize("keep", [0, 1, 2, 9])
def test_a_cut_loses_a_suffix_of_what_is_in_flight_and_nothing_that_arrived(keep):
    network, binder, client = connected()
    client.send(SERVER, b"arrived")
    network.advance(1.0)
    for n in range(3):
        client.send(SERVER, bytes([n]))
        binder.send(b"a", bytes([n]))
    assert network.cut(client, keep, 0) == 3 + max(0, 3 - keep)
    assert not client.send(SERVER, b"while away")
    network.advance(9.0)
    assert drain(binder) == [b"arrived", b"\0", b"\1", b"\2"][: keep + 1]
    assert drain(client) == []
    assert network.cut(network.connect("nowhere", b"x"), 0, 0) == 0


def test_after_a_cut_it_connects_again_and_old_frames_stay_before_new_ones():
    network, binder, client = connected()
    client.send(SERVER, b"old")
    network.stall(client, until=20.0)
    network.cut(client, keep=1, keep_back=0)
    network.advance(0.4)
    assert not client.send(SERVER, b"x")
    network.advance(0.5)
    assert client.send(SERVER, b"new")
    network.advance(19.9)
    assert drain(binder) == []
    network.advance(20.0)
    assert drain(binder) == [b"old", b"new"]


def test_a_stall_delays_both_directions_and_loses_nothing():
    network, binder, client = connected()
    client.send(SERVER, b"before")
    network.stall(client, until=10.0)
    client.send(SERVER, b"during")
    binder.send(b"a", b"back")
    network.advance(9.9)
    assert drain(binder) == drain(client) == []
    network.advance(10.0)
    assert drain(binder) == [b"before", b"during"]
    assert drain(client) == [b"back"]


def test_a_killed_binder_frees_its_address_and_its_successor_gets_none_of_its_frames():
    network, binder, client = connected()
    client.send(SERVER, b"to the dead")
    binder.send(b"a", b"kept")
    binder.send(b"a", b"lost")
    network.kill(binder, keep=1)
    network.kill(binder, keep=1)
    successor = network.bind("w")
    network.advance(2.0)
    assert drain(successor) == []
    assert drain(client) == [b"kept"]
    assert drain(binder) == []
    assert client.send(SERVER, b"hello")
    network.advance(3.0)
    assert drain(successor) == [b"hello"]


def test_close_lets_what_was_sent_arrive():
    network, binder, client = connected()
    client.send(SERVER, b"goodbye")
    client.close()
    assert not client.send(SERVER, b"x")
    assert not binder.send(b"a", b"x")
    network.advance(1.0)
    assert drain(binder) == [b"goodbye"]


def test_a_second_peer_of_a_name_waits_until_the_first_has_gone():
    network, binder, first = connected()
    second = network.connect("w", b"a")
    network.advance(5.0)
    assert not second.send(SERVER, b"x")
    assert first.send(SERVER, b"still me")
    first.close()
    network.advance(5.5)
    assert second.send(SERVER, b"my turn")
    network.advance(9.0)
    assert drain(binder) == [b"still me", b"my turn"]


def test_a_second_bind_is_refused_until_the_first_is_closed():
    network, binder, _ = connected()
    with pytest.raises(AddressInUse, match="w is bound"):
        network.bind("w")
    binder.close()
    network.bind("w")


def test_a_quiet_network_has_no_next_event():
    network, _, _ = connected()
    network.connect("nowhere", b"x")
    network.advance(1.0)
    assert network.next_event() == float("inf")


def test_time_does_not_go_back():
    network, _, _ = connected()
    network.advance(2.0)
    with pytest.raises(ValueError, match="time 1"):
        network.advance(1.0)
