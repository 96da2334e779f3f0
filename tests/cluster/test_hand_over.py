"""A node with a real kubelet passes from a device plugin, and from a DRA driver, to koordra and back, while
pods run: koordra's plugin and NRI hook stand on it all the time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from koordra.api import kinds, names, objects
from koordra.api.objects import Object
from koordra.errors import NotFound
from koordra.kube.client import KubeClient
from koordra.kubelet_plugin.publish.peers_on_node import CLAIMS, DEVICE_PLUGINS
from koordra.topology.presets import write_machine
from tests.cluster.installation import account_kubeconfig
from tests.cluster.kubelet_node import KubeletNode, lent_node, running
from tests.cluster.test_joint_allocation import Workload, request
from tests.cluster.waiting import eventually
from tests.e2e.node import unused_majors
from tests.fakes import driver_homes
from tests.fakes.peers_on_kubelet import DevicePlugin, DraDriver, waiting_reasons

pytestmark = pytest.mark.cluster

RESTART = "KOORDRA_RESTART_KUBELET"
"""A command."""
RESOURCE = "nvidia.com/gpu"
DRIVER = "gpu.nvidia.com"
IGNORE = {"koordra.io/legacy-pods": "ignore"}
STACK = "device-plugin"
LONG = 120.0


class HandedNode:
    """The lent node with koordra's plugin and hook, and what else stands on it."""

    def __init__(self, node: KubeletNode, folder: Path, kubeconfig: str) -> None:
        self.node, self.client = node, node.client
        root = folder / "machine"
        self.machine = write_machine("hgx-h100", root, serial=node.name, device_major=unused_majors(5))
        driver_homes.libraries(root / driver_homes.MULTI_ARCH, str(self.machine.driver_version))
        cards = {str(gpu.uuid): root / str(gpu.node.path)[1:] for gpu in self.machine.gpus[:2] if gpu.node}
        self.plugin = DevicePlugin(RESOURCE, cards)
        (root / DEVICE_PLUGINS).parent.mkdir(parents=True)
        (root / DEVICE_PLUGINS).symlink_to(Path("/") / DEVICE_PLUGINS)
        self.driver = DraDriver(node.kubelet_root, DRIVER)
        self.folder = folder
        own = account_kubeconfig(
            self.client,
            kubeconfig,
            folder / "own",
            account="koordra-kubelet-plugin",
            bound_to=self.client.get(kinds.NODES, node.name),
        )
        self._options = {
            "kubelet-plugin": [
                *(
                    "--node-name",
                    node.name,
                    "--kubeconfig",
                    own,
                    "--allowed-isolation",
                    "none",
                    "--root",
                    root,
                ),
                *("--kubelet-root", node.kubelet_root, "--cdi-dir", node.cdi, "--hook-dir", folder / "hook"),
                *("--state-dir", node.state),
            ],
            "nri": [
                *("--node-name", node.name, "--state-dir", node.state, "--verify-period", "0"),
                *("--socket", node.cdi.parent / "nri.sock"),
            ],
        }
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, *programs: str) -> None:
        for program in programs:
            command = [sys.executable, "-m", "koordra", program, *map(str, self._options[program])]
            with (self.folder / f"{program}.log").open("ab") as sink:
                self._processes[program] = subprocess.Popen(command, stderr=sink, stdout=sink)

    def stop(self, program: str, how: int = signal.SIGTERM) -> None:
        process = self._processes.pop(program)
        process.send_signal(how)
        process.wait(60)

    def restart_kubelet(self) -> None:
        """As whoever lends the node says, if he does; device plugins register anew, as real ones do."""
        if RESTART in os.environ:
            subprocess.run(os.environ[RESTART], shell=True, check=True)
            if self.plugin.serves:
                eventually(self._registers_anew, "the device plugin registered", LONG)

    def _registers_anew(self) -> bool:
        """A kubelet that starts removes the sockets there are."""
        self.plugin.stop()
        try:
            self.plugin.start()
        except grpc.RpcError:
            return False
        return True

    def stop_all(self) -> None:
        for program in list(self._processes):
            self.stop(program)

    def log(self) -> str:
        logs = [self.folder / f"{program}.log" for program in self._options]
        return "\n".join(log.read_text()[-3000:] for log in logs if log.exists())

    def label(self, value: str | None) -> None:
        self.client.patch(
            kinds.NODES, self.node.name, {"metadata": {"labels": {names.GPU_OWNER_LABEL: value}}}
        )

    def node_says(self, annotation: str) -> str:
        return str(objects.annotations_of(self.client.get(kinds.NODES, self.node.name)).get(annotation, ""))

    def phase(self) -> set[str]:
        """Of the node's GPUs, as koordra publishes them; empty while it publishes none."""
        slices = self.client.list(kinds.RESOURCE_SLICES, field_selector=f"spec.nodeName={self.node.name}")[0]
        return {
            next(
                (
                    taint["value"]
                    for taint in device.get("taints") or ()
                    if taint["key"] == names.HAND_OVER_TAINT
                ),
                "Owned",
            )
            for entry in slices
            if entry["spec"]["driver"] == names.DRIVER
            for device in entry["spec"].get("devices") or ()
            if device["name"].startswith("gpu-")
        }

    def is_in(self, phase: str) -> None:
        try:
            eventually(lambda: self.phase() == {phase}, f"the GPUs {phase}", LONG)
        except BaseException:
            print(self.phase(), self.log(), sep="\n")
            raise

    def pod(self, namespace: str, name: str, **spec: Any) -> None:
        """On this node, past the scheduler and koordra's webhook, as a pod that another scheduler bound."""
        container = {
            "name": "main",
            "image": self.node.image,
            "imagePullPolicy": "IfNotPresent",
            "command": ["sh", "-c", "while :; do sleep 1; done"],
            "resources": {"limits": spec.pop("limits", {})},
        }
        body: Object = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": IGNORE},
            "spec": {
                "restartPolicy": "Always",
                "terminationGracePeriodSeconds": 0,
                "containers": [container],
                **spec,
            },
        }
        self.client.create(kinds.PODS, body, namespace=namespace)

    def delete(self, namespace: str, name: str) -> None:
        self.client.delete(kinds.PODS, name, namespace=namespace)

        def is_gone() -> bool:
            try:
                self.client.get(kinds.PODS, name, namespace=namespace)
            except NotFound:
                return True
            return False

        eventually(is_gone, f"pod {name} gone", LONG)

    def refused(self, namespace: str, name: str, rule: str) -> None:
        def look() -> bool:
            pod = self.client.get(kinds.PODS, name, namespace=namespace)
            return any(rule in reason for reason in waiting_reasons(pod))

        eventually(look, f"pod {name} refused: {rule}", LONG)

    def amount(self, number: str) -> None:
        def look() -> bool:
            node = self.client.get(kinds.NODES, self.node.name)
            return str((objects.status_of(node).get("allocatable") or {}).get(RESOURCE, "0")) == number

        eventually(look, f"{RESOURCE}: {number} on the Node", LONG)


