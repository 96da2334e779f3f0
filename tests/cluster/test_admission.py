"""What administrators' policies, the webhook and RBAC let through, judged by the cluster's API server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from koordra.api import kinds, names, objects
from koordra.api.objects import Object
from koordra.errors import ApiError, Conflict, Forbidden, Invalid, NotFound
from koordra.kube.client import JSON_PATCH, KubeClient
from koordra.kube.kubeconfig import new_client
from koordra.kubelet_plugin.discovery.reading import discover
from koordra.kubelet_plugin.publish.resource_slices import build_slices
from koordra.topology import presets
from tests.cluster.installation import WEBHOOKS, account_kubeconfig, documents, dry_run, kind_of
from tests.cluster.waiting import NODES, eventually

pytestmark = pytest.mark.cluster

ROLES = kinds.Kind("rbac.authorization.k8s.io", "v1", "roles", "Role")
ROLE_BINDINGS = kinds.Kind("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding")

ALL = {"operator": "Exists"}
TOLERATIONS = {
    "by-key": {"key": names.JOINT_TAINT, "operator": "Exists"},
    "by-value": {"key": names.JOINT_TAINT, "operator": "Equal", "value": "x", "effect": "NoSchedule"},
    "driver-release": {"key": names.RELEASE_TAINT, "operator": "Exists"},
    "held": {"key": names.HELD_TAINT, "value": "x"},
    "quarantine": {"key": names.QUARANTINE_TAINT, "operator": "Exists", "effect": "NoExecute"},
    "everything": ALL,
    "everything-noschedule": {"operator": "Exists", "effect": "NoSchedule"},
    "everything-without-value": {},
    "everything-equal": {"operator": "Equal", "effect": "NoSchedule"},
}


def devices(toleration: Object, device_class: str, *, alternative: bool) -> Object:
    asked = {"deviceClassName": device_class, "tolerations": [toleration]}
    if not alternative:
        return {"devices": {"requests": [{"name": "gpu", "exactly": asked}]}}
    plain = {"name": "plain", "deviceClassName": device_class}
    return {"devices": {"requests": [{"name": "gpu", "firstAvailable": [plain, {"name": "other", **asked}]}]}}


def claim_like(kind: str, spec: Object, *, name: str = "tolerating", **metadata: Any) -> Object:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": name, **metadata},
        "spec": {"spec": spec} if kind.endswith("Template") else spec,
    }


@pytest.mark.parametrize("alternative", [False, True], ids=["exactly", "firstAvailable"])
@pytest.mark.parametrize("kind", ["ResourceClaim", "ResourceClaimTemplate"])
@pytest.mark.parametrize("name", TOLERATIONS)
def test_nobody_tolerates_taints_of_koordras_own(
    client: KubeClient, namespace: str, name: str, kind: str, alternative: bool
) -> None:
    obj = claim_like(kind, devices(TOLERATIONS[name], names.CLASS_GPU, alternative=alternative))
    with pytest.raises((Forbidden, Invalid), match=r"remove the toleration"):
        client.create(kind_of(obj), obj, namespace=namespace)


@pytest.mark.parametrize(
    ("toleration", "device_class"),
    [
        (ALL, "other.example.com"),
        (TOLERATIONS["by-key"], "other.example.com"),
        ({"key": "koordra.io/unhealthy", "operator": "Exists"}, names.CLASS_GPU),
        ({"operator": "Exists", "effect": "NoExecute"}, names.CLASS_NIC),
    ],
)
def test_other_tolerations_and_other_classes_are_free(
    client: KubeClient, namespace: str, toleration: Object, device_class: str
) -> None:
    obj = claim_like("ResourceClaim", devices(toleration, device_class, alternative=False))
    client.create(kinds.RESOURCE_CLAIMS, obj, namespace=namespace)


def test_classes_made_by_resource_classes_are_guarded_too(
    client: KubeClient, namespace: str, resource_class: Callable[..., Object]
) -> None:
    resource_class("koordra-test-guarded", deviceType="gpu")
    eventually(lambda: _ready(client, "koordra-test-guarded") == "Reconciled", "the DeviceClass")
    obj = claim_like("ResourceClaim", devices(ALL, "koordra-test-guarded", alternative=False))

    def refused() -> str | None:
        """The API server's own view of the classes may lag by a moment."""
        try:
            client.create(kinds.RESOURCE_CLAIMS, obj, namespace=namespace)
        except (Forbidden, Invalid) as error:
            return str(error)
        client.delete(kinds.RESOURCE_CLAIMS, "tolerating", namespace=namespace)
        return None

    assert "koordra-test-guarded" in eventually(refused, "the refusal")


