"""Prometheus series of what workers report of their devices, collected at each scrape.

Totals are the worker's own, since its boot: Prometheus takes a restart for what it is.
"""

from collections.abc import Iterable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from protocol.activity import Activity
from tokenizer_service.worker_link import WorkerLink

LABELS = ("model_name", "engine")
LANE_LABELS = (*LABELS, "lane")


class WorkerCollector(Collector):
    """Devices of all workers. `prefixes` get the series that others have too."""

    def __init__(self, model: str, links: Sequence[WorkerLink], prefixes: Sequence[str]) -> None:
        self._model, self._links, self._prefixes = model, links, prefixes

    def collect(self) -> Iterable[Metric]:
        """Return what was reported last; nothing of a worker that has not spoken."""
        told = [
            ((self._model, str(engine)), link.worker.activity)
            for engine, link in enumerate(self._links)
        ]
        known = [(labels, activity) for labels, activity in told if activity is not None]
        yield from _lanes(known)
        for prefix in self._prefixes:
            preempted = CounterMetricFamily(
                prefix + "num_preemptions", "requests that lost their pages", labels=LABELS
            )
            for labels, activity in known:
                preempted.add_metric(labels, activity.retractions)
            yield preempted


Known = Sequence[tuple[tuple[str, str], Activity]]
"""(labels, what the worker reported)"""


def _lanes(known: Known) -> Iterator[Metric]:
    units = GaugeMetricFamily(
        "tandem_partition_units", "SMs or cores by the plan in force", labels=LANE_LABELS
    )
    busy = CounterMetricFamily("tandem_lane_busy_seconds", "device time", labels=LANE_LABELS)
    launches = CounterMetricFamily("tandem_lane_launches", "completed", labels=LANE_LABELS)
    tokens = CounterMetricFamily(
        "tandem_lane_tokens", "prompt tokens computed, output tokens drawn", labels=LANE_LABELS
    )
    both = CounterMetricFamily(
        "tandem_lanes_both_busy_seconds", "device time of both lanes at once", labels=LABELS
    )
    plan = GaugeMetricFamily("tandem_plan_seq", "number of the plan in force", labels=LABELS)
    for labels, activity in known:
        lanes = {
            "prefill": (activity.prefill, activity.plan.prefill_units),
            "decode": (activity.decode, activity.plan.decode_units),
        }
        for name, (lane, planned) in lanes.items():
            units.add_metric((*labels, name), planned)
            busy.add_metric((*labels, name), lane.busy_s)
            launches.add_metric((*labels, name), lane.launches)
            tokens.add_metric((*labels, name), lane.tokens)
        both.add_metric(labels, activity.both_s)
        plan.add_metric(labels, activity.plan.seq)
    yield from (units, busy, launches, tokens, both, plan)
