"""Given these events, expect these effects; and: what a client sees is a gapless prefix."""

from collections.abc import Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from protocol import PROTOCOL_VERSION
from protocol.data_link import (
    Abort,
    Accepted,
    Credits,
    Delivered,
    FailCode,
    Failed,
    Finished,
    FinishReason,
    Hello,
    Load,
    ModelInfo,
    Refused,
    Resync,
    Status,
    Stop,
    Submit,
    TokenLogprobs,
    TokenRun,
    Tokens,
    Usage,
    Welcome,
    WorkerLimits,
)
from protocol.ids import RequestRef, pack_tokens, unpack_tokens
from protocol.sampling import Sampling
from tokenizer_service.events import (
    Admitted,
    Begin,
    Broken,
    Cancel,
    Done,
    Effect,
    FromWorker,
    Job,
    LinkDown,
    LinkLost,
    LinkUp,
    NewTokens,
    Send,
    StopAt,
    Tell,
    Tick,
)
from tokenizer_service.limits import MAX_ATTEMPTS
from tokenizer_service.registry import RESYNC_S, Registry

MODEL = ModelInfo(name="m", num_layers=1, vocab_size=100, max_model_len=64, page_size=16)
LIMITS = WorkerLimits(max_queued_requests=9, max_queued_tokens=900, max_num_seqs=4)
CREDITS = Credits(requests=9, tokens=900)
WAIT_S = 60.0


def welcome(boot: str = "b1", version: int = PROTOCOL_VERSION) -> FromWorker:
    return FromWorker(
        Welcome(boot=boot, version=version, models=(MODEL,), limits=LIMITS, credits=CREDITS)
    )


def job(request: str = "r", prompt: Sequence[int] = (1, 2, 3)) -> Job:
    return Job(
        request=request,
        model="m",
        prompt=pack_tokens(prompt),
        sampling=Sampling(max_tokens=50, seed=1),
    )


def tokens(ref: RequestRef, first: int, ids: Sequence[int]) -> FromWorker:
    return FromWorker(Tokens((TokenRun(ref, first, pack_tokens(ids)),)))


def finished(ref: RequestRef, output: int, stop_token: int | None = None) -> FromWorker:
    usage = Usage(prompt_tokens=3, output_tokens=output)
    return FromWorker(Finished(ref, FinishReason.STOP, usage, stop_token))


def failed(ref: RequestRef, code: FailCode, text: str = "because") -> FromWorker:
    return FromWorker(Failed(ref, code, text))


def ready() -> Registry:
    registry = Registry("gw", worker_wait_s=WAIT_S, now=0.0)
    registry.on(LinkUp(), 0.0)
    registry.on(welcome(), 0.0)
    return registry


def started() -> tuple[Registry, RequestRef]:
    registry = ready()
    registry.on(Begin(job()), 0.0)
    return registry, RequestRef("r", 0)


# --- the conversation ---


def test_a_link_that_comes_up_is_greeted() -> None:
    registry = Registry("gw", worker_wait_s=WAIT_S, now=0.0)
    assert registry.on(LinkUp(), 0.0) == [Send(Hello("gw", PROTOCOL_VERSION))]


def test_a_lost_hello_is_said_again() -> None:
    registry = Registry("gw", worker_wait_s=WAIT_S, now=0.0)
    registry.on(LinkUp(), 0.0)
    assert registry.on(LinkLost(), 0.1) == [Send(Hello("gw", PROTOCOL_VERSION))]


def test_a_request_is_submitted_whole_and_with_its_age() -> None:
    registry = Registry("gw", worker_wait_s=WAIT_S, now=0.0)
    registry.on(LinkUp(), 1.0)
    assert registry.on(Begin(job()), 1.0) == []
    effects = registry.on(welcome(), 3.5)
    assert [e.message for e in effects if isinstance(e, Send)][-1] == Submit(
        ref=RequestRef("r", 0),
        model="m",
        token_ids=pack_tokens([1, 2, 3]),
        sampling=Sampling(max_tokens=50, seed=1),
        age_s=2.5,
    )


