"""Koordinator's annotation: what it gives, when it is refused or ignored, and the policy that protects it."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from koordra._proto.nri import nri_pb2
from koordra.api.opaque.isolation import IsolationPolicy
from koordra.errors import ApiUnreachable, Forbidden, KoordraError, NotFound, RemoteError
from koordra.kube.client import KubeClient
from koordra.metrics import Metrics
from koordra.node_state.granted_claims import GrantedContainers
from koordra.node_state.reader import StateReader
from koordra.nri.hook.koordinator import admission_policy
from koordra.nri.hook.koordinator.admission_policy import (
    BINDINGS,
    DEFAULT_SCHEDULER,
    NAME,
    POLICIES,
    unprotected,
)
from koordra.nri.hook.koordinator.annotation import ANNOTATION, HAMI_LIBRARY, PodClaims
from koordra.nri.hook.ledger import Ledger
from koordra.nri.hook.node_devices import NodeDevices
from koordra.nri.hook.plugin import HookPlugin, Settings
from koordra.nri.service import Options
from koordra.nri.transport.ttrpc import Call
from koordra.topology.location import DeviceNode
from tests.fakes.metric_samples import sample
from tests.unit.nri.node_state import (
    GPU0,
    NODE,
    RDMA_CM,
    UID,
    VERBS0,
    claim_json,
    gpu_json,
    guarded_json,
    markers,
    write,
)


def binding() -> dict[str, Any]:
    """The binding as it is shipped: every namespace, and refusing."""
    return {
        "apiVersion": BINDINGS.api_version,
        "kind": BINDINGS.kind,
        "metadata": {"name": NAME},
        "spec": {"policyName": NAME, "validationActions": ["Deny"]},
    }


ROOT = Path(__file__).resolve().parents[4]
CALL = Call("nri.pkg.api.v1alpha1.Plugin", "CreateContainer")
UUID = "GPU-6a1b2c3d-0000-0000-0000-000000000000"
GPU = {
    "minor": 0,
    "id": UUID,
    "resources": {
        "koordinator.sh/gpu-core": "50",
        "koordinator.sh/gpu-memory": "11520Mi",
        "koordinator.sh/gpu-memory-ratio": "50",
    },
}
RDMA = {"minor": 1, "id": "0000:0c:00.0", "resources": {"koordinator.sh/rdma": "1"}}


KEPT = IsolationPolicy(("hami-core",))


class KoordinatorNode:
    """A machine with one GPU and one NIC, and a hook in Koordinator mode."""

    def __init__(self, folder: Path) -> None:
        information = f"Model: \t\t NVIDIA H100\nGPU UUID: \t {UUID}\nDevice Minor: \t 0\n"
        write(folder / "proc/driver/nvidia/gpus/0000:0f:00.0/information", information)
        function = folder / "sys/bus/pci/devices/0000:0c:00.0"
        write(folder / "sys/class/infiniband_verbs/uverbs0/ibdev", "mlx5_0\n")
        (function / "infiniband/mlx5_0").mkdir(parents=True)
        self.state = folder / "state"
        write(self.state / "guarded.json", guarded_json())
        write(self.state / "prepared" / f"{UID}.json", claim_json(gpu_json()))
        self.metrics = Metrics()
        self.hook = HookPlugin(
            StateReader(self.state, node_name=NODE),
            settings=Settings(devices=NodeDevices(folder), koordinator=KEPT),
            ledger=Ledger(self.state),
            metrics=self.metrics,
        )

    def create(
        self,
        document: Any,
        *nodes: DeviceNode,
        env: tuple[tuple[str, str], ...] = (),
        labels: dict[str, str] | None = None,
        name: str = "main",
    ) -> nri_pb2.ContainerAdjustment:
        request = nri_pb2.CreateContainerRequest()
        request.pod.namespace, request.pod.name, request.pod.uid = "team", "train-0", "pod-1"
        request.pod.annotations[ANNOTATION] = document if isinstance(document, str) else json.dumps(document)
        request.pod.labels.update(labels or {})
        request.container.name = request.container.id = name
        request.container.env.extend(f"{key}={value}" for key, value in env)
        request.container.linux.resources.devices.add(allow=False, access="rwm")
        for node in nodes:
            request.container.linux.devices.add(
                path=node.path, type=node.type, major=node.major, minor=node.minor
            )
        return self.hook.create_container(request, CALL).adjust


@pytest.fixture
def node(tmp_path: Path) -> KoordinatorNode:
    return KoordinatorNode(tmp_path)


def env_of(adjust: nri_pb2.ContainerAdjustment) -> dict[str, str]:
    return {entry.key: entry.value for entry in adjust.env}


def test_a_card_and_a_nic_are_given_by_the_annotation(node: KoordinatorNode) -> None:
    whole = {**GPU, "resources": {"koordinator.sh/gpu-memory-ratio": "100"}}
    adjust = node.create({"gpu": [whole], "rdma": [RDMA]})
    assert env_of(adjust) == {
        "NVIDIA_VISIBLE_DEVICES": UUID,
        "NCCL_IB_HCA": "=mlx5_0",
        "UCX_NET_DEVICES": "mlx5_0:1",
    }
    paths = {device.path for device in adjust.linux.devices}
    assert {GPU0.path, "/dev/nvidiactl", VERBS0.path, RDMA_CM.path} <= paths
    assert "/dev/nvidia1" not in paths
    assert [limit.type for limit in adjust.rlimits] == ["RLIMIT_MEMLOCK"]
    assert sample(node.metrics, "koordra_nri_adjusted_total", {"devices": "granted"}) == 1


@pytest.mark.parametrize(
    ("resources", "cores", "memory"),
    [
        ({"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory-ratio": "30"}, 50, 30),
        ({"koordinator.sh/gpu-memory-ratio": "100"}, 0, 100),
        ({"koordinator.sh/gpu-core": "-7", "koordinator.sh/gpu-memory-ratio": "1k"}, 0, 100),
        ({}, 100, 100),
    ],
)
def test_how_much_of_a_card_a_pod_asked_for_is_on_record(
    node: KoordinatorNode, resources: dict[str, str], cores: int, memory: int
) -> None:
    node.create({"gpu": [{**GPU, "resources": resources}]})
    (found,) = GrantedContainers(node.state).by_id()["main"].held
    assert (found.claim_name, found.cores, found.memory) == ("", cores, memory)
    (again,) = Ledger(node.state).get("main").asked  # type: ignore[union-attr]  # as the next process reads it
    assert dict(again[1]) == {"cores": cores, "memory": memory}


@pytest.mark.parametrize(
    ("document", "what"),
    [
        ({"gpu": [{**GPU, "minor": 1}]}, "has minor 0, not 1"),
        ({"gpu": [{**GPU, "id": "GPU-other"}]}, "no GPU with UUID"),
        ({"gpu": [{**GPU, "id": ""}]}, "no GPU with UUID"),
        ({"rdma": [{**RDMA, "id": "0000:ff:00.0"}]}, "no RDMA device at"),
        ({"rdma": [{**RDMA, "id": "../../../etc"}]}, "no RDMA device at"),
        ({"rdma": [{**RDMA, "extension": {"vfs": [{"busID": "0000:0c:00.2"}]}}]}, "no RDMA device at"),
        ("{", "is unusable"),
        ("[]", "is unusable"),
        ({"gpu": [7]}, "is unusable"),
        ({"gpu": [{"minor": 0}]}, "no GPU with UUID"),
    ],
)
def test_what_the_node_does_not_have_is_refused(node: KoordinatorNode, document: Any, what: str) -> None:
    with pytest.raises(RemoteError, match=what):
        node.create(document)


def test_without_the_mode_the_annotation_means_nothing(tmp_path: Path) -> None:
    node = KoordinatorNode(tmp_path)
    node.hook.settings = Settings()
    adjust = node.create({"gpu": [GPU]})
    assert env_of(adjust) == {"NVIDIA_VISIBLE_DEVICES": "void"}
    assert not adjust.linux.devices


def test_on_pods_with_a_claim_the_annotation_is_ignored(node: KoordinatorNode) -> None:
    adjust = node.create({"gpu": [GPU]}, GPU0, env=markers(0), name="a")
    assert env_of(adjust)["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert not adjust.linux.devices
    # Another container of that pod has no marker, and gets nothing by the annotation either.
    second = node.create({"gpu": [GPU]}, name="b")
    assert env_of(second) == {"NVIDIA_VISIBLE_DEVICES": "void"}


PROVIDER = "koordinator.sh/gpu-isolation-provider"


@pytest.mark.parametrize("label", [{}, {PROVIDER: "HAMi-core"}, {PROVIDER: "none"}, {PROVIDER: ""}])
def test_half_a_card_with_hami_core_whatever_the_pods_label_says(
    node: KoordinatorNode, label: dict[str, str]
) -> None:
    adjust = node.create({"gpu": [GPU]}, labels=label)
    env = env_of(adjust)
    assert env["CUDA_DEVICE_MEMORY_LIMIT"] == str(11520 << 20)
    assert env["CUDA_DEVICE_SM_LIMIT"] == "50"
    assert env["LD_PRELOAD"] == HAMI_LIBRARY
    assert [mount.destination for mount in adjust.mounts] == [HAMI_LIBRARY, "/tmp/vgpulock"]
    whole = {**GPU, "resources": {"koordinator.sh/gpu-memory-ratio": "100"}}
    assert "LD_PRELOAD" not in env_of(node.create({"gpu": [whole]}, labels=label, name="b"))


def test_every_part_of_a_card_counts(node: KoordinatorNode) -> None:
    """One of several entries is a part, and the label says nothing."""
    whole = {**GPU, "resources": {"koordinator.sh/gpu-memory-ratio": "100"}}
    assert env_of(node.create({"gpu": [whole, GPU]}))["CUDA_DEVICE_MEMORY_LIMIT"] == str(11520 << 20)


def test_where_the_operator_says_so_no_part_of_a_card_is_limited(node: KoordinatorNode) -> None:
    """Where one tenant of a card is limited, all are: nor is one that asks for it."""
    node.hook.settings = replace(node.hook.settings, koordinator=IsolationPolicy(("none",)))
    adjust = node.create({"gpu": [GPU]})
    assert adjust.linux.devices
    assert "LD_PRELOAD" not in env_of(adjust)
    with pytest.raises(RemoteError, match="isolation: requested hami-core, the node allows only none"):
        node.create({"gpu": [GPU]}, labels={PROVIDER: "HAMi-core"}, name="b")
    whole = {**GPU, "resources": {"koordinator.sh/gpu-memory-ratio": "100"}}
    assert node.create({"gpu": [whole]}, labels={PROVIDER: "HAMi-core"}, name="c").linux.devices


def test_the_mode_is_on_where_a_scheduler_is_named_and_keeps_parts_by_hami_core() -> None:
    options = Options(
        node_name=NODE,
        state_dir=ROOT,
        socket_path=ROOT,
        plugin_index="90",
        exempt=frozenset(),
    )
    assert options.koordinator is None
    on = replace(options, koordinator_scheduler=DEFAULT_SCHEDULER)
    assert on.koordinator == KEPT
    assert replace(on, koordinator_isolation="none").koordinator == IsolationPolicy(("none",))


def test_koordlets_own_hooks_are_taken_over_and_counted(node: KoordinatorNode) -> None:
    document = {"gpu": [GPU], "rdma": [RDMA]}
    adjust = node.create(document, VERBS0, RDMA_CM, env=(("NVIDIA_VISIBLE_DEVICES", "0"),))
    assert next(entry.key for entry in adjust.env) == "-NVIDIA_VISIBLE_DEVICES"
    assert {device.path for device in adjust.linux.devices if device.path.startswith("-")} == {
        f"-{VERBS0.path}",
        f"-{RDMA_CM.path}",
    }
    assert sample(node.metrics, "koordra_nri_koordlet_hooks_total") == 1


# -------------------------------------------------------------------------------------------------- policy


def policy(scheduler: str = DEFAULT_SCHEDULER) -> dict[str, Any]:
    return {
        "apiVersion": POLICIES.api_version,
        "kind": POLICIES.kind,
        "metadata": {"name": NAME},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {
                "resourceRules": [
                    {
                        "apiGroups": [""],
                        "apiVersions": ["v1"],
                        "operations": ["CREATE", "UPDATE"],
                        "resources": list(admission_policy.RESOURCES),
                    }
                ]
            },
            "validations": [
                {
                    "expression": admission_policy.expression(scheduler),
                    "message": f"{ANNOTATION} decides which GPUs a pod may open; only {scheduler} may set, change or "
                    "remove it",
                    "reason": "Forbidden",
                }
            ],
        },
    }


def test_the_shipped_policy_is_the_one_that_is_asked_for(golden: Callable[[str, str], None]) -> None:
    shipped = ROOT / "deploy" / "kustomize" / "nri" / "koordinator" / "policy.yaml"
    documents = list(yaml.safe_load_all(shipped.read_text()))
    assert documents == [policy(), binding()]
    assert unprotected(*documents, scheduler=DEFAULT_SCHEDULER) is None
    golden("nri/koordinator_expression.txt", admission_policy.expression(DEFAULT_SCHEDULER) + "\n")


def changed(document: dict[str, Any], *path: Any, to: Any) -> dict[str, Any]:
    document = copy.deepcopy(document)
    place: Any = document
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = to
    return document


RULE = ("spec", "matchConstraints", "resourceRules", 0)


@pytest.mark.parametrize(
    ("found_policy", "found_binding", "why"),
    [
        (None, binding(), "there is no ValidatingAdmissionPolicy"),
        (policy(), None, "there is no ValidatingAdmissionPolicyBinding"),
        (changed(policy(), "spec", "failurePolicy", to="Ignore"), binding(), "failurePolicy"),
        (changed(policy(), "spec", "validations", 0, "expression", to="true"), binding(), "expression"),
        (policy("system:serviceaccount:a:b"), binding(), "expression"),
        (changed(policy(), *RULE, "operations", to=["CREATE"]), binding(), "does not match"),
        (changed(policy(), *RULE, "resources", to=["pods"]), binding(), "pods/binding"),
        (changed(policy(), "spec", "matchConditions", to=[{"name": "x"}]), binding(), "matchConditions"),
        (
            changed(
                policy(), "spec", "matchConstraints", "namespaceSelector", to={"matchLabels": {"a": "b"}}
            ),
            binding(),
            "every pod",
        ),
        (policy(), changed(binding(), "spec", "validationActions", to=["Audit"]), "does not deny"),
        (
            policy(),
            changed(
                binding(),
                "spec",
                "matchResources",
                to={"namespaceSelector": {"matchExpressions": [{"key": "a"}]}},
            ),
            "every pod",
        ),
    ],
)
def test_a_policy_that_leaves_a_gap_is_none(found_policy: Any, found_binding: Any, why: str) -> None:
    found = unprotected(found_policy, found_binding, scheduler=DEFAULT_SCHEDULER)
    assert found is not None
    assert why in found


def test_what_the_server_adds_does_no_harm() -> None:
    defaulted = changed(policy(), "spec", "matchConstraints", "namespaceSelector", to={})
    defaulted["spec"]["matchConstraints"]["matchPolicy"] = "Equivalent"
    defaulted["spec"]["matchConstraints"]["resourceRules"][0]["scope"] = "*"
    bound = changed(binding(), "spec", "matchResources", to={"namespaceSelector": {}, "matchPolicy": "Exact"})
    assert unprotected(defaulted, bound, scheduler=DEFAULT_SCHEDULER) is None


class Cluster:
    """The part of a client that looking for the policy needs."""

    def __init__(self, *objects: dict[str, Any], forbidden: bool = False) -> None:
        self.objects = {each["kind"]: each for each in objects}
        self.forbidden = forbidden

    def get(self, kind: Any, name: str) -> dict[str, Any]:
        if self.forbidden:
            raise Forbidden("no")
        if kind.kind not in self.objects or name != admission_policy.NAME:
            raise NotFound("none")
        return self.objects[kind.kind]


def test_the_mode_does_not_start_without_it() -> None:
    admission_policy.require(Cluster(policy(), binding()), scheduler=DEFAULT_SCHEDULER)  # type: ignore[arg-type]
    with pytest.raises(KoordraError, match=r"apply deploy/kustomize/nri/koordinator"):
        admission_policy.require(Cluster(policy()), scheduler=DEFAULT_SCHEDULER)  # type: ignore[arg-type]
    with pytest.raises(KoordraError, match="cannot be read"):
        admission_policy.require(Cluster(forbidden=True), scheduler=DEFAULT_SCHEDULER)  # type: ignore[arg-type]


# --------------------------------------------------------------------------------------------- pods with
# claims


class Api:
    """An API server with one pod and its claim."""

    def __init__(self, *, driver: str = "koordra.io", uid: str = "pod-1", away: bool = False) -> None:
        self.driver, self.uid, self.away, self.asked = driver, uid, away, 0

    def get(self, kind: Any, name: str, *, namespace: str) -> Any:
        self.asked += 1
        if self.away:
            raise ApiUnreachable("away")
        if (kind.plural, name, namespace) == ("pods", "train-0", "team"):
            return {
                "metadata": {"uid": self.uid},
                "spec": {"resourceClaims": [{"name": "t", "resourceClaimTemplateName": "x"}]},
                "status": {
                    "resourceClaimStatuses": [{"name": "t", "resourceClaimName": "made"}, {"name": "n"}]
                },
            }
        assert (kind.plural, name, namespace) == ("resourceclaims", "made", "team")
        return {"status": {"allocation": {"devices": {"results": [{"driver": self.driver}]}}}}


def with_api(node: KoordinatorNode, folder: Path, api: Api) -> None:
    claims = PodClaims(cast("KubeClient", api))
    settings = Settings(devices=NodeDevices(folder), koordinator=KEPT, pod_claims=claims)
    node.hook = HookPlugin(
        StateReader(node.state, node_name=NODE), settings=settings, ledger=Ledger(node.state)
    )


def test_the_first_container_of_a_pod_with_a_claim_holds_nothing_by_annotation(
    node: KoordinatorNode, tmp_path: Path
) -> None:
    api = Api()
    with_api(node, tmp_path, api)
    for document in ({"gpu": [GPU]}, {"gpu": [GPU]}, "{malformed"):
        adjust = node.create(document)
        assert env_of(adjust) == {"NVIDIA_VISIBLE_DEVICES": "void"}
        assert not adjust.linux.devices
    assert api.asked == 2  # once a pod


def test_a_claim_of_another_driver_takes_nothing_away(node: KoordinatorNode, tmp_path: Path) -> None:
    with_api(node, tmp_path, Api(driver="else.example"))
    assert env_of(node.create({"gpu": [GPU]}))["NVIDIA_VISIBLE_DEVICES"] == UUID


@pytest.mark.parametrize("api", [Api(away=True), Api(uid="another")])
def test_a_pod_whose_claims_are_not_known_is_refused(node: KoordinatorNode, tmp_path: Path, api: Api) -> None:
    with_api(node, tmp_path, api)
    with pytest.raises(RemoteError, match="is unknown"):
        node.create({"gpu": [GPU]})
    assert not node.create({}).linux.devices  # nobody is asked for it


@pytest.mark.parametrize("resources", [[], "x", {"koordinator.sh/gpu-memory-ratio": "?"}, None])
def test_resources_that_are_none_say_so(node: KoordinatorNode, resources: Any) -> None:
    labels = {"koordinator.sh/gpu-isolation-provider": "HAMi-core"}
    document = {"gpu": [{**GPU, "resources": resources}]}
    if resources in ([], None):
        assert node.create(document, labels=labels).linux.devices
        return
    with pytest.raises(RemoteError, match="device-allocated is unusable"):
        node.create(document, labels=labels)


def test_an_endless_minor_is_refused(node: KoordinatorNode) -> None:
    with pytest.raises(RemoteError, match="device-allocated is unusable"):
        node.create('{"gpu": [{"minor": Infinity, "id": "x"}]}')


def test_no_tenant_can_write_to_the_library_of_all(node: KoordinatorNode) -> None:
    labels = {"koordinator.sh/gpu-isolation-provider": "HAMi-core"}
    mounts = {each.source: list(each.options) for each in node.create({"gpu": [GPU]}, labels=labels).mounts}
    assert mounts[HAMI_LIBRARY] == ["rbind", "ro"]