# --- a node's plugin writes its own slices only ---


@pytest.fixture(scope="module")
def plugin(
    client: KubeClient,
    kubeconfig: str,
    nodes: dict[str, list[Object]],
    tmp_path_factory: pytest.TempPathFactory,
) -> KubeClient:
    """The API as the plugin of the first node sees it."""
    del nodes
    path = tmp_path_factory.mktemp("plugin") / "kubeconfig"
    node = client.get(kinds.NODES, NODES[0])
    account_kubeconfig(client, kubeconfig, path, account="koordra-kubelet-plugin", bound_to=node)
    return new_client(str(path), user_agent="koordra-kubelet-plugin")


def a_slice(
    node: str, *, pool_of: str = "", driver: str = names.DRIVER, name: str = "koordra-test-extra"
) -> Object:
    """Of an older generation than the node's own slices, so that nobody takes it for one of them."""
    pool = {"name": pool_of or node, "generation": 0, "resourceSliceCount": 1}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": {"driver": driver, "nodeName": node, "pool": pool, "devices": [{"name": "extra"}]},
    }


def test_a_plugin_writes_slices_of_its_own_node(client: KubeClient, plugin: KubeClient) -> None:
    _remove(client, kinds.RESOURCE_SLICES, "koordra-test-extra")
    made = plugin.create(kinds.RESOURCE_SLICES, a_slice(NODES[0]))
    made["spec"]["devices"] = []
    plugin.update(kinds.RESOURCE_SLICES, made)
    plugin.delete(kinds.RESOURCE_SLICES, "koordra-test-extra")


def test_a_plugin_writes_no_other_slices(client: KubeClient, plugin: KubeClient) -> None:
    _remove(client, kinds.RESOURCE_SLICES, "koordra-test-extra")
    with pytest.raises((Forbidden, Invalid), match="of that node only"):
        plugin.create(kinds.RESOURCE_SLICES, a_slice(NODES[1]))
    with pytest.raises((Forbidden, Invalid), match=r"driver koordra\.io only"):
        plugin.create(kinds.RESOURCE_SLICES, a_slice(NODES[0], driver="other.example.com"))
    for pool in (NODES[1], f"{NODES[0]}-extra"):
        with pytest.raises((Forbidden, Invalid), match="of the pool of that name only"):
            plugin.create(kinds.RESOURCE_SLICES, a_slice(NODES[0], pool_of=pool))
    client.create(kinds.RESOURCE_SLICES, a_slice(NODES[1]))
    with pytest.raises((Forbidden, Invalid), match="of that node only"):
        plugin.delete(kinds.RESOURCE_SLICES, "koordra-test-extra")
    client.delete(kinds.RESOURCE_SLICES, "koordra-test-extra")


def test_a_token_that_is_bound_to_no_node_writes_no_slice(
    client: KubeClient, kubeconfig: str, nodes: dict[str, list[Object]], tmp_path: Path
) -> None:
    del nodes
    path = account_kubeconfig(client, kubeconfig, tmp_path / "kubeconfig", account="koordra-kubelet-plugin")
    with pytest.raises((Forbidden, Invalid), match="not bound to a node"):
        new_client(str(path)).create(kinds.RESOURCE_SLICES, a_slice(NODES[0]))


# --- the gate ---


@pytest.fixture
def developer(client: KubeClient, kubeconfig: str, namespace: str, tmp_path: Path) -> KubeClient:
    """Somebody who may do everything with pods and claims in the test's namespace, and nothing else."""
    meta = {"name": "developer", "namespace": namespace}
    rule = {"apiGroups": ["", "resource.k8s.io"], "resources": ["*"], "verbs": ["*"]}
    subject = {"kind": "ServiceAccount", "name": "developer", "namespace": namespace}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "developer"}
    for kind, body in (
        (kinds.SERVICE_ACCOUNTS, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta}),
        (ROLES, {"apiVersion": ROLES.api_version, "kind": "Role", "metadata": meta, "rules": [rule]}),
        (
            ROLE_BINDINGS,
            {
                "apiVersion": ROLES.api_version,
                "kind": "RoleBinding",
                "metadata": meta,
                "roleRef": reference,
                "subjects": [subject],
            },
        ),
    ):
        _remove(client, kind, "developer", namespace=namespace)
        client.create(kind, body)
    path = account_kubeconfig(client, kubeconfig, tmp_path / "dev", account="developer", namespace=namespace)
    found = new_client(str(path), user_agent="developer")
    eventually(lambda: _may_list(found, namespace), "the rights of the developer")
    return found


