"""Given these frames, the link says this."""

from dataclasses import replace
from itertools import count

import pytest

from protocol.frame import Frame, unpack
from protocol.link import Link, LinkConfig, LinkStatistics, Signal

CONFIG = LinkConfig(window=4, heartbeat_s=0.1, silence_s=1.0)


def make_link(first_session: int = 100, now: float = 0.0, config: LinkConfig = CONFIG) -> Link:
    sessions = count(first_session)
    return Link(config, lambda: next(sessions), LinkStatistics(), now)


def beat(link: Link, now: float) -> Frame:
    _, data = link.tick(now)
    assert data is not None
    return unpack(data)


def from_peer(**changes) -> Frame:
    """A heartbeat of session 7 that is paired with session 100."""
    plain = Frame(session=7, answers=100, number=0, acked=0, losses=0, progress=1, payload=None)
    return replace(plain, **changes)


def paired(config: LinkConfig = CONFIG) -> Link:
    link = make_link(config=config)
    assert link.receive(from_peer()) == ([Signal.UP], None)
    return link


def test_first_heartbeat_answers_nobody():
    frame = beat(make_link(), 0.0)
    assert (frame.session, frame.answers, frame.payload) == (100, 0, None)


def test_a_peer_that_knows_nobody_yet_is_answered_at_once():
    link = make_link()
    beat(link, 0.0)
    assert link.receive(from_peer(answers=0)) == ([Signal.UP], None)
    assert link.deadline() <= 0.0
    assert beat(link, 0.01).answers == 7


def test_two_links_come_up_once_each_and_then_stay_silent_until_a_heartbeat():
    one, other = make_link(100), make_link(200)
    signals = {id(one): [], id(other): []}
    for now in (0.0, 0.01, 0.02, 0.03):
        for here, there in ((one, other), (other, one)):
            _, data = here.tick(now)
            if data is not None:
                signals[id(there)] += there.receive(unpack(data))[0]
    assert signals == {id(one): [Signal.UP], id(other): [Signal.UP]}
    assert one.tick(0.05) == ([], None)


def test_nothing_is_sent_and_no_number_consumed_before_there_is_a_peer():
    link = make_link()
    assert link.send(b"x") is None
    link.receive(from_peer())
    sent = link.send(b"x")
    assert sent is not None
    assert unpack(sent).number == 1


def test_frames_carry_rising_numbers_and_heartbeats_the_last_one():
    link = paired()
    assert [unpack(link.send(b"x")).number for _ in range(3)] == [1, 2, 3]
    assert beat(link, 0.0).number == 3


def test_a_message_without_credit_leaves_a_gap_in_the_numbers():
    link = paired()
    assert [link.send(b"x") is not None for _ in range(6)] == [True] * 4 + [False] * 2
    assert beat(link, 0.0).number == 6
    link.receive(from_peer(acked=6, progress=2))
    assert unpack(link.send(b"x")).number == 7


def test_acknowledging_what_was_never_sent_gives_no_more_than_a_window():
    link = paired()
    link.receive(from_peer(acked=2**63, progress=2))
    assert sum(link.send(b"x") is not None for _ in range(10)) == CONFIG.window


def test_an_old_acknowledgement_takes_no_credit_back():
    link = paired()
    for _ in range(4):
        link.send(b"x")
    link.receive(from_peer(acked=4, progress=3))
    link.receive(from_peer(acked=1, progress=2))
    assert link.unacknowledged == 0


def test_what_is_received_is_acknowledged_before_the_peer_runs_out_of_credit():
    link = paired()
    beat(link, 0.0)
    link.receive(from_peer(number=1, payload=b"x"))
    assert beat(link, 0.01).acked == 1  # a quarter of the window of 4


def test_a_gap_is_lost_then_the_payload_and_is_told_the_peer_at_once():
    link = paired(LinkConfig(window=1000, heartbeat_s=0.1, silence_s=1.0))
    beat(link, 0.0)
    assert link.receive(from_peer(number=3, payload=b"x")) == ([Signal.LOST], b"x")
    assert beat(link, 0.01).losses == 1
    assert link.receive(from_peer(number=4, payload=b"y")) == ([], b"y")


def test_a_heartbeat_finds_what_was_lost_at_the_end():
    link = paired()
    assert link.receive(from_peer(number=2)) == ([Signal.LOST], None)
    assert link.receive(from_peer(number=2)) == ([], None)
    assert link.receive(from_peer(number=3, payload=b"x")) == ([], b"x")


def test_loss_that_the_peer_reports_is_signalled_once():
    link = paired()
    assert link.receive(from_peer(losses=1)) == ([Signal.LOST], None)
    assert link.receive(from_peer(losses=1)) == ([], None)
    assert link.receive(from_peer(losses=3)) == ([Signal.LOST], None)