@pytest.mark.parametrize(
    "message", [FromWorker(Refused(version=9, message="no")), welcome(version=9)]
)
def test_another_protocol_version_is_never_spoken_to(message: FromWorker) -> None:
    registry = Registry("gw", worker_wait_s=WAIT_S, now=0.0)
    registry.on(LinkUp(), 0.0)
    registry.on(message, 0.0)
    assert registry.on(Begin(job()), 0.0) == []
    assert registry.worker.not_ready(0.0, 1.0) == "the worker speaks another protocol version"


# --- delivery ---


def test_tokens_are_told_in_order_and_the_end_once() -> None:
    registry, ref = started()
    assert registry.on(FromWorker(Accepted(ref, 2)), 0.1) == [Tell("r", Admitted(2))]
    assert registry.on(tokens(ref, 0, [7]), 0.2) == [Tell("r", NewTokens((7,)))]
    assert registry.on(tokens(ref, 1, [8, 9]), 0.3) == [Tell("r", NewTokens((8, 9)))]
    done = Done(FinishReason.STOP, Usage(prompt_tokens=3, output_tokens=3))
    assert registry.on(finished(ref, 3), 0.4) == [Tell("r", done)]
    assert registry.on(finished(ref, 3), 0.5) == []
    assert registry.live() == []


def test_accepted_twice_is_told_once() -> None:
    registry, ref = started()
    registry.on(FromWorker(Accepted(ref, 2)), 0.1)
    assert registry.on(FromWorker(Accepted(ref, 0)), 0.1) == []


@pytest.mark.parametrize(
    ("first", "ids", "new"),
    [(0, [7, 8], ()), (1, [8], ()), (1, [8, 9], (9,)), (0, [7, 8, 9, 10], (9, 10))],
)
def test_what_is_known_already_is_not_told_again(
    first: int, ids: list[int], new: tuple[int, ...]
) -> None:
    registry, ref = started()
    registry.on(tokens(ref, 0, [7, 8]), 0.1)
    expected = [Tell("r", NewTokens(new))] if new else []
    assert registry.on(tokens(ref, first, ids), 0.2) == expected


def test_logprobs_stay_with_their_tokens() -> None:
    registry, ref = started()
    entries = tuple(TokenLogprobs(-float(n), (), ()) for n in range(3))

    def told(run: TokenRun) -> list[Effect]:
        return registry.on(FromWorker(Tokens((run,))), 0.1)

    run = TokenRun(ref, 0, pack_tokens([7, 8]), entries[:2])
    assert told(run) == [Tell("r", NewTokens((7, 8), entries[:2]))]
    run = TokenRun(ref, 1, pack_tokens([8, 9]), entries[1:])
    assert told(run) == [Tell("r", NewTokens((9,), entries[2:]))]
    run = TokenRun(ref, 3, pack_tokens([5, 6]), entries[:1])
    assert told(run) == [Tell("r", NewTokens((5, 6)))], "too few: nobody knows whose they are"


def test_tokens_behind_a_gap_are_not_told_but_asked_for_once() -> None:
    registry, ref = started()
    registry.on(tokens(ref, 0, [7]), 5.0)
    resync = Send(Resync((Delivered(ref, 1),)))
    assert registry.on(tokens(ref, 2, [9]), 5.0) == [resync]
    assert registry.on(tokens(ref, 3, [9]), 5.0 + RESYNC_S / 2) == []
    assert registry.on(tokens(ref, 4, [9]), 5.0 + RESYNC_S) == [resync]


def test_an_end_before_its_last_tokens_waits_for_them() -> None:
    registry, ref = started()
    registry.on(tokens(ref, 0, [7]), 5.0)
    assert registry.on(finished(ref, 2), 5.0) == [Send(Resync((Delivered(ref, 1),)))]
    registry.on(tokens(ref, 1, [8]), 5.1)
    assert [type(e) for e in registry.on(finished(ref, 2), 5.1)] == [Tell]


