"""What Prometheus reads of a scheduler, on its own port (`--metrics-port`): its decisions, how
long that took, and how good its predictions were.

Collected when asked for, so that a decision costs nothing more. A plain asyncio server, so that the
process stays one thread; the port is shared (SO_REUSEPORT) with the scheduler that is being
replaced, which answers until it has gone.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from protocol.control_link import Disjoint
from scheduler.core import SchedulerCore, Stage
from scheduler.estimator.statistics import Errors

LONGEST_HEAD = 8192
"""Bytes of a request."""
READ_S = 5.0


class SchedulerCollector(Collector):
    """Series of one core and, where there is one, its estimator."""

    def __init__(self, core: SchedulerCore, errors: Callable[[], Errors | None]) -> None:
        self._core, self._errors = core, errors
        self.events = 0
        """Handled so far."""
        self.busy_s = 0.0
        """Time that took, decisions included."""

    def collect(self) -> Iterable[Metric]:
        """Return what is so now."""
        core = self._core
        policy = core.config.policy
        yield _gauge("acting", "1 while its plans count", policy, core.stage is Stage.ACTING)
        yield _gauge(
            "epoch", "number of its epoch, 0: none", policy, core.epoch.n if core.epoch else 0
        )
        decisions = CounterMetricFamily(
            "tandem_scheduler_decisions", "plans sent in this epoch", labels=["policy"]
        )
        decisions.add_metric([policy], core.seq)
        yield decisions
        spent = SummaryMetricFamily(
            "tandem_scheduler_event_seconds", "time to handle an event", labels=["policy"]
        )
        spent.add_metric([policy], count_value=self.events, sum_value=self.busy_s)
        yield spent
        yield from self._split()
        if (errors := self._errors()) is not None:
            yield from _predictions(errors)

    def _split(self) -> Iterator[Metric]:
        view, standing = self._core.view, self._core.standing
        if view is None or standing is None:
            return
        planned = GaugeMetricFamily(
            "tandem_scheduler_split_units", "SMs or cores by the standing plan", labels=["lane"]
        )
        prefill = decode = view.units
        if isinstance(standing.sharing, Disjoint):
            index = standing.sharing.partition
            partition = next(p for p in view.partitions if p.index == index)
            prefill, decode = partition.prefill_units, partition.decode_units
        planned.add_metric(["prefill"], prefill)
        planned.add_metric(["decode"], decode)
        yield planned


def _gauge(name: str, what: str, policy: str, value: float) -> Metric:
    family = GaugeMetricFamily(f"tandem_scheduler_{name}", what, labels=["policy"])
    family.add_metric([policy], value)
    return family


def _predictions(errors: Errors) -> Iterator[Metric]:
    counts = CounterMetricFamily(
        "tandem_estimator_predictions", "predictions that were compared", labels=["lane"]
    )
    means = GaugeMetricFamily(
        "tandem_estimator_error_ratio", "mean relative error of predictions", labels=["lane"]
    )
    for lane, told in (("prefill", errors.prefill), ("decode", errors.decode)):
        counts.add_metric([lane], told.count)
        means.add_metric([lane], told.mean)
    yield counts
    yield means
    guard = CounterMetricFamily(
        "tandem_estimator_guard",
        "iterations beside a prefill, by the worst case",
        labels=["exceeded"],
    )
    guard.add_metric(["true"], errors.guard.exceeded)
    guard.add_metric(["false"], errors.guard.count - errors.guard.exceeded)
    yield guard


class MetricsServer:
    """GET of anything returns all series. Nothing else is served and nothing is kept open."""

    def __init__(self, collector: SchedulerCollector) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(collector)
        self._server: asyncio.Server | None = None

    async def open(self, host: str, port: int) -> int:
        """Listen; return the port. Raises OSError."""
        self._server = await asyncio.start_server(
            self._serve, host, port, reuse_port=True, limit=LONGEST_HEAD
        )
        return int(self._server.sockets[0].getsockname()[1])

    def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        refused = (asyncio.LimitOverrunError, asyncio.IncompleteReadError, TimeoutError)
        with contextlib.suppress(ConnectionError, *refused):
            async with asyncio.timeout(READ_S):
                head = await reader.readuntil(b"\r\n\r\n")
            writer.write(self._answer(head))
            await writer.drain()
        writer.close()

    def _answer(self, head: bytes) -> bytes:
        if not head.startswith(b"GET "):
            return (
                b"HTTP/1.1 405 Method Not Allowed\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
            )
        body = generate_latest(self._registry)
        return (
            b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
            b"Connection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
        )