def a_pod(name: str, **spec: Any) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [{"name": "main", "image": "busybox"}], **spec},
    }


def test_only_the_controller_lifts_the_gate(
    client: KubeClient, developer: KubeClient, namespace: str
) -> None:
    gates = [{"name": names.JOINT_GATE}, {"name": "example.com/other"}]
    # The claim is never there, so that the controller does not lift the gate in the middle of the test.
    claims = [{"name": "gpu", "resourceClaimName": "missing"}]
    pod = a_pod("gated", schedulingGates=gates, resourceClaims=claims)
    developer.create(kinds.PODS, pod, namespace=namespace)
    without = {"spec": {"schedulingGates": gates[1:]}}
    with pytest.raises((Forbidden, Invalid), match="lifted by koordra's controller"):
        developer.patch(kinds.PODS, "gated", without, namespace=namespace)
    other = [{"op": "remove", "path": "/spec/schedulingGates/1"}]
    developer.patch(kinds.PODS, "gated", other, namespace=namespace, content_type=JSON_PATCH)
    client.patch(kinds.PODS, "gated", {"spec": {"schedulingGates": []}}, namespace=namespace)
    pod = client.get(kinds.PODS, "gated", namespace=namespace)
    assert not pod["spec"].get("schedulingGates")


def test_only_the_controller_sets_the_gates_annotations(developer: KubeClient, namespace: str) -> None:
    forged = a_pod("forged")
    forged["metadata"]["annotations"] = {"gate.koordra.io/allocated": "true"}
    with pytest.raises((Forbidden, Invalid), match=r"gate\.koordra\.io are written by koordra's controller"):
        developer.create(kinds.PODS, forged, namespace=namespace)
    developer.create(kinds.PODS, a_pod("plain"), namespace=namespace)
    mark = {"metadata": {"annotations": {"gate.koordra.io/x": "y"}}}
    with pytest.raises((Forbidden, Invalid), match=r"gate\.koordra\.io"):
        developer.patch(kinds.PODS, "plain", mark, namespace=namespace)


def test_rbac_gives_nobody_more_than_that(client: KubeClient, developer: KubeClient, namespace: str) -> None:
    del namespace
    with pytest.raises(Forbidden, match=r'cannot list resource "nodes"'):
        developer.list(kinds.NODES)
    with pytest.raises(Forbidden, match=r'cannot create resource "deviceclasses"'):
        developer.create(kinds.DEVICE_CLASSES, {"metadata": {"name": "x"}, "spec": {}})
    assert client.list(kinds.NODES)[0]


def test_an_allocation_needs_the_right_to_bind(
    client: KubeClient, developer: KubeClient, kubeconfig: str, namespace: str, tmp_path: Path
) -> None:
    """resourceclaims/status alone is not enough to change an allocation (since 1.36)."""
    role = client.get(ROLES, "developer", namespace=namespace)
    role["rules"] = [
        {
            "apiGroups": ["resource.k8s.io"],
            "resources": ["resourceclaims", "resourceclaims/status"],
            "verbs": ["get", "update", "patch", "create"],
        }
    ]
    client.update(ROLES, role)
    obj = claim_like("ResourceClaim", devices(ALL, "other.example.com", alternative=False), name="mine")
    eventually(lambda: _created(developer, obj, namespace), "the changed role")
    status = {"allocation": {"devices": {"results": []}}}
    with pytest.raises((Forbidden, Invalid), match="resourceclaims/binding"):
        developer.patch(
            kinds.RESOURCE_CLAIMS, "mine", {"status": status}, namespace=namespace, subresource="status"
        )


# --- the webhook ---


def parameters(kind: str, requests: list[str], **fields: Any) -> Object:
    body = {"apiVersion": "koordra.io/v1alpha1", "kind": kind, **fields}
    return {"requests": requests, "opaque": {"driver": names.DRIVER, "parameters": body}}


def a_pair(gpus: int = 1, **joint: Any) -> Object:
    requests = [
        {"name": "gpu", "exactly": {"deviceClassName": names.CLASS_GPU, "count": gpus}},
        {"name": "nic", "exactly": {"deviceClassName": names.CLASS_NIC, "count": gpus}},
    ]
    config = [parameters("JointAllocation", ["gpu", "nic"], **{"scope": "PCIeSwitch", **joint})]
    return {"devices": {"requests": requests, "config": config}}