def test_a_stop_token_is_counted_but_never_waited_for() -> None:
    registry, ref = started()
    registry.on(tokens(ref, 0, [7]), 0.1)
    done = Done(FinishReason.STOP, Usage(prompt_tokens=3, output_tokens=2))
    assert registry.on(finished(ref, 2, stop_token=0), 0.2) == [Tell("r", done)]


def test_messages_of_an_earlier_attempt_have_no_effect() -> None:
    registry, ref = started()
    registry.on(welcome("b2"), 0.1)
    for message in (
        tokens(ref, 0, [7]),
        finished(ref, 0),
        failed(ref, FailCode.INTERNAL),
        FromWorker(Accepted(ref, 1)),
    ):
        assert registry.on(message, 0.2) == []
    assert registry.statistics().stale == 4


# --- leaving ---


def test_a_client_that_leaves_is_aborted_at_the_worker_and_told_nothing() -> None:
    registry, ref = started()
    assert registry.on(Cancel("r"), 0.1) == [Send(Abort(ref))]
    assert registry.on(tokens(ref, 0, [7]), 0.2) == []
    assert registry.on(Cancel("r"), 0.3) == []


def test_leaving_while_the_link_is_down_needs_no_message() -> None:
    registry, _ = started()
    registry.on(LinkDown(), 0.1)
    assert registry.on(Cancel("r"), 0.2) == []
    registry.on(LinkUp(), 0.3)
    assert registry.on(welcome(), 0.3) == [Send(Resync(()))]


def test_a_stop_string_ends_the_request_without_waiting_for_the_worker() -> None:
    registry, ref = started()
    registry.on(FromWorker(Accepted(ref, 2)), 0.1)
    registry.on(tokens(ref, 0, [7, 8, 9]), 0.1)
    done = Done(FinishReason.STOP, Usage(prompt_tokens=3, output_tokens=2, cached_tokens=2))
    assert registry.on(StopAt("r", 2), 0.2) == [Send(Stop(ref, 2)), Tell("r", done)]
    assert registry.on(finished(ref, 3), 0.3) == []


# --- losses and restarts ---


def test_after_a_loss_the_worker_hears_what_was_delivered() -> None:
    registry, ref = started()
    registry.on(tokens(ref, 0, [7, 8]), 0.1)
    assert registry.on(LinkLost(), 0.2) == [Send(Resync((Delivered(ref, 2),)))]


def test_the_same_boot_coming_back_is_resynced_not_resubmitted() -> None:
    registry, ref = started()
    registry.on(LinkDown(), 1.0)
    registry.on(LinkUp(), 2.0)
    assert registry.on(welcome("b1"), 2.0) == [Send(Resync((Delivered(ref, 0),)))]


def test_another_boot_gets_every_request_again_with_its_output() -> None:
    registry, ref = started()
    registry.on(tokens(ref, 0, [7, 8]), 0.1)
    registry.on(LinkDown(), 1.0)
    registry.on(LinkUp(), 2.0)
    (effect,) = registry.on(welcome("b2"), 2.0)
    assert isinstance(effect, Send)
    assert isinstance(effect.message, Submit)
    assert effect.message.ref == RequestRef("r", 1)
    assert unpack_tokens(effect.message.output_so_far) == [7, 8]
    assert registry.on(tokens(RequestRef("r", 1), 2, [9]), 2.1) == [Tell("r", NewTokens((9,)))]


@pytest.mark.parametrize("code", [FailCode.UNKNOWN_REQUEST, FailCode.ABORTED])
def test_a_live_request_that_the_worker_does_not_have_is_submitted_again(code: FailCode) -> None:
    registry, ref = started()
    (effect,) = registry.on(failed(ref, code), 0.1)
    assert isinstance(effect, Send)
    assert isinstance(effect.message, Submit)
    assert effect.message.ref == RequestRef("r", 1)


