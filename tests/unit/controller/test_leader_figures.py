"""What the leader shows after a pass: capacity, what waits and for how long; and who shows nothing."""

from __future__ import annotations

import random
import threading
from collections import Counter
from datetime import datetime
from typing import Any

import pytest

from koordra.api import names
from koordra.api.kinds import NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from koordra.api.objects import Object
from koordra.controller.reconcile.leader_figures import LeaderFigures
from koordra.controller.reporting import capacity
from koordra.controller.reporting.capacity import MODELS, OTHER, ClusterCapacity
from koordra.controller.reporting.metrics import ControllerMetrics
from koordra.controller.reporting.waiting_groups import REASONS, Waiting, WaitingGroups
from koordra.metrics import Metrics
from koordra.metrics.registry import NodeTables
from tests.fakes.joint_cluster import GI, JointCluster, gpu_slice, node
from tests.fakes.metric_samples import sample

CREATED = "2026-11-21T00:10:00Z"
NOW = datetime.fromisoformat(CREATED).timestamp()


class Shown:
    """A cluster with what its controller shows."""

    def __init__(self, *, nodes: int = 2, node_metrics: bool = True) -> None:
        self.cluster, self.metrics, self.now = JointCluster(nodes=nodes), Metrics(), NOW
        self.instruments = ControllerMetrics(self.metrics)
        self.figures = LeaderFigures(self.metrics, node_metrics=node_metrics, clock=lambda: self.now)
        self.term = threading.Event()

    def settle(self) -> None:
        self.cluster.settle()
        self.cluster.reconciler.count(self.instruments, self.figures, term=self.term)

    def __call__(self, name: str, **labels: str) -> float | None:
        return sample(self.metrics, f"koordra_{name}", labels)

    def devices(self, state: str) -> float | None:
        return self("cluster_devices", type="gpu", model="", state=state)

    def waiting(self, reason: str) -> tuple[float | None, float | None]:
        group, age = "controller_waiting_groups", "controller_waiting_oldest_seconds"
        return self(group, reason=reason), self(age, reason=reason)


def test_capacity_follows_what_is_allocated_and_given_back() -> None:
    shown = Shown()
    shown.settle()
    assert (shown.devices("free"), shown.devices("allocated")) == (4, 0)
    assert shown("cluster_largest_whole_gpus", model="", scope="Node", nic="none") == 2
    shown.cluster.claim("whole", count=2)
    shown.cluster.claim("part", memory="20Gi")
    for name in ("whole", "part"):
        shown.cluster.pod(name, name)
    shown.settle()
    assert (shown.devices("free"), shown.devices("shared"), shown.devices("allocated")) == (1, 1, 2)
    labels = {"type": "gpu", "model": ""}
    assert shown("cluster_gpu_memory_bytes", **labels, state="allocated") == 180 * GI
    assert shown("cluster_gpu_memory_bytes", **labels, state="free") == 140 * GI
    assert shown("cluster_shares", **labels) == 3
    assert shown("cluster_largest_share_ratio", model="") == 1
    assert shown("cluster_largest_whole_gpus", model="", scope="Node", nic="none") == 1
    at = str(shown.cluster.node_of("whole"))
    assert shown("node_devices", node=at, **labels, state="allocated") == 2
    shown.cluster.pod_ends("whole", "whole")
    shown.settle()
    assert shown("node_devices", node=at, **labels, state="allocated") == 0
    assert shown("controller_claims", state="allocated") == 1


def test_what_waits_is_counted_by_its_reason_and_its_age_grows_without_a_pass() -> None:
    shown = Shown(nodes=1)
    for number, created in enumerate(("2026-11-21T00:05:00Z", "2026-11-21T00:09:00Z")):
        shown.cluster.claim(f"c{number}", count=3)
        shown.cluster.pod(f"p{number}", f"c{number}", created=created)
    shown.cluster.claim("no-class", device_class="nobody.example.com")
    shown.cluster.pod("unplanned", "no-class", created=CREATED)
    shown.settle()
    counted = {reason: shown.waiting(reason)[0] for reason in REASONS}
    (word,) = [reason for reason, number in counted.items() if number == 2]
    assert shown.waiting(word) == (2, 300)
    shown.now += 60
    assert shown.waiting(word) == (2, 360)
    shown.cluster.pod_ends("p0", "c0")
    shown.settle()
    assert shown.waiting(word) == (1, 120)
    shown.cluster.api.create(NODES, node("n9"))
    shown.cluster.api.create(RESOURCE_SLICES, gpu_slice("n9", 4))
    shown.settle()
    assert shown.cluster.node_of("c1") == "n9"
    assert shown.waiting(word) == (0, 0)


