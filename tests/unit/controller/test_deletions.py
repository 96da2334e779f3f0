"""What goes away in the middle of things, and what its node has not let go of yet."""

from __future__ import annotations

import pytest

from koordra.api import names
from koordra.api.kinds import PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, Kind
from koordra.api.objects import Object
from tests.fakes.joint_cluster import JointCluster
from tests.fakes.kube_api import Write


def hold(cluster: JointCluster, *devices: str) -> None:
    """The node's plugin reports these devices as in use for a claim that the API does not have any more."""

    def mark(entry: Object) -> None:
        for device in entry["spec"]["devices"]:
            taints = [taint for taint in device["taints"] if taint["key"] != names.HELD_TAINT]
            if device["name"] in devices:
                taints.append({"key": names.HELD_TAINT, "effect": "NoSchedule"})
            device["taints"] = taints
        entry["spec"]["pool"]["generation"] += 1

    cluster.api.edit(RESOURCE_SLICES, "n0-koordra", mark)


def free_what_is_deleted(cluster: JointCluster, name: str) -> None:
    """kube-controller-manager: a claim that is being deleted and that nobody has reserved is freed and let
    go."""
    found = [entry for entry in cluster.api.all(RESOURCE_CLAIMS) if entry["metadata"]["name"] == name]
    if found and found[0]["metadata"].get("deletionTimestamp"):
        cluster.api.edit(RESOURCE_CLAIMS, name, lambda claim: claim.update(status={}))
        cluster.api.edit(RESOURCE_CLAIMS, name, lambda claim: claim["metadata"].update(finalizers=[]))
        if any(entry["metadata"]["name"] == name for entry in cluster.api.all(RESOURCE_CLAIMS)):
            cluster.api.delete(RESOURCE_CLAIMS, name)


def test_a_device_that_its_node_still_holds_is_given_to_nobody() -> None:
    """Its claim is gone from the API, and the node reports that something still uses it."""
    cluster = JointCluster(nodes=1, gpus=2)
    hold(cluster, "gpu-0")
    for name in ("a", "b"):
        cluster.claim(name)
        cluster.pod(f"pod-of-{name}", name)
    cluster.settle()
    assert [cluster.devices("a"), cluster.devices("b")] == [["n0/gpu-1"], []]
    hold(cluster)
    cluster.settle()
    assert cluster.devices("b") == ["n0/gpu-0"]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", range(3))
@pytest.mark.parametrize("what", [PODS, RESOURCE_CLAIMS])
def test_what_is_deleted_at_any_write_leaves_nothing_behind(what: Kind, step: int, when: str) -> None:
    """The pod (or its claim) goes right before or right after each of the writes for it; its devices go to
    the next."""
    cluster = JointCluster(nodes=1, gpus=1)
    cluster.claim("a")
    cluster.pod("p", "a", gates=[names.JOINT_GATE])
    writes: list[Write] = []

    def delete(write: Write) -> None:
        if write.verb == "patch":
            writes.append(write)
            if len(writes) == step + 1:
                cluster.api.delete(what, "p" if what is PODS else "a")

    setattr(cluster.api, when, delete)
    cluster.settle()
    setattr(cluster.api, when, lambda _write: None)
    assert len(writes) > step
    free_what_is_deleted(cluster, "a")
    cluster.claim("b")
    cluster.pod("q", "b")
    cluster.settle()
    assert cluster.devices("b") == ["n0/gpu-0"]