def test_attempts_are_bounded() -> None:
    registry, _ = started()
    for attempt in range(MAX_ATTEMPTS - 1):
        registry.on(failed(RequestRef("r", attempt), FailCode.ABORTED), 0.1)
    last = RequestRef("r", MAX_ATTEMPTS - 1)
    (effect,) = registry.on(failed(last, FailCode.ABORTED, "gone"), 0.1)
    assert isinstance(effect, Tell)
    assert isinstance(effect.news, Broken)
    assert "8 attempts" in effect.news.message
    assert registry.live() == []


def test_submits_that_were_lost_are_no_attempts() -> None:
    """A link that loses one after the other delays a request and never fails it."""
    registry, _ = started()
    for attempt in range(3 * MAX_ATTEMPTS):
        lost = failed(RequestRef("r", attempt), FailCode.UNKNOWN_REQUEST)
        (effect,) = registry.on(lost, 0.1)
        assert isinstance(effect, Send)
        assert isinstance(effect.message, Submit)


@pytest.mark.parametrize(
    "code", sorted(set(FailCode) - {FailCode.UNKNOWN_REQUEST, FailCode.ABORTED})
)
def test_other_failures_end_the_request(code: FailCode) -> None:
    registry, ref = started()
    assert registry.on(failed(ref, code), 0.1) == [Tell("r", Broken(code, "because"))]
    assert registry.live() == []


def test_requests_outlive_a_worker_only_so_long() -> None:
    registry, _ = started()
    registry.on(LinkDown(), 100.0)
    assert registry.on(Tick(), 100.0 + WAIT_S) == []
    (effect,) = registry.on(Tick(), 100.1 + WAIT_S)
    assert effect == Tell("r", Broken(FailCode.OVERLOADED, "no worker for 60 s"))


# --- readiness and credits ---


def status(iterations: int, running: int = 1, scheduler: str = "muxwise") -> FromWorker:
    load = Load(running=running, iterations=iterations, scheduler=scheduler)
    return FromWorker(Status(CREDITS, load))


def test_ready_needs_a_worker_a_scheduler_and_progress() -> None:
    registry = Registry("gw", worker_wait_s=WAIT_S, now=0.0)
    worker = registry.worker
    assert worker.not_ready(0.0, 5.0) == "no worker"
    registry.on(LinkUp(), 0.0)
    registry.on(welcome(), 0.0)
    assert worker.not_ready(0.0, 5.0) == "no scheduler"
    registry.on(status(1), 1.0)
    assert worker.not_ready(1.0, 5.0) is None
    registry.on(status(1), 4.0)
    assert worker.not_ready(6.1, 5.0) == "no progress for 5 s"
    registry.on(status(2), 7.0)
    assert worker.not_ready(7.0, 5.0) is None


def test_an_idle_worker_is_ready_for_ever() -> None:
    registry = ready()
    registry.on(status(1, running=0), 100.0)
    registry.on(status(1, running=0), 200.0)
    assert registry.worker.not_ready(200.0, 5.0) is None


def test_a_draining_worker_is_not_ready() -> None:
    registry = ready()
    registry.on(FromWorker(Status(CREDITS, Load(scheduler="s", draining=True))), 1.0)
    assert registry.worker.not_ready(1.0, 5.0) == "the worker is draining"


def test_credits_are_spent_at_once_and_renewed_by_the_worker() -> None:
    registry = ready()
    registry.on(Begin(job(prompt=range(100))), 0.0)
    assert registry.worker.credits == Credits(requests=8, tokens=800)
    registry.on(FromWorker(Status(Credits(requests=3, tokens=5), Load())), 0.1)
    assert registry.worker.credits == Credits(requests=3, tokens=5)


# --- any order of events ---


def truth(request: str, index: int) -> int:
    return (hash_of(request) * 31 + index * 7) % 1000


def hash_of(request: str) -> int:
    return sum(request.encode())


LENGTH = 6
NAMES = ("a", "b", "c")


