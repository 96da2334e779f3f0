"""What koordra's accounts may change in objects that are others' too, judged by the cluster's API server with
their own tokens. What they do write is shown by the other modules here, which run with the same tokens."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from koordra.api import kinds, names, objects
from koordra.api.objects import Object
from koordra.errors import Forbidden, Invalid, NotFound
from koordra.kube.client import JSON_PATCH, KubeClient
from tests.cluster.conftest import As
from tests.cluster.waiting import NODES

pytestmark = pytest.mark.cluster

REFUSED = (Forbidden, Invalid)


def a_pod(client: KubeClient, namespace: str, *, claim: str = "nobodys", **annotations: str) -> Object:
    """A pod that waits for somebody else's gate besides koordra's, and by default for a claim that nobody
    makes."""
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "held", "labels": {"app": "x"}, "annotations": annotations},
        "spec": {
            "schedulingGates": [{"name": "example.com/queue"}, {"name": names.JOINT_GATE}],
            "containers": [{"name": "main", "image": "busybox"}],
            "nodeSelector": {"koordra.io/test": "true"},
            "resourceClaims": [{"name": "gpu", "resourceClaimName": claim}],
        },
    }
    return client.create(kinds.PODS, body, namespace=namespace)


def removal_of_gate(index: int) -> list[Object]:
    return [{"op": "remove", "path": f"/spec/schedulingGates/{index}"}]


def test_of_a_pod_the_controller_takes_its_gate_off_and_writes_its_annotations(
    client: KubeClient, account: As, namespace: str
) -> None:
    controller = account("koordra-controller")
    a_pod(client, namespace, team="ml")
    for change, words in (
        ({"metadata": {"labels": {"app": "y"}}}, "labels, finalizers and owners"),
        ({"metadata": {"finalizers": ["koordra.io/stays"]}}, "labels, finalizers and owners"),
        ({"metadata": {"annotations": {"team": None}}}, "only the annotations that it writes"),
        ({"metadata": {"annotations": {"koordra.io/gang-by": "x"}}}, "only the annotations that it writes"),
        ({"spec": {"activeDeadlineSeconds": 1}}, "what a pod runs"),
        ({"spec": {"nodeSelector": {"koordra.io/test": "true", "more": "x"}}}, "nor where"),
    ):
        with pytest.raises(REFUSED, match=words):
            controller.patch(kinds.PODS, "held", change, namespace=namespace)
    with pytest.raises(REFUSED, match="joint-allocation only"):
        controller.patch(kinds.PODS, "held", removal_of_gate(0), namespace=namespace, content_type=JSON_PATCH)
    evil = [*removal_of_gate(1), {"op": "replace", "path": "/spec/containers/0/image", "value": "evil"}]
    with pytest.raises(REFUSED, match="what a pod runs"):
        controller.patch(kinds.PODS, "held", evil, namespace=namespace, content_type=JSON_PATCH)
    client.patch(kinds.PODS, "held", {"metadata": {"labels": {"app": "y"}}}, namespace=namespace)
    note = {"metadata": {"annotations": {"koordra.io/look-again": "1"}}}
    controller.patch(kinds.PODS, "held", note, namespace=namespace)
    freed = controller.patch(
        kinds.PODS, "held", removal_of_gate(1), namespace=namespace, content_type=JSON_PATCH
    )
    assert freed["spec"]["schedulingGates"] == [{"name": "example.com/queue"}]


def test_a_pod_with_very_many_annotations_gets_its_gate_off_and_no_further_one(
    client: KubeClient, account: As, namespace: str
) -> None:
    """To compare so many one by one takes the API server seconds."""
    controller = account("koordra-controller")
    a_pod(client, namespace, **{f"a{number}": "" for number in range(2_000)})
    note = {"metadata": {"annotations": {"koordra.io/look-again": "1"}}}
    with pytest.raises(REFUSED, match="at most 1000"):
        controller.patch(kinds.PODS, "held", note, namespace=namespace)
    controller.patch(kinds.PODS, "held", removal_of_gate(1), namespace=namespace, content_type=JSON_PATCH)


def test_of_a_node_the_controller_writes_its_annotations(client: KubeClient, account: As) -> None:
    controller, node = account("koordra-controller"), NODES[1]
    for change, words in (
        ({"spec": {"unschedulable": True}}, "a node's spec"),
        ({"spec": {"taints": [{"key": "a", "effect": "NoExecute"}]}}, "a node's spec"),
        ({"metadata": {"labels": {"koordra.io/test": None}}}, "labels, finalizers and owners"),
        ({"metadata": {"finalizers": ["koordra.io/stays"]}}, "labels, finalizers and owners"),
        ({"metadata": {"annotations": {"koordra.io/cordon": "x"}}}, "only the annotations that it writes"),
    ):
        with pytest.raises(REFUSED, match=words):
            controller.patch(kinds.NODES, node, change)
    for value in ("1", None):
        controller.patch(kinds.NODES, node, {"metadata": {"annotations": {names.QUARANTINE_SEEN: value}}})
    client.patch(kinds.NODES, node, {"metadata": {"labels": {"more": "x"}}})
    client.patch(kinds.NODES, node, {"metadata": {"labels": {"more": None}}})


def a_claim(client: KubeClient, namespace: str, *results: Object) -> Object:
    """A claim that somebody has allocated, for a pod that waits; with results it is reserved for that, too,
    so that the controller leaves it alone."""
    waits = a_pod(client, namespace, claim="held")
    request = {"name": "gpu", "exactly": {"deviceClassName": "nobodys.example.com"}}
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "held", "labels": {"app": "x"}},
        "spec": {"devices": {"requests": [request]}},
    }
    made = client.create(kinds.RESOURCE_CLAIMS, body, namespace=namespace)
    if not results:
        return made
    field = {"key": "metadata.name", "operator": "In", "values": [results[0]["pool"]]}
    where = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    allocation = {"devices": {"results": list(results)}, "nodeSelector": where}
    reserved = [{"resource": "pods", "name": "held", "uid": objects.uid(waits)}]
    return patched(client, namespace, {"allocation": allocation, "reservedFor": reserved})


def patched(client: KubeClient, namespace: str, status: Object) -> Object:
    return client.patch(
        kinds.RESOURCE_CLAIMS, "held", {"status": status}, namespace=namespace, subresource="status"
    )


def a_result(node: str = NODES[0], *, driver: str = names.DRIVER, number: int = 0) -> Object:
    return {"request": "gpu", "driver": driver, "pool": node, "device": f"made-up-{number}"}


def an_entry(node: str = NODES[0], *, driver: str = names.DRIVER, number: int = 0, text: str = "x") -> Object:
    condition = {
        "type": "Ready",
        "status": "True",
        "reason": "Test",
        "message": text,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    return {
        "driver": driver,
        "pool": node,
        "device": f"made-up-{number}",
        "conditions": [{**condition, "type": f"T{each}"} for each in range(8)],
    }


def test_of_a_claim_the_controller_allocates_koordras_devices(
    client: KubeClient, account: As, namespace: str
) -> None:
    controller = account("koordra-controller")
    a_claim(client, namespace)
    results: Any = [a_result(driver="other.example.com")]
    with pytest.raises(REFUSED, match=r"devices of koordra\.io only"):
        patched(controller, namespace, {"allocation": {"devices": {"results": results}}})
    patched(client, namespace, {"allocation": {"devices": {"results": results}}})
    with pytest.raises(REFUSED, match="take back claims that have some"):
        patched(controller, namespace, {"allocation": None})
    reserved = [{"resource": "pods", "name": "p", "uid": "p"}]
    with pytest.raises(REFUSED, match="whom a claim is reserved for"):
        patched(controller, namespace, {"reservedFor": reserved})
    for change, words in (
        ({"labels": {"app": "y"}}, r"only labels of koordra\.io"),
        ({"annotations": {"team": "x"}}, r"only annotations of koordra\.io"),
        ({"finalizers": ["example.com/stays"]}, "finalizers"),
        ({"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "p"}]}, "owners"),
    ):
        with pytest.raises(REFUSED, match=words):
            controller.patch(kinds.RESOURCE_CLAIMS, "held", {"metadata": change}, namespace=namespace)
    patched(client, namespace, {"allocation": None})
    protected = {"metadata": {"finalizers": [names.DELETE_PROTECTION]}}
    controller.patch(kinds.RESOURCE_CLAIMS, "held", protected, namespace=namespace)
    with pytest.raises(REFUSED, match="finalizers"):
        controller.patch(kinds.RESOURCE_CLAIMS, "held", {"metadata": {"finalizers": []}}, namespace=namespace)
    client.patch(kinds.RESOURCE_CLAIMS, "held", {"metadata": {"finalizers": []}}, namespace=namespace)


@pytest.mark.parametrize("process", ["koordra-kubelet-plugin", "koordra-nri"])
def test_of_a_claim_a_node_writes_what_its_own_devices_do(
    client: KubeClient, account: As, namespace: str, process: str
) -> None:
    first, second = NODES
    a_claim(
        client,
        namespace,
        a_result(first),
        a_result(second),
        a_result(second, driver="other.example.com"),
        *(a_result(first, number=number) for number in range(1, 29)),
    )
    others = [an_entry(second), an_entry(second, driver="other.example.com")]
    patched(client, namespace, {"devices": others})
    own = account(process, first)
    many = [an_entry(first, number=number, text="x" * 2000) for number in range(29)]
    patched(own, namespace, {"devices": [*others, *many]})  # as large as it can be
    patched(own, namespace, {"devices": others})
    for devices in ([], [others[1]], [{**others[0], "data": {"a": 1}}, others[1]]):
        with pytest.raises(REFUSED, match=r"own devices of koordra\.io only|resourceclaims/driver"):
            patched(own, namespace, {"devices": devices})
    with pytest.raises(REFUSED, match=r"is allocated|resourceclaims/binding"):
        patched(own, namespace, {"reservedFor": [{"resource": "pods", "name": "p", "uid": "p"}]})
    with pytest.raises(REFUSED, match=r"not bound to a node|resourceclaims/driver"):
        patched(account(process), namespace, {"devices": [*others, an_entry(first)]})
    patched(client, namespace, {"devices": None, "allocation": None, "reservedFor": None})


def test_the_controller_writes_no_classes_and_templates_of_others(
    client: KubeClient, account: As, namespace: str
) -> None:
    controller = account("koordra-controller")
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "koordra-test-others"},
    }
    with suppress(NotFound):
        client.delete(kinds.DEVICE_CLASSES, "koordra-test-others")
    with pytest.raises(REFUSED, match="belong to a class of koordra's"):
        controller.create(kinds.DEVICE_CLASSES, {**body, "spec": {}})
    made = client.create(kinds.DEVICE_CLASSES, {**body, "spec": {}})
    with pytest.raises(REFUSED, match="belong to a class of koordra's"):
        controller.update(
            kinds.DEVICE_CLASSES,
            {**made, "spec": {"selectors": []}, "metadata": {**made["metadata"], "labels": {"a": "b"}}},
        )
    client.delete(kinds.DEVICE_CLASSES, "koordra-test-others")
    request = {"name": "gpu", "exactly": {"deviceClassName": "nobodys.example.com"}}
    template = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "others"},
        "spec": {"spec": {"devices": {"requests": [request]}}},
    }
    kind = kinds.RESOURCE_CLAIM_TEMPLATES
    with pytest.raises(REFUSED, match="that it has made"):
        controller.create(kind, template, namespace=namespace)
    client.create(kind, template, namespace=namespace)
    mark = {"metadata": {"labels": {"koordra.io/made-by": "legacy-pods"}}}
    with pytest.raises(REFUSED, match="that it has made"):
        controller.patch(kind, "others", mark, namespace=namespace)
    with pytest.raises(REFUSED, match="that it has made"):
        controller.delete(kind, "others", namespace=namespace)
