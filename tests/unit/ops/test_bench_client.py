"""Over real HTTP, against scripted token times: what is written down is what happened."""

import asyncio
from typing import Any

import pytest

from ops.bench.client import Generator, Heartbeat, session
from ops.bench.metrics import Limits, Outcome, Spread, summarize
from ops.bench.prompts import Prompts, Vocabulary, bodies
from ops.bench.workloads import Item
from tests.unit.ops.scripted import Exchange, ScriptedServer, ScriptedTime

PROMPTS = Prompts("0", Vocabulary(10, 90))


async def played(
    items: list[Item], times: list[float], *steps: tuple[Any, ...], drain_s: float = 60.0
) -> tuple[list[Outcome], list[Exchange]]:
    """Run a generator against a script and return its outcomes and what the server was asked."""
    clock = ScriptedTime()
    server = ScriptedServer(clock, [Exchange() for _ in items])
    async with server.running(), session() as opened, asyncio.timeout(60):
        generator = Generator(server.url, opened, clock, clock.sleep, lambda outcome: None)
        ready = bodies("scripted", items, PROMPTS)
        running = asyncio.create_task(generator.run(items, ready, times, drain_s))
        await server.play(*steps)
        return await running, server.exchanges


async def test_every_figure_of_a_run_equals_its_definition():
    outcomes, _ = await played(
        [Item(100, 4), Item(50, 2), Item(10, 9)],
        [1.0, 2.0, 2.5],
        (1.0, "arrive", 0),
        (2.0, "arrive", 1),
        (2.25, "piece", 0, "a"),
        (2.5, "arrive", 2),
        (2.75, "piece", 0, "b"),
        (2.875, "refuse", 2, 503),
        (3.0, "piece", 1, "c"),
        (3.25, "piece", 0, "d"),
        (3.5, "piece", 1, "e"),
        (3.5, "finish", 1, 2, 25),
        (3.5, "end", 1),
        (5.25, "piece", 0, "f"),
        (5.25, "finish", 0, 4),
        (6.0, "end", 0),
    )
    limits = Limits(tbt_s=0.5, ttft_s=1.0, ttft_per_token_s=0.0, gap_share=1.0)
    found = summarize(outcomes, limits, ())
    assert [o.chunks for o in outcomes] == [(2.25, 2.75, 3.25, 5.25), (3.0, 3.5), ()]
    assert [o.ttft for o in outcomes[:2]] == [1.25, 1.0]
    assert found.ttft == Spread(1.125, 1.0, 1.25, 1.25, 1.25, 2)
    assert found.tbt == Spread(0.875, 0.5, 2.0, 2.0, 2.0, 4)
    assert found.tpot == Spread(0.75, 0.5, 1.0, 1.0, 1.0, 2)
    assert found.e2e == Spread(2.875, 1.5, 4.25, 4.25, 4.25, 2)
    assert found.slo_attainment == pytest.approx(1 / 3)
    assert found.duration == 5.0
    assert found.goodput_rps == 0.2
    assert (found.finished, found.rejected, found.failed, found.unfinished) == (2, 1, 0, 0)
    assert found.scheduled_rps == found.offered_rps == pytest.approx(2 / 1.5)
    assert found.lateness.max == 0.0
    assert found.output_tokens_per_s == 6 / 5
    assert found.cached_share == pytest.approx(25 / 150)


async def test_a_request_that_is_sent_late_keeps_its_scheduled_time():
    outcomes, _ = await played(
        [Item(5, 1)],
        [1.0],
        (4.0, "arrive", 0),
        (5.0, "piece", 0, "x"),
        (5.0, "finish", 0, 1),
        (5.0, "end", 0),
    )
    assert (outcomes[0].scheduled, outcomes[0].sent, outcomes[0].ttft) == (1.0, 4.0, 4.0)


async def test_load_is_open_a_server_that_does_not_answer_is_sent_the_next_request():
    outcomes, exchanges = await played(
        [Item(3, 1), Item(4, 1)],
        [0.5, 1.5],
        (0.5, "arrive", 0),
        (1.5, "arrive", 1),
        (31.0, "silence", 1),
        (31.5, "silence", 1),
        drain_s=30.0,
    )
    assert [o.ended for o in outcomes] == [31.5, 31.5]
    assert [len(e.body["prompt"]) for e in exchanges] == [3, 4]
    assert [o.status for o in outcomes] == ["unfinished", "unfinished"]


async def test_what_is_sent_is_the_workload():
    item = Item(30, 8, shared=10)
    _, exchanges = await played([item], [0.5], (0.5, "arrive", 0), (0.5, "refuse", 0, 400))
    asked = exchanges[0].body
    assert asked["prompt"] == PROMPTS.tokens(item, 0)
    assert (asked["max_tokens"], asked["ignore_eos"], asked["model"]) == (8, True, "scripted")


async def test_a_refusal_is_kept_with_what_the_server_said():
    outcomes, _ = await played([Item(3, 1)], [0.5], (0.5, "arrive", 0), (1.0, "refuse", 0, 429))
    assert outcomes[0].status == "rejected"
    assert outcomes[0].detail == "429: queue is full"


async def test_an_error_in_the_stream_is_a_failure_and_its_tokens_are_kept():
    outcomes, _ = await played(
        [Item(3, 2)],
        [0.5],
        (0.5, "arrive", 0),
        (1.0, "piece", 0, "x"),
        (2.0, "fail", 0, "worker gone"),
        (2.0, "end", 0),
    )
    assert outcomes[0].status == "failed"
    assert "worker gone" in outcomes[0].detail
    assert outcomes[0].chunks == (1.0,)


async def test_a_stream_that_ends_without_a_reason_is_unfinished():
    outcomes, _ = await played(
        [Item(3, 2)],
        [0.5],
        (0.5, "arrive", 0),
        (1.0, "piece", 0, "x"),
        (2.0, "end", 0),
    )
    assert outcomes[0].status == "unfinished"


async def test_without_a_count_from_the_server_pieces_are_tokens():
    outcomes, _ = await played(
        [Item(3, 2)],
        [0.5],
        (0.5, "arrive", 0),
        (1.0, "piece", 0, "x"),
        (1.5, "piece", 0, "y"),
        (2.0, "end", 0),
    )
    assert outcomes[0].output_tokens == 2


async def test_a_server_that_is_not_there_fails_requests_and_not_the_run():
    async with session() as opened:
        clock = asyncio.get_running_loop().time
        generator = Generator("http://127.0.0.1:1", opened, clock, asyncio.sleep, print)
        (outcome,) = await generator.run([Item(1, 1)], [b"{}"], [0.0], 30.0)
    assert outcome.status == "failed"
    assert "Connect" in outcome.detail


async def test_a_blocked_event_loop_shows_in_the_heartbeat():
    heart = Heartbeat(0.001)
    loop = asyncio.get_running_loop()
    # What a list grows by has no event to wait for.
    async with heart.beating():
        while not heart.lags:  # noqa: ASYNC110
            await asyncio.sleep(0)
        until = loop.time() + 0.05
        while loop.time() < until:
            pass
        beats = len(heart.lags)
        while len(heart.lags) == beats:  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert max(heart.lags) >= 0.04
