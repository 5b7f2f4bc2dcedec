"""The Grafana dashboard asks for nothing that the server does not tell."""

from __future__ import annotations

import json
import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from pellucid.core.messages import SchedulerStats
from pellucid.observability.metrics import Metrics

DASHBOARD = json.loads((Path(__file__).parents[2] / "deploy" / "grafana-dashboard.json").read_text())


def test_every_metric_and_label_of_the_dashboard_is_exported() -> None:
    metrics = Metrics("a-model")
    metrics.on_events([], SchedulerStats(num_blocks=1))
    text = metrics.expose("")[0].decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    names = {sample.name for sample in samples}
    queries = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    asked = {name for query in queries for name in re.findall(r"vllm:\w+", query)}
    assert len(asked) > 12
    assert asked - names == set()
    for query in queries:
        for label in re.findall(r"sum by \((\w+)\)", query):
            name = re.findall(r"vllm:\w+", query)[0]
            assert any(label in sample.labels for sample in samples if sample.name == name), (name, label)


def test_the_dashboard_is_what_grafana_imports() -> None:
    assert {"title", "uid", "schemaVersion", "panels", "templating"} <= set(DASHBOARD)
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    for panel in DASHBOARD["panels"]:
        assert panel["title"]
        assert panel["type"] == "timeseries"
        assert {"x", "y", "w", "h"} == set(panel["gridPos"])
