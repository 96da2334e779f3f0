"""What the policies let each of koordra's accounts write: what it writes, and nothing else."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from koordra.api import names
from koordra.api.elastic.elastic_gpu import ELASTIC_CLASSES
from koordra.api.objects import Object
from koordra.api.resource_class import RESOURCE_CLASSES
from koordra.compat.dialect.allocation import Allocated, Device
from koordra.compat.dialects import DIALECTS
from koordra.controller.gangs.declared.annotations import COMMITTED, HELD
from koordra.controller.legacy.templates import MADE_BY, WEBHOOK
from koordra.controller.reconcile.pod_requeue import LOOK_AGAIN
from koordra.controller.resource_class.elastic import claims as elastic
from tests.fakes.admission_policy import policies, refusal

ROOT = Path(__file__).resolve().parents[3] / "deploy" / "kustomize" / "policies"
POLICIES = {name: spec for path in ROOT.glob("*.yaml") for name, spec in policies(path).items()}
CONTROLLER, PLUGIN, HOOK = "koordra-controller", "koordra-kubelet-plugin", "koordra-nri"
GATE = {"name": names.JOINT_GATE}


def changed(obj: Object, *path: str | int, to: Any = None) -> Object:
    """A copy with another value at the path, or without it."""
    new = copy.deepcopy(obj)
    place: Any = new
    for part in path[:-1]:
        place = place.setdefault(part, {}) if isinstance(place, dict) else place[part]
    if to is None:
        del place[path[-1]]
    else:
        place[path[-1]] = to
    return new


POD: Object = {
    "metadata": {
        "name": "p",
        "labels": {"app": "x"},
        "annotations": {"team": "ml"},
        "ownerReferences": [{"uid": "u", "apiVersion": "apps/v1"}],
    },
    "spec": {
        "schedulingGates": [{"name": "queue"}, GATE],
        "containers": [{"name": "main", "image": "train:1"}],
        "initContainers": [{"name": "init", "image": "train:1"}],
        "tolerations": [{"key": "a"}],
        "nodeSelector": {"zone": "a"},
    },
}
UNGATED = changed(POD, "spec", "schedulingGates", to=[{"name": "queue"}])


def peer_annotations() -> set[str]:
    """Every annotation that some dialect's readers look for."""
    card = Device(
        "gpu", "GPU-1", 0, "0000:01:00.0", "", 0, total=1 << 34, containers=("main",), memory=1 << 33
    )
    found = Allocated(node="n", containers=("main",), app=("main",), held=(card,), at=1, unit=1 << 30)
    return {
        key
        for dialect in DIALECTS
        if dialect.allocation_annotations is not None
        for key in dialect.allocation_annotations(found)
    }


@pytest.mark.parametrize(
    "new",
    [
        UNGATED,
        changed(UNGATED, "metadata", "annotations", COMMITTED, to="gang"),
        *(
            changed(POD, "metadata", "annotations", key, to="x")
            for key in sorted({COMMITTED, HELD, LOOK_AGAIN, *peer_annotations()})
        ),
    ],
    ids=lambda new: str(sorted(new["metadata"]["annotations"])),
)
def test_what_the_controller_writes_on_pods_it_may_write(new: Object) -> None:
    assert refusal(POLICIES["koordra-controller-pods"], POD, new, account=CONTROLLER) is None


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("spec", "schedulingGates"), [GATE], "the gate koordra.io/joint-allocation only"),
        (("spec", "schedulingGates"), None, "the gate koordra.io/joint-allocation only"),
        (("spec", "containers", 0, "image"), "evil", "what a pod runs"),
        (("spec", "initContainers", 0, "image"), "evil", "what a pod runs"),
        (("spec", "tolerations"), [{"key": "a"}, {"operator": "Exists"}], "nor where"),
        (("spec", "nodeSelector", "zone"), "b", "nor where"),
        (("spec", "affinity"), {"nodeAffinity": {}}, "nor where"),
        (("spec", "activeDeadlineSeconds"), 1, "what a pod runs"),
        (("spec", "terminationGracePeriodSeconds"), 1, "what a pod runs"),
        (("spec", "somethingNew"), 1, "what a pod runs"),
        (("metadata", "labels", "app"), "y", "labels, finalizers and owners"),
        (("metadata", "labels"), None, "labels, finalizers and owners"),
        (("metadata", "finalizers"), ["x/y"], "labels, finalizers and owners"),
        (("metadata", "ownerReferences"), [], "labels, finalizers and owners"),
        (("metadata", "annotations", "team"), "other", "only the annotations that it writes"),
        (("metadata", "annotations", "team"), None, "only the annotations that it writes"),
        (("metadata", "annotations", "koordra.io/gang-by"), "x", "only the annotations that it writes"),
        (("metadata", "annotations"), None, "only the annotations that it writes"),
    ],
    ids=str,
)
def test_nothing_else_of_a_pod(path: tuple[str | int, ...], value: Any, words: str) -> None:
    policy, new = POLICIES["koordra-controller-pods"], changed(POD, *path, to=value)
    assert words in (refusal(policy, POD, new, account=CONTROLLER) or "")
    assert refusal(policy, POD, new, account="system:serviceaccount:team:operator") is None
    if path[:2] != ("spec", "schedulingGates") and path[-1] != "somethingNew":
        beside = changed(new, "spec", "schedulingGates", to=[{"name": "queue"}])
        assert words in (refusal(policy, POD, beside, account=CONTROLLER) or ""), "while it lifts the gate"


