"""Who may write which part of a claim's status; the words are those of Kubernetes 1.36.2."""

from __future__ import annotations

from typing import Any

import pytest

from koordra_devcluster.apiserver.access.claim_authorization import check_claim_status
from koordra_devcluster.apiserver.serving.users import account_user
from koordra_devcluster.apiserver.status import Refusal
from tests.unit.devcluster.calling import Caller
from tests.unit.devcluster.manifests import allocation

RBAC = "/apis/rbac.authorization.k8s.io/v1"
ACCOUNT = {"metadata": {"namespace": "koordra-system", "name": "plugin", "uid": "u"}}
DRIVER = "gpu.example.com"
DEVICE = {"driver": DRIVER, "pool": "n1", "device": "gpu-0"}
ON_N1 = allocation("n1")
NOWHERE = {key: value for key, value in ON_N1.items() if key != "nodeSelector"}
TERM = ON_N1["nodeSelector"]["nodeSelectorTerms"][0]
SAID_OTHERWISE = ON_N1 | {
    "nodeSelector": {
        "nodeSelectorTerms": [
            {**TERM, "matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
        ]
    }
}


def written(api: Caller, before: Any, after: Any, *, node: str = "n1") -> str:
    """Why the account, with a token bound to that node, may not write it; empty: it may."""
    old, new = (
        {"metadata": {"namespace": "tenant", "name": "a"}, "status": status} for status in (before, after)
    )
    try:
        check_claim_status(api.store, new, old, user=account_user(ACCOUNT, node=node), verb="patch")
    except Refusal as refusal:
        assert refusal.code == 422
        return str(refusal.message)
    return ""


def grant(api: Caller, resource: str, *verbs: str, names: tuple[str, ...] = (), namespace: str = "") -> None:
    """To the account, in the whole cluster or in a namespace."""
    rule = {"apiGroups": ["resource.k8s.io"], "resources": [resource], "verbs": verbs, "resourceNames": names}
    where = f"{RBAC}/namespaces/{namespace}/role" if namespace else f"{RBAC}/clusterrole"
    kind = "Role" if namespace else "ClusterRole"
    api.ok("POST", f"{where}s", {"metadata": {"name": "given"}, "rules": [rule]})
    subject = {"kind": "ServiceAccount", "name": "plugin", "namespace": "koordra-system"}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": "given"}
    binding = {"metadata": {"name": "given"}, "roleRef": role, "subjects": [subject]}
    api.ok("POST", f"{where}bindings", binding)


def test_an_allocation_needs_the_right_to_bind_in_the_whole_cluster(api: Caller) -> None:
    words = (
        'status.allocation: Forbidden: changing status.allocation or status.reservedFor requires resource="resourceclaims/binding", '
        'verb="patch" permission: resourceclaims.resource.k8s.io is forbidden: User "system:serviceaccount:koordra-system:plugin" '
        'cannot patch resource "resourceclaims/binding" in API group "resource.k8s.io" at the cluster scope'
    )
    assert words in written(api, {}, {"allocation": ON_N1})
    grant(api, "resourceclaims/binding", "patch", namespace="default")
    assert words in written(api, {}, {"allocation": ON_N1})
    grant(api, "resourceclaims/binding", "patch")
    assert not written(api, {}, {"allocation": ON_N1})


def test_of_a_claim_of_its_node_a_driver_writes_its_devices(api: Caller) -> None:
    before, after = {"allocation": ON_N1}, {"allocation": ON_N1, "devices": [DEVICE]}
    words = (
        'status.devices: Forbidden: changing status.devices requires resource="resourceclaims/driver", '
        'verb="[{}arbitrary-node:patch]" permission: resourceclaims.resource.k8s.io "gpu.example.com" is forbidden: '
        'User "system:serviceaccount:koordra-system:plugin" cannot {}:patch resource "resourceclaims/driver"'
    )
    assert words.format("associated-node:patch ", "associated-node") in written(api, before, after)
    grant(api, "resourceclaims/driver", "associated-node:patch", names=(DRIVER,))
    assert not written(api, before, after)
    assert words.format("", "arbitrary-node") in written(api, before, after, node="n2")
    assert words.format("", "arbitrary-node") in written(api, before, after, node="")
    assert '"other.example.com" is forbidden' in written(
        api, before, {"allocation": ON_N1, "devices": [{**DEVICE, "driver": "other.example.com"}]}
    )


@pytest.mark.parametrize("placed", [NOWHERE, SAID_OTHERWISE], ids=["nowhere", "by more than a name"])
def test_a_claim_whose_node_is_not_told_by_name_alone_is_of_no_node(api: Caller, placed: Any) -> None:
    grant(api, "resourceclaims/driver", "associated-node:patch", names=(DRIVER,))
    for node in ("n1", ""):
        said = written(api, {"allocation": placed}, {"allocation": placed, "devices": [DEVICE]}, node=node)
        assert 'verb="[arbitrary-node:patch]"' in said


def test_devices_that_go_with_their_allocation_are_nobodys_business(api: Caller) -> None:
    grant(api, "resourceclaims/binding", "patch")
    assert not written(api, {"allocation": ON_N1, "devices": [DEVICE]}, {})