@pytest.fixture
def handed(client: KubeClient, kubeconfig: str, controller: None, tmp_path: Path) -> Iterator[HandedNode]:
    del controller
    found = HandedNode(lent_node(client), tmp_path, kubeconfig)
    with cleaned(found):
        yield found


@contextmanager
def cleaned(found: HandedNode) -> Iterator[None]:
    try:
        yield
        assert "orbidden" not in found.log()
    finally:
        found.label(None)
        found.stop_all()


def koordras_pod(handed: HandedNode, namespace: str, name: str) -> None:
    work = Workload(handed.client, namespace)
    work.claim(name, [request("gpu", names.CLASS_GPU)])
    handed.pod(
        namespace,
        name,
        resourceClaims=[{"name": "gpu", "resourceClaimName": name}],
        nodeSelector={"kubernetes.io/hostname": handed.node.name},
    )


def test_from_a_device_plugin_to_koordra_and_back_while_pods_run(handed: HandedNode, namespace: str) -> None:
    client, on = handed.client, {"nodeName": handed.node.name}
    handed.plugin.start()
    try:
        handed.amount("2")
        handed.pod(namespace, "theirs", limits={RESOURCE: "1"}, **on)
        running(client, namespace, "theirs")
        handed.start("nri", "kubelet-plugin")
        handed.is_in("Left")
        handed.pod(namespace, "theirs-too", limits={RESOURCE: "1"}, **on)
        running(client, namespace, "theirs-too")  # past koordra's hook
        handed.restart_kubelet()
        handed.amount("2")
        handed.is_in("Left")
        koordras_pod(handed, namespace, "ours")
        handed.plugin.stop()
        handed.amount("0")
        handed.stop("kubelet-plugin", signal.SIGKILL)
        handed.start("kubelet-plugin")
        handed.delete(namespace, "theirs")
        eventually(
            lambda: "pods have cards of" in handed.node_says(names.NO_GPUS), "which pods are left", LONG
        )
        handed.is_in("Left")
        assert not objects.spec_of(client.get(kinds.PODS, "ours", namespace=namespace)).get("nodeName")
        handed.delete(namespace, "theirs-too")
        handed.is_in("Owned")
        running(client, namespace, "ours")
        # The device plugin comes back although the node is koordra's.
        handed.plugin.start()
        handed.pod(namespace, "late", limits={RESOURCE: "1"}, **on)
        handed.refused(namespace, "late", "which no claim of it holds")
        handed.stop("kubelet-plugin", signal.SIGKILL)
        handed.restart_kubelet()
        handed.start("kubelet-plugin")
        running(client, namespace, "ours")
        handed.refused(namespace, "late", "which no claim of it holds")
        # And is to have it.
        handed.label(STACK)
        handed.is_in("Leaving")
        assert not handed.node_says(names.GPUS_GIVEN_TO)
        handed.refused(namespace, "late", "which no claim of it holds")
        handed.delete(namespace, "ours")
        handed.is_in("Left")
        eventually(lambda: handed.node_says(names.GPUS_GIVEN_TO) == STACK, "the node given", LONG)
        running(client, namespace, "late")
        handed.delete(namespace, "late")
    finally:
        handed.plugin.end()


