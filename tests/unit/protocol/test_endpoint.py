"""Endpoints over the in-memory network: what a main loop gets to see."""

import pytest

from protocol.codec import encode
from protocol.data_link import Hello, Stop
from protocol.endpoint import MAX_PEERS, Down, Endpoint, Lost, Received, Up
from protocol.frame import Frame, pack
from protocol.ids import RequestRef
from protocol.link import LinkConfig
from protocol.transport.base import SERVER
from protocol.transport.memory import MemoryTransport, Network
from tests.unit.protocol.world import ADDRESS, CONFIG, Note, World, judge


def kinds(world: World, role: str, about: str) -> list[type]:
    return [type(entry) for entry in world.log_of(role, about)]


def test_both_sides_come_up_before_anything_is_received():
    world = World("a")
    world.run(0.1)
    world.say("a", "worker")
    world.say("worker", "a")
    world.run(0.1)
    assert [type(e).__name__ for e in world.log_of("a", "worker")] == ["Up", "Sent", "Received"]
    assert [type(e).__name__ for e in world.log_of("worker", "a")] == ["Up", "Sent", "Received"]


def test_messages_go_to_the_peer_that_was_named_only():
    world = World("a", "b")
    world.run(0.1)
    world.say("worker", "a", times=3)
    world.run(0.1)
    assert [note.n for note in world.heard("a", "worker")] == [0, 1, 2]
    assert world.heard("b", "worker") == []


def test_a_connecting_side_keeps_trying_until_there_is_a_binder():
    network = Network(latency_s=0.0)
    endpoint = Endpoint[Note, Note](network.connect(ADDRESS, b"a"), Note, CONFIG)
    assert endpoint.deadline(0.0) <= 0.0
    assert endpoint.poll(0.0) == []
    assert 0.0 < endpoint.deadline(0.0) < CONFIG.heartbeat_s
    assert not endpoint.send(Note("a", 0), 0.0)
    other = Endpoint[Note, Note](network.bind(ADDRESS), Note, CONFIG)
    network.advance(1.0)
    endpoint.poll(1.0)
    assert other.poll(1.0) == [Up(b"a")]
    assert endpoint.poll(1.0) == [Up(SERVER)]


def test_a_worker_that_restarts_is_up_again_and_what_it_never_got_is_not_delivered_to_it():
    world = World("a")
    world.run(0.1)
    world.say("a", "worker", times=5)
    world.start("worker")
    world.run(2.0)
    assert kinds(world, "worker", "a") == [Up]
    assert world.count(Up, "a", "worker") == 2
    world.say("a", "worker")
    world.run(0.1)
    assert [note.n for note in world.heard("worker", "a")] == [5]
    judge(world, "a", "worker")


def test_a_slow_reader_gets_a_window_in_order_and_both_learn_of_the_rest():
    world = World("a")
    world.run(0.1)
    world.processes["a"].paused = True
    assert world.say("worker", "a", times=100) == CONFIG.window
    world.run(0.5)
    world.processes["a"].paused = False
    world.run(0.5)
    assert [note.n for note in world.heard("a", "worker")] == list(range(CONFIG.window))
    assert world.count(Lost, "a", "worker") == world.count(Lost, "worker", "a") == 1
    assert world.count(Down, "worker", "a") == 0
    assert world.processes["worker"].endpoint.statistics().refused == 92
    assert world.processes["a"].endpoint.statistics().missing == 92


def test_a_main_loop_that_hangs_is_down_and_on_return_both_come_up():
    world = World("a")
    world.run(0.1)
    world.processes["worker"].paused = True
    world.run(CONFIG.silence_s + 2 * CONFIG.heartbeat_s)
    assert world.count(Down, "a", "worker") == 1
    world.run(10 * CONFIG.silence_s)
    assert world.count(Down, "a", "worker") == 1
    world.processes["worker"].paused = False
    world.run(0.3)
    assert kinds(world, "a", "worker") == [Up, Down, Up]
    assert kinds(world, "worker", "a") == [Up, Up]


def test_a_cut_within_the_silence_is_lost_at_both_and_nobody_is_down():
    world = World("a")
    world.run(0.1)
    world.say("a", "worker", times=4)
    world.network.cut(world.processes["a"].transport, keep=2, keep_back=0)
    world.run(1.0)
    assert [note.n for note in world.heard("worker", "a")] == [0, 1]
    assert kinds(world, "worker", "a") == [Up, Received, Received, Lost]
    assert world.count(Lost, "a", "worker") == 1


def test_of_two_processes_of_one_name_only_the_first_is_heard():
    world = World("a")
    world.run(0.1)
    impostor = Endpoint[Note, Note](world.network.connect(ADDRESS, b"a"), Note, CONFIG)
    for _ in range(50):
        world.run(0.1)
        assert impostor.poll(world.network.now) == []
    assert kinds(world, "worker", "a") == [Up]


