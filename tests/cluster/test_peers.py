"""Beside other stacks on a cluster: annotations for their readers, and nodes on which they give out the same
cards."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from koordra.api import kinds, names, objects
from koordra.api.objects import Object
from koordra.errors import Forbidden, NotFound
from koordra.kube.client import KubeClient
from koordra.kube.kubeconfig import new_client
from koordra.kubelet_plugin.publish.node_slices import FOREIGN_TAINT
from koordra.kubelet_plugin.status.node_labels import OURS
from koordra.topology import presets
from tests.cluster import waiting
from tests.cluster.installation import account_kubeconfig
from tests.cluster.waiting import NODES

pytestmark = pytest.mark.cluster

T = TypeVar("T")


def eventually(look: Callable[[], T | None], what: str, timeout: float = 90.0) -> T:
    return waiting.eventually(look, what, timeout)


HAMI = "hami.io/vgpu-devices-allocated"
KOORDINATOR = "scheduling.koordinator.sh/device-allocated"


def make_pod(client: KubeClient, namespace: str, name: str, asks: Object, **annotations: str) -> None:
    container = {"name": "main", "image": "busybox", "resources": {"limits": asks}}
    body: Object = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": annotations},
        "spec": {"containers": [container], "nodeSelector": {"koordra.io/test": "true"}},
    }
    client.create(kinds.PODS, body, namespace=namespace)


def annotation(client: KubeClient, namespace: str, name: str, key: str) -> str:
    return objects.annotations_of(client.get(kinds.PODS, name, namespace=namespace)).get(key, "")


def device_of(client: KubeClient, namespace: str, pod: str) -> Object:
    """The published device that the pod's only claim has."""
    (claim,) = objects.pod_claim_names(client.get(kinds.PODS, pod, namespace=namespace)).values()
    allocation = client.get(kinds.RESOURCE_CLAIMS, str(claim), namespace=namespace)["status"]["allocation"]
    (result,) = allocation["devices"]["results"]
    slices, _ = client.list(kinds.RESOURCE_SLICES, field_selector=f"spec.nodeName={result['pool']}")
    for entry in slices:
        for device in entry["spec"].get("devices") or ():
            if device["name"] == result["device"]:
                return {
                    "pool": result["pool"],
                    **{key: next(iter(value.values())) for key, value in device["attributes"].items()},
                }
    raise AssertionError(result)


def test_readers_of_hami_and_koordinator_find_what_they_know(client: KubeClient, namespace: str) -> None:
    make_pod(
        client,
        namespace,
        "hami",
        {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000", "nvidia.com/gpucores": "20"},
    )
    make_pod(client, namespace, "koord", {"koordinator.sh/gpu": "50"})
    text = eventually(lambda: annotation(client, namespace, "hami", HAMI), "HAMi's annotation")
    device = device_of(client, namespace, "hami")
    uuid = device.get("koordra.io/uuid") or device["uuid"]
    assert text == f"{uuid},NVIDIA,3000,20:;"
    assert annotation(client, namespace, "hami", "hami.io/vgpu-node") == device["pool"]
    body = json.loads(
        eventually(lambda: annotation(client, namespace, "koord", KOORDINATOR), "Koordinator's")
    )
    (gpu,) = body["gpu"]
    device = device_of(client, namespace, "koord")
    assert gpu["id"] == (device.get("koordra.io/uuid") or device["uuid"])
    assert gpu["resources"]["koordinator.sh/gpu-memory-ratio"] in ("49", "50")
    assert list(gpu) == ["minor", "resources", "id"]


def test_what_a_user_writes_there_is_replaced_and_changes_nothing(client: KubeClient, namespace: str) -> None:
    asks = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000"}
    make_pod(client, namespace, "forger", asks, **{HAMI: "GPU-forged,NVIDIA,80000,100:;"})
    eventually(
        lambda: "NVIDIA,3000,0" in annotation(client, namespace, "forger", HAMI), "the true annotation"
    )
    before = device_of(client, namespace, "forger")
    change = {"metadata": {"annotations": {HAMI: "GPU-forged,NVIDIA,80000,100:;"}}}
    client.patch(kinds.PODS, "forger", change, namespace=namespace)
    eventually(lambda: "forged" not in annotation(client, namespace, "forger", HAMI), "the forgery replaced")
    assert device_of(client, namespace, "forger") == before


# nodes on which somebody else gives out GPUs


@pytest.fixture
def other_plugin(client: KubeClient) -> Iterator[Any]:
    """Puts GPUs of another device plugin into the status of nodes, and takes them away again."""

    def offers(node: str, amount: str) -> None:
        amounts = {"nvidia.com/gpu": amount}
        client.patch(
            kinds.NODES, node, {"status": {"capacity": amounts, "allocatable": amounts}}, subresource="status"
        )

    yield offers
    for node in NODES:
        amounts = {"nvidia.com/gpu": None}
        client.patch(
            kinds.NODES, node, {"status": {"capacity": amounts, "allocatable": amounts}}, subresource="status"
        )


def gpu_pod(client: KubeClient, namespace: str, name: str) -> None:
    request = {"name": "gpu", "exactly": {"deviceClassName": names.CLASS_GPU, "count": 1}}
    claim: Object = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": [request]}},
    }
    client.create(kinds.RESOURCE_CLAIMS, claim, namespace=namespace)
    pod: Object = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "nodeSelector": {"koordra.io/test": "true"},
            "containers": [{"name": "main", "image": "busybox", "resources": {"claims": [{"name": "gpu"}]}}],
            "resourceClaims": [{"name": "gpu", "resourceClaimName": name}],
        },
    }
    client.create(kinds.PODS, pod, namespace=namespace)


