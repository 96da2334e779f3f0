"""The rows of node.py: the credentials of the programs on a node are stolen."""

from __future__ import annotations

from typing import Any

import pytest

from koordra.api import kinds, names, objects
from koordra.api.kinds import Kind
from koordra.api.objects import Object
from koordra.kube.client import KubeClient
from tests.attacks.cluster import INNOCENT, InstalledCluster
from tests.attacks.node import NODE
from tests.attacks.row import Attack, Outcome, event
from tests.attacks.scene import Scene, all_refused, attack, judge
from tests.cluster.waiting import NODES

OWN, OTHER = NODES


@pytest.mark.parametrize("row", [row for row in NODE if row.runs], ids=lambda row: row.name)
def test_node(cluster: InstalledCluster, row: Attack) -> None:
    judge(cluster, row)


def stolen(scene: Scene, program: str = "koordra-kubelet-plugin") -> KubeClient:
    """The token of the program on that node, bound to its pod."""
    name = f"{program}-{OWN}"
    spec = {"nodeName": OWN, "serviceAccountName": program, "containers": [{"name": "main", "image": "x"}]}
    found = [
        each
        for each in scene.admin.list(kinds.PODS, namespace="koordra-system")[0]
        if objects.name(each) == name
    ]
    body = {"metadata": {"name": name, "labels": {"koordra.io/test": "true"}}, "spec": spec}
    (made,) = found or [scene.admin.create(kinds.PODS, body, namespace="koordra-system")]
    return scene.cluster.account(program, bound_to={"kind": "Pod", "apiVersion": "v1", **made})


def a_slice(node: str, *, pool: str = "", driver: str = names.DRIVER, devices: int = 1) -> Object:
    attributes = {"type": {"string": "gpu"}, "allocator": {"string": "controller"}}
    spec = {
        "driver": driver,
        "nodeName": node,
        "pool": {"name": pool or node, "generation": 99, "resourceSliceCount": 1},
        "devices": [{"name": f"ghost-{n}", "attributes": attributes} for n in range(devices)],
    }
    return {"metadata": {"name": "forged"}, "spec": spec}


def victims_claim(scene: Scene) -> Object:
    """A claim with devices of the other node, which keeps them: its pod is bound."""
    scene.claim("victim")
    scene.pod("victim", "victim", nodeSelector={"kubernetes.io/hostname": OTHER})

    def bound() -> object:
        return objects.spec_of(scene.admin.get(kinds.PODS, "victim", namespace="tenant")).get("nodeName")

    scene.wait(bound, "the claim's pod bound")
    return scene.admin.get(kinds.RESOURCE_CLAIMS, "victim", namespace="tenant")


@attack("slices-of-another-node")
def slices_of_another_node(scene: Scene) -> Outcome:
    plugin = stolen(scene)
    theirs = next(
        each
        for each in scene.admin.list(kinds.RESOURCE_SLICES)[0]
        if objects.spec_of(each)["nodeName"] == OTHER
    )
    everywhere = a_slice(OWN)
    del everywhere["spec"]["nodeName"]
    everywhere["spec"]["allNodes"] = True
    return all_refused(
        scene,
        lambda: plugin.create(kinds.RESOURCE_SLICES, a_slice(OTHER)),
        lambda: plugin.create(kinds.RESOURCE_SLICES, everywhere),
        lambda: plugin.update(kinds.RESOURCE_SLICES, {**theirs, "spec": {**theirs["spec"], "devices": []}}),
        lambda: plugin.delete(kinds.RESOURCE_SLICES, objects.name(theirs)),
    )


@attack("pool-of-another-node")
def pool_of_another_node(scene: Scene) -> Outcome:
    plugin = stolen(scene)
    try:
        return scene.attempt(lambda: plugin.create(kinds.RESOURCE_SLICES, a_slice(OWN, pool=OTHER)))
    finally:
        remove_forged(scene)


def remove_forged(scene: Scene) -> None:
    for each in scene.admin.list(kinds.RESOURCE_SLICES)[0]:
        if objects.name(each) == "forged":
            scene.admin.delete(kinds.RESOURCE_SLICES, "forged")


@attack("slices-of-another-driver")
def slices_of_another_driver(scene: Scene) -> Outcome:
    plugin = stolen(scene)
    body = a_slice(OWN, driver="gpu.nvidia.com")
    return scene.attempt(lambda: plugin.create(kinds.RESOURCE_SLICES, body))


