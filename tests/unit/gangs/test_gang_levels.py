"""Levels, roles and slices through the reconciler: on whose levels a gang is placed, what a lost member's
replacement gets, what is told of what cannot be."""

from __future__ import annotations

from collections import Counter

import pytest

from koordra.api import names, objects
from koordra.api.kinds import NODES, PODS
from koordra.api.objects import Object
from koordra.controller.cache.changes import FABRICS
from koordra.controller.cache.fabrics import written_levels
from koordra.controller.gangs import events
from koordra.controller.gangs.declared.annotations import GANG, GANG_MIN
from koordra.controller.gangs.member_placement import PlacementRequest
from koordra.topology.network_topology import DISCOVERED
from tests.fakes.joint_cluster import JointCluster

SLICES = {f"{GANG}-slice-size": "2", f"{GANG}-slice-topology": "dc/rack"}
KUEUE, _, KAI, VOLCANO, KOORDINATOR = FABRICS


def cluster_of(racks: str, *, written: str = "row=dc/row,rack=dc/rack", gpus: int = 1) -> JointCluster:
    """A node for each letter: the rack that it is in; racks in capitals are in another row."""
    cluster = JointCluster(nodes=len(racks), gpus=gpus)
    for number, rack in enumerate(racks):
        labels = {"dc/rack": rack.lower(), "dc/row": "2" if rack.isupper() else "1"}
        cluster.api.edit(
            NODES, f"n{number}", lambda found, own=labels: found["metadata"]["labels"].update(own)
        )
    if written:
        cluster.reconciler.cache.fabrics.written = written_levels(written)
    return cluster


def join(
    cluster: JointCluster, number: int, said: dict[str, str], *, least: int = 4, called: str = "w"
) -> Object:
    name = f"{called}{number}"
    cluster.claim(name)
    cluster.pod(name, name, gates=[names.JOINT_GATE])
    labels = {"batch.kubernetes.io/job-completion-index": str(number)}
    annotations = {GANG: "train", GANG_MIN: str(least), **said}
    cluster.api.edit(
        PODS, name, lambda found: found["metadata"].update(annotations=annotations, labels=labels)
    )
    return cluster.api.get(PODS, name)


def racks_of(cluster: JointCluster, *numbers: int) -> list[str]:
    """Row and rack of each member."""
    return places(cluster, *(f"w{number}" for number in numbers))


def places(cluster: JointCluster, *members: str) -> list[str]:
    found = []
    for name in members:
        labels = objects.labels_of(cluster.api.get(NODES, cluster.node_of(name) or ""))
        found.append(labels["dc/row"] + labels["dc/rack"])
    return found


def told(cluster: JointCluster, reason: str) -> set[str]:
    return {happening.message for happening in cluster.told if happening.reason == reason}


def test_slices_stay_together_and_a_replacement_comes_back_to_its_slice() -> None:
    cluster = cluster_of("aaabbb")
    for number in range(4):
        join(cluster, number, SLICES)
    cluster.settle()
    assert sorted(Counter(racks_of(cluster, 0, 1, 2, 3)).values()) == [2, 2]
    assert racks_of(cluster, 0, 2) == racks_of(cluster, 1, 3)
    home = racks_of(cluster, 2)
    for number in range(4):
        cluster.scheduler_binds(f"w{number}", f"w{number}")
    cluster.settle()
    cluster.pod_ends("w2", "w2")
    cluster.settle()
    join(cluster, 2, SLICES, called="again")
    cluster.settle()
    assert places(cluster, "again2") == home


def test_without_slices_one_rack_is_filled_first() -> None:
    cluster = cluster_of("aaabbb")
    for number in range(4):
        join(cluster, number, {})
    cluster.settle()
    assert sorted(Counter(racks_of(cluster, 0, 1, 2, 3)).values()) == [1, 3]


def test_a_level_is_a_path_and_the_wish_is_kept_beside_the_demand() -> None:
    cluster = cluster_of("aabAAA")
    said = {f"{GANG}-topology": "rack", f"{GANG}-topology-preferred": "node"}
    for number in range(4):
        join(cluster, number, said)
    cluster.settle()
    assert "3 of 4 members fit in one rack" in " ".join(told(cluster, events.WAITING))
    three = cluster_of("aabAAA")
    for number in range(3):
        join(three, number, said, least=3)
    three.settle()
    assert racks_of(three, 0, 1, 2) == ["2a", "2a", "2a"]


