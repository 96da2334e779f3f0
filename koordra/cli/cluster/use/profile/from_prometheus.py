"""Profiles of what a Prometheus has kept of a pod: longer than a plugin keeps it, and from the same sampler;
processors and host memory from the kubelet's own series.

Each series is asked for with a step of a MOST_STEPS-th of the pod's life, at least STEP: so peaks that were
shorter are not seen, which the plugin's own profile has.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from typing import Final

from koordra.cli.cluster.use.prometheus import Prometheus
from koordra.profiles.profile import PodProfile
from koordra.profiles.series import Series
from koordra.profiles.summary import Summary

STEP: Final = 15.0
MOST_STEPS: Final = 2000
"""Prometheus gives 11,000 at most."""
_GPU: Final = "UUID, GPU_I_ID"
_BUSY: Final = "max by ({gpu}) (koordra_gpu_busy_ratio)"
_HELD: Final = "max by ({gpu}) (koordra_container_gpu_processes{{{pod}}})"
_RATE: Final = "sum(rate(koordra_nic_{way}_bytes_total{{{{{{pod}}}}}}[{{window}}]))"
QUERIES: Final[Mapping[Series, tuple[str, float]]] = {
    Series.GPU: (f"sum({_BUSY} and on ({{gpu}}) {_HELD})", 1000),
    Series.SM: (
        "clamp_max(max(sum by ({gpu}) (rate(koordra_container_gpu_seconds_total{{{pod}}}[{window}]))), 1)",
        1000,
    ),
    Series.GPU_MEMORY: ("max(sum by ({gpu}) (koordra_container_gpu_memory_bytes{{{pod}}}))", 1),
    Series.CPU: ('sum(rate(container_cpu_usage_seconds_total{{{pod}, container!=""}}[{window}]))', 1000),
    Series.MEMORY: ('sum(container_memory_working_set_bytes{{{pod}, container!=""}})', 1),
    Series.RDMA: (f"{_RATE.format(way='received')} + {_RATE.format(way='transmitted')}", 1),
}
"""A query, and how many of the series' units its own unit is."""


def from_prometheus(server: Prometheus, pod: PodProfile) -> PodProfile:
    """The pod's profile from `began` until `until`, by what the server has. Raises ApiError."""
    life = max(pod.until - pod.began, 1)
    step = max(STEP, float(-(-life // MOST_STEPS)))
    window = f"{max(round(4 * step), 60)}s"
    matched = f'namespace="{_text(pod.namespace)}", pod="{_text(pod.pod)}"'
    found = defaultdict[Series, Summary](Summary)
    for series, (query, scale) in QUERIES.items():
        asked = query.format(pod=matched, gpu=_GPU, window=window)
        for _, values in server.query_range(asked, since=pod.began + step, until=pod.until, step=step):
            found[series].resolution = series.resolution
            for at, value in values:
                if math.isfinite(value):
                    found[series].add(round(at * 1000), round(step * 1000), round(value * scale))
    summaries = {series: found[series] for series in Series if series in found and found[series].cells}
    return PodProfile(pod.namespace, pod.pod, pod.uid, pod.node, pod.began, pod.until, summaries, pod.card)


def _text(word: str) -> str:
    """Within quotes of PromQL."""
    return word.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
