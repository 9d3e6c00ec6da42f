"""What Prometheus reads of a scheduler: the truth at the moment of the scrape, over plain HTTP."""

import asyncio

import pytest
from prometheus_client.parser import text_string_to_metric_families

from protocol.ids import Epoch
from scheduler.core import CoreConfig, SchedulerCore, Stage
from scheduler.estimator.statistics import Errors, GuardErrors, LaneErrors
from scheduler.metrics import LONGEST_HEAD, MetricsServer, SchedulerCollector

ERRORS = Errors(LaneErrors(count=4, mean=0.1), LaneErrors(count=9, mean=0.2), GuardErrors(10, 3))


class NoPolicy:
    def plan(self, view, now):
        return None


def collector(errors: Errors | None = ERRORS) -> SchedulerCollector:
    core = SchedulerCore(NoPolicy(), CoreConfig(peer="s", policy="muxwise", version=1))
    core.stage, core.epoch, core.seq = Stage.ACTING, Epoch("boot", 3), 41
    made = SchedulerCollector(core, lambda: errors)
    made.events, made.busy_s = 100, 0.05
    return made


async def ask(port: int, head: bytes = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n") -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head)
    answer = await reader.read()
    writer.close()
    return answer


@pytest.fixture
async def server():
    made = MetricsServer(collector())
    made.port = await made.open("127.0.0.1", 0)
    yield made
    made.close()


async def test_every_series_is_there_with_its_value(server: MetricsServer):
    head, _, body = (await ask(server.port)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert f"Content-Length: {len(body)}".encode() in head
    read = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }
    assert read["tandem_scheduler_acting", "muxwise"] == 1
    assert read["tandem_scheduler_epoch", "muxwise"] == 3
    assert read["tandem_scheduler_decisions_total", "muxwise"] == 41
    assert read["tandem_scheduler_event_seconds_count", "muxwise"] == 100
    assert read["tandem_estimator_predictions_total", "decode"] == 9
    assert read["tandem_estimator_error_ratio", "prefill"] == pytest.approx(0.1)
    assert read["tandem_estimator_guard_total", "true"] == 3
    assert read["tandem_estimator_guard_total", "false"] == 7


def test_without_a_profile_there_are_no_predictions_to_tell_of():
    names = [family.name for family in collector(None).collect()]
    assert not [name for name in names if "estimator" in name]


async def test_what_is_no_get_is_refused_and_what_is_too_long_is_dropped(server: MetricsServer):
    assert (await ask(server.port, b"POST / HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 405")
    assert await ask(server.port, b"G" * (2 * LONGEST_HEAD)) == b""


async def test_the_next_scheduler_may_listen_before_the_last_one_has_gone(server: MetricsServer):
    following = MetricsServer(collector())
    assert await following.open("127.0.0.1", server.port) == server.port
    server.close()
    assert b"tandem_scheduler_acting" in await ask(server.port)
    following.close()
