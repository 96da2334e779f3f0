"""A node with a real kubelet passes from a device plugin, and from a DRA driver of GPUs or NICs, to koordra
and back, while pods run: koordra's plugin and NRI hook stand on it all the time, and the kubelet is started
anew in the middle. NVIDIA's own programs stand there where they are lent (real_peers)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from koordra.api import kinds, names, objects
from koordra.api.objects import Object
from koordra.errors import NotFound
from koordra.kube.client import KubeClient
from koordra.kubelet_plugin.publish.hand_over import FILE
from koordra.kubelet_plugin.publish.peers_on_node import CLAIMS, DEVICE_PLUGINS, GPUS, KINDS, DeviceKind
from koordra.topology.presets import write_machine
from tests.cluster import real_peers
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
CARDS = 2
"""That the other stacks give out."""
IGNORE = {"koordra.io/legacy-pods": "ignore"}
STACK = "another-stack"
LONG = 120.0


class HandedNode:
    """The lent node with koordra's plugin and hook, and what else stands on it."""

    def __init__(self, node: KubeletNode, folder: Path, kubeconfig: str) -> None:
        self.node, self.client = node, node.client
        (node.state / FILE).unlink(missing_ok=True)  # of a test before: koordra is here for the first time
        root = folder / "machine"
        self.machine = write_machine("hgx-h100", root, serial=node.name, device_major=unused_majors(5))
        driver_homes.libraries(root / driver_homes.MULTI_ARCH, str(self.machine.driver_version))
        (root / DEVICE_PLUGINS).parent.mkdir(parents=True)
        (root / DEVICE_PLUGINS).symlink_to(Path("/") / DEVICE_PLUGINS)
        self.plugin, self.gpu_driver = self._of_gpus(root, folder, kubeconfig)
        nics = {
            f"nic-{at}": root / str(nic.verbs.path)[1:]
            for at, nic in enumerate(self.machine.nics)
            if nic.verbs
        }
        self.nic_driver = self._driver("dra.net", {name: (path, {}) for name, path in nics.items()})
        self.folder = folder
        own, of_hook = (
            account_kubeconfig(
                self.client,
                kubeconfig,
                folder / account,
                account=account,
                bound_to=self.client.get(kinds.NODES, node.name),
            )
            for account in ("koordra-kubelet-plugin", "koordra-nri")
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
                *("--node-name", node.name, "--kubeconfig", of_hook, "--state-dir", node.state),
                *("--verify-period", "0", "--socket", node.nri),
            ],
        }
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def _driver(self, name: str, devices: dict[str, tuple[Path, Object]]) -> DraDriver:
        node = self.node
        return DraDriver(self.client, node.name, node.kubelet_root, node.cdi, name=name, devices=devices)

    def _of_gpus(
        self, root: Path, folder: Path, kubeconfig: str
    ) -> tuple[DevicePlugin | real_peers.Program, DraDriver | real_peers.Program]:
        if (peers := real_peers.real_peers()) is None:
            cards = {
                str(gpu.uuid): root / str(gpu.node.path)[1:] for gpu in self.machine.gpus[:CARDS] if gpu.node
            }
            named = {
                f"gpu-{at}": (path, {"uuid": {"string": uuid}})
                for at, (uuid, path) in enumerate(cards.items())
            }
            return DevicePlugin(RESOURCE, cards), self._driver("gpu.nvidia.com", named)
        environment = real_peers.mock_driver(peers, root, self.machine, CARDS)
        plugin = real_peers.device_plugin(peers, root, environment, folder / "device-plugin.log")
        node = self.node
        driver = real_peers.dra_driver(
            peers,
            root,
            environment,
            folder / "dra-driver.log",
            node=node.name,
            kubeconfig=kubeconfig,
            kubelet_root=node.kubelet_root,
            cdi=node.cdi,
        )
        return plugin, driver

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
                eventually(self.plugin.kubelet_restarted, "the device plugin registered", LONG)

    def stop_all(self) -> None:
        for program in list(self._processes):
            self.stop(program)

    def log(self) -> str:
        logs = [self.folder / f"{program}.log" for program in (*self._options, "device-plugin", "dra-driver")]
        return "\n".join(log.read_text()[-3000:] for log in logs if log.exists())

    def label(self, value: str | None, kind: DeviceKind = GPUS) -> None:
        self.client.patch(kinds.NODES, self.node.name, {"metadata": {"labels": {kind.label: value}}})

    def node_says(self, annotation: str) -> str:
        return str(objects.annotations_of(self.client.get(kinds.NODES, self.node.name)).get(annotation, ""))

    def phase(self, kind: DeviceKind = GPUS) -> set[str]:
        """Of the node's devices, as koordra publishes them; empty while it publishes none."""
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
            if device["name"].startswith(f"{kind.type}-")
        }

    def is_in(self, phase: str, kind: DeviceKind = GPUS) -> None:
        try:
            eventually(lambda: self.phase(kind) == {phase}, f"the {kind.title} {phase}", LONG)
        except BaseException:
            print(self.phase(kind), self.log(), sep="\n")
            raise

    def pod(self, namespace: str, name: str, **spec: Any) -> None:
        """On this node, past the scheduler and koordra's webhook, as a pod that another scheduler bound."""
        container = {
            "name": "main",
            "image": self.node.image,
            "imagePullPolicy": "IfNotPresent",
            "command": ["sh", "-c", "while :; do sleep 1; done"],
            "resources": {
                "limits": spec.pop("limits", {}),
                "claims": [{"name": each["name"]} for each in spec.get("resourceClaims") or ()],
            },
        }
        body: Object = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": IGNORE},
            "spec": {
                "restartPolicy": "Always",
                # Not 0, upon which the API server forgets a pod that the kubelet has not ended yet.
                "terminationGracePeriodSeconds": 1,
                "containers": [container],
                **spec,
            },
        }
        self.client.create(kinds.PODS, body, namespace=namespace)

    def again_unless_waiting(self, namespace: str, name: str, **spec: Any) -> None:
        """A kubelet that starts fails a pod whose devices are not registered yet when it looks at it."""

        def looked_at() -> str:
            pod = self.client.get(kinds.PODS, name, namespace=namespace)
            return "Failed" if objects.pod_is_finished(pod) else " ".join(waiting_reasons(pod))

        if eventually(looked_at, f"pod {name} looked at", LONG) == "Failed":
            self.delete(namespace, name)
            self.pod(namespace, name, **spec)

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

        try:
            eventually(look, f"pod {name} refused: {rule}", LONG)
        except BaseException:
            print(self.client.get(kinds.PODS, name, namespace=namespace).get("status"), self.log(), sep="\n")
            raise

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
        for kind in KINDS:
            found.label(None, kind)
        found.stop_all()


