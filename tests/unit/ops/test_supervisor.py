"""The supervisor's rules: given these events, expect these effects. No processes, no clock."""

import signal
from dataclasses import dataclass, field

import pytest

from ops.events import (
    Choice,
    Done,
    Effect,
    Event,
    Exited,
    Key,
    Note,
    Reported,
    Role,
    Serving,
    Signal,
    Start,
    StopAsked,
    SwapAnswered,
    SwapAsked,
    Tick,
)
from ops.supervisor import Supervisor, SupervisorConfig
from protocol.lifecycle import EXIT_CONFIG, Ready, Report, Stage, Stopped

MUXWISE, CHUNKED, OTHER = Choice("muxwise"), Choice("chunked"), Choice("other", ("a=1",))
CONFIG = SupervisorConfig(
    start_timeout_s=120.0,
    swap_timeout_s=30.0,
    fence_timeout_s=10.0,
    drain_timeout_s=35.0,
    stop_timeout_s=15.0,
    fallback=CHUNKED,
)


@dataclass
class World:
    """A supervisor with the processes it believes in, and what it did."""

    choice: Choice = MUXWISE
    now: float = 0.0
    running: dict[Key, Start] = field(default_factory=dict)
    effects: list[Effect] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.supervisor = Supervisor(CONFIG, self.choice)
        self._take(self.supervisor.start(self.now))

    def _take(self, effects: list[Effect]) -> list[Effect]:
        for effect in effects:
            if isinstance(effect, Start):
                assert effect.key not in self.running, "a key is used once"
                self.running[effect.key] = effect
        self.effects += effects
        return effects

    def on(self, event: Event) -> list[Effect]:
        if isinstance(event, Exited):
            self.running.pop(event.key, None)
        return self._take(self.supervisor.on(event, self.now))

    def report(self, key: Key, report: Report) -> list[Effect]:
        return self.on(Reported(key, report))

    def exit(self, key: Key, status: int, words: str = "") -> list[Effect]:
        return self.on(Exited(key, status, words))

    def wait(self, seconds: float) -> list[Effect]:
        """Let time pass from deadline to deadline, as the shell does."""
        end, effects = self.now + seconds, []
        while (due := self.supervisor.deadline()) is not None and due <= end:
            self.now = max(self.now, due)
            effects += self.on(Tick())
        self.now = end
        return effects + self.on(Tick())

    def key(self, role: Role) -> Key:
        """The newest process in a role."""
        return max(key for key, start in self.running.items() if start.role == role)

    def serve(self) -> "World":
        for role in Role:
            self.report(self.key(role), Ready({}))
        return self

    def crash(self, role: Role) -> list[Effect]:
        return self.exit(self.key(role), -signal.SIGKILL)

    def notes(self) -> str:
        return "\n".join(e.text for e in self.effects if isinstance(e, Note))


def of(kind: type[Effect], effects: list[Effect]) -> list[Effect]:
    return [effect for effect in effects if isinstance(effect, kind)]


# --- start ---


def test_everything_starts_at_once_and_serves_when_the_last_is_ready() -> None:
    world = World()
    assert [e.role for e in of(Start, world.effects)] == list(Role)
    assert not of(Serving, world.report(world.key(Role.WORKER), Ready({})))
    assert not of(Serving, world.report(world.key(Role.GATEWAY), Ready({})))
    assert of(Serving, world.report(world.key(Role.SCHEDULER), Ready({}))) == [Serving()]


def test_a_silent_start_is_killed_at_its_deadline_and_counts_as_a_crash() -> None:
    world = World()
    worker = world.key(Role.WORKER)
    assert of(Signal, world.wait(119.0)) == []
    assert of(Signal, world.wait(1.0)) == [Signal(worker, signal.SIGKILL)]
    restarted = world.exit(worker, -signal.SIGKILL)
    assert [e.role for e in of(Start, restarted)] == [Role.WORKER]
    assert "did not become ready" in world.notes()


def test_a_stage_of_the_start_extends_the_deadline() -> None:
    world = World()
    world.wait(100.0)
    world.report(world.key(Role.WORKER), Stage("weights", 1, 2))
    assert of(Signal, world.wait(119.0)) == []
    assert of(Signal, world.wait(1.0)) != []