NODE: Object = {
    "metadata": {"name": "n", "labels": {"zone": "a"}, "annotations": {"team": "ml"}},
    "spec": {"podCIDR": "10.0.0.0/24"},
    "status": {},
}


@pytest.mark.parametrize(
    "key",
    [
        names.RELEASE_ANNOTATION,
        names.QUARANTINE_SEEN,
        names.NO_GPUS,
        names.GPUS_GIVEN_TO,
        names.NICS_GIVEN_TO,
    ],
)
def test_what_the_controller_writes_on_nodes_it_may_write(key: str) -> None:
    policy, new = POLICIES["koordra-controller-nodes"], changed(NODE, "metadata", "annotations", key, to="x")
    assert refusal(policy, NODE, new, account=CONTROLLER) is None
    assert refusal(policy, new, NODE, account=CONTROLLER) is None
    assert refusal(policy, changed(NODE, "metadata", "annotations"), new, account=CONTROLLER) is not None


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("spec", "unschedulable"), True, "a node's spec"),
        (("spec", "taints"), [{"key": "a"}], "a node's spec"),
        (("metadata", "labels", "zone"), "b", "labels, finalizers and owners"),
        (("metadata", "labels", names.MODE_LABEL), "native", "labels, finalizers and owners"),
        (("metadata", "finalizers"), ["x/y"], "labels, finalizers and owners"),
        (("metadata", "annotations", "team"), None, "only the annotations that it writes"),
        (("metadata", "annotations", "koordra.io/cordon"), "x", "only the annotations that it writes"),
    ],
    ids=str,
)
def test_nothing_else_of_a_node(path: tuple[str | int, ...], value: Any, words: str) -> None:
    policy, new = POLICIES["koordra-controller-nodes"], changed(NODE, *path, to=value)
    assert words in (refusal(policy, NODE, new, account=CONTROLLER) or "")
    assert refusal(policy, NODE, new, account="system:serviceaccount:team:operator") is None


def result(driver: str = names.DRIVER, pool: str = "n") -> Object:
    return {"driver": driver, "pool": pool, "device": "gpu-0", "request": "gpu"}


