"""Samples of a worker: rates from counters, shares of the device, decisions without repetitions."""

from typing import Any

import pytest
from msgspec.structs import replace

from protocol.activity import Activity, LaneActivity, PlanInForce, Sharing
from protocol.data_link import Load
from tokenizer_service.history import DECISIONS, KEPT_S, PERIOD_S, History
from tokenizer_service.latencies import Latencies
from tokenizer_service.worker_state import WorkerState

PLAN = PlanInForce(seq=1, sharing=Sharing.DISJOINT, prefill_units=12, decode_units=4, reason="why")


class Told:
    """A worker that says what a test lets it say, looked at once a period."""

    def __init__(self) -> None:
        self.worker = WorkerState(since=0.0, boot="one")
        self.recent = Latencies()
        self.history = History(lambda: self.worker, self.recent)
        self.now = 0.0

    def say(self, **fields: Any) -> None:
        known = {"unit": "SM", "units": 16, "plan": PLAN}
        self.worker.activity = Activity(**(known | fields))

    def take(self):
        self.now += PERIOD_S
        return self.history.take(self.now, 1000.0 + self.now, None)


def test_before_the_worker_has_spoken_a_sample_is_empty_and_says_why():
    told = Told()
    sample = told.history.take(1.0, 2.0, "no worker")
    assert (sample.not_ready, sample.plan, sample.prefill.units) == ("no worker", 0, 0)
    assert not told.history.decisions


def test_rates_and_shares_are_of_the_time_between_the_samples():
    told = Told()
    told.say()
    told.take()
    told.say(
        prefill=LaneActivity(units=12, busy_s=0.125, tokens=500),
        decode=LaneActivity(units=4, busy_s=0.25, tokens=10),
        both_s=0.125,
    )
    sample = told.take()
    assert (sample.prefill.units, sample.decode.units) == (12, 4)
    assert sample.prefill.busy == pytest.approx(0.5)
    assert sample.decode.busy == pytest.approx(1.0)
    assert sample.both_busy == pytest.approx(0.5)
    assert sample.prefill.tokens_per_s == pytest.approx(2000)
    assert sample.decode.tokens_per_s == pytest.approx(40)


def test_a_launch_longer_than_the_span_does_not_take_more_than_all_of_the_time():
    told = Told()
    told.say()
    told.take()
    told.say(prefill=LaneActivity(units=12, busy_s=9.0))
    assert told.take().prefill.busy == 1.0


def test_another_boots_counters_are_not_compared_with_the_last_ones():
    told = Told()
    told.say(decode=LaneActivity(tokens=1000))
    told.take()
    told.worker.boot = "two"
    told.say(decode=LaneActivity(tokens=5000))
    assert told.take().decode.tokens_per_s == 0.0


def test_queue_pool_and_latencies_are_in_the_sample():
    told = Told()
    told.worker.load = Load(
        queued=2, running=3, pages_total=10, pages_referenced=4, pages_cached=1, scheduler="s"
    )
    told.recent.ttft.observe(0.5, 1.0, 0.1)
    told.recent.tbt.observe(0.02, 0.01, 0.1)
    sample = told.take()
    assert (sample.queued, sample.running, sample.scheduler) == (2, 3, "s")
    assert (sample.pages_total, sample.pages_referenced, sample.pages_cached) == (10, 4, 1)
    assert (sample.ttft.within, sample.tbt.within) == (1, 0)


def test_decisions_are_kept_once_each_and_also_when_another_scheduler_begins_to_count():
    told = Told()
    seqs = [(1, "a"), (1, "a"), (2, "a"), (1, "b"), (0, "b")]
    for seq, scheduler in seqs:
        told.worker.load = Load(scheduler=scheduler)
        told.say(plan=replace(PLAN, seq=seq))
        told.take()
    kept = [(decided.plan.seq, decided.scheduler) for decided in told.history.decisions]
    assert kept == [(1, "a"), (2, "a"), (1, "b")]


def test_what_is_kept_is_bounded():
    told = Told()
    for seq in range(1, 1000):
        told.say(plan=replace(PLAN, seq=seq))
        told.take()
    assert len(told.history.samples) == KEPT_S / PERIOD_S
    assert len(told.history.decisions) == DECISIONS