def test_a_repeated_or_reordered_frame_is_dropped():
    link = paired()
    link.receive(from_peer(number=1, payload=b"x"))
    link.receive(from_peer(number=2, payload=b"y"))
    assert link.receive(from_peer(number=2, payload=b"y")) == ([], None)
    assert link.receive(from_peer(number=1, payload=b"x")) == ([], None)


def test_a_new_session_starts_over_and_the_replaced_one_never_comes_back():
    link = paired()
    link.receive(from_peer(number=1, payload=b"x"))
    assert link.receive(from_peer(session=8, answers=0)) == ([Signal.UP], None)
    assert link.receive(from_peer(number=2, payload=b"stale")) == ([], None)
    assert link.receive(from_peer(answers=0)) == ([], None)
    assert link.receive(from_peer(session=8, number=1, payload=b"z")) == ([], b"z")


def test_frames_for_an_earlier_session_of_this_side_are_ignored():
    link = make_link()
    assert link.receive(from_peer(answers=99, number=5, payload=b"x")) == ([], None)
    assert not link.up


def test_silence_is_down_once_and_a_new_session():
    link = paired()
    assert [link.tick(now)[0] for now in (0.3, 0.6, 0.9)] == [[], [], []]
    signals, data = link.tick(1.2)
    assert signals == [Signal.DOWN]
    assert unpack(data).session == 101
    assert unpack(data).answers == 0
    assert link.tick(5.0)[0] == []
    assert link.send(b"x") is None


def test_after_down_the_peers_late_frames_are_from_the_past_and_its_answer_is_up():
    link = paired()
    for now in (0.4, 0.8, 1.2):
        link.tick(now)
    assert link.receive(from_peer(number=1, payload=b"late")) == ([], None)
    answer = from_peer(answers=101, number=1, payload=b"new")
    assert link.receive(answer) == ([Signal.UP], b"new")


def test_frames_without_progress_do_not_count_as_life():
    link = paired()
    signals = []
    for turn in range(1, 13):
        link.receive(from_peer(number=turn, payload=b"x"))  # sends, but its loop does not turn
        signals += link.tick(turn / 10)[0]
    assert signals == [Signal.DOWN]


def test_progress_counts_as_life():
    link = paired()
    for turn in range(1, 50):
        link.receive(from_peer(progress=turn + 1))
        assert link.tick(turn / 10)[0] == []


def test_a_pause_of_this_side_is_not_the_peers_silence():
    link = paired()
    link.tick(0.1)
    assert link.tick(60.0)[0] == []
    link.receive(from_peer(progress=2))
    assert link.tick(60.1)[0] == []


def test_only_a_turn_of_the_loop_advances_progress():
    link = paired()
    first = beat(link, 0.0).progress
    assert unpack(link.send(b"x")).progress == unpack(link.send(b"y")).progress == first
    assert beat(link, 0.1).progress == first + 1


def test_a_heartbeat_that_could_not_leave_is_tried_again_soon_but_not_at_once():
    link = make_link()
    beat(link, 0.0)
    link.retry(0.0)
    assert 0.0 < link.deadline() < CONFIG.heartbeat_s
    assert link.tick(0.001) == ([], None)


def test_rejected_payloads_are_told_as_one_loss_at_the_next_heartbeat():
    link = paired()
    beat(link, 0.0)
    for number in (1, 2, 3):
        link.receive(from_peer(number=number, payload=b"bad"))
        link.reject()
        signals, _ = link.tick(number / 100)
        assert signals == []
    signals, data = link.tick(0.1)
    assert signals == [Signal.LOST]
    assert unpack(data).losses == 1
    assert link.tick(0.2)[0] == []


def test_rejected_payloads_are_told_also_while_acknowledgements_keep_going_out():
    link = paired()
    signals = []
    for number in range(1, 20):
        link.receive(from_peer(number=number, progress=number, payload=b"bad"))
        link.reject()
        signals += link.tick(number / 50)[0]
    assert signals.count(Signal.LOST) == 4


@pytest.mark.parametrize(
    ("window", "heartbeat_s", "silence_s", "named"),
    [(0, 0.1, 1, "window 0"), (1, 0, 1, "heartbeat_s 0"), (1, 0.6, 1, "heartbeat_s 0.6")],
)
def test_bounds_that_cannot_work_are_refused_by_name(window, heartbeat_s, silence_s, named):
    with pytest.raises(ValueError, match=named):
        LinkConfig(window=window, heartbeat_s=heartbeat_s, silence_s=silence_s)
