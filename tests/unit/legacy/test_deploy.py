"""deploy/kustomize/legacy: it says what the code serves, and its RBAC is exactly what is used, both ways."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from koordra.api import kinds, objects, resource_class
from koordra.cel.selectors import compile_error
from koordra.cli.processes.controller import read_legacy_settings
from koordra.compat.detection import VENDORS, dialects_with
from koordra.compat.settings import Settings
from koordra.controller.claims import is_koordra_class
from koordra.controller.legacy.admission import PATHS
from koordra.controller.webhook import cert_rotation
from koordra.controller.webhook.cert_rotation import SERVICE_NAME
from koordra.errors import ApiError
from koordra.topology.presets.mig import cards
from koordra_devcluster.apiserver.access import cel_policies
from tests.cluster.installation import Installation, account_kubeconfig
from tests.cluster.waiting import eventually
from tests.patience import PATIENCE
from tests.unit.deploy.test_rbac import Cluster, Right, used_up
from tests.unit.legacy.cluster import Object, container, pod

NO_DEVICES = (
    "devices.kubevirt.io/",
    "vpc.amazonaws.com/",
    "networking.gke.io.networks/",
    "smarter-devices/",
)
"""Resources of virtual machines, networks and files of /dev."""
ROOT = Path(__file__).resolve().parents[3] / "deploy" / "kustomize" / "legacy"


def document(name: str) -> Object:
    found: Object = yaml.safe_load((ROOT / name).read_text())
    return found


def webhooks() -> list[Object]:
    found: list[Object] = document("mutating.yaml")["webhooks"]
    return found


def test_webhooks_call_what_is_served() -> None:
    assert document("mutating.yaml")["metadata"]["name"] == cert_rotation.LEGACY
    called = [entry["clientConfig"]["service"] for entry in webhooks()]
    assert {one["path"] for one in called} == set(PATHS)
    assert {one["name"] for one in called} == {SERVICE_NAME}


def test_a_dry_run_has_no_side_effects_and_a_second_pass_is_asked_for() -> None:
    for entry in webhooks():
        assert entry["sideEffects"] == "NoneOnDryRun"
        assert entry["reinvocationPolicy"] == "IfNeeded"
        assert entry["failurePolicy"] == "Fail"


def test_koordra_and_the_system_can_start_without_the_webhook() -> None:
    for entry in webhooks():
        namespaces = {one["key"]: one for one in entry["namespaceSelector"]["matchExpressions"]}
        exempt = namespaces["kubernetes.io/metadata.name"]
        assert (exempt["operator"], set(exempt["values"])) == ("NotIn", {"kube-system", "koordra-system"})
        assert namespaces["koordra.io/legacy-pods"]["values"] == ["ignore"]
        assert entry["objectSelector"]["matchExpressions"][0]["key"] == "koordra.io/legacy-pods"


def is_sent(obj: Object) -> bool:
    values = {"object": obj, "oldObject": None, "request": {"operation": "CREATE"}}
    answers = {
        cel_policies.evaluate(entry["matchConditions"][0]["expression"], values, check=lambda *_: False)
        for entry in webhooks()
    }
    assert len(answers) == 1
    return answers.pop() is True


@pytest.mark.parametrize(
    ("obj", "sent"),
    [
        (pod({"nvidia.com/gpu": 1}), True),
        (pod({"corp.example/gpu": 1}), True),
        (pod({"alnair/vgpu-memory": 1}), True),
        (pod({"cpu": 1}, initContainers=[container("i", {"nvidia.com/gpumem": 1})]), True),
        (pod({}, annotations={"egpuc.elasticgpu.io/main": "c"}), True),
        (pod({"cpu": 1, "memory": "1Gi", "hugepages-2Mi": "4Mi"}), False),
        (pod({"amd.com/gpu": 1, "devices.kubevirt.io/kvm": 1}), False),
        (pod({"amd.com/gpu": 1, "nvidia.com/gpu": 1}), True),
        (pod({"amd.com/nic": 1}), True),
        (pod({}), False),
        (pod(containers=[{"name": "bare", "image": "x"}]), False),
    ],
)
def test_nothing_but_pods_that_ask_is_held_up_by_a_missing_webhook(obj: Object, sent: bool) -> None:
    assert is_sent(obj) is sent


def test_what_is_no_device_of_koordras_is_left_out_by_the_same_names() -> None:
    for name in (*(prefix for prefix, _ in VENDORS), *NO_DEVICES):
        assert not is_sent(pod({f"{name}x": 1})), name
    for entry in webhooks():
        (listed,) = re.findall(r'matches\("\^\((.*?)\)"\)', entry["matchConditions"][0]["expression"])
        names = {name.replace("[.]", ".") for name in listed.split("|")}
        assert names == {*(prefix for prefix, _ in VENDORS), *NO_DEVICES}
        assert not [name for name in names if dialects_with(f"{name}x", Settings())]


def test_the_settings_that_are_shipped_are_read(tmp_path: Path) -> None:
    for key, text in document("settings.yaml")["data"].items():
        (tmp_path / key).write_text(text)
    found = read_legacy_settings(str(tmp_path), grace=5)
    assert found.compat.default_dialect == "plain"
    assert "volcano" in (found.compat.schedulers or ())
    assert found.grace == 5


def test_native_classes_have_the_names_and_never_match_a_joint_device() -> None:
    found = list(yaml.safe_load_all((ROOT / "native-classes.yaml").read_text()))
    assert all(obj["metadata"]["labels"] == {resource_class.CLASS_LABEL: "true"} for obj in found)
    called = [obj["spec"]["extendedResourceName"] for obj in found]
    assert len(set(called)) == len(called)
    assert called[0] == "nvidia.com/gpu"
    for obj in found:
        assert is_koordra_class(obj)
        (selector,) = obj["spec"]["selectors"]
        assert 'allocator == "scheduler"' in selector["cel"]["expression"]
        assert compile_error(selector["cel"]["expression"]) is None
    profiles = {row["name"] for card in cards().values() for row in card["profiles"]}
    assert {f"nvidia.com/mig-{name.replace('+', '.')}" for name in profiles} == set(called[1:])


# --- RBAC ---


def granted() -> set[Right]:
    return {
        (group, resource, verb)
        for obj in yaml.safe_load_all((ROOT / "rbac.yaml").read_text())
        for rule in obj.get("rules") or ()
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path)
    cluster.installation = Installation(cluster.client, cluster.installation.webhook_port, more=("legacy",))
    cluster.installation.apply()
    yield cluster
    cluster.server.terminate()
    cluster.server.wait(PATIENCE)


def controller(cluster: Cluster) -> subprocess.Popen[bytes]:
    own = account_kubeconfig(
        cluster.client, str(cluster.kubeconfig), cluster.folder / "own", account="koordra-controller"
    )
    address = f"127.0.0.1:{cluster.installation.webhook_port}"
    command = [
        sys.executable,
        "-m",
        "koordra",
        "controller",
        "--kubeconfig",
        str(own),
        "--webhook-address",
        address,
    ]
    command += ["--webhook-host", "127.0.0.1", "--legacy-pods", "--legacy-template-grace", "2"]
    with (cluster.folder / "log").open("ab") as log:
        return subprocess.Popen(command, stderr=log)


@pytest.mark.long
def test_rbac_is_exactly_what_is_used(cluster: Cluster) -> None:
    process = controller(cluster)
    try:
        eventually(cluster.installation.webhook_answers, "the webhook")
        eventually(lambda: _made(cluster, "a"), "a rewritten pod")

        def marked() -> bool:
            """A second pod marks the template of the first, once that is older than half the grace."""
            return _made(cluster, "again") and any(
                verb == "patch"
                for _, resource, verb in cluster.used()
                if resource == "resourceclaimtemplates"
            )

        eventually(marked, "a template that is used again")
        for name in ("a", "again"):
            cluster.client.delete(kinds.PODS, name, namespace="default", grace_period=0)
        used_up(cluster, granted())
    finally:
        process.terminate()
        process.wait(PATIENCE)
    refused = {
        (line["group"], line["resource"], line["verb"]) for line in cluster.requests() if line["code"] == 403
    }
    assert refused == set(), "asked for, but not granted"


def _made(cluster: Cluster, name: str) -> bool:
    """The pod, made anew."""
    with contextlib.suppress(ApiError):
        cluster.client.delete(kinds.PODS, name, namespace="default", grace_period=0)
    obj: dict[str, Any] = pod({"nvidia.com/gpu": 1}, name=name)
    obj["metadata"]["namespace"] = "default"
    try:
        made = cluster.client.create(kinds.PODS, obj)
    except ApiError:
        return False
    return bool(objects.spec_of(made).get("resourceClaims"))
