"""IMEX channels: one domain a node at a time, one domain a gang, and what its nodes are told."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from koordra.api import names, objects
from koordra.api.kinds import (
    DEVICE_CLASSES,
    DEVICE_HOLDS,
    PODS,
    RESERVATIONS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
)
from koordra.api.objects import Object
from koordra.api.opaque.imex import MOST_NODES, ImexDomain, domain_of
from koordra.api.resource_class import CONFIG_MAPS
from koordra.controller.gangs.imex.domains import ImexDomains
from koordra.controller.gangs.imex.members import PAUSE, DomainMembers, numbered
from koordra.errors import ApiUnreachable
from tests.fakes.joint_cluster import JointCluster, device_class, explode_at, gpu_slice
from tests.fakes.kube_api import Killed, Write

RACKS = ("00112233-4455-6677-8899-aabbccddeeff.1", "00112233-4455-6677-8899-aabbccddeeff.2")
NAMESPACE = "koordra-system"
HERE = {"nodeSelector": {"kubernetes.io/hostname": "n0"}}


def tray(node: str, clique: str, *, gpus: int = 2) -> Object:
    found = gpu_slice(node, gpus)
    devices = found["spec"]["devices"]
    for device in devices:
        device["attributes"][names.ATTR_CLIQUE] = {"string": clique}
    devices.append(
        {
            "name": names.IMEX_DEVICE,
            "attributes": {
                "type": {"string": names.TYPE_IMEX},
                "allocator": {"string": "controller"},
                names.ATTR_CLIQUE: {"string": clique},
            },
            "allowMultipleAllocations": True,
            "taints": [{"key": names.JOINT_TAINT, "effect": "NoSchedule"}],
        }
    )
    return found


@pytest.fixture
def cluster() -> JointCluster:
    """Two trays of two GPUs in one rack, a third in another."""
    found = JointCluster(nodes=3, gpus=2)
    found.api.create(DEVICE_CLASSES, device_class(names.CLASS_IMEX, names.TYPE_IMEX))
    for number, clique in enumerate((RACKS[0], RACKS[0], RACKS[1])):
        wanted = tray(f"n{number}", clique)
        found.api.edit(
            RESOURCE_SLICES, f"n{number}-koordra", lambda one, wanted=wanted: one.update(spec=wanted["spec"])
        )
    found.start_again()
    return found


def member(cluster: JointCluster, name: str, gang: str | None, *, least: int = 2, **spec: Any) -> None:
    """A pod that asks for one GPU and a channel."""
    cluster.claim(name)
    cluster.api.edit(
        RESOURCE_CLAIMS,
        name,
        lambda one: one["spec"]["devices"]["requests"].append(
            {"name": "imex", "exactly": {"deviceClassName": names.CLASS_IMEX}}
        ),
    )
    cluster.pod(name, name, gates=[names.JOINT_GATE], **spec)
    if gang is not None:
        notes = {"koordra.io/gang": gang, "koordra.io/gang-min": str(least)}
        cluster.api.edit(PODS, name, lambda pod: pod["metadata"].update(annotations=notes))


def domain(cluster: JointCluster, name: str) -> ImexDomain | None:
    return domain_of(cluster.allocation(name))


def test_a_gang_is_one_domain_in_each_clique(cluster: JointCluster) -> None:
    for number in range(6):
        member(cluster, f"w{number}", "train", least=6)
    cluster.settle()
    found = {cluster.node_of(f"w{number}"): domain(cluster, f"w{number}") for number in range(6)}
    assert found == {
        "n0": ImexDomain("gang default/train", RACKS[0]),
        "n1": ImexDomain("gang default/train", RACKS[0]),
        "n2": ImexDomain("gang default/train", RACKS[1]),
    }


def test_a_pod_without_a_gang_is_a_domain_of_its_own(cluster: JointCluster) -> None:
    member(cluster, "a", None)
    member(cluster, "b", None)
    cluster.settle()
    found = [domain(cluster, name) for name in "ab"]
    assert [one and one.domain for one in found] == ["claim default/a", "claim default/b"]
    assert cluster.node_of("a") != cluster.node_of("b")


def test_two_gangs_are_never_in_different_domains_of_one_node(cluster: JointCluster) -> None:
    member(cluster, "a", "first", least=1, **HERE)
    cluster.settle()
    member(cluster, "b", "second", least=1, **HERE)
    cluster.claim("plain")
    cluster.pod("plain", "plain", gates=[names.JOINT_GATE], **HERE)
    cluster.settle()
    assert cluster.node_of("a") == cluster.node_of("plain") == "n0", "others have what is left of the node"
    assert cluster.node_of("b") is None
    (said, *_) = [one.message for one in cluster.told if objects.name(one.about[0]) == "b"]
    assert "its IMEX channels are in the domain of gang default/first" in said

    member(cluster, "a2", "first", least=1, **HERE)  # a member of the same gang is no other
    cluster.api.delete(PODS, "plain", namespace="default")
    cluster.scheduler_erases("plain")
    cluster.settle()
    assert cluster.node_of("a2") == "n0"

    for name in ("a", "a2"):
        cluster.api.delete(PODS, name, namespace="default")
        cluster.scheduler_erases(name)
    cluster.settle()
    assert cluster.node_of("b") == "n0"


def test_gangs_of_one_pass_are_kept_apart(cluster: JointCluster) -> None:
    for gang in ("a", "b", "c"):
        member(cluster, f"{gang}0", gang, least=1)
    cluster.settle()
    assert {cluster.node_of(f"{gang}0") for gang in "abc"} == {"n0", "n1", "n2"}


@pytest.mark.parametrize("step", range(8))
def test_another_leader_knows_whose_a_node_is(cluster: JointCluster, step: int) -> None:
    """Killed after each of the writes of a gang."""
    for number in range(4):
        member(cluster, f"a{number}", "first", least=4)
    cluster.caches.deliver()
    cluster.api.after = explode_at(step, Killed)
    with suppress(Killed):
        cluster.reconciler.reconcile()
    cluster.api.after = lambda _write: None
    cluster.start_again()
    member(cluster, "b0", "second", least=1)
    cluster.settle()
    held: dict[str | None, set[ImexDomain | None]] = {}
    for name in ("a0", "a1", "a2", "a3", "b0"):
        assert domain(cluster, name) is not None
        held.setdefault(cluster.node_of(name), set()).add(domain(cluster, name))
    assert all(len(domains) == 1 for domains in held.values())


@pytest.mark.parametrize(("priority", "node"), [(0, None), (5, "n0")])
def test_a_tray_that_is_held_keeps_its_domain(cluster: JointCluster, priority: int, node: str | None) -> None:
    """Its only member is lost; the GPU beside what it had is free, and the channels can be shared."""
    member(cluster, "w", "train", least=1, **HERE)
    cluster.settle()
    devices = (cluster.allocation("w") or {})["devices"]["results"]
    seat = {"node": "n0", "devices": devices, "pod": "uid-w", "until": "2026-11-21T01:00:00Z"}
    hold = {
        "metadata": {"name": "h"},
        "spec": {"owner": "gang default/train", "seconds": 600, "seats": [seat]},
    }
    cluster.api.delete(PODS, "w", namespace="default")
    cluster.scheduler_erases("w")
    cluster.api.create(DEVICE_HOLDS, hold, namespace="default")
    cluster.start_again()
    member(cluster, "x", "other", least=1, priority=priority, **HERE)
    cluster.settle()
    assert cluster.node_of("x") == node
    said = [one.message for one in cluster.told if objects.name(one.about[0]) == "x"]
    assert any("channels are in the domain of gang default/train" in one for one in said) is (node is None)


def test_a_tray_that_is_reserved_is_its_owners_in_their_own_domain(cluster: JointCluster) -> None:
    """A GPU of two and a channel are reserved; the other GPU is free, and the channels can be shared."""
    asked = [
        {"name": "gpu", "exactly": {"deviceClassName": names.CLASS_GPU}},
        {"name": "imex", "exactly": {"deviceClassName": names.CLASS_IMEX}},
    ]
    spec = {
        "owners": [{"labelSelector": {"matchLabels": {"team": "a"}}}],
        "claims": [{"name": "all", "devices": {"requests": asked}}],
        **HERE,
    }
    cluster.api.create(RESERVATIONS, {"metadata": {"name": "r"}, "spec": spec}, namespace="default")
    cluster.settle()
    for team in "ba":
        member(cluster, f"of-{team}", f"gang-{team}", least=1, **HERE)
        said = {"labels": {"team": team}}
        cluster.api.edit(PODS, f"of-{team}", lambda pod, said=said: pod["metadata"].update(said))
        cluster.settle()
    assert cluster.node_of("of-b") is None
    assert domain(cluster, "of-a") == ImexDomain("gang default/gang-a", RACKS[0])


# what the nodes are told


class Telling:
    def __init__(self, cluster: JointCluster) -> None:
        self.cluster = cluster
        self.start_again()

    def start_again(self) -> None:
        api: Any = self.cluster.api
        self.domains = ImexDomains(self.cluster.reconciler.cache)
        self.members = DomainMembers(api, NAMESPACE, lambda: True, lambda: self.cluster.now)

    def told(self) -> dict[str, dict[str, str]]:
        """Domain and clique -> what its object says."""
        self.members.sync(self.domains)
        return {
            f"{notes[names.IMEX_DOMAIN]} {notes[names.IMEX_CLIQUE][-1]}": one["data"]
            for one in self.cluster.api.all(CONFIG_MAPS)
            if (notes := objects.annotations_of(one))
        }


def test_the_nodes_of_a_domain_are_told_in_an_order_that_stays(cluster: JointCluster) -> None:
    for number in range(6):
        member(cluster, f"w{number}", "train", least=3)
    cluster.settle()
    telling = Telling(cluster)
    assert telling.told() == {
        "gang default/train 1": {"0": "n0", "1": "n1"},
        "gang default/train 2": {"0": "n2"},
    }
    for name in [f"w{number}" for number in range(6) if cluster.node_of(f"w{number}") == "n0"]:
        cluster.api.delete(PODS, name, namespace="default")
        cluster.scheduler_erases(name)
    cluster.caches.deliver()
    cluster.reconciler.reconcile()
    assert telling.told()["gang default/train 1"] == {"1": "n1"}, "it keeps its number"

    cluster.start_again()
    cluster.settle()
    telling.start_again()
    assert telling.told()["gang default/train 1"] == {"1": "n1"}, "under another leader too"


def test_a_domain_that_is_over_is_told_to_nobody(cluster: JointCluster) -> None:
    member(cluster, "w", "train", least=1, **HERE)
    cluster.settle()
    telling = Telling(cluster)
    assert telling.told() == {"gang default/train 1": {"0": "n0"}}
    cluster.api.delete(PODS, "w", namespace="default")
    cluster.scheduler_erases("w")
    cluster.start_again()
    telling.start_again()  # which has seen nothing of the domain
    member(cluster, "x", "other", least=1, **HERE)
    cluster.settle()
    assert telling.told() == {"gang default/other 1": {"0": "n0"}}


def test_a_write_without_an_answer_is_made_again(cluster: JointCluster) -> None:
    member(cluster, "w", "train", least=1, **HERE)
    cluster.settle()
    telling = Telling(cluster)

    def lost(write: Write) -> None:
        raise ApiUnreachable(f"no answer to {write}")

    cluster.api.after = lost
    assert telling.members.sync(telling.domains) == PAUSE
    cluster.api.after = lambda _write: None
    assert telling.members.sync(telling.domains) == PAUSE, "not before the pause is over"
    cluster.pass_time(PAUSE)
    assert telling.told() == {"gang default/train 1": {"0": "n0"}}


def test_numbers_are_the_lowest_that_are_free() -> None:
    assert numbered({"a", "b", "c"}, {}) == {"a": 0, "b": 1, "c": 2}
    assert numbered({"b", "c", "d"}, {"a": 0, "b": 1, "c": 2}) == {"b": 1, "c": 2, "d": 0}
    many = {f"n{number:02d}" for number in range(MOST_NODES + 2)}
    found = numbered(many, {})
    assert sorted(found.values()) == list(range(MOST_NODES))
