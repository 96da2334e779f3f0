"""The controller's part of handing a node over: nothing is placed there, and the Node says when the other
stack may start; and pods that still have another stack's cards."""

from __future__ import annotations

from typing import Any

import pytest

from koordra.api import names, objects
from koordra.api.kinds import NODES, PODS, RESOURCE_SLICES
from koordra.api.objects import Object
from koordra.controller.reconcile.conflicts.handed_over import peers_resource
from koordra.controller.reporting import claim_events
from tests.fakes.joint_cluster import JointCluster


def set_label(cluster: JointCluster, value: str, label: str = names.GPU_OWNER_LABEL) -> None:
    cluster.api.edit(NODES, "n0", lambda obj: obj["metadata"].setdefault("labels", {}).update({label: value}))
    cluster.settle()


def leave(cluster: JointCluster, value: str = names.HAND_OVER_LEFT) -> None:
    """What the node's plugin publishes."""

    def taint(obj: Object) -> None:
        for device in obj["spec"]["devices"]:
            if device["attributes"]["type"]["string"] in names.GPU_TYPES:
                device["taints"] = [
                    *(each for each in device.get("taints", ()) if each["key"] != names.HAND_OVER_TAINT),
                    {"key": names.HAND_OVER_TAINT, "value": value, "effect": "NoSchedule"},
                ]

    cluster.api.edit(RESOURCE_SLICES, "n0-koordra", taint)
    cluster.settle()


def given_to(cluster: JointCluster) -> str | None:
    return objects.annotations_of(cluster.api.get(NODES, "n0")).get(names.GPUS_GIVEN_TO)


def test_a_node_is_given_once_the_plugin_left_it_and_no_claim_has_a_card() -> None:
    cluster = JointCluster(nodes=1)
    cluster.claim("a")
    cluster.pod("a", "a")
    cluster.settle()
    assert cluster.node_of("a") == "n0"
    set_label(cluster, "hami")
    leave(cluster, "Leaving")
    cluster.claim("b")
    cluster.pod("b", "b")
    cluster.settle()
    assert cluster.node_of("b") is None
    told = [entry.message for entry in cluster.told if entry.reason == "ForeignDriver"]
    assert any("handed over to hami (label koordra.io/gpu-owner of the Node)" in each for each in told)
    assert given_to(cluster) is None
    leave(cluster)
    assert given_to(cluster) is None, "a claim has a card of it"
    cluster.pod_ends("a", "a")
    cluster.settle()
    assert given_to(cluster) == "hami"
    set_label(cluster, names.OWNER_KOORDRA)
    assert given_to(cluster) is None
    assert cluster.node_of("b") is None, "the plugin has not taken the cards yet"


@pytest.mark.parametrize(
    ("label", "gpus"), [(names.GPU_OWNER_LABEL, False), (names.NIC_OWNER_LABEL, True), ("other", True)]
)
def test_only_claims_that_may_take_such_devices_are_kept_off(label: str, gpus: bool) -> None:
    cluster = JointCluster(nodes=1)
    set_label(cluster, "dranet", label)
    cluster.claim("a")
    cluster.pod("a", "a")
    cluster.claim("n", device_class=names.CLASS_NIC)
    cluster.pod("n", "n")
    cluster.settle()
    assert (cluster.node_of("a") == "n0") is gpus
    about = {objects.name(one.about[0]) for one in cluster.told if "handed over" in one.message and one.about}
    assert ("n" in about) is (label == names.NIC_OWNER_LABEL)


def pod(**fields: Any) -> Object:
    container = {"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    return {
        "metadata": {"name": "p", "namespace": "default"},
        "spec": {"nodeName": "n0", "containers": [container]},
        "status": {"phase": "Running"},
        **fields,
    }


@pytest.mark.parametrize(
    ("found", "resource"),
    [
        (pod(), "nvidia.com/gpu"),
        (pod(status={"phase": "Succeeded"}), ""),
        (pod(status={"phase": "Running", "extendedResourceClaimStatus": {"resourceClaimName": "x"}}), ""),
        (pod(spec={"containers": pod()["spec"]["containers"]}), ""),
        (
            pod(spec={"nodeName": "n0", "containers": [], "initContainers": pod()["spec"]["containers"]}),
            "nvidia.com/gpu",
        ),
        (pod(spec={"nodeName": "n0", "containers": [{"resources": {"requests": {"cpu": "1"}}}]}), ""),
        (
            pod(
                spec={
                    "nodeName": "n0",
                    "containers": [{"resources": {"requests": {"koordinator.sh/gpu-core": 50}}}],
                }
            ),
            "koordinator.sh/gpu-core",
        ),
    ],
)
def test_which_pods_have_another_stacks_cards(found: Object, resource: str) -> None:
    assert peers_resource(found) == resource


def test_nothing_is_placed_beside_pods_that_still_have_another_stacks_cards() -> None:
    cluster = JointCluster(nodes=1)
    cluster.api.create(PODS, pod())
    cluster.api.edit(NODES, "n0", lambda obj: obj["status"]["allocatable"].update({"nvidia.com/gpu": "0"}))
    cluster.claim("a")
    cluster.pod("a", "a")
    cluster.settle()
    assert cluster.node_of("a") is None
    assert claim_events.FOREIGN_PLUGIN in cluster.reasons()
    note = objects.annotations_of(cluster.api.get(NODES, "n0"))[names.NO_GPUS]
    assert note.startswith(
        "pods have cards of NVIDIA's or HAMi's device plugin here (nvidia.com/gpu): default/p;"
    )
    cluster.api.edit(PODS, "p", lambda obj: obj["status"].update({"phase": "Failed"}), namespace="default")
    cluster.settle()
    assert cluster.node_of("a") == "n0"
    assert names.NO_GPUS not in objects.annotations_of(cluster.api.get(NODES, "n0"))


def test_a_pod_that_was_bound_by_hand_and_given_nothing_keeps_nobody_off() -> None:
    cluster = JointCluster(nodes=1)
    cluster.api.create(PODS, pod())
    cluster.claim("a")
    cluster.pod("a", "a")
    cluster.settle()
    assert cluster.node_of("a") == "n0"


def test_the_node_is_not_said_to_be_free_before_its_pods_are_read_anew() -> None:
    """The watch of pods is late, and that of the node is not."""
    cluster = JointCluster(nodes=1)
    cluster.api.edit(NODES, "n0", lambda obj: obj["status"]["allocatable"].update({"nvidia.com/gpu": "8"}))
    cluster.settle()
    late = pod()

    def note() -> str | None:
        return objects.annotations_of(cluster.api.get(NODES, "n0")).get(names.NO_GPUS)

    assert note()
    lists = cluster.api.list
    cluster.api.list = lambda kind, **asked: (  # type: ignore[method-assign]
        ([late], "1")
        if kind is PODS and asked.get("field_selector") == "spec.nodeName=n0"
        else lists(kind, **asked)
    )
    cluster.api.edit(NODES, "n0", lambda obj: obj["status"]["allocatable"].update({"nvidia.com/gpu": "0"}))
    cluster.settle()
    assert note(), "its pod is not in the watch yet"
    late["status"]["phase"] = "Succeeded"
    cluster.now += 60
    cluster.settle()
    assert note() is None