def test_the_others_have_all_the_time_that_the_worker_needs_to_become_ready() -> None:
    world = World()
    for _ in range(10):
        world.wait(100.0)
        world.report(world.key(Role.WORKER), Stage("graphs"))
    world.report(world.key(Role.WORKER), Ready({}))
    assert of(Signal, world.effects) == []
    scheduler, gateway = world.key(Role.SCHEDULER), world.key(Role.GATEWAY)
    killed = of(Signal, world.wait(120.0))
    assert killed == [Signal(scheduler, signal.SIGKILL), Signal(gateway, signal.SIGKILL)]


@pytest.mark.parametrize("role", list(Role))
def test_a_configuration_that_cannot_work_ends_the_start_with_its_reason(role: Role) -> None:
    world = World()
    key = world.key(role)
    world.report(key, Stopped("port 8000 is in use"))
    effects = world.exit(key, EXIT_CONFIG)
    assert not of(Start, effects)
    assert "port 8000 is in use" in world.notes()
    finish_drain(world)
    assert world.effects[-1] == Done(EXIT_CONFIG)


def finish_drain(world: World) -> None:
    """Let every process obey its SIGTERM."""
    while world.running:
        asked = [e.key for e in of(Signal, world.effects) if e.key in world.running]
        assert asked, "nobody is asked to end, and some run"
        for key in asked:
            world.exit(key, 0)


# --- crashes ---


@pytest.mark.parametrize("role", list(Role))
def test_a_crashed_process_alone_is_restarted_at_once_then_with_growing_delays(role: Role) -> None:
    world = World().serve()
    assert [e.role for e in of(Start, world.crash(role))] == [role]
    for delay in (1.0, 2.0, 4.0):
        assert of(Start, world.crash(role)) == []
        assert of(Start, world.wait(delay - 0.01)) == []
        assert [e.role for e in of(Start, world.wait(0.01))] == [role]


def test_leaving_with_status_0_without_being_told_is_a_crash_too() -> None:
    world = World().serve()
    assert [e.role for e in of(Start, world.exit(world.key(Role.GATEWAY), 0))] == [Role.GATEWAY]


@pytest.mark.parametrize("role", [Role.WORKER, Role.GATEWAY])
def test_a_crash_loop_ends_the_server_with_a_non_zero_status(role: Role) -> None:
    world = World().serve()
    for _ in range(5):
        world.crash(role)
        world.wait(8.0)
    assert "5 times" in world.notes()
    finish_drain(world)
    assert world.effects[-1] == Done(1)


def crash_loop(world: World) -> list[Effect]:
    effects: list[Effect] = []
    for _ in range(5):
        effects = world.crash(Role.SCHEDULER) + world.wait(8.0)
    return effects


def test_a_scheduler_in_a_crash_loop_gives_way_to_the_one_that_worked_before() -> None:
    world = World(CHUNKED).serve()
    swap(world, MUXWISE)
    swap(world, OTHER)
    assert [e.choice for e in of(Start, crash_loop(world))] == [MUXWISE]
    assert [e.choice for e in of(Start, crash_loop(world))] == [CHUNKED]
    crash_loop(world)
    finish_drain(world)
    assert world.effects[-1] == Done(1)


def test_a_first_scheduler_in_a_crash_loop_gives_way_to_the_fallback() -> None:
    world = World(MUXWISE)
    world.report(world.key(Role.WORKER), Ready({}))
    assert [e.choice for e in of(Start, crash_loop(world))] == [CHUNKED]


def test_a_scheduler_that_was_fenced_by_a_stranger_is_not_restarted() -> None:
    world = World().serve()
    key = world.key(Role.SCHEDULER)
    world.report(key, Stopped("fenced by epoch 7", fenced=True))
    assert of(Start, world.exit(key, 0) + world.wait(600.0)) == []
    assert not world.supervisor.draining


# --- swap ---


def swap(world: World, choice: Choice) -> None:
    """A swap in which everybody behaves."""
    old = world.key(Role.SCHEDULER)
    world.on(SwapAsked(1, choice))
    assert of(SwapAnswered, world.report(world.key(Role.SCHEDULER), Ready({})))
    world.report(old, Stopped("fenced", fenced=True))
    world.exit(old, 0)


