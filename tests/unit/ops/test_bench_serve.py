"""The command from settings to files, against a server that answers at once."""

import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from ops.bench import measure as measuring
from ops.bench import serve, serve_demo
from ops.bench.result import load
from ops.bench.serve_settings import BenchSettings, CannotBench, schedule


async def answer(request: web.Request) -> web.StreamResponse:
    """As many pieces as were asked for."""
    asked = await request.json()
    if asked["model"] != "quick":
        return web.Response(status=404, text="no such model")
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for index in range(asked["max_tokens"]):
        last = index == asked["max_tokens"] - 1
        choice = {"text": "x", "finish_reason": "length" if last else None}
        await response.write(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n")
    await response.write(b"data: [DONE]\n\n")
    return response


async def models(request: web.Request) -> web.Response:
    return web.json_response({"data": [{"id": "quick"}]})


@pytest.fixture
async def url() -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_post("/v1/completions", answer)
    app.router.add_get("/v1/models", models)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}/"
    await runner.cleanup()


def quick(url: str | None, **more: object) -> BenchSettings:
    given = {"workload": "loogle", "length_scale": 0.01, "requests": 12, "rate": 500.0}
    return BenchSettings(url=url, **(given | more))


async def test_a_run_writes_down_every_request_as_scheduled(url, tmp_path):
    chosen = quick(url, seed=3)
    result = await measuring.measure(chosen)
    planned = schedule(chosen)
    assert [o.scheduled for o in result.outcomes] == planned.times
    assert [o.input_tokens for o in result.outcomes] == [i.input_tokens for i in planned.items]
    assert [len(o.chunks) for o in result.outcomes] == [i.output_tokens for i in planned.items]
    assert {o.status for o in result.outcomes} == {"finished"}
    assert result.settings["seed"] == 3
    assert result.settings["workload"] == "loogle"


async def test_a_run_that_can_never_work_is_not_begun(url):
    with pytest.raises(CannotBench, match="404: no such model"):
        await measuring.measure(quick(url, model="other"))
    with pytest.raises(CannotBench, match="/v1/models"):
        await measuring.measure(quick("http://127.0.0.1:1"))
    with pytest.raises(CannotBench, match="--url"):
        await measuring.measure(quick(None))
    with pytest.raises(CannotBench, match="--token-low"):
        await measuring.measure(quick(url, token_low=9, token_high=9))


async def test_figures_and_file_are_what_the_command_leaves(url, tmp_path, capsys):
    result = await measuring.measure(quick(url))
    path = tmp_path / "r.json"
    assert serve.finish(result, path, with_report=False) == 0
    assert load(path) == result
    said = capsys.readouterr().out
    assert "12 of 12 finished" in said
    assert str(path) in said


def test_what_is_missing_ends_with_status_2_and_says_what(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["tandem bench serve", "--workload", "none.jsonl"])
    with pytest.raises(SystemExit) as ended:
        serve.main()
    assert ended.value.code == 2
    assert "--url" in capsys.readouterr().err


def test_the_demo_is_short_enough_for_its_model_and_shares_prefixes():
    planned = schedule(serve_demo.settings_of(BenchSettings()))
    assert planned.times[-1] < 60
    assert sum(item.output_tokens for item in planned.items) < 1000
    assert max(item.input_tokens for item in planned.items) < 1000
    firsts = [item.blocks[0] for item in planned.items]
    assert len(set(firsts)) < len(firsts) / 2


def test_the_demo_keeps_what_the_user_chose():
    chosen = BenchSettings(demo=True, output="mine/r.json", seed=9, label="mine")
    settings = serve_demo.settings_of(chosen)
    assert (settings.output, settings.seed, settings.label) == ("mine/r.json", 9, "mine")
    assert Path(serve_demo.settings_of(BenchSettings()).output).parent.name == serve_demo.FOLDER