@pytest.mark.parametrize("kind", ["ResourceClaim", "ResourceClaimTemplate"])
def test_parameters_are_refused_with_object_field_and_remedy(
    client: KubeClient, namespace: str, kind: str
) -> None:
    spec = a_pair(scope="PCIESwitch")
    obj = claim_like(kind, spec, name="misspelt")
    with pytest.raises(Invalid) as refused:
        client.create(kind_of(obj), obj, namespace=namespace)
    assert f"{kind} {namespace}/misspelt" in refused.value.message
    assert "config[0].opaque.parameters.scope" in refused.value.message
    assert "use one of PCIeSwitch, PCIeRoot" in refused.value.message


def test_device_classes_are_checked(client: KubeClient, controller: None) -> None:
    del controller
    spec = {"config": [parameters("GpuConfig", [], priority=1000)]}
    spec["config"][0].pop("requests")
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "koordra-test-bad"},
        "spec": spec,
    }
    with pytest.raises(Invalid, match=r"spec\.config\[0\]\.opaque\.parameters\.priority"):
        client.create(kinds.DEVICE_CLASSES, body)


def test_pods_with_claims_are_gated_and_let_go(client: KubeClient, namespace: str) -> None:
    """The claim cannot be served, so the gate stays to be seen."""
    too_much = {"deviceClassName": names.CLASS_GPU, "capacity": {"requests": {"memory": "100Ti"}}}
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": too_much}]}}
    client.create(kinds.RESOURCE_CLAIMS, claim_like("ResourceClaim", spec, name="much"), namespace=namespace)
    claims = [{"name": "gpu", "resourceClaimName": "much"}]
    pod = client.create(kinds.PODS, a_pod("waiting", resourceClaims=claims), namespace=namespace)
    assert pod["spec"]["schedulingGates"] == [{"name": names.JOINT_GATE}]
    plain = client.create(kinds.PODS, a_pod("without"), namespace=namespace)
    assert not plain["spec"].get("schedulingGates")


@pytest.fixture
def native(client: KubeClient, namespace: str) -> Iterator[str]:
    """The test's namespace, in native mode."""
    client.patch(kinds.NAMESPACES, namespace, {"metadata": {"labels": {names.MODE_LABEL: "native"}}})
    yield namespace
    client.patch(kinds.NAMESPACES, namespace, {"metadata": {"labels": {names.MODE_LABEL: None}}})


def test_native_namespaces_get_standard_terms(client: KubeClient, native: str) -> None:
    def translated() -> Object | None:
        """The API server's view of the namespace's labels may lag by a moment."""
        made = client.create(
            kinds.RESOURCE_CLAIMS, claim_like("ResourceClaim", a_pair(2), name="two"), namespace=native
        )
        client.delete(kinds.RESOURCE_CLAIMS, "two", namespace=native)
        return made if made["spec"]["devices"].get("constraints") else None

    made = eventually(translated, "the translation")["spec"]["devices"]
    assert [request["name"] for request in made["requests"]] == ["gpu-0", "gpu-1", "nic-0", "nic-1"]
    assert made["constraints"] == [
        {"requests": ["gpu-0", "nic-0"], "matchAttribute": names.ATTR_PCIE_SWITCH},
        {"requests": ["gpu-1", "nic-1"], "matchAttribute": names.ATTR_PCIE_SWITCH},
    ]
    with pytest.raises(Invalid, match="can only be Required"):
        client.create(
            kinds.RESOURCE_CLAIMS,
            claim_like("ResourceClaim", a_pair(enforcement="Preferred"), name="soft"),
            namespace=native,
        )


# --- ResourceClass ---


RESOURCE_CLASSES = kinds.Kind("koordra.io", "v1alpha1", "resourceclasses", "ResourceClass", namespaced=False)
CLASS_PARAMETERS = kinds.Kind("koordra.io", "v1alpha1", "resourceclassparameters", "ResourceClassParameters")


@pytest.fixture
def resource_class(client: KubeClient, controller: None) -> Iterator[Callable[..., Object]]:
    """Makes ResourceClasses, and removes them and their DeviceClasses afterwards."""
    del controller
    made: list[str] = []

    def make(name: str, **fields: Any) -> Object:
        _remove(client, RESOURCE_CLASSES, name)
        eventually(
            lambda: _is_gone(client, kinds.DEVICE_CLASSES, name), f"the end of an earlier DeviceClass {name}"
        )
        made.append(name)
        body = {
            "apiVersion": "koordra.io/v1alpha1",
            "kind": "ResourceClass",
            "metadata": {"name": name},
            **fields,
        }
        return client.create(RESOURCE_CLASSES, body, strict=True)

    yield make
    for name in made:
        _remove(client, RESOURCE_CLASSES, name)


