"""The claim loops of kube-controller-manager, garbage collection and namespaces, over HTTP."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from koordra.api import kinds
from koordra.api.names import DELETE_PROTECTION, POD_CLAIM_NAME
from koordra.errors import Forbidden, Invalid, NotFound
from koordra.kube.client import KubeClient
from koordra.kube.kubeconfig import new_client
from koordra_devcluster.apiserver.server import ApiServer
from koordra_devcluster.controllers import claims, garbage
from koordra_devcluster.controllers.informers import Informers
from tests.unit.devcluster.calling import eventually
from tests.unit.devcluster.manifests import (
    allocation,
    claim,
    claiming_pod,
    node,
    pod,
    resource_slice,
    template,
)

CLAIMS = kinds.RESOURCE_CLAIMS


@pytest.fixture
def loops(
    server: ApiServer, client: KubeClient, tmp_path: Path, stop: threading.Event
) -> Iterator[KubeClient]:
    """The loops at work, without a scheduler and without kubelets."""
    del server
    watched = tuple(dict.fromkeys((*claims.WATCHED, *garbage.WATCHED)))
    informers = Informers(new_client(str(tmp_path / "kubeconfig")), watched)
    running = (claims.ClaimLoops(client, informers), garbage.GarbageLoops(client, informers))
    informers.start(stop)
    informers.wait_synced(stop)
    for one in running:
        one.start(stop)
    yield client
    stop.set()


def claims_of(client: KubeClient) -> list[dict[str, Any]]:
    return client.list(CLAIMS)[0]


def reserve(
    client: KubeClient, name: str, consumer: dict[str, Any], *, protect: bool = True
) -> dict[str, Any]:
    """Allocate a claim and reserve it, as an allocator and the scheduler do."""
    found = client.get(CLAIMS, name, namespace="default")
    if protect:
        found["metadata"]["finalizers"] = [DELETE_PROTECTION]
        found = client.update(CLAIMS, found)
    entry = {"resource": "pods", "name": consumer["metadata"]["name"], "uid": consumer["metadata"]["uid"]}
    found["status"] = {"allocation": allocation(), "reservedFor": [entry]}
    return client.update(CLAIMS, found, subresource="status")


def gone(client: KubeClient, kind: kinds.Kind, name: str, namespace: str | None = "default") -> bool:
    try:
        client.get(kind, name, namespace=namespace)
    except NotFound:
        return True
    return False


@pytest.mark.parametrize("gates", [[], [{"name": "example.com/gate"}]], ids=["plain", "gated"])
def test_a_template_entry_gets_its_claim(loops: KubeClient, gates: list[dict[str, str]]) -> None:
    loops.create(kinds.RESOURCE_CLAIM_TEMPLATES, template("t"))
    made = loops.create(kinds.PODS, claiming_pod("p", template="t", schedulingGates=gates))
    (found,) = eventually(lambda: claims_of(loops))
    assert found["metadata"]["name"].startswith("p-devices-")
    assert found["metadata"]["annotations"] == {POD_CLAIM_NAME: "devices"}
    assert found["metadata"]["labels"] == {"from": "template"}
    owner = found["metadata"]["ownerReferences"][0]
    assert (owner["uid"], owner["controller"]) == (made["metadata"]["uid"], True)
    entry = {"name": "devices", "resourceClaimName": found["metadata"]["name"]}
    eventually(
        lambda: (
            loops.get(kinds.PODS, "p", namespace="default")["status"].get("resourceClaimStatuses") == [entry]
        )
    )
    assert len(claims_of(loops)) == 1


def test_a_template_that_comes_later_is_used_then(loops: KubeClient) -> None:
    loops.create(kinds.PODS, claiming_pod("p", template="late"))
    events = eventually(lambda: loops.list(kinds.EVENTS)[0])
    assert events[0]["reason"] == "FailedResourceClaimCreation"
    assert '"late" not found' in events[0]["message"]
    loops.create(kinds.RESOURCE_CLAIM_TEMPLATES, template("late"))
    eventually(lambda: claims_of(loops))


def test_a_claim_is_freed_when_its_last_pod_ends(loops: KubeClient) -> None:
    loops.create(CLAIMS, claim("a"))
    consumer = loops.create(kinds.PODS, pod("p", nodeName="n1"))
    reserve(loops, "a", consumer)
    loops.patch(
        kinds.PODS, "p", {"status": {"phase": "Succeeded"}}, namespace="default", subresource="status"
    )
    eventually(lambda: loops.get(CLAIMS, "a", namespace="default")["status"] == {})


def test_a_claim_is_freed_when_its_pod_vanishes(loops: KubeClient) -> None:
    loops.create(CLAIMS, claim("a"))
    consumer = loops.create(kinds.PODS, pod("p", nodeName="n1"))
    reserve(loops, "a", consumer)
    loops.delete(kinds.PODS, "p", namespace="default", grace_period=0)
    eventually(lambda: loops.get(CLAIMS, "a", namespace="default")["status"] == {})


def test_a_pod_of_the_same_name_is_another_consumer(loops: KubeClient) -> None:
    loops.create(CLAIMS, claim("a"))
    consumer = loops.create(kinds.PODS, pod("p", nodeName="n1"))
    reserve(loops, "a", {"metadata": {**consumer["metadata"], "uid": "of-an-earlier-pod"}})
    eventually(lambda: loops.get(CLAIMS, "a", namespace="default")["status"] == {})


def test_without_the_builtin_finalizer_the_allocation_stays(loops: KubeClient) -> None:
    loops.create(CLAIMS, claim("a"))
    consumer = loops.create(kinds.PODS, pod("p", nodeName="n1"))
    reserve(loops, "a", consumer, protect=False)
    loops.delete(kinds.PODS, "p", namespace="default", grace_period=0)
    eventually(lambda: "reservedFor" not in loops.get(CLAIMS, "a", namespace="default")["status"])
    assert loops.get(CLAIMS, "a", namespace="default")["status"]["allocation"]


def test_allocated_but_never_reserved_is_left_alone(loops: KubeClient) -> None:
    found = loops.create(
        CLAIMS,
        claim("a") | {"metadata": {"name": "a", "namespace": "default", "finalizers": [DELETE_PROTECTION]}},
    )
    loops.update(CLAIMS, {**found, "status": {"allocation": allocation()}}, subresource="status")
    consumer = loops.create(kinds.PODS, pod("p", nodeName="n1"))
    loops.create(CLAIMS, claim("b"))
    reserve(loops, "b", consumer)
    loops.delete(kinds.PODS, "p", namespace="default", grace_period=0)
    eventually(lambda: loops.get(CLAIMS, "b", namespace="default")["status"] == {})
    assert loops.get(CLAIMS, "a", namespace="default")["status"]["allocation"]


def test_one_of_two_consumers_leaves(loops: KubeClient) -> None:
    loops.create(CLAIMS, claim("a"))
    first = loops.create(kinds.PODS, pod("p", nodeName="n1"))
    second = loops.create(kinds.PODS, pod("q", nodeName="n1"))
    found = reserve(loops, "a", first)
    found["status"]["reservedFor"].append({"resource": "pods", "name": "q", "uid": second["metadata"]["uid"]})
    loops.update(CLAIMS, found, subresource="status")
    loops.delete(kinds.PODS, "p", namespace="default", grace_period=0)
    eventually(lambda: len(loops.get(CLAIMS, "a", namespace="default")["status"]["reservedFor"]) == 1)
    assert loops.get(CLAIMS, "a", namespace="default")["status"]["allocation"]


def test_a_deleting_claim_goes_once_nobody_uses_it(loops: KubeClient) -> None:
    loops.create(CLAIMS, claim("a"))
    consumer = loops.create(kinds.PODS, pod("p", nodeName="n1"))
    reserve(loops, "a", consumer)
    loops.delete(CLAIMS, "a", namespace="default")
    assert loops.get(CLAIMS, "a", namespace="default")["status"]["reservedFor"]
    loops.delete(kinds.PODS, "p", namespace="default", grace_period=0)
    eventually(lambda: gone(loops, CLAIMS, "a"))


@pytest.mark.parametrize("how", ["finished", "deleted"])
def test_a_template_claim_goes_with_its_pod(loops: KubeClient, how: str) -> None:
    loops.create(kinds.RESOURCE_CLAIM_TEMPLATES, template("t"))
    loops.create(kinds.PODS, claiming_pod("p", template="t"))
    eventually(lambda: claims_of(loops))
    if how == "deleted":
        loops.delete(kinds.PODS, "p", namespace="default")
    else:
        loops.patch(
            kinds.PODS, "p", {"status": {"phase": "Failed"}}, namespace="default", subresource="status"
        )
    eventually(lambda: not claims_of(loops))


def test_a_pod_with_a_preset_node_is_reserved(loops: KubeClient) -> None:
    found = loops.create(CLAIMS, claim("a"))
    loops.update(CLAIMS, {**found, "status": {"allocation": allocation()}}, subresource="status")
    made = loops.create(kinds.PODS, claiming_pod("p", claim="a", nodeName="n1"))
    reserved = eventually(lambda: loops.get(CLAIMS, "a", namespace="default")["status"].get("reservedFor"))
    assert reserved == [{"resource": "pods", "name": "p", "uid": made["metadata"]["uid"]}]


def test_owned_objects_go_with_their_last_owner(loops: KubeClient) -> None:
    owner = loops.create(kinds.NODES, node("n1"))
    reference = {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": owner["metadata"]["uid"]}
    body = resource_slice()
    body["metadata"]["ownerReferences"] = [reference]
    loops.create(kinds.RESOURCE_SLICES, body)
    own = {"name": "s", "namespace": "default", "ownerReferences": [reference]}
    loops.create(kinds.SERVICES, {"metadata": own, "spec": {"clusterIP": "None"}})
    loops.delete(kinds.NODES, "n1")
    eventually(lambda: gone(loops, kinds.RESOURCE_SLICES, "s", None))
    eventually(lambda: gone(loops, kinds.SERVICES, "s", "default"))


def test_an_object_whose_owner_never_was_goes(loops: KubeClient) -> None:
    body = resource_slice()
    body["metadata"]["ownerReferences"] = [{"apiVersion": "v1", "kind": "Node", "name": "no", "uid": "x"}]
    loops.create(kinds.RESOURCE_SLICES, body)
    eventually(lambda: gone(loops, kinds.RESOURCE_SLICES, "s", None))


def test_a_new_namespace_gets_its_account_and_a_deleted_one_its_peace(loops: KubeClient) -> None:
    loops.create(kinds.NAMESPACES, {"metadata": {"name": "team"}})
    body = pod() | {"metadata": {"name": "p", "namespace": "team"}}
    loops.create(kinds.PODS, body, namespace="team")
    loops.create(CLAIMS, claim() | {"metadata": {"name": "c", "namespace": "team"}}, namespace="team")
    loops.delete(kinds.NAMESPACES, "team")
    eventually(lambda: gone(loops, kinds.NAMESPACES, "team", None))
    assert not claims_of(loops)
    with pytest.raises((NotFound, Forbidden, Invalid)):
        loops.create(kinds.PODS, body, namespace="team")