CLAIM: Object = {
    "metadata": {
        "name": "c",
        "annotations": {"team": "ml"},
        "labels": {"app": "x"},
        "ownerReferences": [{"apiVersion": "v1", "uid": "u"}],
        "finalizers": [names.DELETE_PROTECTION],
    },
    "spec": {},
    "status": {},
}
ALLOCATED = changed(CLAIM, "status", to={"allocation": {"devices": {"results": [result()]}}})
RESERVED = changed(ALLOCATED, "status", "reservedFor", to=[{"resource": "pods", "uid": "p"}])
MIXED = changed(
    ALLOCATED, "status", "allocation", "devices", "results", to=[result(), result("other.example.com")]
)
OTHERS = changed(ALLOCATED, "status", "allocation", "devices", "results", to=[result("other.example.com")])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (CLAIM, ALLOCATED),
        (ALLOCATED, CLAIM),
        (MIXED, CLAIM),  # a scheduler's, for pods that are gone
        (changed(ALLOCATED, "status", "devices", to=[result()]), CLAIM),
        (changed(CLAIM, "metadata", "finalizers"), CLAIM),
        (
            CLAIM,
            changed(CLAIM, "metadata", "finalizers", to=[names.DELETE_PROTECTION, names.RETAIN_FINALIZER]),
        ),
        (
            changed(CLAIM, "metadata", "finalizers", to=[names.RETAIN_FINALIZER]),
            changed(CLAIM, "metadata", "finalizers"),
        ),
        (CLAIM, changed(CLAIM, "metadata", "annotations", elastic.SPEC, to="x")),
        (CLAIM, changed(CLAIM, "metadata", "labels", elastic.MANAGED_BY, to="koordra")),
        (CLAIM, changed(CLAIM, "metadata", "labels", elastic.CLAIM_LABEL, to="uid")),
        (
            CLAIM,
            changed(
                CLAIM,
                "metadata",
                "ownerReferences",
                to=[*CLAIM["metadata"]["ownerReferences"], {"apiVersion": "elasticgpu.io/v1alpha1"}],
            ),
        ),
    ],
)
def test_what_the_controller_writes_on_claims_it_may_write(old: Object, new: Object) -> None:
    assert refusal(POLICIES["koordra-controller-claims"], old, new, account=CONTROLLER) is None


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (CLAIM, OTHERS, "devices of koordra.io only"),
        (CLAIM, MIXED, "devices of koordra.io only"),
        (OTHERS, CLAIM, "take back claims that have some"),
        (ALLOCATED, OTHERS, "devices of koordra.io only"),
        (RESERVED, ALLOCATED, "whom a claim is reserved for"),
        (ALLOCATED, RESERVED, "whom a claim is reserved for"),
        (ALLOCATED, changed(ALLOCATED, "status", "devices", to=[result()]), "only take away"),
        (CLAIM, changed(CLAIM, "metadata", "annotations", "team"), "only annotations of koordra.io"),
        (CLAIM, changed(CLAIM, "metadata", "annotations", "team", to="b"), "only annotations of koordra.io"),
        (CLAIM, changed(CLAIM, "metadata", "labels", "app"), "only labels of koordra.io"),
        (CLAIM, changed(CLAIM, "metadata", "labels", "app", to="b"), "only labels of koordra.io"),
        (CLAIM, changed(CLAIM, "metadata", "finalizers"), "finalizers"),
        (CLAIM, changed(CLAIM, "metadata", "finalizers", to=["a/b", names.DELETE_PROTECTION]), "finalizers"),
        (CLAIM, changed(CLAIM, "metadata", "ownerReferences"), "owners of elasticgpu.io"),
        (
            CLAIM,
            changed(CLAIM, "metadata", "ownerReferences", to=[{"apiVersion": "v1", "uid": "other"}]),
            "owners of elasticgpu.io",
        ),
    ],
)
def test_nothing_else_of_a_claim(old: Object, new: Object, words: str) -> None:
    policy = POLICIES["koordra-controller-claims"]
    assert words in (refusal(policy, old, new, account=CONTROLLER) or "")
    assert refusal(policy, old, new, account="system:kube-scheduler") is None


def entry(driver: str = names.DRIVER, pool: str = "n", **more: Any) -> Object:
    return {"driver": driver, "pool": pool, "device": "gpu-0", **more}


BESIDE = [entry(pool="other"), entry("other.example.com")]