def test_a_resource_class_lives_and_dies_with_its_device_class(
    client: KubeClient, resource_class: Callable[..., Object]
) -> None:
    made = resource_class("koordra-test-class", deviceType="gpu", policy={"gpu": {"priority": 3}})
    assert made["driverName"] == names.DRIVER
    eventually(lambda: _ready(client, "koordra-test-class") == "Reconciled", "the condition")
    found = client.get(kinds.DEVICE_CLASSES, "koordra-test-class")
    wanted = found["spec"]
    assert wanted["config"][0]["opaque"]["parameters"] == {
        "apiVersion": "koordra.io/v1alpha1",
        "kind": "GpuConfig",
        "priority": 3,
    }
    client.patch(kinds.DEVICE_CLASSES, "koordra-test-class", {"spec": {"selectors": [], "config": []}})
    eventually(
        lambda: client.get(kinds.DEVICE_CLASSES, "koordra-test-class")["spec"] == wanted, "the drift put back"
    )
    client.delete(kinds.DEVICE_CLASSES, "koordra-test-class")
    eventually(lambda: _there(client, kinds.DEVICE_CLASSES, "koordra-test-class"), "the DeviceClass again")
    client.delete(RESOURCE_CLASSES, "koordra-test-class")
    eventually(lambda: _is_gone(client, kinds.DEVICE_CLASSES, "koordra-test-class"), "the DeviceClass's end")


def test_a_bad_resource_class_says_what_to_do(
    client: KubeClient, resource_class: Callable[..., Object], namespace: str
) -> None:
    base = {"apiVersion": "koordra.io/v1alpha1", "kind": "ResourceClassParameters"}
    for name, other in (("one", "two"), ("two", "one")):
        _remove(client, CLASS_PARAMETERS, name, namespace=namespace)
        client.create(
            CLASS_PARAMETERS,
            {**base, "metadata": {"name": name}, "base": {"name": other}},
            namespace=namespace,
        )
    reference = {"apiGroup": "koordra.io", "kind": "ResourceClassParameters", "namespace": namespace}
    resource_class("koordra-test-cycle", parametersRef={**reference, "name": "one"})
    resource_class("koordra-test-missing", parametersRef={**reference, "name": "nobody"})
    resource_class("koordra-test-cel", selectors=[{"cel": {"expression": "device.driver =="}}])
    resource_class("gpu.koordra.io")
    for name, reason in (
        ("koordra-test-cycle", "ParametersCycle"),
        ("koordra-test-missing", "ParametersNotFound"),
        ("koordra-test-cel", "InvalidSelector"),
        ("gpu.koordra.io", "NameTaken"),
    ):
        eventually(lambda name=name, reason=reason: _ready(client, name) == reason, f"{reason} on {name}")
    client.create(CLASS_PARAMETERS, {**base, "metadata": {"name": "nobody"}}, namespace=namespace)
    eventually(lambda: _ready(client, "koordra-test-missing") == "Reconciled", "the parameters found")
    for name in ("one", "two", "nobody"):
        client.delete(CLASS_PARAMETERS, name, namespace=namespace)


def test_the_schema_refuses_what_no_class_can_be(client: KubeClient, controller: None) -> None:
    del controller
    for fields, words in (
        ({"deviceType": "fpga"}, "deviceType"),
        ({"driverName": "No Driver"}, "driverName"),
        ({"suitableNodes": {"nodeSelectorTerms": []}}, "nodeSelectorTerms"),
        ({"policy": {"gpu": {"priority": 1000}}}, "priority"),
        ({"selectors": [{"cel": {}}]}, "expression"),
        ({"parametersRef": {"kind": "ConfigMap"}}, "name"),
        ({"driver": "koordra.io"}, "unknown field"),
        ({"metadata": {"name": "x" * 254}}, "253"),
    ):
        body = {
            "apiVersion": "koordra.io/v1alpha1",
            "kind": "ResourceClass",
            "metadata": {"name": "koordra-test-no"},
        }
        with pytest.raises(Invalid, match=words):
            client.create(RESOURCE_CLASSES, {**body, **fields}, strict=True)


def test_classes_are_shown_with_their_columns(
    client: KubeClient, resource_class: Callable[..., Object]
) -> None:
    resource_class("koordra-test-shown", deviceType="nic")
    eventually(lambda: _ready(client, "koordra-test-shown") == "Reconciled", "the condition")
    table = _table(client, RESOURCE_CLASSES.path(name="koordra-test-shown"))
    columns = [column["name"] for column in table["columnDefinitions"]]
    shown = ["Name", "Driver", "Type", "Ready", "Reason", "Mode", "Parameters", "Message", "Age"]
    assert columns == shown
    assert table["rows"][0]["cells"][:5] == ["koordra-test-shown", "koordra.io", "nic", "True", "Reconciled"]