def test_a_replica_that_does_not_lead_shows_nothing() -> None:
    shown = Shown()
    names = ("cluster_devices", "node_devices", "controller_claims")
    assert not any(f"koordra_{name}{{" in shown.metrics.text() for name in names)
    shown.settle()
    assert all(f"koordra_{name}{{" in shown.metrics.text() for name in names)
    shown.term.set()
    shown.figures.hide()
    shown.settle()
    text = shown.metrics.text()
    assert not any(f"koordra_{name}{{" in text for name in (*names, "controller_waiting_groups"))
    shown.term = threading.Event()
    shown.cluster.start_again()
    shown.settle()
    assert shown.devices("free") == 4, "a later term, with an index of its own"
    assert shown("node_devices", node="n1", type="gpu", model="", state="free") == 2


def test_nodes_have_series_by_choice_and_until_they_are_gone() -> None:
    assert "koordra_node_" not in Shown(node_metrics=False).metrics.text()
    shown = Shown()
    shown.settle()
    shown.cluster.api.delete(NODES, "n1")
    shown.settle()
    text = shown.metrics.text()
    assert 'node="n0"' in text
    assert 'node="n1"' not in text
    assert shown.devices("free") == 2


def test_a_node_that_makes_up_models_has_few_series() -> None:
    shown = Shown(nodes=1)
    made_up = gpu_slice("n1", 200)
    for number, device in enumerate(made_up["spec"]["devices"]):
        device["attributes"]["model"] = {"string": f"model-{number}"}
    shown.cluster.api.create(NODES, node("n1"))
    shown.cluster.api.create(RESOURCE_SLICES, made_up)
    shown.settle()
    for family in ("cluster_devices", "node_devices"):
        lines = [line for line in shown.metrics.text().splitlines() if line.startswith(f"koordra_{family}{{")]
        models = {line.partition('model="')[2].partition('"')[0] for line in lines if 'state="free"' in line}
        assert len(models) <= MODELS + 2
        assert OTHER in models
        assert sum(float(line.split()[-1]) for line in lines if 'state="free"' in line) == 202
    assert shown.devices("free") == 2, "the most frequent are told apart"


@pytest.mark.parametrize("seed", range(5))
def test_the_tally_of_what_waits_is_a_count_of_it(seed: int) -> None:
    draw, tally = random.Random(seed), WaitingGroups()
    known: dict[str, tuple[str, int]] = {}
    for _ in range(2000):
        key = f"g{draw.randrange(40)}"
        if draw.random() < 0.4:
            known.pop(key, None)
            tally.drop(key)
        else:
            known[key] = draw.choice("abc"), draw.randrange(60)
            tally.put(key, known[key][0], f"2026-11-21T00:00:{known[key][1]:02d}Z")
        expected: dict[str, Waiting] = {}
        for reason in {reason for reason, _ in known.values()}:
            of = [since for why, since in known.values() if why == reason]
            expected[reason] = Waiting(len(of), NOW - 600 + min(of))
        assert tally.figures() == expected


def test_capacity_is_told_when_all_of_it_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Shown()
    real = ClusterCapacity.update
    monkeypatch.setattr(ClusterCapacity, "update", lambda capacity: real(capacity, most=1))
    shown.cluster.settle()
    told = [
        shown.cluster.reconciler.count(shown.instruments, shown.figures, term=shown.term) for _ in range(2)
    ]
    assert told == [False, True]
    assert shown("controller_claims", state="allocated") == 0
    assert shown.devices("free") == 4
    shown.cluster.api.create(NODES, node("n9"))
    shown.cluster.api.create(RESOURCE_SLICES, gpu_slice("n9", 4))
    shown.cluster.api.delete(NODES, "n1")
    shown.settle()
    assert shown.devices("free") == 4, "half of a change is not told"
    shown.settle()
    assert shown.devices("free") == 6


