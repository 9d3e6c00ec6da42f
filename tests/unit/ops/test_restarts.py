"""Delays of restarts, and when there is no further one."""

from ops.restarts import Crashes, RestartPolicy

POLICY = RestartPolicy(window_s=300.0, limit=5, longest_delay_s=60.0)


def test_the_first_restart_is_immediate_and_the_next_ones_wait_twice_as_long_each() -> None:
    crashes = Crashes(RestartPolicy(window_s=300.0, limit=10, longest_delay_s=60.0))
    assert [crashes.record(float(i)) for i in range(9)] == [0, 1, 2, 4, 8, 16, 32, 60, 60]


def test_five_crashes_within_the_window_are_a_crash_loop() -> None:
    crashes = Crashes(POLICY)
    assert [crashes.record(t) for t in (0.0, 10.0, 20.0, 30.0, 299.0)] == [0, 1, 2, 4, None]


def test_crashes_older_than_the_window_do_not_count() -> None:
    crashes = Crashes(POLICY)
    for t in (0.0, 10.0, 20.0, 30.0):
        crashes.record(t)
    assert crashes.record(311.0) == 2.0  # those at 20 and 30 are left
    assert len(crashes) == 3


def test_another_program_in_the_same_place_starts_with_a_clean_record() -> None:
    crashes = Crashes(POLICY)
    for t in (0.0, 1.0, 2.0, 3.0):
        crashes.record(t)
    crashes.forget()
    assert crashes.record(4.0) == 0.0