def test_pods_go_to_suitable_nodes_only(
    client: KubeClient, namespace: str, resource_class: Callable[..., Object]
) -> None:
    expression = {"key": "kubernetes.io/hostname", "operator": "In", "values": [NODES[1]]}
    resource_class(
        "koordra-test-nodes",
        deviceType="gpu",
        suitableNodes={"nodeSelectorTerms": [{"matchExpressions": [expression]}]},
    )
    eventually(lambda: _ready(client, "koordra-test-nodes") == "Reconciled", "the condition")
    for number in range(3):
        spec = {
            "devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "koordra-test-nodes"}}]}
        }
        client.create(
            kinds.RESOURCE_CLAIMS, claim_like("ResourceClaim", spec, name=f"c{number}"), namespace=namespace
        )
        claims = [{"name": "gpu", "resourceClaimName": f"c{number}"}]
        client.create(kinds.PODS, a_pod(f"p{number}", resourceClaims=claims), namespace=namespace)
    for number in range(3):

        def bound(name: str = f"p{number}") -> str | None:
            return client.get(kinds.PODS, name, namespace=namespace)["spec"].get("nodeName")

        assert eventually(bound, f"binding of p{number}") == NODES[1]


# --- what is shipped ---


OTHERS = ("cert-manager.io", "monitoring.coreos.com", "security.openshift.io")
"""Groups that a cluster has only with somebody else's parts."""
SHIPPED = list(documents())


@pytest.mark.parametrize(
    ("path", "obj"),
    SHIPPED,
    ids=[f"{path.parent.name}-{obj['kind']}-{objects.name(obj)}" for path, obj in SHIPPED],
)
def test_every_manifest_is_accepted_as_it_is(
    client: KubeClient, controller: None, path: Path, obj: Object
) -> None:
    """Strictly: no unknown field, nothing dropped. Nothing is stored."""
    del controller
    if str(obj["apiVersion"]).startswith(OTHERS):
        try:
            client.list(kind_of(obj))
        except NotFound:
            pytest.skip(f"this cluster has no {obj['kind']} ({obj['apiVersion']})")
    if obj["kind"] in WEBHOOKS:  # the suite's own, by url, have the name
        obj = {**obj, "metadata": {**obj["metadata"], "name": "koordra-test-dry"}}
    accepted = dry_run(client, obj)
    assert _missing(obj, accepted) == [], path


@pytest.mark.parametrize("mode", [names.MODE_JOINT, names.MODE_NATIVE])
@pytest.mark.parametrize("name", presets.names())
def test_slices_of_every_machine_are_accepted_as_they_are(
    client: KubeClient, controller: None, tmp_path: Path, name: str, mode: str
) -> None:
    del controller
    presets.write_machine(presets.load(name), tmp_path, serial=name)
    for number, body in enumerate(
        build_slices(discover(tmp_path).machine, node_name=NODES[0], node_uid="u", mode=mode, generation=1)
    ):
        body["metadata"] = {"name": f"koordra-test-dry-{number}"}
        accepted = client._answer(
            "POST",
            kinds.RESOURCE_SLICES.path(),
            query={"dryRun": "All", "fieldValidation": "Strict"},
            body=body,
        )
        assert _missing(body, accepted) == []


def _missing(sent: Any, stored: Any, path: str = "") -> list[str]:
    """What was sent and did not come back as it was; quantities and defaults may be spelled otherwise."""
    if isinstance(sent, dict):
        if not isinstance(stored, dict):
            return [path]
        return [
            place
            for name, value in sent.items()
            if value not in (None, {}, [])
            for place in (
                _missing(value, stored[name], f"{path}.{name}") if name in stored else [f"{path}.{name}"]
            )
        ]
    if isinstance(sent, list):
        if not isinstance(stored, list) or len(sent) != len(stored):
            return [path]
        return [
            place
            for n, (one, other) in enumerate(zip(sent, stored, strict=True))
            for place in _missing(one, other, f"{path}[{n}]")
        ]
    return []


def _ready(client: KubeClient, name: str) -> str | None:
    """The reason of a ResourceClass's condition."""
    conditions = objects.status_of(client.get(RESOURCE_CLASSES, name)).get("conditions") or ()
    return next((one["reason"] for one in conditions if one["type"] == "Ready"), None)


