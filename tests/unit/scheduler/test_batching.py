from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from protocol.control_link import (
    Arrived,
    Lane,
    Left,
    PoolState,
    PrefillDone,
    PrefillStarted,
    Progress,
    RequestState,
    StartedBatch,
)
from scheduler.admission import Room
from scheduler.batching import BatchBook, tokens_of
from scheduler.requests import RESERVED_TOKENS
from tests.unit.scheduler.world import LAYERS, PAGE, decoding, queued, request, view


def names(batches):
    return [[item.ref.request for item in batch.items] for batch in batches]


# --- room ---


def test_a_request_fits_while_its_prompt_and_growth_fit():
    need = -(-(100 + 64) // PAGE)
    room = Room(view(*decoding(1, max_tokens=1), pages=2 * need))
    first, second, third = queued(3, prompt=100, max_tokens=64)
    assert [room.take(first), room.take(second), room.take(third)] == [True, True, False]


def test_growth_is_reserved_for_whoever_runs():
    growth = RESERVED_TOKENS // PAGE
    new = request("n", prompt=16, max_tokens=1)
    running = decoding(4, max_tokens=10_000)
    assert not Room(view(*running, pages=4 * growth + 1)).take(new)
    assert Room(view(*running, pages=4 * growth + 2)).take(new)


def test_rows_of_the_decode_batch_bound_what_starts():
    running = [*decoding(1), request("p", RequestState.PREFILLING)]
    room = Room(view(*running, max_num_seqs=3))
    assert [room.take(r) for r in queued(2)] == [True, False]


def test_with_nothing_running_the_first_always_fits():
    room = Room(view(pages=1))
    assert [room.take(r) for r in queued(2, prompt=1000)] == [True, False]


# --- the book ---


def test_batches_are_first_come_first_served_up_to_the_cap():
    book = BatchBook(token_cap=250, ahead=2)
    assert names(book.update(view(*queued(5, prompt=100)))) == [["q000", "q001"], ["q002", "q003"]]


def test_a_prompt_above_the_cap_goes_alone():
    book = BatchBook(token_cap=250, ahead=2)
    assert names(book.update(view(*queued(2, prompt=9000)))) == [["q000"], ["q001"]]


def test_a_listed_batch_is_never_recomposed():
    book = BatchBook(token_cap=1000, ahead=2)
    mirror = view(*queued(1))
    book.update(mirror)
    late = [request("late", arrival=50.0), request("older", arrival=-50.0)]
    for number, new in enumerate(late, 1):
        mirror.apply(Arrived(number, new))
    assert names(book.update(mirror)) == [["q000"], ["older", "late"]]


def test_members_that_are_done_or_gone_leave_their_batch():
    book = BatchBook(token_cap=1000, ahead=1)
    a, b, c = queued(3)
    mirror = view(a, b, c)
    book.update(mirror)
    mirror.apply(Left(1, b.ref, "stop", mirror.pool))
    assert names(book.update(mirror)) == [["q000", "q002"]]
    mirror.apply(PrefillDone(2, (Progress(a.ref, 100, 1), Progress(c.ref, 100, 1)), mirror.pool))
    assert book.update(mirror) == ()


def test_what_the_worker_has_started_is_taken_as_it_is_and_first():
    a, b = (replace(r, state=RequestState.SUSPENDED) for r in queued(2))
    new = request("aaa", arrival=-9.0)
    mirror = view(new, a, b, batches=(StartedBatch((b.ref, a.ref), 8, LAYERS),))
    assert names(BatchBook(1000, 2).update(mirror)) == [["q001", "q000"], ["aaa"]]


def test_a_start_seen_late_changes_no_batch():
    book = BatchBook(token_cap=100, ahead=3)
    first, second, third = queued(3)
    mirror = view(first, second, third)
    before = names(book.update(mirror))
    running = replace(first, state=RequestState.PREFILLING)
    mirror.apply(PrefillStarted(1, Lane.PREFILL, (running,), mirror.pool))
    assert names(book.update(mirror)) == before


def test_a_chunk_that_another_policy_left_half_done_goes_first():
    half = request("half", RequestState.SUSPENDED, computed=40, arrival=99.0)
    mirror = view(*queued(1), half)
    batches = BatchBook(100, 2).update(mirror)
    assert names(batches) == [["half"], ["q000"]]
    assert tokens_of(batches[0], mirror) == 60


def test_a_batch_has_one_model():
    a, b, c = (request(n, model=m, arrival=i) for i, (n, m) in enumerate(["ax", "bx", "cy"]))
    assert names(BatchBook(1000, 3).update(view(a, b, c))) == [["a", "b"], ["c"]]


def test_nobody_overtakes_a_request_that_has_no_room():
    running = decoding(1, max_tokens=1)
    mirror = view(*running, request("big", prompt=9000), request("small", prompt=10, arrival=1.0))
    mirror.pool = PoolState(100, 50, 0)
    assert BatchBook(1000, 3).update(mirror) == ()


@given(st.lists(st.integers(1, 400), max_size=30), st.integers(1, 500), st.integers(1, 5))
def test_batches_are_the_queue_in_order_within_the_cap(prompts, cap, ahead):
    waiting = [request(f"r{i:02}", prompt=p, arrival=float(i)) for i, p in enumerate(prompts)]
    mirror = view(*waiting)
    batches = BatchBook(cap, ahead).update(mirror)
    flat = [name for batch in names(batches) for name in batch]
    assert flat == [f"r{i:02}" for i in range(len(flat))]
    assert len(batches) == ahead or len(flat) == len(prompts)
    assert all(len(b.items) == 1 or tokens_of(b, mirror) <= cap for b in batches)
