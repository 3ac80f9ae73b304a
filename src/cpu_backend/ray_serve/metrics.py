"""Prometheus texts of several replicas as one."""

from __future__ import annotations

import collections
from collections.abc import Mapping
from dataclasses import dataclass, field

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector, CollectorRegistry

CONTENT_TYPE = CONTENT_TYPE_LATEST


@dataclass
class Counters:
    """What one gateway counts."""

    retried: int = 0
    broken_streams: int = 0
    refused: collections.Counter[int] = field(default_factory=collections.Counter)

    def families(self) -> list[Metric]:
        """As Prometheus metrics."""
        refused = CounterMetricFamily(
            "cpu_backend_gateway_refused",
            "Requests answered with 429 or 503 instead of being queued.",
            labels=["status"],
        )
        for status, count in self.refused.items():
            refused.add_metric([str(status)], count)
        return [
            refused,
            CounterMetricFamily(
                "cpu_backend_gateway_retried", "Attempts lost with a replica.", value=self.retried
            ),
            CounterMetricFamily(
                "cpu_backend_gateway_broken_streams",
                "Streams that ended with an error event because their replica died.",
                value=self.broken_streams,
            ),
        ]


class _Families(Collector):
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        return self._families


def merge(texts: Mapping[str, str], counters: Counters) -> bytes:
    """One text: the samples of every replica get the label ``replica``."""
    merged: dict[str, Metric] = {}
    for replica, text in sorted(texts.items()):
        for family in text_string_to_metric_families(text):
            into = merged.setdefault(
                family.name, Metric(family.name, family.documentation, family.type)
            )
            for sample in family.samples:
                labels = {**sample.labels, "replica": replica}
                into.samples.append(sample._replace(labels=labels))
    registry = CollectorRegistry()
    registry.register(_Families([*merged.values(), *counters.families()]))
    return generate_latest(registry)
