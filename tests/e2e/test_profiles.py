"""Profiles of what Debian's Prometheus has kept, against the load that was scripted."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordra.cli.cluster.use.profile.from_prometheus import from_prometheus
from koordra.cli.cluster.use.prometheus import prometheus as connected
from koordra.profiles.profile import PodProfile
from koordra.profiles.series import Series
from koordra.profiles.summary import ERROR
from tests.e2e import prometheus
from tests.e2e.debian import Unavailable

pytestmark = pytest.mark.e2e

GIB = 1 << 30
HOUR = 3600
STEP = 15
SCRIPT = (
    (1200, 0.2, 4 * GIB, 2.0, 6 * GIB, 10e6),
    (1800, 0.8, 40 * GIB, 8.0, 20 * GIB, 900e6),
    (600, 0.0, GIB, 0.25, GIB, 0.0),
)
"""Seconds; part of the time that kernels run, GPU memory, processors, host memory, bytes a second."""
OF_POD = 'namespace="team",pod="p",container="main"'
ON_CARD = 'UUID="GPU-1",GPU_I_ID=""'


def recorded(start: int) -> Iterator[str]:
    """In the words of OpenMetrics, a family after another."""
    rows = dict[str, list[str]]()
    ran = cpu = moved = 0.0
    at = start
    for seconds, busy, memory, cpus, host, rate in SCRIPT:
        for _ in range(seconds // STEP):
            at += STEP
            ran, cpu, moved = ran + busy * STEP, cpu + cpus * STEP, moved + rate * STEP
            for name, value in (
                (f"koordra_gpu_busy_ratio{{{ON_CARD}}}", busy),
                ('koordra_gpu_busy_ratio{UUID="GPU-2",GPU_I_ID=""}', 1.0),
                (f"koordra_container_gpu_processes{{{OF_POD},{ON_CARD}}}", 1),
                (f"koordra_container_gpu_seconds_total{{{OF_POD},{ON_CARD}}}", ran),
                (f"koordra_container_gpu_memory_bytes{{{OF_POD},{ON_CARD}}}", memory),
                (f"container_cpu_usage_seconds_total{{{OF_POD}}}", cpu),
                ('container_cpu_usage_seconds_total{namespace="team",pod="p",container=""}', 2 * cpu),
                (f"container_memory_working_set_bytes{{{OF_POD}}}", host),
                (f'koordra_nic_received_bytes_total{{{OF_POD},device="nic0",port="1"}}', moved),
                (f'koordra_nic_transmitted_bytes_total{{{OF_POD},device="nic0",port="1"}}', 0),
            ):
                rows.setdefault(name.partition("{")[0], []).append(f"{name} {value} {at}")
    for family, lines in rows.items():
        yield f"# TYPE {family.removesuffix('_total')} {'counter' if family.endswith('_total') else 'gauge'}"
        yield from lines
    yield "# EOF"


def test_a_profile_of_a_prometheus_is_what_was_scripted(tmp_path: Path) -> None:
    try:
        binaries = prometheus.programs()
    except Unavailable as error:
        pytest.skip(f"no Prometheus of Debian's: {error}")
    start = int(time.time()) - 3 * HOUR
    (tmp_path / "recorded").write_text("\n".join(recorded(start)) + "\n")
    made = [binaries / "promtool", "tsdb", "create-blocks-from", "openmetrics", "recorded", "data"]
    subprocess.run(made, cwd=tmp_path, check=True, capture_output=True)
    (tmp_path / "prometheus.yml").write_text("scrape_configs: []\n")
    with prometheus.running(tmp_path, binaries, tmp_path / "prometheus.yml") as running:
        server = connected(None, running.url)  # type: ignore[arg-type]
        assert server is not None
        pod = PodProfile("team", "p", "uid", "n0", start, start + HOUR)
        use = from_prometheus(server, pod).use
        assert from_prometheus(server, PodProfile('te"am\n', "p\\", "u", "n0", start, start + HOUR)).use == {}
    assert set(use) == set(Series)
    for series, column, scale in (
        (Series.GPU, 1, 1000),
        (Series.SM, 1, 1000),
        (Series.GPU_MEMORY, 2, 1),
        (Series.CPU, 3, 1000),
        (Series.MEMORY, 4, 1),
        (Series.RDMA, 5, 1),
    ):
        low, middle, high = sorted(round(phase[column] * scale) for phase in SCRIPT)
        found = use[series]
        near = {"rel": ERROR + 0.01, "abs": series.resolution}
        # Of an hour 600 s, 1200 s and 1800 s, in the order of the values; rates smear a minute at edges.
        assert found.peak == pytest.approx(high, rel=0.01), series
        assert (found.deciles[0], found.deciles[3], found.deciles[6]) == (
            pytest.approx(low, **near),
            pytest.approx(middle, **near),
            pytest.approx(high, **near),
        ), series
        assert found.p99 == pytest.approx(high, **near), series
        assert found.points[1] == pytest.approx(round(SCRIPT[0][column] * scale), rel=0.02), series
        assert found.points[5] == pytest.approx(round(SCRIPT[1][column] * scale), rel=0.02), series
        assert found.points[9] == pytest.approx(round(SCRIPT[2][column] * scale), rel=0.02, abs=1), series
        assert abs(found.seconds - HOUR) <= 2 * STEP, series
