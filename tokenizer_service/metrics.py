"""Prometheus series of a gateway: vLLM's stems under our prefix, and its own names when asked for.

Latencies are what a client sees: from the arrival of its request to the delivery of its tokens.
Queue and pool are what the worker last reported. Nothing is global: one registry a gateway.
"""

from collections.abc import Callable, Sequence
from enum import StrEnum

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from protocol.slo import RequestObjectives
from tokenizer_service.events import Admitted, Broken, Done, News, NewTokens
from tokenizer_service.latencies import Latencies
from tokenizer_service.worker_link import WorkerLink
from tokenizer_service.worker_metrics import LABELS, WorkerCollector
from tokenizer_service.worker_state import WorkerState

LATENCY_S = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.02,
    0.03,
    0.04,
    0.05,
    0.06,
    0.08,
    0.1,
    0.15,
    0.2,
    0.3,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    10.0,
    20.0,
    40.0,
    80.0,
    160.0,
    640.0,
    2560.0,
)
"""From 1 ms: small models have tokens faster than the 10 ms where others begin."""
TOKENS = tuple(float(2**power) for power in range(18))

ENGINE = "0"
"""All outputs of a gateway count as one engine's; gauges tell its workers apart."""


class Compat(StrEnum):
    """Whose names are exposed besides our own."""

    NONE = "none"
    VLLM = "vllm"


class Series:
    """One set of series under one prefix."""

    def __init__(self, prefix: str, registry: CollectorRegistry, model: str) -> None:
        def histogram(name: str, what: str, buckets: Sequence[float]) -> Histogram:
            family = Histogram(prefix + name, what, LABELS, registry=registry, buckets=buckets)
            return family.labels(model, ENGINE)

        def counter(name: str, what: str) -> Counter:
            return Counter(prefix + name, what, LABELS, registry=registry).labels(model, ENGINE)

        self.ttft = histogram("time_to_first_token_seconds", "arrival to first token", LATENCY_S)
        self.tbt = histogram("inter_token_latency_seconds", "token to token", LATENCY_S)
        self.tpot = histogram(
            "request_time_per_output_token_seconds", "mean after the first token", LATENCY_S
        )
        self.e2e = histogram("e2e_request_latency_seconds", "arrival to last token", LATENCY_S)
        self.prompt_size = histogram("request_prompt_tokens", "tokens of a prompt", TOKENS)
        self.output_size = histogram("request_generation_tokens", "tokens of an output", TOKENS)
        self.prompt = counter("prompt_tokens", "prompt tokens of outputs that ended")
        self.cached = counter("prompt_tokens_cached", "those whose KV was reused")
        self.looked_up = counter("prefix_cache_queries", "prompt tokens looked up")
        self.hits = counter("prefix_cache_hits", "those that were found")
        self.output = counter("generation_tokens", "tokens delivered")
        labels = (*LABELS, "finished_reason")
        self._ended = Counter(prefix + "request_success", "ended well", labels, registry=registry)
        self._model = model

    def ended(self, reason: str) -> None:
        """Count an output that ended well."""
        self._ended.labels(self._model, ENGINE, reason).inc()