def told(client: KubeClient, about: str, reason: str, words: str) -> bool:
    events, _ = client.list(kinds.EVENTS)
    return any(
        event["involvedObject"].get("name") == about
        and event.get("reason") == reason
        and words in event["message"]
        for event in events
    )


def node_of(client: KubeClient, namespace: str, pod: str) -> str:
    return str(client.get(kinds.PODS, pod, namespace=namespace)["spec"].get("nodeName") or "")


def test_nothing_is_placed_beside_another_device_plugin(
    client: KubeClient, namespace: str, other_plugin: Any
) -> None:
    first, second = NODES
    other_plugin(first, "8")
    eventually(lambda: told(client, first, "ForeignPlugin", "nvidia.com/gpu"), "an Event on the node")
    gpu_pod(client, namespace, "one")
    assert eventually(lambda: node_of(client, namespace, "one"), "the pod beside it") == second
    other_plugin(second, "8")
    eventually(lambda: told(client, second, "ForeignPlugin", "nvidia.com/gpu"), "an Event on the other node")
    gpu_pod(client, namespace, "two")
    eventually(
        lambda: told(client, "two", "ForeignDriver", "Take its DaemonSet off the node"),
        "why the second waits",
    )
    assert node_of(client, namespace, "two") == ""
    other_plugin(first, "0")
    assert eventually(lambda: node_of(client, namespace, "two"), "the pod where it is over") == first


# the plugin's labels and taints on its own node

OWN_NODE = "koordra-test-labels"
OWNER = {"apiVersion": "v1", "kind": "Node", "name": "gone", "uid": "00000000-0000-4000-8000-000000000000"}
"""With an owner that does not exist a Node would be collected."""


class Plugin:
    """`koordra kubelet-plugin` as a process, with its ServiceAccount's rights on a Node of its own. No
    kubelet is needed for what it publishes."""

    def __init__(self, client: KubeClient, kubeconfig: str, folder: Path) -> None:
        self.client = client
        self.folder = folder
        root = folder / "root"
        presets.write_machine(presets.load("hgx-h100"), root, serial=OWN_NODE)
        stand_in = client.create(kinds.PODS, stand_in_on(OWN_NODE), namespace="koordra-system")
        own = account_kubeconfig(
            client, kubeconfig, folder / "own", account="koordra-kubelet-plugin", bound_to=stand_in
        )
        command = [sys.executable, "-m", "koordra", "kubelet-plugin", "--node-name", OWN_NODE]
        command += [
            "--root",
            str(root),
            "--kubelet-root",
            str(folder / "kubelet"),
            "--cdi-dir",
            str(folder / "cdi"),
        ]
        command += ["--kubeconfig", str(own), "--legacy-node-labels"]
        with (folder / "log").open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def label(self, key: str) -> str | None:
        return objects.labels_of(self.client.get(kinds.NODES, OWN_NODE)).get(key)

    def tainted(self) -> list[str]:
        """The devices that carry the taint."""
        slices, _ = self.client.list(kinds.RESOURCE_SLICES, field_selector=f"spec.nodeName={OWN_NODE}")
        return [
            str(device["name"])
            for entry in slices
            for device in entry["spec"].get("devices") or ()
            if any(taint["key"] == FOREIGN_TAINT for taint in device.get("taints") or ())
        ]

    def end(self) -> None:
        self.process.terminate()
        self.process.wait(30)


