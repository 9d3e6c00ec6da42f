from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from protocol.ids import RequestRef
from scheduler.ordered import Ordered, age_order
from tests.unit.scheduler.world import request

requests = st.builds(
    lambda name, arrival, priority: request(f"r{name}", arrival=arrival, priority=priority),
    st.integers(0, 20),
    st.floats(0, 3),
    st.integers(-1, 1),
)


@given(st.lists(st.tuples(st.booleans(), requests), max_size=60))
def test_however_they_come_and_go_they_are_in_order_and_each_once(changes):
    known, kept = {}, {}
    members = Ordered(known)
    for comes, one in changes:
        old = known.get(one.ref)
        if old is not None:
            members.discard(old)
            kept.pop(one.ref, None)
        known[one.ref] = one
        if comes:
            members.add(one)
            members.add(one)
            kept[one.ref] = one
        assert list(members) == sorted(kept.values(), key=age_order)
        assert len(members) == len(kept)
        assert (one in members) is comes


def test_it_is_a_sequence():
    known = {r.ref: r for r in (request("b", arrival=1.0), request("a"), request("c", arrival=2.0))}
    members = Ordered(known)
    members.fill(known.values())
    a, b, c = (known[RequestRef(name)] for name in "abc")
    assert (members[0], members[-1], members[1:]) == (a, c, [b, c])
    assert members == [a, b, c]
    assert members != [a, c, b]
    assert "a" not in members


def test_two_attempts_at_one_request_are_two():
    first = request("a")
    second = replace(first, ref=RequestRef("a", 1))
    known = {first.ref: first, second.ref: second}
    members = Ordered(known)
    members.fill(known.values())
    members.discard(first)
    assert members == [second]


def test_arrivals_are_counted_so_that_news_can_be_told():
    known = {}
    members = Ordered(known)
    before = members.added
    known[RequestRef("a")] = request("a")
    members.add(request("a"))
    assert members.added == before + 1
    members.discard(request("a"))
    assert members.added == before + 1
