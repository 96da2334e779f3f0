"""Pods: new ones, and the little that may change later."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.devcluster.calling import PODS, Caller
from tests.unit.devcluster.manifests import claiming_pod, pod

GATES = [{"name": "example.com/a"}, {"name": "example.com/b"}]
Spec = dict[str, Any]


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (pod(containers=[]), "spec.containers: Required value"),
        (pod(containers=[{"name": "A", "image": "x"}]), "spec.containers[0].name: Invalid value"),
        (pod(containers=[{"name": "a"}]), "spec.containers[0].image: Required value"),
        (pod(containers=[{"name": "a", "image": "x"}] * 2), 'spec.containers[1].name: Duplicate value: "a"'),
        (pod(restartPolicy="Sometimes"), 'spec.restartPolicy: Unsupported value: "Sometimes"'),
        (pod(resourceClaims=[{"name": "x"}]), "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"),
        (
            pod(resourceClaims=[{"name": "x", "resourceClaimName": "a", "resourceClaimTemplateName": "b"}]),
            "at most one of `resourceClaimName` or `resourceClaimTemplateName`",
        ),
        (claiming_pod(claim="c", resourceClaims=[{"name": "other", "resourceClaimName": "c"}]), "must be one of the names in pod.spec"),
        (pod(schedulingGates=GATES, nodeName="n1"), "cannot be set until all schedulingGates have been cleared"),
        (pod(schedulingGates=[GATES[0], GATES[0]]), "spec.schedulingGates[1]: Duplicate value"),
        (pod(tolerations=[{"operator": "Equal"}]), "spec.tolerations[0].operator: Invalid value"),
        (
            pod(containers=[{"name": "a", "image": "x", "resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}}]),
            "must be less than or equal to cpu limit of 1",
        ),
        (
            pod(affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}}),
            "must have at least one node selector term",
        ),
    ],
)  # fmt: skip
def test_broken_pods_are_named(api: Caller, body: Spec, text: str) -> None:
    assert text in api.refused(422, "POST", PODS, body)["message"]


def test_a_gated_pod_says_so_from_the_start(api: Caller) -> None:
    made = api.ok("POST", PODS, pod("a", schedulingGates=GATES))
    condition = made["status"]["conditions"][0]
    assert (condition["reason"], condition["status"], condition["observedGeneration"]) == (
        "SchedulingGated",
        "False",
        1,
    )


@pytest.mark.parametrize(
    ("limits", "expected"),
    [({}, "BestEffort"), ({"cpu": "1"}, "Burstable"), ({"cpu": "1", "memory": "1Gi"}, "Guaranteed")],
)
def test_quality_of_service(api: Caller, limits: Spec, expected: str) -> None:
    body = pod("a", containers=[{"name": "a", "image": "x", "resources": {"limits": limits}}])
    assert api.ok("POST", PODS, body)["status"]["qosClass"] == expected


def changed(change: Callable[[Spec], Any]) -> Callable[[Spec], Spec]:
    def apply(body: Spec) -> Spec:
        copied = copy.deepcopy(body)
        change(copied["spec"])
        return copied

    return apply


ALLOWED = {
    "image": changed(lambda spec: spec["containers"][0].update(image="busybox:2")),
    "one gate less": changed(lambda spec: spec["schedulingGates"].pop()),
    "narrower node selector": changed(lambda spec: spec["nodeSelector"].update(more="x")),
    "a toleration more": changed(lambda spec: spec["tolerations"].append({"operator": "Exists"})),
    "grace period": changed(lambda spec: spec.update(terminationGracePeriodSeconds=1)),
}
REFUSED = {
    "a new gate": (changed(lambda spec: spec["schedulingGates"].append({"name": "example.com/c"})), "only deletion is allowed"),
    "wider node selector": (changed(lambda spec: spec["nodeSelector"].clear()), "only additions to spec.nodeSelector"),
    "a toleration less": (changed(lambda spec: spec["tolerations"].pop()), "pod updates may not change fields other than"),
    "a claim": (
        changed(lambda spec: spec.update(resourceClaims=[{"name": "devices", "resourceClaimName": "other"}])),
        "spec.resourceClaims: Invalid value",
    ),
    "the command": (changed(lambda spec: spec["containers"][0].update(command=["x"])), "pod updates may not change"),
    "the node": (changed(lambda spec: spec.update(nodeName="n1")), "pod updates may not change"),
}  # fmt: skip


@pytest.fixture
def gated(api: Caller) -> Spec:
    body = claiming_pod("a", claim="c", schedulingGates=GATES, nodeSelector={"zone": "z"})
    found: Spec = api.ok("POST", PODS, body)
    return found


@pytest.mark.parametrize("name", ALLOWED)
def test_what_may_change_while_gated(api: Caller, gated: Spec, name: str) -> None:
    assert api.ok("PUT", f"{PODS}/a", ALLOWED[name](gated))["metadata"]["generation"] == 2


@pytest.mark.parametrize("name", REFUSED)
def test_what_may_not_change(api: Caller, gated: Spec, name: str) -> None:
    change, text = REFUSED[name]
    assert text in api.refused(422, "PUT", f"{PODS}/a", change(gated))["message"]


def test_the_node_selector_is_fixed_once_ungated(api: Caller) -> None:
    made = api.ok("POST", PODS, pod("a", nodeSelector={"zone": "z"}))
    made["spec"]["nodeSelector"]["more"] = "x"
    api.refused(422, "PUT", f"{PODS}/a", made)


def test_claim_statuses_must_name_entries_of_the_spec(api: Caller) -> None:
    api.ok("POST", PODS, pod("a"))
    patch = {"status": {"resourceClaimStatuses": [{"name": "x", "resourceClaimName": "c"}]}}
    refusal = api.refused(
        422, "PATCH", f"{PODS}/a/status", patch, content_type="application/merge-patch+json"
    )
    assert "must match the name of an entry in `spec.resourceClaims`" in refusal["message"]


@pytest.mark.parametrize(
    ("metadata", "text"),
    [
        ({"name": ""}, "name or generateName is required"),
        ({"name": "A"}, "metadata.name: Invalid value"),
        ({"name": "a", "labels": {"a b": "x"}}, "metadata.labels: Invalid value"),
        ({"name": "a", "labels": {"a": "x y"}}, "a valid label must be an empty string or consist of"),
        ({"name": "a", "finalizers": ["mine"]}, "nor is it fully qualified"),
        ({"name": "a", "ownerReferences": [{"kind": "Pod", "name": "p", "apiVersion": "v1", "uid": ""}]}, "must not be empty"),
    ],
)  # fmt: skip
def test_broken_metadata_is_named(api: Caller, metadata: Spec, text: str) -> None:
    assert text in api.refused(422, "POST", PODS, pod() | {"metadata": metadata})["message"]