def test_claims_that_may_not_have_devices_without_a_pod_wait_until_a_pod_uses_them() -> None:
    shown = Shown(nodes=1)
    wants = {names.MODE_LABEL: names.IMMEDIATE}
    shown.cluster.claim("too-many", count=9, annotations=wants, creationTimestamp=CREATED)
    shown.settle()
    shown.now += 30
    assert shown.waiting("ImmediateRefused") == (1, 30)
    shown.cluster.pod("p", "too-many", created=CREATED)
    shown.settle()
    assert shown.waiting("ImmediateRefused") == (0, 0)
    assert shown.waiting("ExceedsDevice") == (1, 30), "it waits with its pod"
    shown.cluster.api.delete(PODS, "p")
    shown.settle()
    assert shown.waiting("ImmediateRefused") == (1, 30)
    shown.cluster.api.delete(RESOURCE_CLAIMS, "too-many")
    shown.settle()
    assert shown.waiting("ImmediateRefused") == (0, 0)


def test_pods_that_a_shared_claim_pins_to_a_node_they_cannot_use_are_counted() -> None:
    shown = Shown(nodes=1)
    shown.cluster.claim("shared")
    for name in ("first", "second"):
        shown.cluster.pod(name, "shared", created=CREATED)
    shown.settle()
    shown.cluster.scheduler_binds("first", "shared")
    shown.cluster.scheduler_says_no("second")
    shown.settle()
    assert shown.waiting("SharedClaimPinned") == (1, 0)
    shown.cluster.api.delete(PODS, "second")
    shown.settle()
    assert shown.waiting("SharedClaimPinned") == (0, 0)


def test_devices_that_kube_scheduler_gives_out_are_counted_by_what_claims_have() -> None:
    shown = Shown(nodes=1)

    def native(state: str) -> float | None:
        return shown("cluster_native_devices", type="gpu", model="L4", state=state)

    published = gpu_slice("n9", 3, allocator=names.ALLOCATOR_SCHEDULER)
    for device in published["spec"]["devices"]:
        device["attributes"]["model"] = {"string": "L4"}
        device["taints"] = []
    shown.cluster.api.create(NODES, node("n9"))
    shown.cluster.api.create(RESOURCE_SLICES, published)
    shown.settle()
    assert (native("free"), native("allocated"), native("unavailable")) == (3, 0, 0)
    assert shown.devices("free") == 2, "those are koordra's"
    given = {
        "devices": {"results": [{"request": "gpu", "driver": names.DRIVER, "pool": "n9", "device": "gpu-0"}]}
    }
    for name in ("by-scheduler", "beside-it"):
        shown.cluster.claim(name)
        shown.cluster.api.edit(
            RESOURCE_CLAIMS,
            name,
            lambda found: found.update(status={"allocation": given, "reservedFor": [{"uid": "u"}]}),
        )
    shown.settle()
    assert (native("free"), native("allocated")) == (2, 1)
    shown.cluster.api.delete(RESOURCE_CLAIMS, "by-scheduler")
    shown.settle()
    assert (native("free"), native("allocated")) == (2, 1), "another one has a share of it"
    shown.cluster.api.delete(RESOURCE_CLAIMS, "beside-it")

    def broken(found: Object) -> None:
        found["spec"]["devices"][1]["taints"] = [{"key": "koordra.io/unhealthy", "effect": "NoSchedule"}]
        del found["spec"]["devices"][2]

    shown.cluster.api.edit(RESOURCE_SLICES, "n9-koordra", broken)
    shown.settle()
    assert (native("free"), native("allocated"), native("unavailable")) == (1, 0, 1)
    shown.cluster.api.delete(RESOURCE_SLICES, "n9-koordra")
    shown.settle()
    assert (native("free"), native("unavailable")) == (None, None)


def test_what_changed_is_counted_and_written_anew_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scrape of 10,000 nodes costs what joining their lines costs."""
    shown, worked = Shown(nodes=200), Counter[str]()

    def counted(of: Any, name: str) -> None:
        before = getattr(of, name)

        def called(*given: Any) -> Any:
            worked[name] += 1
            return before(*given)

        monkeypatch.setattr(of, name, called)

    counted(capacity, "node_capacity")
    counted(NodeTables, "_text_of")
    shown.settle()
    shown.metrics.text()
    assert worked == {"node_capacity": 1, "_text_of": 200}, "nodes that are alike are counted once"
    worked.clear()
    shown.settle()
    shown.metrics.text()
    assert not worked
    shown.cluster.claim("c")
    shown.cluster.pod("p", "c")
    shown.settle()
    shown.metrics.text()
    assert worked == {"node_capacity": 1, "_text_of": 1}