def _there(client: KubeClient, kind: kinds.Kind, name: str) -> bool:
    try:
        client.get(kind, name)
    except NotFound:
        return False
    return True


def _is_gone(client: KubeClient, kind: kinds.Kind, name: str) -> bool:
    """Not there, or there and nobody's: a shipped class stays."""
    try:
        found = client.get(kind, name)
    except NotFound:
        return True
    return not objects.metadata(found).get("ownerReferences")


def _remove(client: KubeClient, kind: kinds.Kind, name: str, *, namespace: str | None = None) -> None:
    try:
        client.delete(kind, name, namespace=namespace)
    except NotFound:
        return


def _may_list(client: KubeClient, namespace: str, kind: kinds.Kind = kinds.PODS) -> bool:
    try:
        client.list(kind, namespace=namespace)
    except Forbidden:
        return False
    return True


def _created(client: KubeClient, obj: Object, namespace: str) -> bool:
    try:
        client.create(kind_of(obj), obj, namespace=namespace)
    except Conflict:
        return True
    except ApiError:
        return False
    return True


def _table(client: KubeClient, path: str) -> Object:
    """The Table that kubectl would print."""
    import json

    pool = client._pool
    accept = "application/json;as=Table;v=v1;g=meta.k8s.io"
    answer = pool.request("GET", client._url + path, headers={**client._credentials(), "Accept": accept})
    found: Object = json.loads(answer.data)
    return found


# --- devices without a pod ---

NOW = {names.MODE_LABEL: names.IMMEDIATE}


def asking(name: str, device_class: str = names.CLASS_NIC, **metadata: Any) -> Object:
    """For more than there is, so that nothing is taken from other tests."""
    request = {"name": "nic", "exactly": {"deviceClassName": device_class, "count": 31}}
    return claim_like("ResourceClaim", {"devices": {"requests": [request]}}, name=name, **metadata)


@pytest.fixture
def holder(client: KubeClient, developer: KubeClient, namespace: str) -> KubeClient:
    """The developer, to whom ClusterRole koordra-immediate is bound in the namespace."""
    subject = {"kind": "ServiceAccount", "name": "developer", "namespace": namespace}
    group = "rbac.authorization.k8s.io"
    body = {
        "apiVersion": ROLES.api_version,
        "kind": "RoleBinding",
        "metadata": {"name": "holder", "namespace": namespace},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "koordra-immediate"},
        "subjects": [subject],
    }
    _remove(client, ROLE_BINDINGS, "holder", namespace=namespace)
    client.create(ROLE_BINDINGS, body)
    return developer


def test_devices_without_a_pod_are_a_privilege_on_every_way_to_the_annotation(
    client: KubeClient, developer: KubeClient, namespace: str
) -> None:
    _remove(client, ROLE_BINDINGS, "holder", namespace=namespace)
    claims = kinds.RESOURCE_CLAIMS
    with pytest.raises(Forbidden, match=r'the verb "hold".*koordra-immediate in namespace'):
        developer.create(claims, asking("now", annotations=NOW), namespace=namespace)
    developer.create(claims, asking("later"), namespace=namespace)
    with pytest.raises(Forbidden, match='the verb "hold"'):
        developer.patch(claims, "later", {"metadata": {"annotations": NOW}}, namespace=namespace)
    native = {names.MODE_LABEL: names.MODE_NATIVE}
    developer.patch(claims, "later", {"metadata": {"annotations": native}}, namespace=namespace)
    # A claim of a template means nothing by it, and is not held up; what turns it into another is refused.
    made = {**NOW, names.POD_CLAIM_NAME: "nic"}
    developer.create(claims, asking("made", annotations=made), namespace=namespace)
    turned = {"metadata": {"annotations": {names.POD_CLAIM_NAME: None}}}
    with pytest.raises(Forbidden, match='the verb "hold"'):
        developer.patch(claims, "made", turned, namespace=namespace)


def test_who_may_hold_devices_says_so_and_others_may_change_the_rest_of_it(
    client: KubeClient, holder: KubeClient, namespace: str
) -> None:
    claims = kinds.RESOURCE_CLAIMS

    def made() -> Object | None:
        """The API server's own view of the roles may lag by a moment."""
        try:
            return holder.create(claims, asking("now", annotations=NOW), namespace=namespace)
        except Forbidden:
            return None

    eventually(made, "the claim")
    _remove(client, ROLE_BINDINGS, "holder", namespace=namespace)

    def refused() -> bool:
        _remove(client, claims, "again", namespace=namespace)
        try:
            holder.create(claims, asking("again", annotations=NOW), namespace=namespace)
        except Forbidden:
            return True
        return False

    eventually(refused, "the privilege gone")
    holder.patch(claims, "now", {"metadata": {"labels": {"a": "b"}}}, namespace=namespace)