@pytest.mark.parametrize("account", [PLUGIN, HOOK])
def test_a_node_says_what_its_own_devices_do_and_nothing_else(account: str) -> None:
    policy = POLICIES["koordra-own-claim-status"]
    old = changed(RESERVED, "status", "devices", to=BESIDE)

    def said(new: Object, *, node: str | None = "n") -> str:
        return refusal(policy, old, new, account=account, node=node) or ""

    own = changed(old, "status", "devices", to=[*BESIDE, entry(conditions=[{"type": "Ready"}])])
    assert said(own) == ""
    assert refusal(policy, own, old, account=account, node="n") is None
    first = changed(old, "status", "devices")
    assert (
        refusal(policy, first, changed(first, "status", "devices", to=[entry()]), account=account, node="n")
        is None
    )
    assert "not bound to a node" in said(own, node=None)
    assert "node m may write of its own devices" in said(own, node="m")
    for devices in (
        [],
        BESIDE[:1],
        [changed(BESIDE[0], "data", to={}), BESIDE[1]],
        [BESIDE[0], entry("a.b")],
    ):
        assert "node n may write of its own devices" in said(changed(old, "status", "devices", to=devices))
    assert "is allocated" in said(changed(own, "status", "allocation", to=OTHERS["status"]["allocation"]))
    assert "is allocated" in said(changed(own, "status", "reservedFor"))
    for part in ("labels", "annotations", "finalizers", "ownerReferences"):
        assert "metadata" in said(changed(own, "metadata", part)), part
    assert refusal(policy, own, CLAIM, account=CONTROLLER) is None


def a_slice(**spec: Any) -> Object:
    pool = {"name": spec.pop("pool", "n")}
    return {"spec": {"driver": names.DRIVER, "nodeName": "n", "pool": pool, **spec}}


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (a_slice(nodeName="m"), "of that node only"),
        (changed(a_slice(), "spec", "nodeName"), "of that node only"),
        (changed(a_slice(allNodes=True), "spec", "nodeName"), "of that node only"),
        (a_slice(pool="m"), "of the pool of that name only"),
        (a_slice(driver="other.example.com"), "driver koordra.io only"),
    ],
)
def test_a_nodes_plugin_writes_slices_of_its_node_its_pool_and_its_driver(wrong: Object, words: str) -> None:
    policy, own = POLICIES["koordra-own-slices"], a_slice()
    for old, new in ((None, own), (own, own), (own, None)):
        assert refusal(policy, old, new, account=PLUGIN, node="n") is None
        assert "not bound to a node" in (refusal(policy, old, new, account=PLUGIN) or "")
        assert "of that node only" in (refusal(policy, old, new, account=PLUGIN, node="m") or "")
    for old, new in ((None, wrong), (own, wrong), (wrong, own), (wrong, None)):
        assert words in (refusal(policy, old, new, account=PLUGIN, node="n") or "")
        assert refusal(policy, old, new, account="system:node:n") is None


def owned(by: str, *, controller: bool = True) -> Object:
    owner = {"apiVersion": by, "kind": "X", "uid": "u", "controller": controller}
    return {"metadata": {"name": "c", "ownerReferences": [owner]}, "spec": {}}


def test_the_controller_writes_device_classes_of_its_own_only() -> None:
    policy, nobodys = POLICIES["koordra-controller-classes"], {"metadata": {"name": "c"}, "spec": {}}
    (rule,) = policy["matchConstraints"]["resourceRules"]
    assert rule["operations"] == ["CREATE", "UPDATE"], "it may delete none anyway"
    for own in (owned(RESOURCE_CLASSES.api_version), owned(ELASTIC_CLASSES.api_version)):
        for old in (None, own):
            assert refusal(policy, old, own, account=CONTROLLER) is None
        for old, new in ((nobodys, own), (own, nobodys), (None, nobodys)):
            assert "belong to a class" in (refusal(policy, old, new, account=CONTROLLER) or "")
            assert refusal(policy, old, new, account="system:serviceaccount:team:admin") is None
    for other in (
        owned("apps/v1"),
        owned("koordra.io.example.com/v1"),
        owned("koordra.io/v1", controller=False),
    ):
        assert "belong to a class" in (refusal(policy, None, other, account=CONTROLLER) or "")


def test_the_controller_writes_templates_of_its_own_only() -> None:
    policy = POLICIES["koordra-controller-templates"]
    own = {"metadata": {"name": "t", "labels": {MADE_BY: WEBHOOK}}, "spec": {}}
    for old, new in ((None, own), (own, own), (own, None)):
        assert refusal(policy, old, new, account=CONTROLLER) is None
    for other in (
        {"metadata": {"name": "t"}, "spec": {}},
        changed(own, "metadata", "labels", MADE_BY, to="x"),
    ):
        for old, new in ((None, other), (other, own), (own, other), (other, None)):
            assert "that it has made" in (refusal(policy, old, new, account=CONTROLLER) or "")
            assert refusal(policy, old, new, account="system:serviceaccount:team:admin") is None
