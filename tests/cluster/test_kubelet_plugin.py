"""The kubelet plugin as a process of its own on a node of a cluster, with the rights of its ServiceAccount
and no others; the test is its kubelet."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from koordra._proto.dra import dra_v1_pb2, dra_v1_pb2_grpc
from koordra.api import kinds, names, objects
from koordra.api.objects import Object
from koordra.api.resource_class import CONFIG_MAPS
from koordra.evictions import OF_PLUGIN, EvictionRequests
from koordra.kube.client import KubeClient
from koordra.kube.kubeconfig import new_client
from koordra.kubelet_plugin.claims.claim_record import ClaimRecord, State
from koordra.kubelet_plugin.isolation.limiter.overuse import Overuse
from koordra.kubelet_plugin.nvidia_driver.release_wanted import STATE_LABEL
from koordra.kubelet_plugin.status.overuse_report import OveruseReporter
from koordra.node_state.claim_ref import ClaimRef
from koordra.topology import presets
from tests.cluster.installation import account_kubeconfig
from tests.cluster.nodes import add_node, remove_node
from tests.cluster.test_driver_release import Release
from tests.cluster.test_joint_allocation import request
from tests.cluster.waiting import eventually
from tests.patience import PATIENCE

pytestmark = pytest.mark.cluster
NODE = "koordra-test-plugin"


class Plugin(Release):
    """The plugin's node; `folder` is its kubelet's, `log` what it says."""

    node = NODE

    def __init__(self, client: KubeClient, namespace: str, folder: Path, own: KubeClient) -> None:
        super().__init__(client, namespace)
        self.folder = folder
        self.log = folder / "log"
        self.own = own

    def slices(self) -> list[Object]:
        return self.client.list(kinds.RESOURCE_SLICES, field_selector=f"spec.nodeName={self.node}")[0]

    def phases(self) -> set[str]:
        """What its cards say of the driver."""
        return {
            taint["value"]
            for one in self.slices()
            for device in one["spec"]["devices"]
            for taint in device.get("taints") or ()
            if taint["key"] == names.RELEASE_TAINT
        }

    def call(self, method: str, claim: Object) -> None:
        """NodePrepareResources or NodeUnprepareResources, as the kubelet calls them."""
        asked = dra_v1_pb2.Claim(namespace=self.namespace, name=objects.name(claim), uid=objects.uid(claim))
        message = getattr(dra_v1_pb2, f"{method}Request")(claims=[asked])
        with grpc.insecure_channel(f"unix://{self.folder}/plugins/{names.DRIVER}/dra.sock") as channel:
            answer = getattr(dra_v1_pb2_grpc.DRAPluginStub(channel), method)(message, timeout=60)
        assert answer.claims[objects.uid(claim)].error == ""

    def claim_of(self, pod: str) -> Object:
        found = self.client.get(kinds.PODS, pod, namespace=self.namespace)
        (name,) = objects.pod_claim_names(found).values()
        assert name is not None
        return self.client.get(kinds.RESOURCE_CLAIMS, name, namespace=self.namespace)

    def label(self, state: str | None) -> None:
        self.client.patch(kinds.NODES, NODE, {"metadata": {"labels": {STATE_LABEL: state}}})


@pytest.fixture
def plugin(client: KubeClient, kubeconfig: str, namespace: str) -> Iterator[Plugin]:
    remove_node(client, NODE)
    node = add_node(client, NODE)
    with tempfile.TemporaryDirectory(prefix="k") as name:
        folder = Path(name)
        presets.write_machine(presets.load("hgx-h100"), folder / "machine", serial=NODE)
        own = account_kubeconfig(
            client, kubeconfig, folder / "own", account="koordra-kubelet-plugin", bound_to=node
        )
        places = ["--root", folder / "machine", "--kubelet-root", folder, "--cdi-dir", folder / "cdi"]
        command = [
            sys.executable,
            "-m",
            "koordra",
            "kubelet-plugin",
            "--node-name",
            NODE,
            "--kubeconfig",
            own,
        ]
        found = Plugin(client, namespace, folder, new_client(str(own)))
        with found.log.open("wb") as log:
            process = subprocess.Popen([*command, *places, "--allowed-isolation", "none"], stderr=log)
        try:
            eventually(found.slices, f"the slices; see {found.log}")
            found.template(
                "share", [request("gpu", names.CLASS_GPU, memory="1Gi"), request("nic", names.CLASS_NIC)]
            )
            yield found
            assert process.poll() is None, found.log.read_text()[-3000:]
            assert "orbidden" not in found.log.read_text()
        finally:
            process.terminate()
            process.wait(60)
            found.remove_workloads()
            remove_node(client, NODE)


def test_a_node_is_released_from_the_operators_label_to_its_end(plugin: Plugin) -> None:
    (pod,) = plugin.replicas("web", 1)
    claim = plugin.claim_of(pod)
    plugin.call("NodePrepareResources", claim)

    def devices() -> list[Object]:
        return objects.status_of(plugin.claim_of(pod)).get("devices") or []

    (nic,) = eventually(devices, "status.devices")
    assert nic["device"].startswith("nic-")
    assert {one["type"]: one["status"] for one in nic["conditions"]}["Ready"] == "False"
    plugin.told(pod, "nobody puts this NIC there")

    plugin.label("cordon-required")
    eventually(lambda: plugin.phases() == {"Closing"}, "the taint")
    assert plugin.there(pod)
    plugin.label("drain-required")
    eventually(lambda: not plugin.there(pod), "the pod's end")
    assert plugin.phases() == {"Evicting"}
    plugin.call("NodeUnprepareResources", claim)
    eventually(lambda: plugin.annotation() == "Released", "the Node's annotation")

    plugin.label(None)
    eventually(lambda: not plugin.phases() and not plugin.annotation(), "the end of the release")
    (anew,) = [objects.name(one) for one in plugin.pods("web")]
    assert plugin.bound(anew) == NODE


def test_a_pod_over_its_share_is_told_and_evicted_as_its_budget_lets_it(plugin: Plugin) -> None:
    (pod,) = plugin.replicas("web", 1)
    plugin.budget("web", "web", 1, lets_go=0)
    claim = plugin.claim_of(pod)
    ref = ClaimRef(plugin.namespace, objects.name(claim), objects.uid(claim))
    record = ClaimRecord(ref, NODE, "0" * 32, "boot", State.COMPLETED, ())
    over = Overuse(ref.uid, "GPU-1", 2 << 30, 1 << 30, 1 << 29)
    requests = EvictionRequests(plugin.own, OF_PLUGIN, node=NODE, namespace="koordra-system")
    over_now = {ref.uid: over}
    reporter = OveruseReporter(
        plugin.own, records=lambda: [record], overused=lambda: over_now, evictions=requests
    )

    reporter.step()
    plugin.told(pod, "2048Mi")
    plugin.told(pod, f"node {NODE} asks for the eviction")
    assert plugin.there(pod)
    plugin.budget("web", "web", 0)
    eventually(lambda: not plugin.there(pod), "the pod's end", timeout=PATIENCE)
    over_now.clear()
    reporter.step()
    entries = plugin.client.get(CONFIG_MAPS, OF_PLUGIN, namespace="koordra-system").get("data") or {}
    assert NODE not in entries
