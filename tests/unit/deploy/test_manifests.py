"""The shipped manifests as documents: complete, consistent with each other and with the code's names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from koordra.api import names, resource_class
from koordra.api.kinds import DEVICE_HOLDS, RESERVATIONS
from koordra.controller.quota import webhook as quota
from koordra.controller.run import LEASE_NAME
from koordra.controller.webhook import cert_rotation, handlers
from koordra.controller.webhook.cert_rotation import SECRET_NAME, SERVICE_NAME
from koordra.kubelet_plugin.network import node_parts
from koordra_devcluster.apiserver.access import cel_policies

ROOT = Path(__file__).resolve().parents[3] / "deploy" / "kustomize"
Object = dict[str, Any]


def documents(folder: str) -> list[Object]:
    return [
        obj
        for path in sorted((ROOT / folder).glob("*.yaml"))
        if path.name != "kustomization.yaml"
        for obj in yaml.safe_load_all(path.read_text())
        if obj
    ]


def of_kind(folder: str, kind: str) -> list[Object]:
    return [obj for obj in documents(folder) if obj["kind"] == kind]


@pytest.mark.parametrize("path", sorted(ROOT.rglob("kustomization.yaml")), ids=lambda path: path.parent.name)
def test_kustomizations_name_what_is_there_and_all_of_it(path: Path) -> None:
    content = yaml.safe_load(path.read_text())
    for name in content.get("resources") or ():
        assert (path.parent / name).exists(), name
    files = {entry.name for entry in path.parent.glob("*.yaml")} - {"kustomization.yaml"}
    patches = {Path(entry["path"]).name for entry in content.get("patches") or () if "path" in entry}
    assert files == {name for name in content.get("resources") or () if name.endswith(".yaml")} | patches


def test_every_class_of_koordra_carries_the_label_that_policies_look_for() -> None:
    (policy,) = [
        obj
        for obj in of_kind("policies", "ValidatingAdmissionPolicyBinding")
        if obj["metadata"]["name"] == "koordra-joint-taint"
    ]
    label = policy["spec"]["paramRef"]["selector"]["matchLabels"]
    assert label == {resource_class.CLASS_LABEL: "true"}
    classes = of_kind("base", "DeviceClass")
    assert {obj["metadata"]["name"] for obj in classes} == {
        names.CLASS_GPU, names.CLASS_MIG, names.CLASS_NIC, names.CLASS_VF, *names.IMEX_CLASSES,
    }  # fmt: skip
    assert all(obj["metadata"]["labels"] == label for obj in classes)


def test_every_policy_has_a_binding_that_denies() -> None:
    policies = {obj["metadata"]["name"] for obj in of_kind("policies", "ValidatingAdmissionPolicy")}
    bindings = of_kind("policies", "ValidatingAdmissionPolicyBinding")
    assert {obj["spec"]["policyName"] for obj in bindings} == policies
    assert all(obj["spec"]["validationActions"] == ["Deny"] for obj in bindings)


def webhooks() -> Iterator[Object]:
    for kind in cert_rotation.CONFIGURATIONS:
        (configuration,) = of_kind("webhook", kind.kind)
        assert configuration["metadata"]["name"] == cert_rotation.NAME
        yield from configuration["webhooks"]


def test_webhooks_call_paths_that_are_served_on_the_service_that_is_shipped() -> None:
    (service,) = of_kind("webhook", "Service")
    (deployment,) = of_kind("controller", "Deployment")
    assert service["metadata"]["name"] == SERVICE_NAME
    pod = deployment["spec"]["template"]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    ports = {port["name"] for port in pod["spec"]["containers"][0]["ports"]}
    assert service["spec"]["ports"][0]["targetPort"] in ports
    paths = set()
    for entry in webhooks():
        called = entry["clientConfig"]["service"]
        assert called["name"] == SERVICE_NAME
        paths.add(called["path"])
    assert paths == {prefix + path for prefix in ("", "/native") for path in handlers.HANDLERS} | {quota.PATH}


def test_only_claims_with_parameters_can_be_held_up_by_a_missing_webhook() -> None:
    """Everything else is ignored or never sent: nothing hangs when koordra is gone."""
    for entry in webhooks():
        condition = entry["matchConditions"][0]
        if condition["name"] == "has-parameters-of-koordra":
            assert 'c.opaque.driver == "koordra.io"' in condition["expression"]
        elif condition["name"] == "names-a-class-of-koordra":
            assert '.endsWith(".koordra.io")' in condition["expression"]
        else:
            assert entry["failurePolicy"] == "Ignore"


def test_nothing_that_is_installed_beside_a_webhook_is_sent_to_it() -> None:
    """Helm makes the webhooks first, and then nobody answers yet."""
    (guard,) = [entry for entry in webhooks() if "deviceclasses" in entry["rules"][0]["resources"]]
    shipped = [obj for folder in ("base", "legacy") for obj in of_kind(folder, "DeviceClass")]
    assert [obj for obj in shipped if obj["spec"].get("config")]
    assert not [obj for obj in shipped if holds(guard["matchConditions"], None, obj)]
    own = next(obj for obj in shipped if obj["spec"].get("config"))
    assert holds(guard["matchConditions"], None, {**own, "metadata": {"name": "mine"}})


@pytest.mark.parametrize(
    ("requests", "sent_to"),
    [
        ([{"exactly": {"deviceClassName": "gpu.koordra.io"}}], "quota.koordra.io"),
        ([{"exactly": {"deviceClassName": "koordra.io"}}], "others.quota.koordra.io"),
        ([{"exactly": {"deviceClassName": "gpu.example.com"}}], "others.quota.koordra.io"),
        (
            [
                {"exactly": {"deviceClassName": "gpu.example.com"}},
                {"firstAvailable": [{"deviceClassName": "a"}, {"deviceClassName": "mig.koordra.io"}]},
            ],
            "quota.koordra.io",
        ),
        ([], None),
    ],
)
def test_a_claim_is_charged_by_one_webhook(requests: list[Object], sent_to: str | None) -> None:
    claim = {"kind": "ResourceClaim", "metadata": {}, "spec": {"devices": {"requests": requests}}}
    both = [one for one in webhooks() if one["clientConfig"]["service"]["path"] == quota.PATH]
    assert len(both) == 2
    sent = [one["name"] for one in both if holds(one["matchConditions"], None, claim)]
    assert sent == ([sent_to] if sent_to else [])


def holds(conditions: list[Object], old: Object | None, new: Object) -> bool:
    values = {"object": new, "oldObject": old, "request": {"operation": "UPDATE" if old else "CREATE"}}
    return all(
        cel_policies.evaluate(entry["expression"], values, check=lambda *_: False) is True
        for entry in conditions
    )


def test_what_frees_a_claim_asks_nobody() -> None:
    """kube-controller-manager takes finalizers off by updates; held up, claims and their pods would never go
    away."""
    config = [{"opaque": {"driver": "koordra.io", "parameters": {}}}]
    claim: Object = {
        "kind": "ResourceClaim",
        "metadata": {"name": "c", "finalizers": ["resource.kubernetes.io/delete-protection"]},
        "spec": {"devices": {"config": config}, "config": config},
    }
    freed = {**claim, "metadata": {"name": "c"}}
    relabelled = {**claim, "metadata": {"name": "c", "labels": {"koordra.io/allocation-mode": "native"}}}
    annotated = {**claim, "metadata": {"name": "c", "annotations": {"koordra.io/allocation-mode": "native"}}}
    respecified = {**claim, "spec": {**claim["spec"], "selectors": []}}
    (policy,) = [
        obj["spec"]
        for obj in of_kind("policies", "ValidatingAdmissionPolicy")
        if obj["metadata"]["name"] == "koordra-joint-taint"
    ]
    guards = [entry for entry in webhooks() if "UPDATE" in entry["rules"][0]["operations"]]
    assert len(guards) == 3
    for guard in (policy, *guards):
        conditions = guard["matchConditions"]
        assert holds(conditions, None, claim)
        assert not holds(conditions, claim, freed)
        assert holds(conditions, claim, respecified)
    for guard in guards:
        of_claims = "resourceclaims" in guard["rules"][0]["resources"]
        assert holds(guard["matchConditions"], claim, relabelled) is of_claims
        assert holds(guard["matchConditions"], claim, annotated) is of_claims


@pytest.mark.parametrize(
    "toleration", [{}, {"operator": "Equal"}, {"key": ""}, {"operator": "Exists"}], ids=str
)
def test_a_toleration_without_a_key_tolerates_the_joint_taint(toleration: Object) -> None:
    """As kube-scheduler reads it: an empty key is every key, and the taint has no value."""
    (policy,) = [
        obj["spec"]
        for obj in of_kind("policies", "ValidatingAdmissionPolicy")
        if obj["metadata"]["name"] == "koordra-joint-taint"
    ]
    asked = {"deviceClassName": names.CLASS_GPU, "tolerations": [toleration]}
    values = {
        "params": {"metadata": {"name": names.CLASS_GPU}},
        "variables": {"asked": [asked], "alternatives": [[asked]], "own": [names.JOINT_TAINT]},
    }
    for validation in policy["validations"]:
        assert cel_policies.evaluate(validation["expression"], values, check=lambda *_: False) is False
    asked["tolerations"] = [{**toleration, "effect": "NoExecute"}]
    for validation in policy["validations"]:
        assert cel_policies.evaluate(validation["expression"], values, check=lambda *_: False) is True


def test_the_gates_annotations_are_guarded_on_every_way_to_a_pod() -> None:
    """An update of pods/status changes annotations too."""
    (policy,) = [
        obj["spec"]
        for obj in of_kind("policies", "ValidatingAdmissionPolicy")
        if obj["metadata"]["name"] == "koordra-gate"
    ]
    (rule,) = policy["matchConstraints"]["resourceRules"]
    assert set(rule["resources"]) == {"pods", "pods/status"}


def test_the_roles_name_the_objects_of_the_code() -> None:
    (role,) = of_kind("controller", "Role")
    by_resource = {
        (rule["resources"][0], tuple(rule["verbs"])): rule.get("resourceNames") for rule in role["rules"]
    }
    assert by_resource[("leases", ("get", "update"))] == [LEASE_NAME]
    assert by_resource[("secrets", ("get", "update"))] == [SECRET_NAME]


def test_the_crds_are_those_of_the_code() -> None:
    found = {obj["metadata"]["name"]: obj for obj in of_kind("crds", "CustomResourceDefinition")}
    kinds = (resource_class.RESOURCE_CLASSES, resource_class.CLASS_PARAMETERS, DEVICE_HOLDS, RESERVATIONS)
    assert set(found) == {str(kind) for kind in kinds}
    for kind in kinds:
        spec = found[str(kind)]["spec"]
        assert spec["names"]["kind"] == kind.kind
        assert (spec["scope"] == "Namespaced") is kind.namespaced
        assert [version["name"] for version in spec["versions"]] == [kind.version]


def test_a_nodes_plugin_takes_parts_for_its_own_node_and_takes_none_away() -> None:
    (policy,) = of_kind("pod-network", "ValidatingAdmissionPolicy")
    (configmap,) = of_kind("pod-network", "ConfigMap")
    assert configmap["metadata"] == {"name": node_parts.NAME, "namespace": "koordra-system"}

    def allowed(old: Object, new: Object, *, node: str | None = "node-a") -> bool:
        extra = {"extra": {"authentication.kubernetes.io/node-name": [node]}} if node else {}
        values = {"object": new, "oldObject": old, "request": {"operation": "UPDATE", "userInfo": extra}}
        return all(
            cel_policies.evaluate(entry["expression"], values, check=lambda *_: False) is True
            for entry in policy["spec"]["validations"]
        )

    others: Object = {"data": {"10.10.0.0-26": "node-b"}}
    own: Object = {"data": {"10.10.0.0-26": "node-b", "10.10.0.64-26": "node-a"}}
    assert allowed({}, {"data": {"10.10.0.0-26": "node-a"}})
    assert allowed(others, own)
    assert not allowed(others, own, node="node-c")
    assert not allowed(others, own, node=None)
    assert not allowed(own, others)
    assert not allowed(others, {"data": {"10.10.0.0-26": "node-a"}})
    assert not allowed(others, {})
