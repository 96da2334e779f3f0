"""A node without a kubelet that passes between koordra and another stack: kubelet plugin and controller are
processes, the stack is its double (tests/fakes/hand_over_peers), and the test is the kubelet, whose records
it writes as the real one does."""

from __future__ import annotations

import json
import random
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc

from koordra._proto.dra import dra_v1_pb2, dra_v1_pb2_grpc
from koordra.api import kinds, names, objects
from koordra.errors import NotFound
from koordra.kube.client import KubeClient
from koordra.kubelet_plugin.publish.peers_on_node import DEVICE_PLUGINS, NICS, DeviceKind
from koordra.topology import presets
from tests.cluster.test_joint_allocation import Workload, request
from tests.cluster.waiting import eventually
from tests.fakes.hand_over_kubelet import write_records
from tests.fakes.hand_over_peers import Hami, Peer

NODE = "koordra-test-handed"
LONG = 120.0


class HandedNode:
    """The kubelet and the runtime of the node, as a stack sees them (hand_over_peers.Host)."""

    def __init__(
        self, client: KubeClient, namespace: str, folder: Path, stack: type[Peer], name: str = NODE
    ) -> None:
        self.client, self.namespace, self.folder, self.name = client, namespace, folder, name
        self.random = random.Random(1)
        self.machine = presets.write_machine("hgx-h100", folder / "machine", serial=name)
        for place in ("plugins_registry", "pods"):
            (folder / place).mkdir()
        (folder / "machine" / DEVICE_PLUGINS).mkdir(parents=True)
        self.node_object: dict[str, Any] = {
            "metadata": {"name": self.name, "annotations": {}},
            "status": {"allocatable": {}},
        }
        self._number = 0
        self._socket: socket.socket | None = None
        self.peer = stack(self)

    def devices(self, kind: DeviceKind) -> int:
        return len(self.machine.nics if kind is NICS else self.machine.gpus)

    def new_uid(self) -> str:
        self._number += 1
        return f"{self.name}-theirs-{self._number}"

    def happens(self, what: str) -> None:
        print(what)

    def record(self) -> None:
        write_records(
            self.folder, self.folder / "machine", [self.peer], listens=self._listens, leaves=self._leaves
        )
        for pod in self.peer.pods:
            found = self.peer.pod_object(pod)
            if self.peer.driver:
                continue  # they have claims, which koordra does not look at
            with suppress(NotFound):
                if not pod.lives:
                    self.client.delete(kinds.PODS, pod.uid, namespace=self.namespace, grace_period=0)
                    continue
            if pod.lives and not self._is_there(pod.uid):
                labels = {"koordra.io/legacy-pods": "ignore"}
                metadata = {**found["metadata"], "namespace": self.namespace, "labels": labels}
                body = {**kinds.PODS.type_meta, "metadata": metadata, "spec": found["spec"]}
                self.client.create(kinds.PODS, body)

    def _listens(self, path: Path) -> None:
        if self._socket is None:
            path.unlink(missing_ok=True)
            self._socket = socket.socket(socket.AF_UNIX)
            self._socket.bind(str(path))
            self._socket.listen()

    def _leaves(self, _path: Path) -> None:
        """Killed: its file stays."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _is_there(self, pod: str) -> bool:
        with suppress(NotFound):
            return bool(self.client.get(kinds.PODS, pod, namespace=self.namespace))
        return False

    def write_node(self) -> None:
        """What the kubelet, koord-manager or HAMi's scheduler write into it."""
        self.peer.update_node()
        amounts = self.node_object["status"]["allocatable"]
        if amounts:
            status = {"status": {"capacity": amounts, "allocatable": amounts}}
            self.client.patch(kinds.NODES, self.name, status, subresource="status")
        locks = {
            key: value for key, value in self.node_object["metadata"]["annotations"].items() if "hami" in key
        }
        self.client.patch(
            kinds.NODES, self.name, {"metadata": {"annotations": {"hami.io/mutex.lock": None} | locks}}
        )

    def gives(self) -> None:
        """The stack gives a device to one more pod."""
        before = {pod.uid for pod in self.peer.pods}
        if isinstance(self.peer, Hami):
            self.peer.bind()
            self.write_node()
        self.peer.admit()
        (given,) = (pod for pod in self.peer.pods if pod.uid not in before)
        given.is_made = True
        self.write_node()

    def programs(self, *, there: bool) -> None:
        self.peer.programs(there)
        self.write_node()

    # koordra

    @contextmanager
    def plugin(self, own: Path) -> Iterator[None]:
        """Killed and started anew by `self.kill`."""
        places = [
            "--root",
            self.folder / "machine",
            "--kubelet-root",
            self.folder,
            "--cdi-dir",
            self.folder / "cdi",
        ]
        command = [
            sys.executable,
            "-m",
            "koordra",
            "kubelet-plugin",
            "--node-name",
            self.name,
            "--kubeconfig",
            own,
        ]
        self._command = [str(word) for word in (*command, *places, "--allowed-isolation", "none")]
        self._start()
        try:
            yield
            assert "orbidden" not in (self.folder / "log").read_text()
        except BaseException:
            print((self.folder / "log").read_text()[-3000:])
            raise
        finally:
            self._process.terminate()
            self._process.wait(60)

    def _start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(self._command, stderr=log)

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(60)
        self._start()

    def taints(self) -> set[str]:
        """Of the devices that are handed over; "" of one without."""
        slices = self.client.list(kinds.RESOURCE_SLICES, field_selector=f"spec.nodeName={self.name}")[0]
        return {
            next(
                (
                    taint["value"]
                    for taint in device.get("taints") or ()
                    if taint["key"] == names.HAND_OVER_TAINT
                ),
                "",
            )
            for entry in slices
            for device in entry["spec"].get("devices") or ()
            if device["name"].startswith(f"{self.peer.kind.type}-")
        }

    def is_in(self, taint: str) -> None:
        title = self.peer.kind.title
        eventually(lambda: self.taints() == {taint}, f"the {title} with taint {taint!r}", LONG)

    def says(self, annotation: str) -> str:
        return str(objects.annotations_of(self.client.get(kinds.NODES, self.name)).get(annotation, ""))

    def label(self, value: str | None) -> None:
        self.client.patch(kinds.NODES, self.name, {"metadata": {"labels": {self.peer.kind.label: value}}})

    def call(self, method: str, name: str) -> str:
        """NodePrepareResources or NodeUnprepareResources, as the kubelet calls them; the error."""
        claim = self.client.get(kinds.RESOURCE_CLAIMS, name, namespace=self.namespace)
        asked = dra_v1_pb2.Claim(namespace=self.namespace, name=name, uid=objects.uid(claim))
        message = getattr(dra_v1_pb2, f"{method}Request")(claims=[asked])
        with grpc.insecure_channel(f"unix://{self.folder}/plugins/{names.DRIVER}/dra.sock") as channel:
            answer = getattr(dra_v1_pb2_grpc.DRAPluginStub(channel), method)(
                message, timeout=60, wait_for_ready=True
            )
        return str(answer.claims[objects.uid(claim)].error)

    def pod(self, name: str, nodes: Sequence[str] = ()) -> None:
        """One of koordra's, for this node or one of those."""
        device_class = names.CLASS_NIC if self.peer.kind is NICS else names.CLASS_GPU
        Workload(self.client, self.namespace).claim(name, [request("device", device_class)])
        fields = [{"key": "metadata.name", "operator": "In", "values": [one]} for one in nodes or [self.name]]
        terms = {"nodeSelectorTerms": [{"matchFields": [field]} for field in fields]}
        spec = {
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}},
            "containers": [{"name": "c", "image": "x", "resources": {"claims": [{"name": "device"}]}}],
            "resourceClaims": [{"name": "device", "resourceClaimName": name}],
        }
        self.client.create(kinds.PODS, {"metadata": {"name": name}, "spec": spec}, namespace=self.namespace)

    def is_bound(self, name: str) -> bool:
        pod = self.client.get(kinds.PODS, name, namespace=self.namespace)
        return objects.spec_of(pod).get("nodeName") == self.name

    def ends(self, name: str) -> None:
        self.client.delete(kinds.PODS, name, namespace=self.namespace, grace_period=0)

    # what must hold

    def granted(self) -> set[str]:
        """Devices of claims that are prepared."""
        found = set()
        for path in (self.folder / "plugins" / names.DRIVER / "prepared").glob("*.json"):
            with suppress(FileNotFoundError, ValueError):
                found |= {device["device"] for device in json.loads(path.read_text())["devices"]}
        return found

    def theirs(self) -> set[str]:
        mine = self.machine.nics if self.peer.kind is NICS else self.machine.gpus
        return {mine[pod.device].name for pod in list(self.peer.pods) if pod.is_made}

    def guards(self) -> bool:
        document = json.loads((self.folder / "plugins" / names.DRIVER / "guarded.json").read_text())
        return any(device["type"] == self.peer.kind.type for device in document["devices"])

    @contextmanager
    def watched(self) -> Iterator[None]:
        """No device is granted by koordra while a container of the stack has it, nor unguarded while a claim
        has it."""
        stop, twice = threading.Event(), list[str]()

        def watch() -> None:
            while not stop.wait(0.02):
                theirs = self.theirs()
                if both := self.granted() & theirs & self.theirs():
                    twice.append(f"{sorted(both)} have two owners")

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            yield
        finally:
            stop.set()
            watcher.join()
        assert not twice, twice[0]