class Registries(RuleBasedStateMachine):
    """A worker that loses, repeats, restarts and forgets, against the registry."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.boots = 1
        self.registry = ready()
        self.seen: dict[str, list[int]] = {}
        self.over: dict[str, str] = {}
        self.attempt: dict[str, int] = {}

    def feed(self, event: object) -> None:
        self.now += 0.1
        for effect in self.registry.on(event, self.now):  # type: ignore[arg-type]
            self.take(effect)

    def take(self, effect: Effect) -> None:
        if isinstance(effect, Send):
            if isinstance(effect.message, Submit):
                self.submitted(effect.message)
            return
        request, news = effect.request, effect.news
        assert request not in self.over, "nothing follows a terminal"
        if isinstance(news, NewTokens):
            self.seen[request] += news.ids
        elif isinstance(news, Done | Broken):
            self.over[request] = type(news).__name__

    def submitted(self, message: Submit) -> None:
        request = message.ref.request
        assert unpack_tokens(message.output_so_far) == self.seen[request]
        assert message.ref.incarnation > self.attempt.get(request, -1)
        self.attempt[request] = message.ref.incarnation

    def ref(self, request: str) -> RequestRef:
        return RequestRef(request, self.attempt[request])

    @rule(request=st.sampled_from(NAMES))
    def begin(self, request: str) -> None:
        if request not in self.seen:
            self.seen[request] = []
            self.feed(Begin(job(request)))

    @precondition(lambda self: self.attempt)
    @rule(data=st.data(), first=st.integers(0, LENGTH), count=st.integers(0, LENGTH))
    def say_tokens(self, data: st.DataObject, first: int, count: int) -> None:
        request = data.draw(st.sampled_from(sorted(self.attempt)))
        ids = [truth(request, i) for i in range(first, min(LENGTH, first + count))]
        self.feed(tokens(self.ref(request), first, ids))

    @precondition(lambda self: self.attempt)
    @rule(data=st.data(), late=st.integers(0, 2))
    def say_finished(self, data: st.DataObject, late: int) -> None:
        request = data.draw(st.sampled_from(sorted(self.attempt)))
        ref = RequestRef(request, max(0, self.attempt[request] - late))
        self.feed(finished(ref, LENGTH))

    @precondition(lambda self: self.attempt)
    @rule(data=st.data(), code=st.sampled_from([FailCode.UNKNOWN_REQUEST, FailCode.INTERNAL]))
    def say_failed(self, data: st.DataObject, code: FailCode) -> None:
        request = data.draw(st.sampled_from(sorted(self.attempt)))
        self.feed(failed(self.ref(request), code))

    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(NAMES))
        self.feed(Cancel(request))
        if request in self.seen:
            self.over.setdefault(request, "left")

    @rule(event=st.sampled_from([LinkLost(), LinkDown(), LinkUp(), Tick()]))
    def link(self, event: object) -> None:
        self.feed(event)

    @rule(restarted=st.booleans())
    def greet(self, restarted: bool) -> None:
        self.boots += restarted
        self.feed(LinkUp())
        self.feed(welcome(f"b{self.boots}"))

    @invariant()
    def what_was_seen_is_a_prefix_without_gap_or_repeat(self) -> None:
        for request, seen in self.seen.items():
            assert seen == [truth(request, i) for i in range(len(seen))]

    @invariant()
    def done_means_complete(self) -> None:
        for request, how in self.over.items():
            assert how != "Done" or len(self.seen[request]) == LENGTH

    @invariant()
    def what_is_not_over_is_live(self) -> None:
        assert set(self.registry.live()) == set(self.seen) - set(self.over)

    def teardown(self) -> None:
        """Once the worker behaves, every request that is left ends well."""
        self.greet(restarted=True)
        for request in list(self.registry.live()):
            ids = [truth(request, i) for i in range(LENGTH)]
            self.feed(tokens(self.ref(request), 0, ids))
            self.feed(finished(self.ref(request), LENGTH))
        assert set(self.over) == set(self.seen)


TestRegistries = Registries.TestCase
TestRegistries.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