def test_a_swap_starts_the_new_scheduler_beside_the_old_one_and_signals_nobody() -> None:
    world = World().serve()
    world.now = 10.0
    old = world.key(Role.SCHEDULER)
    started = of(Start, world.on(SwapAsked(9, OTHER)))
    assert [(e.role, e.choice) for e in started] == [(Role.SCHEDULER, OTHER)]
    new = world.key(Role.SCHEDULER)
    world.now = 10.5
    assert world.report(new, Ready({})) == [SwapAnswered(9, new, 0.5)]
    world.report(old, Stopped("fenced", fenced=True))
    assert world.exit(old, 0) == []
    assert of(Start, world.wait(600.0)) == []
    assert of(Signal, world.effects) == []


def test_the_old_scheduler_may_leave_before_the_new_one_says_that_it_acts() -> None:
    world = World().serve()
    old = world.key(Role.SCHEDULER)
    world.on(SwapAsked(1, OTHER))
    world.report(old, Stopped("fenced", fenced=True))
    assert world.exit(old, 0) == []
    new = world.key(Role.SCHEDULER)
    assert of(SwapAnswered, world.report(new, Ready({}))) == [SwapAnswered(1, new)]
    assert of(Start, world.wait(600.0)) == []


def test_a_new_scheduler_that_fails_leaves_the_old_one_untouched_and_says_why() -> None:
    world = World().serve()
    world.on(SwapAsked(1, OTHER))
    new = world.key(Role.SCHEDULER)
    world.report(new, Stopped("unknown option a"))
    assert world.exit(new, EXIT_CONFIG) == [SwapAnswered(1, error="unknown option a")]
    assert of(Start, world.wait(600.0)) == []
    assert of(Signal, world.effects) == []
    assert [s.choice for s in world.supervisor.services if s.choice] == [MUXWISE]


def test_a_new_scheduler_that_dies_without_a_word_is_quoted_by_its_last_line() -> None:
    world = World().serve()
    world.on(SwapAsked(1, OTHER))
    answer = world.exit(world.key(Role.SCHEDULER), 1, "Traceback\n  …\nKeyError: 'x'\n")
    assert answer == [SwapAnswered(1, error="exit status 1: KeyError: 'x'")]


def test_a_new_scheduler_that_fences_the_old_one_and_dies_is_followed_by_the_old_policy() -> None:
    world = World().serve()
    old = world.key(Role.SCHEDULER)
    world.on(SwapAsked(1, OTHER))
    new = world.key(Role.SCHEDULER)
    world.report(old, Stopped("fenced", fenced=True))
    world.exit(old, 0)
    effects = world.exit(new, -signal.SIGSEGV)
    assert of(SwapAnswered, effects) == [SwapAnswered(1, error="killed by SIGSEGV")]
    assert [e.choice for e in of(Start, effects)] == [MUXWISE]


def test_a_new_scheduler_that_never_acts_is_killed_and_the_old_one_stays() -> None:
    world = World().serve()
    world.on(SwapAsked(1, OTHER))
    new = world.key(Role.SCHEDULER)
    assert of(Signal, world.wait(30.0)) == [Signal(new, signal.SIGKILL)]
    answers = of(SwapAnswered, world.exit(new, -signal.SIGKILL))
    assert len(answers) == 1
    assert "within 30 s" in answers[0].error
    assert of(Start, world.wait(600.0)) == []


def test_a_fenced_scheduler_that_hangs_is_killed_and_not_restarted() -> None:
    world = World().serve()
    old = world.key(Role.SCHEDULER)
    world.on(SwapAsked(1, OTHER))
    world.report(world.key(Role.SCHEDULER), Ready({}))
    assert of(Signal, world.wait(10.0)) == [Signal(old, signal.SIGKILL)]
    assert world.exit(old, -signal.SIGKILL) == []


def test_the_old_scheduler_is_not_restarted_while_its_replacement_starts() -> None:
    world = World().serve()
    old = world.key(Role.SCHEDULER)
    world.on(SwapAsked(1, OTHER))
    new = world.key(Role.SCHEDULER)
    assert of(Start, world.exit(old, -signal.SIGKILL) + world.wait(29.0)) == []
    world.report(new, Ready({}))
    assert of(Start, world.wait(600.0)) == []


def test_an_old_scheduler_that_does_not_act_yet_cannot_fence_the_new_one_later() -> None:
    world = World()
    world.report(world.key(Role.WORKER), Ready({}))
    old = world.key(Role.SCHEDULER)
    assert Signal(old, signal.SIGKILL) in world.on(SwapAsked(1, OTHER))