def pod_with_claim(handed: HandedNode, namespace: str, name: str, device_class: str) -> None:
    Workload(handed.client, namespace).claim(name, [request("device", device_class)])
    handed.pod(
        namespace,
        name,
        resourceClaims=[{"name": "device", "resourceClaimName": name}],
        nodeSelector={"kubernetes.io/hostname": handed.node.name},
    )


def test_from_a_device_plugin_to_koordra_and_back_while_pods_run(handed: HandedNode, namespace: str) -> None:
    client, on = handed.client, {"nodeName": handed.node.name}
    handed.plugin.start()
    try:
        handed.amount(str(CARDS))
        handed.pod(namespace, "theirs", limits={RESOURCE: "1"}, **on)
        running(client, namespace, "theirs")
        handed.start("nri", "kubelet-plugin")
        handed.is_in("Left")
        handed.pod(namespace, "theirs-too", limits={RESOURCE: "1"}, **on)
        running(client, namespace, "theirs-too")  # past koordra's hook
        handed.restart_kubelet()
        handed.amount(str(CARDS))
        handed.is_in("Left")
        pod_with_claim(handed, namespace, "ours", names.CLASS_GPU)
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
        handed.amount(str(CARDS))
        handed.pod(namespace, "late", limits={RESOURCE: "1"}, **on)
        handed.refused(namespace, "late", "which no claim of it holds")
        handed.stop("kubelet-plugin", signal.SIGKILL)
        handed.restart_kubelet()
        handed.start("kubelet-plugin")
        running(client, namespace, "ours")
        handed.amount(str(CARDS))
        handed.again_unless_waiting(namespace, "late", limits={RESOURCE: "1"}, **on)
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


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: str(kind.type))
def test_from_a_dra_driver_to_koordra_and_back_while_pods_run(
    handed: HandedNode, namespace: str, kind: DeviceKind
) -> None:
    client = handed.client
    driver, name, ours = (
        (handed.gpu_driver, "gpu.nvidia.com", names.CLASS_GPU)
        if kind is GPUS
        else (handed.nic_driver, "dra.net", names.CLASS_NIC)
    )
    driver.start()
    theirs = f"theirs-{kind.type}"
    device_class = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": theirs},
        "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{name}"'}}]},
    }
    client.create(kinds.DEVICE_CLASSES, device_class)
    try:
        pod_with_claim(handed, namespace, "theirs", theirs)
        running(client, namespace, "theirs")
        handed.start("nri", "kubelet-plugin")
        handed.is_in("Left", kind)
        pod_with_claim(handed, namespace, "ours", ours)
        handed.restart_kubelet()
        handed.stop("kubelet-plugin", signal.SIGKILL)
        handed.start("kubelet-plugin")
        if kind is GPUS:
            eventually(
                lambda: "published by koordra.io" in handed.node_says(names.NO_GPUS), "two drivers", LONG
            )
        handed.is_in("Left", kind)
        running(client, namespace, "theirs")
        handed.delete(namespace, "theirs")
        claims = handed.node.kubelet_root / CLAIMS
        eventually(lambda: name not in claims.read_text(), "the driver's claim unprepared", LONG)
        handed.is_in("Left", kind)
        assert not objects.spec_of(client.get(kinds.PODS, "ours", namespace=namespace)).get("nodeName")
        driver.stop()
        handed.is_in("Owned", kind)
        running(client, namespace, "ours")
        # The driver comes back although the node is koordra's.
        driver.start()
        pod_with_claim(handed, namespace, "late", theirs)
        handed.refused(namespace, "late", "which no claim of it holds")
        handed.restart_kubelet()
        running(client, namespace, "ours")
        handed.refused(namespace, "late", "which no claim of it holds")
        # And is to have it.
        handed.label(STACK, kind)
        handed.is_in("Leaving", kind)
        assert not handed.node_says(kind.given_to)
        handed.refused(namespace, "late", "which no claim of it holds")
        handed.delete(namespace, "ours")
        handed.is_in("Left", kind)
        eventually(lambda: handed.node_says(kind.given_to) == STACK, "the node given", LONG)
        running(client, namespace, "late")
        handed.delete(namespace, "late")
    finally:
        driver.stop()
        client.delete(kinds.DEVICE_CLASSES, theirs)
        for one in client.list(kinds.RESOURCE_SLICES, field_selector=f"spec.driver={name}")[0]:
            with suppress(NotFound):
                client.delete(kinds.RESOURCE_SLICES, objects.name(one))
