"""Claims of PodGroups on the whole double: made once, reserved for the group, gone with it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from koordra.api import kinds
from koordra.api.objects import status_of, uid
from koordra.kube.client import KubeClient
from koordra.kube.kubeconfig import new_client
from koordra_devcluster.apiserver.resources import GENERIC_WORKLOAD, POD_GROUPS
from koordra_devcluster.control_plane import ControlPlane
from koordra_devcluster.controllers.group_claims import consumer, shared_entry
from koordra_devcluster.kubelet.resources import _names
from tests.unit.devcluster.calling import eventually
from tests.unit.devcluster.manifests import allocation, node, pod, template

CLAIMS = kinds.RESOURCE_CLAIMS
ENTRY = {"name": "cards", "resourceClaimTemplateName": "two"}


@pytest.fixture
def client(tmp_path: Path, stop: threading.Event) -> Iterator[KubeClient]:
    plane = ControlPlane(tmp_path, first_backoff=0.05, gates=frozenset({GENERIC_WORKLOAD}))
    plane.start(stop)
    yield new_client(str(plane.kubeconfig))
    stop.set()
    plane.close()


def group(**spec: Any) -> dict[str, Any]:
    body = {"schedulingPolicy": {"gang": {"minCount": 2}}, "resourceClaims": [ENTRY], **spec}
    return {**POD_GROUPS.type_meta, "metadata": {"name": "team", "namespace": "default"}, "spec": body}


def member(name: str, *entries: dict[str, str], group: str = "team") -> dict[str, Any]:
    return pod(name, schedulingGroup={"podGroupName": group}, resourceClaims=list(entries) or [ENTRY])


def claims(client: KubeClient) -> list[dict[str, Any]]:
    return client.list(CLAIMS)[0]


def noted(client: KubeClient, name: str) -> list[str]:
    found = status_of(client.get(kinds.PODS, name, namespace="default"))
    return [one["resourceClaimName"] for one in found.get("resourceClaimStatuses") or ()]


def test_one_claim_for_all_pods_of_the_group(client: KubeClient) -> None:
    client.create(kinds.RESOURCE_CLAIM_TEMPLATES, template("two"))
    made = client.create(POD_GROUPS, group())
    for name in ("a", "b"):
        client.create(kinds.PODS, member(name))
    eventually(lambda: noted(client, "a") and noted(client, "b"))
    (claim,) = claims(client)
    assert noted(client, "a") == noted(client, "b") == [claim["metadata"]["name"]]
    assert claim["metadata"]["name"].startswith("team-cards-")
    assert [one["uid"] for one in claim["metadata"]["ownerReferences"]] == [uid(made)]


def test_it_is_reserved_for_the_group_and_goes_with_it(client: KubeClient) -> None:
    client.create(kinds.NODES, node("n1"))
    client.create(kinds.RESOURCE_CLAIM_TEMPLATES, template("two"))
    made = client.create(POD_GROUPS, group())
    for name in ("a", "b"):
        client.create(kinds.PODS, member(name))
    (claim,) = eventually(lambda: claims(client))
    protected = {**claim["metadata"], "finalizers": ["resource.kubernetes.io/delete-protection"]}
    claim = client.update(CLAIMS, {**claim, "metadata": protected})
    client.update(CLAIMS, {**claim, "status": {"allocation": allocation()}}, subresource="status")

    def bound() -> bool:
        return all(client.get(kinds.PODS, one, namespace="default")["spec"].get("nodeName") for one in "ab")

    eventually(bound)
    (entry,) = status_of(claims(client)[0])["reservedFor"]
    assert (entry["apiGroup"], entry["resource"], entry["uid"]) == (POD_GROUPS.group, "podgroups", uid(made))
    for name in ("a", "b"):
        client.delete(kinds.PODS, name, namespace="default", grace_period=0)
    threading.Event().wait(0.5)
    assert status_of(claims(client)[0])["reservedFor"] == [entry], "its pods may come again"
    client.delete(POD_GROUPS, "team", namespace="default")
    eventually(lambda: not claims(client))


@pytest.mark.parametrize(
    ("entries", "name"),
    [
        (({"name": "other", "resourceClaimTemplateName": "two"},), "team"),
        (({"name": "cards", "resourceClaimTemplateName": "else"},), "team"),
        ((ENTRY,), "another"),
    ],
)
def test_an_entry_that_is_not_the_groups_is_the_pods_own(
    client: KubeClient, entries: tuple[dict[str, str], ...], name: str
) -> None:
    for one in ("two", "else"):
        client.create(kinds.RESOURCE_CLAIM_TEMPLATES, template(one))
    client.create(POD_GROUPS, group())
    other = group(resourceClaims=[])
    client.create(POD_GROUPS, {**other, "metadata": {**other["metadata"], "name": "another"}})
    eventually(lambda: len(claims(client)) == 1)
    client.create(kinds.PODS, member("a", *entries, group=name))
    eventually(lambda: len(claims(client)) == 2)
    eventually(lambda: noted(client, "a"))
    owners = {
        one["metadata"]["name"]: one["metadata"]["ownerReferences"][0]["kind"] for one in claims(client)
    }
    assert owners[noted(client, "a")[0]] == "Pod"


def test_two_groups_of_the_same_entry_have_a_claim_each(client: KubeClient) -> None:
    client.create(kinds.RESOURCE_CLAIM_TEMPLATES, template("two"))
    made = [client.create(POD_GROUPS, {**group(), "metadata": {"name": name}}) for name in ("one", "other")]
    eventually(lambda: len(claims(client)) == 2)
    owners = {one["metadata"]["ownerReferences"][0]["uid"] for one in claims(client)}
    assert owners == {uid(one) for one in made}


def test_a_group_that_comes_late_is_waited_for(client: KubeClient) -> None:
    client.create(kinds.RESOURCE_CLAIM_TEMPLATES, template("two"))
    client.create(kinds.PODS, member("a"))
    threading.Event().wait(0.5)
    assert claims(client) == []
    client.create(POD_GROUPS, group())
    eventually(lambda: noted(client, "a"))
    assert len(claims(client)) == 1


def test_a_template_that_comes_late_is_found(client: KubeClient) -> None:
    client.create(POD_GROUPS, group())
    client.create(kinds.PODS, member("a"))
    client.create(kinds.RESOURCE_CLAIM_TEMPLATES, template("two"))
    eventually(lambda: noted(client, "a"))
    assert len(claims(client)) == 1


def test_who_is_meant() -> None:
    claim = {"metadata": {"ownerReferences": [{"kind": "PodGroup", "name": "team", "uid": "g1"}]}}
    mine, other = member("a"), member("b", group="another")
    mine["metadata"]["uid"], other["metadata"]["uid"] = "p1", "p2"
    assert consumer(claim, mine)["uid"] == "g1"
    assert consumer(claim, other) == {"resource": "pods", "name": "b", "uid": "p2"}
    assert _names(consumer(claim, mine), mine)
    assert not _names(consumer(claim, mine), other)
    assert _names(consumer(claim, other), other)
    assert shared_entry(ENTRY, group())
    assert not shared_entry({**ENTRY, "resourceClaimName": "x"}, group())