def stand_in_on(node: str) -> Object:
    """A pod that lends its identity: the API server knows from the token which node a request comes from."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "plugin-stand-in", "namespace": "koordra-system"},
        "spec": {
            "nodeName": node,
            "serviceAccountName": "koordra-kubelet-plugin",
            "containers": [{"name": "main", "image": "busybox"}],
        },
    }


@pytest.fixture
def plugin(client: KubeClient, kubeconfig: str, namespace: str) -> Iterator[Plugin]:
    del namespace
    labels = {"kubernetes.io/hostname": OWN_NODE, "nvidia.com/gpu.memory": "1"}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": OWN_NODE, "labels": labels}}
    client.create(kinds.NODES, node)
    with tempfile.TemporaryDirectory(prefix="k-") as folder:  # short: the names of sockets may not be long
        running = Plugin(client, kubeconfig, Path(folder))
        yield running
        running.end()
        print((Path(folder) / "log").read_text()[-3000:])
    client.delete(kinds.PODS, "plugin-stand-in", namespace="koordra-system", grace_period=0)
    for entry in client.list(kinds.RESOURCE_SLICES, field_selector=f"spec.nodeName={OWN_NODE}")[0]:
        client.delete(kinds.RESOURCE_SLICES, objects.name(entry))
    client.delete(kinds.NODES, OWN_NODE)


def test_the_plugin_labels_its_node_and_taints_what_others_give_out(
    client: KubeClient, plugin: Plugin
) -> None:
    eventually(
        lambda: plugin.label("nvidia.com/gpu.product") == "NVIDIA-H100-80GB-HBM3", "the product", timeout=60
    )
    assert plugin.label("node.koordinator.sh/gpu-model") == "H100-80GB-HBM3"
    assert plugin.label("aliyun.accelerator/nvidia_count") == "8"
    assert plugin.label("nvidia.com/gpu.memory") == "1", "somebody else's label is left alone"
    amounts: Object = {"nvidia.com/gpu": "8"}
    body = {"status": {"capacity": amounts, "allocatable": amounts}}
    client.patch(kinds.NODES, OWN_NODE, body, subresource="status")
    eventually(lambda: len(plugin.tainted()) == 8, "the taint on eight GPUs", timeout=60)
    assert all(name.startswith("gpu-") for name in plugin.tainted())
    amounts["nvidia.com/gpu"] = "0"
    client.patch(kinds.NODES, OWN_NODE, body, subresource="status")
    eventually(lambda: not plugin.tainted(), "no taint any more", timeout=60)


# the right to label nodes


def test_the_plugin_may_change_the_labels_of_its_own_node_and_nothing_else(
    client: KubeClient, kubeconfig: str, namespace: str, tmp_path: Path
) -> None:
    first, second = NODES
    del namespace
    stand_in = client.create(kinds.PODS, stand_in_on(first), namespace="koordra-system")
    try:
        path = account_kubeconfig(
            client, kubeconfig, tmp_path / "own", account="koordra-kubelet-plugin", bound_to=stand_in
        )
        plugin = new_client(str(path), user_agent="koordra-test-plugin")

        count = {"metadata": {"labels": {"nvidia.com/gpu.count": "8"}, "annotations": {OURS: "{}"}}}
        eventually(lambda: _may(plugin, first, count), "the right to label its own node")
        assert objects.labels_of(client.get(kinds.NODES, first))["nvidia.com/gpu.count"] == "8"
        refused = [
            (second, count),
            (first, {"metadata": {"labels": {"team": "ml"}}}),
            (first, {"metadata": {"labels": {"koordra.io/test": None}}}),
            (first, {"metadata": {"annotations": {"koordra.io/other": "x"}}}),
            (first, {"spec": {"unschedulable": True}}),
            (first, {"metadata": {"finalizers": ["koordra.io/stays"]}}),
            (first, {"metadata": {"ownerReferences": [OWNER]}}),
        ]
        for node, change in refused:
            with pytest.raises(Forbidden):
                plugin.patch(kinds.NODES, node, change)
    finally:
        client.delete(kinds.PODS, "plugin-stand-in", namespace="koordra-system", grace_period=0)
        back = {"metadata": {"labels": {"nvidia.com/gpu.count": None}, "annotations": {OURS: None}}}
        for node in NODES:
            client.patch(kinds.NODES, node, back)


def _may(plugin: KubeClient, node: str, change: Object) -> bool:
    try:
        plugin.patch(kinds.NODES, node, change)
    except (Forbidden, NotFound):
        return False
    return True
