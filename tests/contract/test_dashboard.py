"""The Grafana dashboard asks only for series that the processes serve."""

import json
import re
from pathlib import Path

from prometheus_client import CollectorRegistry

from protocol.activity import Activity, PlanInForce, Sharing
from scheduler.core import CoreConfig, SchedulerCore
from scheduler.estimator.statistics import none_yet
from scheduler.metrics import SchedulerCollector
from tokenizer_service.metrics import Compat, Metrics
from tokenizer_service.worker_state import WorkerState

ROOT = Path(__file__).parents[2]
DASHBOARD = json.loads((ROOT / "deploy" / "grafana" / "dashboards" / "tandem.json").read_text())
EXPRESSIONS = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]


class Told:
    """A link to a worker that has reported."""

    def __init__(self) -> None:
        plan = PlanInForce(seq=1, sharing=Sharing.SHARED, prefill_units=2, decode_units=2)
        activity = Activity(unit="core", units=2, plan=plan)
        self.worker = WorkerState(since=0.0, activity=activity)


def served() -> set[str]:
    """Names of all samples; those that appear with their first value, as families name them."""
    gateway = Metrics("m", [Told()], Compat.NONE)._registry
    scheduler = CollectorRegistry()
    core = SchedulerCore(None, CoreConfig(peer="s", policy="p", version=1))
    scheduler.register(SchedulerCollector(core, none_yet))
    names: set[str] = set()
    for registry in (gateway, scheduler):
        for family in registry.collect():
            ends = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}
            ends["summary"] = ["_sum", "_count"]
            names |= {family.name + end for end in ends.get(family.type, [""])}
    return names


def test_every_series_that_a_panel_asks_for_is_served() -> None:
    asked = {name for text in EXPRESSIONS for name in re.findall(r"tandem_\w+", text)}
    assert asked <= served()


def test_panels_do_not_overlap_and_each_has_a_query() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
        assert panel["targets"]
        assert at["x"] + at["w"] <= 24


def test_its_data_source_is_the_one_that_is_provisioned() -> None:
    folder = ROOT / "deploy" / "grafana" / "provisioning" / "datasources"
    uid = re.search(r"uid: (\w+)", (folder / "prometheus.yml").read_text())[1]
    assert {panel["datasource"]["uid"] for panel in DASHBOARD["panels"]} == {uid}