@attack("token-of-no-node")
def token_of_no_node(scene: Scene) -> Outcome:
    plugin = scene.cluster.account("koordra-kubelet-plugin")
    return scene.attempt(lambda: plugin.create(kinds.RESOURCE_SLICES, a_slice(OWN)))


@attack("devices-that-do-not-exist")
def devices_that_do_not_exist(scene: Scene) -> Outcome:
    """In place of what the node had; a claim for nothing but a GPU may go there."""
    plugin = stolen(scene)
    before = [
        each
        for each in scene.admin.list(kinds.RESOURCE_SLICES)[0]
        if objects.spec_of(each)["nodeName"] == OWN
    ]
    for each in before:
        plugin.delete(kinds.RESOURCE_SLICES, objects.name(each))
    plugin.create(kinds.RESOURCE_SLICES, a_slice(OWN, devices=64))
    try:
        scene.claim("lured")
        scene.pod("lured", "lured", nodeSelector={"kubernetes.io/hostname": OWN})
        scene.wait(lambda: scene.allocated("lured"), "the claim placed")
        scene.wait_for(event("Allocated"))
        return "open" if scene.results("lured")[0]["device"].startswith("ghost") else "denied"
    finally:
        remove_forged(scene)
        for each in before:
            scene.admin.create(
                kinds.RESOURCE_SLICES, {"metadata": {"name": objects.name(each)}, "spec": each["spec"]}
            )


@attack("status-of-other-claims")
def status_of_other_claims(scene: Scene) -> Outcome:
    (result,) = objects.spec_of({"spec": victims_claim(scene)["status"]["allocation"]["devices"]})["results"]
    entry = {key: result[key] for key in ("driver", "pool", "device", "shareID") if key in result}
    said: list[dict[str, Any]] = [{**entry, "conditions": []}]
    return all_refused(
        scene,
        *(
            lambda client=client: client.patch(
                kinds.RESOURCE_CLAIMS,
                "victim",
                {"status": {"devices": said}},
                namespace="tenant",
                subresource="status",
            )
            for client in (stolen(scene), stolen(scene, "koordra-nri"))
        ),
    )


@attack("allocation-by-a-node")
def allocation_by_a_node(scene: Scene) -> Outcome:
    victims_claim(scene)
    plugin = stolen(scene)
    return scene.attempt(
        lambda: plugin.patch(
            kinds.RESOURCE_CLAIMS,
            "victim",
            {"status": {"allocation": None, "reservedFor": None}},
            namespace="tenant",
            subresource="status",
        )
    )


@attack("pods-of-others")
def pods_of_others(scene: Scene) -> Outcome:
    victims_claim(scene)
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "victim"}}
    where: dict[str, Any] = {"namespace": "tenant"}
    return all_refused(
        scene,
        *(
            attempt
            for client in (stolen(scene), stolen(scene, "koordra-nri"))
            for attempt in (
                lambda client=client: client.delete(kinds.PODS, "victim", **where),
                lambda client=client: client.create(
                    kinds.PODS, eviction, name="victim", subresource="eviction", **where
                ),
                lambda client=client: client.patch(
                    kinds.PODS, "victim", {"metadata": {"labels": {"a": "b"}}}, **where
                ),
                lambda client=client: client.list(kinds.PODS, **where),
            )
        ),
    )


@attack("nodes-of-others")
def nodes_of_others(scene: Scene) -> Outcome:
    changes = ({"metadata": {"labels": {"a": "b"}}}, {"spec": {"unschedulable": True}})
    return all_refused(
        scene,
        *(
            lambda client=client, change=change: client.patch(kinds.NODES, OTHER, change)
            for client in (stolen(scene), stolen(scene, "koordra-nri"))
            for change in changes
        ),
    )


@attack("secrets-by-a-node")
def secrets_by_a_node(scene: Scene) -> Outcome:
    secrets = Kind("", "v1", "secrets", "Secret")
    return all_refused(
        scene,
        *(
            attempt
            for client in (stolen(scene), stolen(scene, "koordra-nri"))
            for attempt in (
                lambda client=client: client.get(secrets, "koordra-webhook-tls", namespace="koordra-system"),
                lambda client=client: client.list(secrets, namespace=INNOCENT),
                lambda client=client: client.get(
                    kinds.LEASES, "koordra-controller", namespace="koordra-system"
                ),
            )
        ),
    )