def test_a_scheduler_that_waits_for_its_restart_is_replaced_instead() -> None:
    world = World().serve()
    world.crash(Role.SCHEDULER)
    world.crash(Role.SCHEDULER)  # waits a second now
    started = of(Start, world.on(SwapAsked(1, OTHER)))
    assert [e.choice for e in started] == [OTHER]
    world.report(world.key(Role.SCHEDULER), Ready({}))
    assert of(Start, world.wait(600.0)) == []


def test_only_one_swap_at_a_time_and_none_without_a_worker_or_at_the_end() -> None:
    world = World()
    assert of(SwapAnswered, world.on(SwapAsked(1, OTHER)))[0].error == "the worker is not ready"
    world.serve()
    world.on(SwapAsked(2, OTHER))
    assert of(SwapAnswered, world.on(SwapAsked(3, CHUNKED)))[0].error == (
        "another swap is under way"
    )
    ended = world.on(StopAsked())
    assert of(SwapAnswered, ended) == [SwapAnswered(2, error="the server is ending")]
    assert of(SwapAnswered, world.on(SwapAsked(4, OTHER)))[0].error == "the server is ending"


def test_a_swap_clears_the_record_of_crashes() -> None:
    world = World().serve()
    for _ in range(4):
        world.crash(Role.SCHEDULER)
        world.wait(8.0)
    swap(world, OTHER)
    assert [e.choice for e in of(Start, world.crash(Role.SCHEDULER))] == [OTHER]


# --- the end ---


def test_the_end_goes_from_gateway_to_scheduler_to_worker_and_is_clean() -> None:
    world = World().serve()
    order = []
    effects = world.on(StopAsked())
    while signals := of(Signal, effects):
        assert [e.number for e in signals] == [signal.SIGTERM]
        order.append(world.running[signals[0].key].role)
        effects = world.exit(signals[0].key, 0)
    assert order == [Role.GATEWAY, Role.SCHEDULER, Role.WORKER]
    assert effects == [Done(0)]


def test_a_gateway_that_does_not_finish_its_streams_in_time_is_killed() -> None:
    world = World().serve()
    gateway = world.key(Role.GATEWAY)
    world.on(StopAsked())
    assert of(Signal, world.wait(35.0)) == [Signal(gateway, signal.SIGKILL)]
    world.exit(gateway, -signal.SIGKILL)
    finish_drain(world)
    assert world.effects[-1] == Done(1)


def test_the_second_signal_kills_everything_at_once() -> None:
    world = World().serve()
    world.on(StopAsked())
    killed = of(Signal, world.on(StopAsked()))
    assert {e.key for e in killed if e.number == signal.SIGKILL} == set(world.running)
    for key in list(world.running):
        world.exit(key, -signal.SIGKILL)
    assert world.effects[-1] == Done(1)


def test_a_signal_in_the_middle_of_the_start_kills_what_has_nothing_to_finish() -> None:
    world = World()
    gateway = world.key(Role.GATEWAY)
    world.report(gateway, Ready({}))
    assert of(Signal, world.on(StopAsked())) == [Signal(gateway, signal.SIGTERM)]
    effects = world.exit(gateway, 0)
    while world.running:
        (ended,) = of(Signal, effects)
        assert ended.number == signal.SIGKILL
        effects = world.exit(ended.key, -signal.SIGKILL)
    assert effects == [Done(0)]


def test_nothing_is_restarted_once_the_end_has_begun() -> None:
    world = World().serve()
    world.crash(Role.WORKER)
    world.crash(Role.WORKER)  # its restart is due in a second
    world.on(StopAsked())
    world.crash(Role.SCHEDULER)
    assert of(Start, world.wait(30.0)) == []


def test_both_schedulers_are_ended_when_the_signal_comes_during_a_swap() -> None:
    world = World().serve()
    world.on(SwapAsked(1, OTHER))
    world.on(StopAsked())
    finish_drain(world)
    assert world.effects[-1] == Done(0)


def test_events_of_processes_that_are_gone_have_no_effect() -> None:
    world = World().serve()
    assert world.exit(999, 0) == []
    assert world.report(999, Ready({})) == []
