"""The present value of one sample, read as Prometheus reads it."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

from koordra.metrics import Metrics


def sample(metrics: Metrics, name: str, labels: Mapping[str, str] | None = None) -> float | None:
    """`name`: a counter's with `_total`. None where there is no such sample."""
    found: dict[tuple[str, frozenset[tuple[str, str]]], float] = {
        (one.name, frozenset(one.labels.items())): one.value
        for family in text_string_to_metric_families(metrics.text())
        for one in family.samples
    }
    return found.get((name, frozenset((labels or {}).items())))
