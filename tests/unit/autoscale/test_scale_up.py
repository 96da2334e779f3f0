"""Which new nodes, and how many: what the forecast says with them."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from typing import Any

import pytest

from koordra.api import names
from koordra.api.kinds import NODES, PODS
from koordra.cli.what_if.machines import machine_slices
from koordra.controller.allocation.reserved.quotas import NoQuotas
from koordra.controller.autoscale.node_groups import NodeGroup, new_nodes, node_with_slices
from koordra.controller.autoscale.scale_up import ScaleUp, scale_up
from koordra.controller.explain.forecast.forecast import forecast
from koordra.controller.explain.forecast.intake import Terms
from tests.fakes.joint_cluster import JointCluster, gpu_slice

NOW = datetime(2026, 11, 21, 0, 10, 0, tzinfo=UTC)


def group(name: str = "g", gpus: int = 2, most: int = 8, **more: Any) -> NodeGroup:
    return NodeGroup(name, f"{gpus} GPUs", [gpu_slice("n", gpus)], most, **more)


def cluster_of(*asked: int, nodes: int = 0) -> JointCluster:
    """Claims c0, c1 ... for so many GPUs, each with a pod."""
    found = JointCluster(nodes=nodes, gpus=2)
    for number, count in enumerate(asked):
        found.claim(f"c{number}", count=count)
        found.pod(f"c{number}", f"c{number}", created=f"2026-11-21T00:00:{number:02}Z")
    return found


def grown(cluster: JointCluster, *groups: NodeGroup, beyond: bool = False, **terms: Any) -> ScaleUp:
    cluster.caches.deliver()
    return scale_up(cluster.caches.cluster(), Terms(NOW, **terms), groups, beyond=beyond)


def gang_of(cluster: JointCluster, number: int, **annotations: str) -> None:
    for at in range(number):
        cluster.claim(f"m{at}", count=2)
        made = cluster.pod(f"m{at}", f"m{at}", gates=[names.JOINT_GATE])
        own = {"koordra.io/gang": "gang", "koordra.io/gang-min": str(number), **annotations}
        made["metadata"]["annotations"] = own
        cluster.api.update(PODS, made)


def why(found: ScaleUp, name: str) -> str:
    return " ".join(map(str, found.waits[f"default/{name}"]))


def test_as_few_nodes_as_will_do() -> None:
    found = grown(cluster_of(1, 1, 1, 2, 1), group())
    assert found.counts == {"g": 3}
    assert {fit.group for fit in found.fits.values()} == {"g"}
    assert len(found.fits) == 5
    assert not found.waits


def test_nothing_waits() -> None:
    found = grown(cluster_of(1, nodes=1), group())
    assert found == ScaleUp({"g": 0}, {}, {})


def test_room_that_is_there_is_used_first() -> None:
    """A gang of three starts on the node that is free and two new ones."""
    cluster = JointCluster(nodes=1, gpus=2)
    gang_of(cluster, 3)
    found = grown(cluster, group())
    assert found.counts == {"g": 2}
    assert sorted(str(fit.group) for fit in found.fits.values()) == ["None", "g", "g"]


def test_a_gang_is_all_or_none() -> None:
    cluster = JointCluster(nodes=0)
    gang_of(cluster, 3)
    found = grown(cluster, group(most=2), beyond=True)
    assert found.counts == {"g": 0}
    assert not found.fits
    assert found.beyond == {"g": 3}
    assert len(found.fits_beyond) == 3


def test_two_groups_serve_a_gang_together_where_neither_does_alone() -> None:
    cluster = JointCluster(nodes=0)
    gang_of(cluster, 3)
    found = grown(cluster, group("a", most=2), group("b", most=2))
    assert found.counts == {"a": 2, "b": 1}


def test_the_first_group_that_does_is_used() -> None:
    cheap, dear = group("cheap", gpus=1), group("dear", gpus=4)
    assert grown(cluster_of(1), dear, cheap).counts == {"dear": 1, "cheap": 0}
    assert grown(cluster_of(1), cheap, dear).counts == {"cheap": 1, "dear": 0}
    assert grown(cluster_of(1, 3), cheap, dear).counts == {"cheap": 0, "dear": 1}, "it is there anyway"
    assert grown(cluster_of(2), cheap, dear).counts == {"cheap": 0, "dear": 1}


def test_what_no_group_serves_is_told() -> None:
    found = grown(cluster_of(1, 3), group(), beyond=True)
    assert found.counts == {"g": 1}
    assert [*found.fits] == ["default/c0"]
    assert "requested 3" in why(found, "c1")
    assert not found.beyond


def test_nodes_of_the_group_that_are_there_count() -> None:
    cluster = cluster_of(2, 2, 2)
    there = next(node_with_slices("old", group(labels={"pool": "g"})))
    cluster.api.create(NODES, there)
    assert grown(cluster, group(labels={"pool": "g"}, most=3)).counts == {"g": 2}
    assert grown(cluster, group(labels={"pool": "other"}, most=3)).counts == {"g": 3}


@pytest.mark.parametrize(("block", "nodes"), [("a", 2), ("b", 3), ("", 0)])
def test_new_nodes_are_in_the_block_of_their_group(block: str, nodes: int) -> None:
    """There is one free node in block a; without a label nobody knows where a new one will be."""
    cluster = JointCluster(nodes=1)
    node = cluster.api.get(NODES, "n0")
    node["metadata"]["labels"] = {"fabric.koordra.io/block": "a"}
    cluster.api.update(NODES, node)
    gang_of(cluster, 3, **{"koordra.io/gang-topology": "block"})
    found = grown(cluster, group(labels={"fabric.koordra.io/block": block} if block else {}))
    assert found.counts == {"g": nodes}
    assert len(found.waits) == (0 if nodes else 3)
    assert nodes or "block" in why(found, "m0")


def test_a_node_in_native_mode_serves_nobody() -> None:
    native = NodeGroup("g", "t4", machine_slices("t4x4-1nic", True), 8, {names.MODE_LABEL: names.MODE_NATIVE})
    found = grown(cluster_of(1), native)
    assert found.counts == {"g": 0}
    assert "native mode" in why(found, "c0")


@pytest.mark.parametrize("tolerates", [True, False])
def test_taints_of_the_group_hold(tolerates: bool) -> None:
    cluster = JointCluster(nodes=0)
    cluster.claim("c0")
    tolerations = [{"key": "example.com/gpu", "operator": "Exists"}] if tolerates else []
    cluster.pod("c0", "c0", tolerations=tolerations)
    taint = {"key": "example.com/gpu", "value": "true", "effect": "NoSchedule"}
    found = grown(cluster, group(taints=[taint]))
    assert found.counts == {"g": int(tolerates)}
    assert tolerates or "example.com/gpu" in why(found, "c0")


def test_labels_and_size_of_the_group_hold() -> None:
    cluster = JointCluster(nodes=0)
    main = {"name": "main", "image": "x", "resources": {"requests": {"cpu": "4"}}}
    for name in ("c0", "c1"):
        cluster.claim(name)
        cluster.pod(name, name, containers=[main], nodeSelector={"pool": "g"})
    small = {"cpu": "7", "memory": "1Gi", "pods": "10"}
    assert grown(cluster, group()).counts == {"g": 0}
    assert grown(cluster, group(labels={"pool": "g"})).counts == {"g": 1}
    assert grown(cluster, group(labels={"pool": "g"}, resources=small)).counts == {"g": 2}


def test_what_the_size_does_not_name_is_not_bounded() -> None:
    cluster = JointCluster(nodes=0)
    requests = {"cpu": "4", "memory": "200Gi", "ephemeral-storage": "20Gi"}
    main = {"name": "main", "image": "x", "resources": {"requests": requests}}
    cluster.claim("c0")
    cluster.pod("c0", "c0", containers=[main])
    assert grown(cluster, group(resources={"cpu": "190"})).counts == {"g": 1}
    small = grown(cluster, group(resources={"cpu": "190", "memory": "100Gi"}))
    assert "memory: requested 200Gi, free 100Gi of 100Gi" in why(small, "c0")
    of_none = {**main, "resources": {"requests": {"example.com/fpga": "1"}}}
    cluster.api.edit(PODS, "c0", lambda pod: pod["spec"].update(containers=[of_none]))
    assert "example.com/fpga" in why(grown(cluster, group(resources={"cpu": "190"})), "c0")


def test_against_a_quota_no_node_helps() -> None:
    cluster = cluster_of(1, 1)

    class Bound(NoQuotas):
        def is_bounding(self) -> bool:
            return True

        def held(self, members: Any, gangs: Any) -> dict[str, str]:
            del gangs
            c1 = [one.pod for one in members if one.pod["metadata"]["name"] == "c1"]
            return {pod["metadata"]["uid"]: "2 of 1" for pod in c1}

    found = grown(cluster, group(gpus=1), quotas=Bound())
    assert found.counts == {"g": 1}
    assert "QuotaExceeded: 2 of 1" in why(found, "c1")


@pytest.mark.parametrize(
    "asked", [(1, 2), (2, 1, 1), (1, 1, 1, 1), (3, 1), (2, 2, 3), (4, 1, 1), (3, 3, 2), (1, 4)]
)
def test_every_other_number_is_worse(asked: tuple[int, ...]) -> None:
    """Of all numbers that serve as much, the last group has the fewest, then the one before it."""
    cluster = cluster_of(*asked, nodes=1)
    groups = [group("a", gpus=2, most=2), group("b", gpus=3, most=3)]
    found = grown(cluster, *groups)
    served = {}
    for a, b in itertools.product(range(3), range(4)):
        there, more = cluster.caches.cluster(), new_nodes(groups, {"a": a, "b": b})
        tables = {**there, **{kind: {**there[kind], **table} for kind, table in more.items()}}
        served[b, a] = {*forecast(tables, Terms(NOW)).planned}
    most = served[3, 2]
    best = min(counts for counts, keys in served.items() if keys >= most)
    assert (found.counts["b"], found.counts["a"]) == best
    assert {*found.waits} == {f"default/c{at}" for at in range(len(asked))} - most