class Objectives:
    """Counts which latencies kept their objective, for ever and over the last seconds."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.recent = Latencies()
        self._kept = Counter(
            "tandem_slo_attainment",
            "first tokens (ttft) and gaps between tokens (tbt) by whether they kept the objective",
            ["slo", "met"],
            registry=registry,
        )

    def first_token(self, seconds: float, objective_s: float, now: float) -> None:
        """Count a time to first token."""
        self.recent.ttft.observe(seconds, objective_s, now)
        self._count("ttft", seconds <= objective_s)

    def gap(self, seconds: float, objective_s: float, now: float) -> None:
        """Count a time between tokens."""
        self.recent.tbt.observe(seconds, objective_s, now)
        self._count("tbt", seconds <= objective_s)

    def _count(self, slo: str, met: bool) -> None:
        self._kept.labels(slo, str(met).lower()).inc()


class Meter:
    """Measures one output. Times in seconds on the caller's clock."""

    def __init__(
        self,
        metrics: "Metrics",
        arrival: float,
        promised: RequestObjectives,
        prompt_tokens: int,
    ) -> None:
        self._metrics = metrics
        self._arrival = arrival
        self._promised = promised
        self._new_tokens = prompt_tokens
        self._first: float | None = None
        """When the first token came."""
        self._last: float | None = None

    def on(self, news: News, now: float) -> None:
        """Take what is about to be delivered."""
        match news:
            case Admitted(cached_tokens):
                self._new_tokens = max(0, self._new_tokens - cached_tokens)
            case NewTokens(ids):
                self._tokens(len(ids), now)
            case Done():
                for series in self._metrics.series:
                    self._done(series, news, now)
            case Broken(code):
                self._metrics.failures.labels(code.value).inc()

    def _tokens(self, count: int, now: float) -> None:
        objectives = self._metrics.objectives
        first, since = self._last is None, self._arrival if self._last is None else self._last
        self._last = now
        for series in self._metrics.series:
            series.output.inc(count)
            (series.ttft if first else series.tbt).observe(now - since)
        if first:
            self._first = now
            limit = self._promised.ttft_with(self._new_tokens)
            objectives.first_token(now - since, limit, now)
        else:
            objectives.gap(now - since, self._promised.tbt_s, now)

    def _done(self, series: Series, done: Done, now: float) -> None:
        series.e2e.observe(now - self._arrival)
        series.prompt.inc(done.usage.prompt_tokens)
        series.cached.inc(done.usage.cached_tokens)
        series.looked_up.inc(done.usage.prompt_tokens)
        series.hits.inc(done.usage.cached_tokens)
        if self._first is not None and done.usage.output_tokens > 1:
            series.tpot.observe((now - self._first) / (done.usage.output_tokens - 1))
        series.prompt_size.observe(done.usage.prompt_tokens)
        series.output_size.observe(done.usage.output_tokens)
        series.ended(done.reason.value)


class Metrics:
    """All series of one gateway."""

    def __init__(self, model: str, links: Sequence[WorkerLink], compat: Compat) -> None:
        """`model` is the value of the label `model_name`."""
        self._registry = CollectorRegistry()
        prefixes = ["tandem_", "vllm:"] if compat is Compat.VLLM else ["tandem_"]
        self.series = [Series(prefix, self._registry, model) for prefix in prefixes]
        self.objectives = Objectives(self._registry)
        self.failures = Counter(
            "tandem_request_failure", "outputs given up", ["code"], registry=self._registry
        )
        self._responses = Counter(
            "tandem_http_responses", "answers", ["path", "status"], registry=self._registry
        )
        for prefix in prefixes:
            self._add_gauges(prefix, model, links)
        self._registry.register(WorkerCollector(model, links, prefixes))

    def meter(self, arrival: float, promised: RequestObjectives, prompt_tokens: int) -> Meter:
        """Return the meter of an output whose request came at `arrival`."""
        return Meter(self, arrival, promised, prompt_tokens)

    def response(self, path: str, status: int) -> None:
        """Count an answer. `path` is a route, not what the client wrote."""
        self._responses.labels(path, str(status)).inc()

    def text(self) -> bytes:
        """Return all series in Prometheus' text format."""
        return generate_latest(self._registry)

    def _add_gauges(self, prefix: str, model: str, links: Sequence[WorkerLink]) -> None:
        for name, what, read in GAUGES:
            gauge = Gauge(prefix + name, what, LABELS, registry=self._registry)
            for engine, link in enumerate(links):
                gauge.labels(model, str(engine)).set_function(_reader(read, link))


def _kv_usage(worker: WorkerState) -> float:
    total = worker.load.pages_total
    return worker.load.pages_referenced / total if total else 0.0


GAUGES: Sequence[tuple[str, str, Callable[[WorkerState], float]]] = (
    ("num_requests_running", "on the device", lambda worker: worker.load.running),
    ("num_requests_waiting", "in the worker's queue", lambda worker: worker.load.queued),
    ("kv_cache_usage_perc", "share of the KV pool in use, 0 to 1", _kv_usage),
)


def _reader(read: Callable[[WorkerState], float], link: WorkerLink) -> Callable[[], float]:
    return lambda: read(link.worker)
