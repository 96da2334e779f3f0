"""What the node says of its limiters: figures of every claim, and whether a claim's limiter enforces."""

from __future__ import annotations

import struct
import time
from pathlib import Path

from koordra.kubelet_plugin.isolation.limiter import region
from koordra.kubelet_plugin.isolation.limiter.report import LimiterMetrics, enforces, read_all, verdicts
from koordra.metrics import Metrics
from tests.fakes.metric_samples import sample

GIB = 1 << 30
UUID = "GPU-01020304-0506-0708-090a-0b0c0d0e0f10"
ENFORCING_AT, TURNED_AWAY_AT, REFUSED_AT = 24, 32, 56


def counted(folder: Path, at: int, value: int) -> None:
    """As the limiter of a process does it."""
    with (folder / "usage").open("r+b") as file:
        file.seek(at)
        file.write(struct.pack("=Q", value))


def refused(folder: Path) -> None:
    """A process was, now."""
    counted(folder, TURNED_AWAY_AT, 1)
    counted(folder, REFUSED_AT, time.monotonic_ns())


def test_every_claim_has_its_figures_until_it_is_gone(tmp_path: Path) -> None:
    claims = tmp_path / "claims"
    region.allow(claims / "a", claim="a", uuid=UUID, limit=GIB)
    region.allow(claims / "b", claim="b", uuid=UUID, limit=None)
    region.write_unaccounted(claims / "a", UUID, 5)
    counted(claims / "a", TURNED_AWAY_AT, 3)
    metrics = Metrics()
    report = LimiterMetrics(metrics)
    read = read_all(claims)
    report.observe(read, verdicts(read).values())
    text = metrics.text()
    of_claim = {"namespace": "", "claim": "a", "pod": "", "container": ""}
    figures = {**of_claim, "uuid": UUID}
    assert sample(metrics, "koordra_limiter_used_bytes", figures) == 5
    assert sample(metrics, "koordra_limiter_limit_bytes", figures) == GIB
    assert sample(metrics, "koordra_limiter_turned_away_processes_total", of_claim) == 3
    assert 'koordra_limiter_limit_bytes{claim="b"' not in text
    assert 'koordra_limiter_claims{state="waiting"} 2.0' in text
    (claims / "a" / "policy").unlink()
    read = read_all(claims)
    report.observe(read, verdicts(read).values())
    text = metrics.text()
    assert 'claim="a"' not in text
    assert 'koordra_limiter_claims{state="waiting"} 1.0' in text


def test_metrics_name_a_claim_by_its_uid_alone(tmp_path: Path) -> None:
    """Every pod of the cluster reaches them."""
    uid = "0c1a0001-7d1e-4c5a-9b9f-2f6a5c3d4e5f"
    region.allow(tmp_path / uid, claim="team-a/secret-project", uuid=UUID, limit=GIB)
    metrics, read = Metrics(), read_all(tmp_path)
    LimiterMetrics(metrics).observe(read, verdicts(read).values())
    assert sample(metrics, "koordra_limiter_limit_bytes", {"claim": uid, "gpu": UUID}) == GIB
    text = metrics.text()
    assert "team-a" not in text
    assert "secret-project" not in text


def test_a_limiter_that_turned_a_process_away_does_not_enforce(tmp_path: Path) -> None:
    assert enforces(tmp_path, "a") is None
    region.allow(tmp_path / "a", claim="a", uuid=UUID, limit=GIB)
    assert enforces(tmp_path, "a") is None
    counted(tmp_path / "a", ENFORCING_AT, 1)
    assert enforces(tmp_path, "a") is True
    refused(tmp_path / "a")
    assert enforces(tmp_path, "a") is False