def raw_peer() -> tuple[World, MemoryTransport]:
    world = World()
    client = world.network.connect(ADDRESS, b"raw")
    world.run(0.1)
    return world, client


@pytest.mark.parametrize("junk", [b"", b"x", b"GET / HTTP/1.1\r\n", bytes(52), b"TL\x02\x01" * 20])
def test_junk_is_counted_and_makes_no_peer(junk):
    world, client = raw_peer()
    client.send(SERVER, junk)
    assert world.run(0.1) == 0
    endpoint = world.processes["worker"].endpoint
    assert endpoint.statistics().malformed == 1
    assert endpoint.peers() == []


def test_a_message_of_another_type_is_counted_and_lost_at_both_sides():
    world = World("a")
    world.run(0.1)
    client = world.processes["a"].endpoint
    for message in (Hello(gateway="a", version=1), Stop(ref=RequestRef("r"), at_index=1)):
        assert client.send(message, world.network.now)
    world.say("a", "worker")
    world.run(1.0)
    assert [note.n for note in world.heard("worker", "a")] == [0]
    assert world.processes["worker"].endpoint.statistics().malformed == 2
    assert world.count(Lost, "worker", "a") == world.count(Lost, "a", "worker") == 1


def test_a_peer_that_answers_each_loss_with_junk_is_heard_at_the_pace_of_heartbeats():
    world = World("a")
    world.run(0.1)
    client = world.processes["a"].endpoint
    client.send(Hello(gateway="a", version=1), world.network.now)
    for _ in range(200):
        if world.run(0.01):
            client.send(Hello(gateway="a", version=1), world.network.now)
    assert 10 <= world.count(Lost, "worker", "a") <= 2.0 / CONFIG.heartbeat_s + 1


def test_peers_above_the_bound_are_turned_away_and_let_in_when_others_are_gone():
    network = Network(latency_s=0.0)
    binder = Endpoint[Note, Note](network.bind(ADDRESS), Note, CONFIG)
    hello = pack(Frame(5, 0, 0, 0, 0, 0, None))
    for number in range(MAX_PEERS + 3):
        network.connect(ADDRESS, b"p%d" % number).send(SERVER, hello)
    events = binder.poll(0.0, max_frames=1000)
    assert len(events) == MAX_PEERS
    assert binder.statistics().turned_away == 3
    now, downs = 0.0, 0
    while now < 4 * CONFIG.silence_s:
        now += CONFIG.heartbeat_s
        network.advance(now)
        downs += len(binder.poll(now))
    assert downs == MAX_PEERS
    assert binder.peers() == []
    late = network.connect(ADDRESS, b"late")
    late.send(SERVER, hello)
    assert binder.poll(now) == [Up(b"late")]


def test_poll_takes_no_more_than_it_was_allowed_and_is_due_again_at_once():
    world = World("a", config=LinkConfig(window=64, heartbeat_s=0.1, silence_s=1.0))
    world.run(0.1)
    world.say("a", "worker", times=30)
    now = world.network.now + 0.01
    world.network.advance(now)
    endpoint = world.processes["worker"].endpoint
    received = [e for e in endpoint.poll(now, max_frames=10) if isinstance(e, Received)]
    assert len(received) == 10
    assert endpoint.deadline(now) == now
    assert len(endpoint.poll(now, max_frames=100)) == 20
    assert endpoint.deadline(now) > now


def test_unpaired_frames_cannot_smuggle_in_a_message():
    world, client = raw_peer()
    client.send(SERVER, pack(Frame(5, 0, 1, 0, 0, 1, encode(Note("raw", 0)))))
    world.run(0.1)
    client.send(SERVER, pack(Frame(5, 12345, 1, 0, 0, 1, encode(Note("raw", 0)))))
    world.run(0.1)
    assert kinds(world, "worker", "raw") == [Up]
    assert world.processes["worker"].endpoint.statistics().stale == 1


def test_statistics_count_what_is_in_flight_and_who_is_up():
    world = World("a", "b")
    world.run(0.1)
    world.say("worker", "a", times=3)
    counts = world.processes["worker"].endpoint.statistics()
    assert (counts.peers, counts.unacknowledged, counts.sent) == (2, 3, 3)
    world.run(0.5)
    assert world.processes["worker"].endpoint.statistics().unacknowledged == 0


def test_a_send_is_told_to_whoever_waits_for_the_descriptor():
    world = World("a")
    world.run(0.1)
    told = []
    world.processes["a"].endpoint.on_send = lambda: told.append(1)
    world.say("a", "worker")
    assert told == [1]


def test_after_close_nothing_is_sent_and_nothing_raises():
    world = World("a")
    world.run(0.1)
    endpoint = world.processes["a"].endpoint
    endpoint.close()
    endpoint.close()
    assert not endpoint.send(Note("a", 0), world.network.now)
    assert endpoint.poll(world.network.now) == []
