"""Every policy on the real worker core over a simulated device, in virtual time."""

import random
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.core import Stage
from tests.simulation.scheduled import (
    H200,
    TWO_CORES,
    System,
    percentile,
    random_requests,
)

POLICIES = ["chunked", "muxwise", "prefill_first", "static", "streams", "temporal"]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("table", [H200, TWO_CORES, H200[:1]], ids=["h200", "2cores", "whole"])
def test_fifty_random_requests_all_finish_with_the_right_tokens(policy, table):
    system = System(table)
    random_requests(system, seed=1, count=50, over_s=1.0, longest=600)
    system.scheduler(0.0, policy)
    system.run()
    system.check_outputs()
    assert system.rejected == []


@pytest.mark.parametrize("policy", POLICIES)
def test_a_pool_that_is_too_small_for_all_slows_down_and_loses_nobody(policy):
    system = System(pages=100, max_num_seqs=8)
    random_requests(system, seed=2, count=40, over_s=0.5, longest=700)
    system.scheduler(0.0, policy)
    system.run()
    system.check_outputs()


@pytest.mark.parametrize("delay_s", [0.0, 0.03])
@pytest.mark.parametrize("policy", POLICIES)
def test_plans_that_arrive_at_once_or_late_do_no_harm(policy, delay_s):
    system = System(delay_s=delay_s)
    random_requests(system, seed=3, count=30, over_s=1.0, longest=700)
    system.scheduler(0.0, policy)
    system.run()
    system.check_outputs()


def test_schedulers_take_over_from_each_other_under_load():
    system = System()
    random_requests(system, seed=4, count=60, over_s=3.0, longest=1000)
    peers = [system.scheduler(0.15 * i, POLICIES[i % len(POLICIES)]) for i in range(20)]
    system.run()
    system.check_outputs()
    *before, last = peers
    assert all(system.exits[peer].fenced for peer in before)
    assert last not in system.exits
    assert system.schedulers[last].stage is Stage.ACTING


@given(st.integers(0, 2**32), st.floats(0, 0.05), st.integers(90, 1000), st.integers(1, 24))
@settings(max_examples=10, deadline=None)
def test_whatever_the_load_and_the_delay_all_requests_finish(seed, delay_s, pages, rows):
    system = System(pages=pages, max_num_seqs=rows, delay_s=delay_s)
    random_requests(system, seed, count=20, over_s=0.6, longest=700)
    for index in range(6):
        system.scheduler(0.1 * index, POLICIES[(seed + index) % len(POLICIES)])
    system.run()
    system.check_outputs()


@cache
def steady(policy, *options, tbt_s=0.04):
    """Return the system after 16 long streams with prompts of 4,000 tokens coming all the time."""
    system = System(pages=6000, checked=False)
    for i in range(16):
        system.request(0.0, [10 + i] * 200, max_tokens=120, ignore_eos=True)
    for i in range(12):
        system.request(0.3 + 0.15 * i, [10 + i] * 4000, max_tokens=4, ignore_eos=True)
    system.scheduler(0.0, policy, *options, tbt_s=tbt_s)
    system.run()
    system.check_outputs()
    return system


def test_muxwise_keeps_the_objective_where_prefill_first_misses_it():
    mux, first = steady("muxwise"), steady("prefill_first")
    assert percentile(mux.gaps(), 0.99) <= 0.04
    assert percentile(first.gaps(), 0.99) > 0.08


def test_a_tighter_objective_gives_decode_more_and_prefill_less():
    loose, tight = steady("muxwise"), steady("muxwise", tbt_s=0.012)
    assert percentile(tight.gaps(), 0.5) < percentile(loose.gaps(), 0.5)
    assert percentile(tight.first_tokens(), 0.9) > percentile(loose.first_tokens(), 0.9)


def test_a_smaller_budget_makes_shorter_iterations():
    small, large = (steady("chunked", f"token_budget={budget}") for budget in (128, 1024))
    assert percentile(small.gaps(), 0.99) < percentile(large.gaps(), 0.99)


def test_plans_are_few():
    system = steady("muxwise")
    assert len(system.plans) < 6 * len(system.clients)


@cache
def mixed(policy, *options):
    """Return the system after long and short prompts, half and half, as they happen to come."""
    system = System(pages=12_000, checked=False)
    rng = random.Random(5)
    for i in range(60):
        prompt = [10 + i] * (rng.randint(14_000, 19_000) if i % 2 else rng.randint(100, 400))
        system.request(rng.uniform(0, 16), prompt, max_tokens=20, ignore_eos=True)
    system.scheduler(0.0, policy, *options, ttft_s=8.0)
    system.run()
    system.check_outputs()
    return system


def ttft_per_token(system):
    clients = system.clients.values()
    return sorted((c.times[0] - c.arrival) / (len(c.submit.token_ids) // 4) for c in clients)


def test_preemption_speeds_up_short_prompts_and_no_long_one_misses_its_objective():
    preempting, patient = mixed("muxwise"), mixed("muxwise", "preempt=false")
    tails = [percentile(ttft_per_token(system), 0.99) for system in (preempting, patient)]
    assert tails[1] >= 1.5 * tails[0]
    for ref, client in preempting.clients.items():
        before = patient.clients[ref]
        kept = before.times[0] - before.arrival <= 8.0
        assert client.times[0] - client.arrival <= 8.0 or not kept


@pytest.mark.parametrize(
    ("policy", "never"), [("drift", "ttft_ms_per_token=0"), ("muxwise", "preempt=false")]
)
def test_a_short_prompt_overtakes_a_long_one_and_both_finish(policy, never):
    def first_token_of_the_short_one(*options):
        system = System(pages=2000, checked=False)
        system.request(0.0, [10] * 15_000, max_tokens=4)
        short = system.request(0.05, [20] * 100, max_tokens=4)
        system.scheduler(0.0, policy, *options, ttft_s=10.0)
        system.run()
        system.check_outputs()
        return system.clients[short].times[0]

    assert first_token_of_the_short_one() < 0.5 * first_token_of_the_short_one(never)


@pytest.mark.parametrize(
    "options",
    [
        ("muxwise", "layer_wise=false"),
        ("drift", "block_wise=false"),
        ("drift", "groups=3"),
        ("drift", "groups=5"),
        ("drift", "tbt=false"),
    ],
    ids=" ".join,
)
def test_ablations_finish_everything_too(options):
    system = System()
    random_requests(system, seed=6, count=30, over_s=0.5, longest=600)
    system.scheduler(0.0, *options)
    system.run()
    system.check_outputs()
