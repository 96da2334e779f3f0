"""Nodes on which somebody else gives out the same cards: nothing is placed there, why is told, and it ends
when they go."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from koordra.api import names, objects
from koordra.api.kinds import NODES, RESOURCE_SLICES
from koordra.api.objects import Object
from koordra.compat.detection import offered_by_others, publishers
from koordra.controller.reconcile.leader_figures import LeaderFigures
from koordra.controller.reporting import claim_events
from koordra.controller.reporting.metrics import ControllerMetrics
from koordra.kubelet_plugin.publish.node_slices import FOREIGN_TAINT, foreign_taints
from koordra.metrics import Metrics
from tests.fakes.joint_cluster import JointCluster
from tests.fakes.metric_samples import sample


@pytest.mark.parametrize(
    ("allocatable", "found"),
    [
        ({"cpu": "8", "nvidia.com/gpu": "8"}, ("nvidia.com/gpu",)),
        ({"nvidia.com/gpu": "0"}, ()),
        (
            {"nvidia.com/gpu.shared": 4, "nvidia.com/mig-1g.10gb": "7"},
            ("nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb"),
        ),
        ({"koordinator.sh/gpu-core": "800", "koordinator.sh/rdma": "400"}, ("koordinator.sh/gpu-core",)),
        ({"aliyun.com/gpu-mem": "640"}, ("aliyun.com/gpu-mem",)),
        ({"volcano.sh/vgpu-number": "80"}, ("volcano.sh/vgpu-number",)),
        ({"tencent.com/vcuda-core": "800"}, ("tencent.com/vcuda-core",)),
        ({"elasticgpu.io/gpu-core": "800"}, ("elasticgpu.io/gpu-core",)),
        ({"alnair/vgpu-memory": "80"}, ("alnair/vgpu-memory",)),
        ({"amd.com/gpu": "8", "example.com/gpu": "1"}, ()),
        ({"nvidia.com/gpu": "many"}, ("nvidia.com/gpu",)),
        (None, ()),
    ],
)
def test_who_offers_gpus_on_a_node(allocatable: Any, found: tuple[str, ...]) -> None:
    assert offered_by_others({"status": {"allocatable": allocatable}}) == found
    assert bool(publishers(found)) == bool(found)


def set_amount(cluster: JointCluster, node: str, value: str) -> None:
    cluster.api.edit(NODES, node, lambda obj: obj["status"]["allocatable"].update({"nvidia.com/gpu": value}))


def test_nothing_is_placed_beside_another_device_plugin_until_it_is_gone() -> None:
    cluster = JointCluster(nodes=2)
    set_amount(cluster, "n0", "2")
    cluster.claim("a")
    cluster.pod("a", "a")
    cluster.claim("b", count=2)
    cluster.pod("b", "b")
    cluster.settle()
    assert {cluster.node_of(name) for name in ("a", "b")} <= {"n1", None}
    waiting = next(name for name in ("a", "b") if cluster.node_of(name) is None)
    assert claim_events.FOREIGN_PLUGIN in cluster.reasons()
    alarm = next(told for told in cluster.told if told.reason == claim_events.FOREIGN_PLUGIN)
    assert "NVIDIA's or HAMi's device plugin" in alarm.message
    assert "Take its DaemonSet off the node" in alarm.message
    assert [obj["metadata"]["name"] for obj in alarm.about] == ["n0"]
    told = [entry for entry in cluster.told if entry.about and entry.about[0]["metadata"]["name"] == waiting]
    assert any("nvidia.com/gpu in status.allocatable of node n0" in entry.message for entry in told)
    metrics = Metrics()
    figures, standing = ControllerMetrics(metrics), LeaderFigures(metrics, node_metrics=True)
    cluster.reconciler.count(figures, standing, term=threading.Event())
    assert sample(metrics, "koordra_controller_refused_nodes") == 1
    set_amount(cluster, "n0", "0")
    cluster.settle()
    assert cluster.node_of(waiting) == "n0"
    cluster.reconciler.count(figures, standing, term=threading.Event())
    assert sample(metrics, "koordra_controller_refused_nodes") == 0


def their_slice(**attributes: str) -> Object:
    device = {"name": "gpu-7", "attributes": {key: {"string": value} for key, value in attributes.items()}}
    spec = {"driver": "gpu.nvidia.com", "nodeName": "n0", "pool": {"name": "n0"}, "devices": [device]}
    return {"metadata": {"name": "theirs"}, "spec": spec}


@pytest.mark.parametrize("attributes", [{"pciBusID": "00000000:1F:00.0"}, {"uuid": "GPU-X"}])
def test_nothing_is_placed_beside_another_driver_of_the_same_card(attributes: dict[str, str]) -> None:
    cluster = JointCluster(nodes=1)

    def identify(obj: Object) -> None:
        known = {"resource.kubernetes.io/pciBusID": {"string": "0000:1f:00.0"}, "uuid": {"string": "gpu-x"}}
        obj["spec"]["devices"][0]["attributes"] |= known

    cluster.api.edit(RESOURCE_SLICES, "n0-koordra", identify)
    cluster.api.create(RESOURCE_SLICES, their_slice(**attributes))
    cluster.claim("a")
    cluster.pod("a", "a")
    cluster.settle()
    assert cluster.node_of("a") is None
    assert cluster.reasons().count(claim_events.TWO_DRIVERS) == 1
    assert "ForeignDriver" in cluster.reasons()
    cluster.api.delete(RESOURCE_SLICES, "theirs")
    cluster.settle()
    assert cluster.node_of("a") == "n0"


def test_a_node_without_gpus_of_koordra_is_nobodys_business() -> None:
    cluster = JointCluster(nodes=1)
    set_amount(cluster, "n0", "2")
    cluster.api.delete(RESOURCE_SLICES, "n0-koordra")
    cluster.settle()
    assert claim_events.FOREIGN_PLUGIN not in cluster.reasons()


def test_what_is_allocated_stays() -> None:
    cluster = JointCluster(nodes=1)
    cluster.claim("a")
    cluster.pod("a", "a")
    cluster.settle()
    assert cluster.node_of("a") == "n0"
    set_amount(cluster, "n0", "2")
    cluster.settle()
    assert cluster.node_of("a") == "n0"


def test_the_plugin_taints_the_gpus_and_nothing_else() -> None:
    node = {"status": {"allocatable": {"nvidia.com/gpu": "8"}}}
    kinds = {"gpu-0": names.TYPE_GPU, "gpu-0-mig-1": names.TYPE_MIG, "nic-0": names.TYPE_NIC}
    found = dict(foreign_taints(node, offered=kinds))
    assert found.keys() == {"gpu-0", "gpu-0-mig-1"}
    assert found["gpu-0"].to_dict() == {
        "key": FOREIGN_TAINT,
        "value": "nvidia.com-gpu",
        "effect": "NoSchedule",
    }
    assert not list(foreign_taints({"status": {}}, offered=kinds))


def note_of(cluster: JointCluster, node: str) -> str | None:
    return objects.annotations_of(cluster.api.get(NODES, node)).get(names.NO_GPUS)


def test_the_node_itself_says_why_for_as_long_as_it_holds() -> None:
    """Events are gone after an hour."""
    cluster = JointCluster(nodes=2)
    set_amount(cluster, "n0", "2")
    cluster.settle()
    said = note_of(cluster, "n0") or ""
    assert "nvidia.com/gpu in status.allocatable of node n0" in said
    assert "Take its DaemonSet off the node" in said
    assert note_of(cluster, "n1") is None
    written = len(cluster.api.writes)
    cluster.settle(passes=5)
    assert len(cluster.api.writes) == written
    set_amount(cluster, "n0", "0")
    cluster.settle()
    assert note_of(cluster, "n0") is None


def test_a_note_of_the_last_leader_is_taken_away_by_the_next() -> None:
    cluster = JointCluster(nodes=1)
    set_amount(cluster, "n0", "2")
    cluster.settle()
    set_amount(cluster, "n0", "0")
    cluster.start_again()
    cluster.settle()
    assert note_of(cluster, "n0") is None


def test_a_pod_that_names_a_refused_node_is_told_node_field_and_remedy() -> None:
    cluster = JointCluster(nodes=2)
    set_amount(cluster, "n0", "2")
    cluster.claim("a")
    cluster.pod("p", "a", nodeName="n0")
    cluster.settle()
    assert cluster.node_of("a") is None
    (told,) = [entry for entry in cluster.told if entry.reason == "ForeignDriver"]
    assert {objects.name(about) for about in told.about} == {"a", "p"}
    assert "nvidia.com/gpu in status.allocatable of node n0" in told.message
    assert "Take its DaemonSet off the node" in told.message
