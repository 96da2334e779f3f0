"""What the node says of its limiters: figures of every claim, and whether a claim's limiter enforces."""

from __future__ import annotations

import struct
import time
from pathlib import Path

from koordra.kubelet_plugin.isolation.limiter import region
from koordra.kubelet_plugin.isolation.limiter.report import LimiterMetrics, enforces, read_all, verdicts
from koordra.metrics import Metrics
from koordra.node_state.claim_ref import ClaimRef
from koordra.node_state.granted_claims import GrantedContainers
from koordra.nri.hook.ledger import Granted, GrantedDevice, Ledger
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
    figures = {**of_claim, "UUID": UUID}
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


def test_device_time_has_figures_where_it_is_limited(tmp_path: Path) -> None:
    for name, share in (("a", region.TimeShare(3000)), ("b", None)):
        region.allow(tmp_path / name, claim=name, uuid=UUID, limit=GIB, cores=30, time=share)
        counted(tmp_path / name, region.PACES + 8, 2 * 10**9)
        counted(tmp_path / name, region.PACES + 48, 5 * 10**8)
    metrics = Metrics()
    read = read_all(tmp_path)
    LimiterMetrics(metrics).observe(read, verdicts(read).values())
    figures = {"namespace": "", "claim": "a", "pod": "", "container": "", "UUID": UUID}
    assert sample(metrics, "koordra_limiter_device_time_ratio", figures) == 0.3
    assert sample(metrics, "koordra_limiter_device_seconds_total", figures) == 2
    assert sample(metrics, "koordra_limiter_launch_wait_seconds_total", figures) == 0.5
    for name in ("device_time_ratio", "device_seconds_total", "launch_wait_seconds_total"):
        assert f'koordra_limiter_{name}{{claim="b"' not in metrics.text()


def test_a_limiter_that_turned_a_process_away_does_not_enforce(tmp_path: Path) -> None:
    assert enforces(tmp_path, "a") is None
    region.allow(tmp_path / "a", claim="a", uuid=UUID, limit=GIB)
    assert enforces(tmp_path, "a") is None
    counted(tmp_path / "a", ENFORCING_AT, 1)
    assert enforces(tmp_path, "a") is True
    refused(tmp_path / "a")
    assert enforces(tmp_path, "a") is False


def test_figures_carry_the_names_of_claim_pod_and_container(tmp_path: Path) -> None:
    """Several containers of a claim are told by what they have in common: the limit is theirs together."""
    uids = [f"{digit}0000000-0000-0000-0000-000000000000" for digit in "abcd"]
    claims = tmp_path / "claims"
    for uid in uids:
        region.allow(claims / uid, claim=uid, uuid=UUID, limit=GIB)
    ledger = Ledger(tmp_path)
    held = {"c1": (uids[0], "p", "train"), "c2": (uids[1], "p", "a"), "c3": (uids[1], "p", "b")}
    held |= {"c4": (uids[2], "p", "a"), "c5": (uids[2], "q", "a")}
    for container_id, (uid, pod, name) in held.items():
        device = GrantedDevice("team", "claim", uid, "gpu-0", "gpu", None)
        ledger.add(container_id, Granted("", (), frozenset(), (device,), container=("team", pod, name)))
    metrics, containers = Metrics(), GrantedContainers(tmp_path)
    report = LimiterMetrics(
        metrics,
        ref_of=lambda uid: None if uid == uids[3] else ClaimRef("team", f"claim-{uid[0]}", uid),
        containers=containers.of_claims,
    )
    read = read_all(claims)
    report.observe(read, verdicts(read).values())

    def limit(namespace: str, claim: str, pod: str, container: str) -> float | None:
        labels = {"namespace": namespace, "claim": claim, "pod": pod, "container": container, "UUID": UUID}
        return sample(metrics, "koordra_limiter_limit_bytes", labels)

    named = {"namespace": "team", "claim": "claim-a", "pod": "p", "container": "train"}
    for figure in ("limit", "used", "peak", "unseen", "context"):
        assert sample(metrics, f"koordra_limiter_{figure}_bytes", {**named, "UUID": UUID}) is not None, figure
    assert sample(metrics, "koordra_limiter_denied_requests_total", {**named, "UUID": UUID}) == 0
    assert sample(metrics, "koordra_limiter_turned_away_processes_total", named) == 0
    assert limit("team", "claim-a", "p", "train") == GIB
    assert limit("team", "claim-b", "p", "") == GIB
    assert limit("team", "claim-c", "", "") == GIB
    assert limit("", uids[3], "", "") == GIB, "a claim whose name is not known"
    ledger.remove("c3")
    report.observe(read, verdicts(read).values())
    assert limit("team", "claim-b", "p", "a") == GIB
    assert limit("team", "claim-b", "p", "") is None
    assert Ledger(tmp_path).get("c1") == ledger.get("c1"), "the names outlive the hook"


def test_the_peak_stays_while_the_claim_does(tmp_path: Path) -> None:
    claims, metrics = tmp_path / "claims", Metrics()
    report = LimiterMetrics(metrics)
    figures = {"namespace": "", "claim": "a", "pod": "", "container": "", "UUID": UUID}

    def peak(unseen: int) -> float | None:
        region.allow(claims / "a", claim="a", uuid=UUID, limit=GIB)
        region.write_unaccounted(claims / "a", UUID, unseen)
        report.observe(read_all(claims), ())
        return sample(metrics, "koordra_limiter_peak_bytes", figures)

    assert [peak(5), peak(9), peak(2)] == [5, 9, 9]
    report.observe({}, ())
    assert sample(metrics, "koordra_limiter_peak_bytes", figures) is None
    assert peak(3) == 3