@pytest.mark.parametrize("system", ["Kueue", "KAI", "Koordinator", "Volcano"])
def test_levels_that_other_systems_ordered_are_seen_when_they_come(system: str) -> None:
    cluster = cluster_of("abaABA", written="")
    levels = {"levels": [{"nodeLabel": "dc/row"}, {"nodeLabel": "dc/rack"}]}
    layers = [
        {"topologyLayer": "rack", "parentTopologyLayer": "row", "labelKey": ["dc/rack"]},
        {"topologyLayer": "row", "labelKey": ["dc/row"]},
    ]
    members = [{"type": "Node", "selector": {"labelMatch": {"matchLabels": {"dc/rack": "a", "dc/row": "2"}}}}]
    kind, api, spec, word = {
        "Kueue": (
            KUEUE,
            "kueue.x-k8s.io/v1beta2",
            levels,
            {"kueue.x-k8s.io/podset-required-topology": "dc/rack"},
        ),
        "KAI": (
            KAI,
            "kai.scheduler/v1alpha1",
            levels,
            {"kai.scheduler/topology-required-placement": "dc/rack"},
        ),
        "Koordinator": (
            KOORDINATOR,
            "scheduling.koordinator.sh/v1alpha1",
            {"networkTopologySpec": layers},
            {
                "gang.scheduling.koordinator.sh/network-topology-spec": '{"gatherStrategy":[{"layer":"rack",'
                '"strategy":"MustGather"}]}'
            },
        ),
        "Volcano": (
            VOLCANO,
            "topology.volcano.sh/v1alpha1",
            {"tier": 1, "members": members},
            {"volcano.sh/network-topology-mode": "hard", "volcano.sh/network-topology-highest-tier": "1"},
        ),
    }[system]
    for number in range(2):
        join(cluster, number, word, least=2)
    cluster.settle()
    (waits,) = told(cluster, events.WAITING)
    said = "tiers of Volcano need HyperNodes: " if system == "Volcano" else f"annotation {max(word)}: "
    assert said in waits
    assert "is no level of the fabric; levels are zone, " in waits
    shape = {"apiVersion": api, "kind": kind.kind, "metadata": {"name": "net", "uid": "net"}, "spec": spec}
    cluster.caches.observe(kind, shape)
    cluster.settle()
    first, second = racks_of(cluster, 0, 1)
    assert first == second


def test_members_that_are_in_each_others_way_keep_the_level_that_is_required(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(PlacementRequest, "_is_obstructed", lambda *_: True)
    cluster = cluster_of("abcabc", gpus=1)
    said = {f"{GANG}-slice-size": "2", f"{GANG}-slice-topology": "rack", f"{GANG}-topology": "row"}
    for number in range(4):
        join(cluster, number, said)
    cluster.settle()
    assert racks_of(cluster, 0, 2) == racks_of(cluster, 1, 3)


@pytest.mark.parametrize(
    ("label", "word"),
    [
        ("fabric.topograph.run/tier-0", "block"),
        ("fabric.topograph.run/tier-1", "spine"),
        ("fabric.topograph.run/tier-2", "core"),
        ("fabric.topograph.run/tier-3", "super-core"),
        ("accelerator.topograph.run/domain", "nvlink"),
        ("accelerator.topograph.run/sub-domain", "nvlink-partition"),
        ("network.topology.nvidia.com/leaf", "block"),
        ("network.topology.nvidia.com/accelerator", "nvlink"),
    ],
)
def test_every_label_that_topograph_writes_is_a_level(label: str, word: str) -> None:
    cluster = cluster_of("abba", written="")
    for number, domain in enumerate("xyyx"):
        cluster.api.edit(
            NODES, f"n{number}", lambda found, own=domain: found["metadata"]["labels"].update({label: own})
        )
    for number, said in enumerate((label, label)):
        join(cluster, number, {f"{GANG}-topology": said}, least=2)
    cluster.settle()
    domains = {
        objects.labels_of(cluster.api.get(NODES, str(cluster.node_of(f"w{number}"))))[label]
        for number in range(2)
    }
    assert len(domains) == 1
    level = next(one for one in DISCOVERED.levels if label in one.labels)
    assert level.name == word


def test_roles_have_levels_of_their_own() -> None:
    cluster = cluster_of("aaabbc")
    role = {f"{GANG}-role": "prefill", f"{GANG}-role-topology": "rack"}
    other = {f"{GANG}-role": "decode", f"{GANG}-role-topology": "rack"}
    for number in range(5):
        join(cluster, number, role if number < 2 else other, least=5)
    cluster.settle()
    assert len(set(racks_of(cluster, 0, 1))) == 1
    assert racks_of(cluster, 2, 3, 4) == ["1a", "1a", "1a"]


@pytest.mark.parametrize("node", ["n0", "of-cpus-alone"])
def test_a_launcher_without_devices_does_not_say_where_its_workers_go(node: str) -> None:
    """It runs already where kube-scheduler put it; of a launcher that comes with them nobody asks, either."""
    cluster = cluster_of("abb")
    said = {f"{GANG}-topology": "rack"}
    cluster.pod("launcher", gates=[names.JOINT_GATE])

    def runs(pod: Object) -> None:
        pod["metadata"]["annotations"] = {GANG: "train", GANG_MIN: "3", **said}
        pod["spec"].update(nodeName=node, schedulingGates=[])

    cluster.api.edit(PODS, "launcher", runs)
    for number in range(2):
        join(cluster, number, said, least=3)
    cluster.settle()
    assert racks_of(cluster, 0, 1) == ["1b", "1b"]