def test_from_a_dra_driver_to_koordra_while_its_pods_run(handed: HandedNode, namespace: str) -> None:
    client, node = handed.client, handed.node.name
    handed.driver.start()
    device_class = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": f"theirs-{namespace}"},
        "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]},
    }
    uuid = str(handed.machine.gpus[0].uuid)
    published = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"theirs-{namespace}"},
        "spec": {
            "driver": DRIVER,
            "nodeName": node,
            "pool": {"name": "n", "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "gpu-0", "attributes": {"uuid": {"string": uuid}}}],
        },
    }
    client.create(kinds.DEVICE_CLASSES, device_class)
    client.create(kinds.RESOURCE_SLICES, published)
    try:
        Workload(client, namespace).claim("theirs", [request("gpu", f"theirs-{namespace}")])
        claims = [{"name": "gpu", "resourceClaimName": "theirs"}]
        handed.pod(namespace, "theirs", resourceClaims=claims, nodeSelector={"kubernetes.io/hostname": node})
        running(client, namespace, "theirs")
        assert handed.driver.prepared == ["theirs"]
        handed.start("nri", "kubelet-plugin")
        handed.is_in("Left")
        koordras_pod(handed, namespace, "ours")
        eventually(lambda: "published by koordra.io" in handed.node_says(names.NO_GPUS), "two drivers", LONG)
        client.delete(kinds.RESOURCE_SLICES, objects.name(published))
        eventually(lambda: not handed.node_says(names.NO_GPUS), "one publishes", LONG)
        handed.is_in("Left")
        handed.delete(namespace, "theirs")
        claims = handed.node.kubelet_root / CLAIMS
        eventually(lambda: DRIVER not in claims.read_text(), "the driver's claim unprepared", LONG)
        handed.is_in("Left")
        handed.driver.stop()
        handed.is_in("Owned")
        running(client, namespace, "ours")
        handed.delete(namespace, "ours")
    finally:
        handed.driver.stop()
        client.delete(kinds.DEVICE_CLASSES, objects.name(device_class))
        with suppress(NotFound):
            client.delete(kinds.RESOURCE_SLICES, objects.name(published))