def test_a_privilege_of_one_namespace_is_none_elsewhere(
    client: KubeClient, holder: KubeClient, namespace: str
) -> None:
    """Whoever may create claims there, too."""
    del namespace
    rule = {"apiGroups": ["resource.k8s.io"], "resources": ["*"], "verbs": ["*"]}
    meta = {"name": "holder-elsewhere", "namespace": "default"}
    subject = {"kind": "ServiceAccount", "name": "developer", "namespace": "koordra-test"}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": meta["name"]}
    for kind, more in (
        (ROLES, {"rules": [rule]}),
        (ROLE_BINDINGS, {"roleRef": reference, "subjects": [subject]}),
    ):
        _remove(client, kind, meta["name"], namespace="default")
        client.create(kind, {"apiVersion": ROLES.api_version, "kind": kind.kind, "metadata": meta, **more})
    try:
        eventually(lambda: _may_list(holder, "default", kinds.RESOURCE_CLAIMS), "the rights there")
        with pytest.raises(Forbidden, match=r'the verb "hold".*in namespace default'):
            holder.create(kinds.RESOURCE_CLAIMS, asking("now", annotations=NOW), namespace="default")
    finally:
        for kind in (ROLE_BINDINGS, ROLES):
            _remove(client, kind, meta["name"], namespace="default")


def test_templates_do_not_say_immediate(client: KubeClient, developer: KubeClient, namespace: str) -> None:
    template = claim_like("ResourceClaimTemplate", asking("x")["spec"], name="now")
    template["spec"]["metadata"] = {"annotations": NOW}
    for who in (developer, client):
        with pytest.raises((Forbidden, Invalid), match="made from a template has its pod"):
            who.create(kinds.RESOURCE_CLAIM_TEMPLATES, template, namespace=namespace)


@pytest.mark.parametrize(
    "mark",
    [
        {"finalizers": [names.RETAIN_FINALIZER]},
        {"annotations": {"koordra.io/elastic-reclaim-policy": "Retain"}},
        {"annotations": {"koordra.io/elastic-binding-mode": "Immediate"}},
    ],
    ids=lambda mark: next(iter(mark)),
)
def test_marks_of_koordras_own_claims_are_its_own(
    client: KubeClient, holder: KubeClient, namespace: str, mark: Object
) -> None:
    claims = kinds.RESOURCE_CLAIMS
    with pytest.raises(Forbidden, match="written by koordra's controller only"):
        holder.create(claims, asking("marked", **mark), namespace=namespace)
    holder.create(claims, asking("plain"), namespace=namespace)
    with pytest.raises(Forbidden, match="written by koordra's controller only"):
        holder.patch(claims, "plain", {"metadata": mark}, namespace=namespace)
    client.patch(claims, "plain", {"metadata": mark}, namespace=namespace)
    holder.patch(claims, "plain", {"metadata": {"labels": {"a": "b"}}}, namespace=namespace)
    client.patch(claims, "plain", {"metadata": {"finalizers": None}}, namespace=namespace)


def test_a_class_that_says_immediate_needs_no_privilege(
    client: KubeClient, developer: KubeClient, namespace: str, resource_class: Callable[..., Object]
) -> None:
    resource_class("koordra-test-now", deviceType="nic", allocationMode="Immediate")
    eventually(lambda: _ready(client, "koordra-test-now") == "Reconciled", "the DeviceClass")
    body = asking("of-class", "koordra-test-now")
    body["spec"]["devices"]["requests"][0]["exactly"]["count"] = 1
    developer.create(kinds.RESOURCE_CLAIMS, body, namespace=namespace)
    eventually(lambda: _allocated(client, "of-class", namespace), "the devices")
    client.patch(kinds.NAMESPACES, namespace, {"metadata": {"annotations": {names.IMMEDIATE_DEVICES: "0"}}})
    try:
        eventually(lambda: not _allocated(client, "of-class", namespace), "the devices given back")
    finally:
        client.patch(
            kinds.NAMESPACES, namespace, {"metadata": {"annotations": {names.IMMEDIATE_DEVICES: None}}}
        )


def _allocated(client: KubeClient, name: str, namespace: str) -> bool:
    found = client.get(kinds.RESOURCE_CLAIMS, name, namespace=namespace)
    return bool((found.get("status") or {}).get("allocation"))
