"""A node on which koordra runs: a made-up HGX H100, the API double, and the real processes of the node side.

The machine's device nodes are real character devices with majors that no driver serves. Opening one that the
device cgroup allows gives ENXIO ("No such device or address"), one that it refuses EPERM ("Operation not
permitted"), whatever was done inside the container to get the node.

The tests are the kubelet: they register the plugin and call NodePrepareResources over its socket.
"""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from koordra._proto.dra import (
    dra_v1_pb2,
    dra_v1_pb2_grpc,
    pluginregistration_pb2,
    pluginregistration_pb2_grpc,
)
from koordra.api import kinds, names
from koordra.errors import ApiError
from koordra.kube.client import KubeClient
from koordra.kube.kubeconfig import new_client
from koordra.topology.machine import Machine
from koordra.topology.presets import write_machine
from tests.e2e.containerd import tail, wait_until
from tests.fakes.native import BUILT, ROOT, make
from tests.patience import PATIENCE

NODE = "e2e-node"
NAMESPACE = "team-a"
LIBRARY_TEXT = "stands for the driver's libcuda"


@dataclass(frozen=True, slots=True)
class Prepared:
    """A claim that the plugin has prepared: CDI ids by request, in claim order."""

    name: str
    uid: str
    cdi: Mapping[str, tuple[str, ...]]

    @property
    def all_cdi(self) -> tuple[str, ...]:
        return tuple(device for devices in self.cdi.values() for device in devices)


class Process:
    """One koordra process; its output goes to a log file."""

    def __init__(self, name: str, arguments: Sequence[object], folder: Path) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self._arguments = [str(argument) for argument in arguments]
        self.options: tuple[str, ...] = ()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "koordra", *self._arguments, *self.options],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def wait_for(self, text: str, *, times: int = 1) -> None:
        """Until the log holds the text."""
        wait_until(
            lambda: self.alive() and self.log.read_text(errors="replace").count(text) >= times,
            f"{self.name} logs {text!r}",
            log=self.log,
        )

    def count(self, text: str) -> int:
        return self.log.read_text(errors="replace").count(text)

    def alive(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"{self.name} ended:\n{tail(self.log)}"
        return True

    def _end(self, number: int) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)
            try:
                self._process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(PATIENCE)
            self._process = None


class KoordraNode:
    """`folder` holds everything; CDI specs go where the runtime reads them, the hook dials the runtime's
    socket."""

    def __init__(self, folder: Path, *, cdi: Path, nri_socket: Path) -> None:
        self.root = folder / "machine"
        self.kubelet_root = folder / "kubelet"
        self.state = self.kubelet_root / "plugins" / names.DRIVER
        self.cdi = cdi
        kubeconfig = folder / "api" / "kubeconfig"
        self.machine: Machine
        self.api: KubeClient
        self.kubeconfig = kubeconfig
        self._folder = folder
        self.control_plane = Process(
            "control-plane", ["devcluster", "control-plane", "--dir", folder / "api"], folder
        )
        machine = ["--root", self.root, "--kubelet-root", self.kubelet_root, "--cdi-dir", cdi]
        self.plugin = Process(
            "kubelet-plugin",
            # Most tests are about devices in containers, and not about what keeps a share.
            [
                "kubelet-plugin",
                "--node-name",
                NODE,
                "--kubeconfig",
                kubeconfig,
                "--allowed-isolation",
                "none",
                *machine,
            ],
            folder,
        )
        self.hook = Process(
            "nri", ["nri", "--node-name", NODE, "--state-dir", self.state, "--socket", nri_socket], folder
        )

    def start(self) -> None:
        make(ROOT / "native", "all", out=BUILT)  # what a koordra that is installed has: limiter and CDI hook
        self.machine = write_machine("hgx-h100", self.root, serial=NODE, device_major=unused_majors(5))
        self._install_driver()
        (self._folder / "api").mkdir()
        self.control_plane.start()
        self.control_plane.wait_for("control_plane_ready")
        self.api = new_client(str(self.kubeconfig))
        self.api.create(kinds.NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
        with contextlib.suppress(ApiError):
            namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
            self.api.create(kinds.NAMESPACES, namespace)
        self.plugin.start()
        self.plugin.wait_for("plugin_ready")
        self.hook.start()
        self.wait_hook_registered(times=1)
        wait_until(lambda: self.api.list(kinds.RESOURCE_SLICES)[0], "ResourceSlices", log=self.plugin.log)

    def stop(self) -> None:
        for process in (self.hook, self.plugin, self.control_plane):
            process.stop()

    def restart_plugin(self, *options: str) -> None:
        """With more options, which stand above those it had."""
        self.plugin.stop()
        self.plugin.options = options
        ready = self.plugin.count("plugin_ready")
        self.plugin.start()
        self.plugin.wait_for("plugin_ready", times=ready + 1)

    def wait_hook_registered(self, *, times: int) -> None:
        self.hook.wait_for("nri_synchronized", times=times)

    # What kube-scheduler, the controller and the kubelet do.

    def allocate(
        self,
        name: str,
        results: Sequence[Mapping[str, Any]],
        *,
        config: Sequence[Mapping[str, Any]] = (),
        pods: Mapping[str, str] | None = None,
    ) -> str:
        """Make a claim with this allocation, reserved for these pods (name -> uid); its uid."""
        labels = dict.fromkeys(result["request"] for result in results)
        devices = {"requests": [_request(*label.split("/")) for label in labels]}
        claim = {
            "apiVersion": kinds.RESOURCE_CLAIMS.api_version,
            "kind": kinds.RESOURCE_CLAIMS.kind,
            "metadata": {"name": name, "namespace": NAMESPACE, "finalizers": [names.DELETE_PROTECTION]},
            "spec": {"devices": devices},
        }
        made = self.api.create(kinds.RESOURCE_CLAIMS, claim)
        allocation = {"devices": {"results": [dict(result) for result in results], "config": list(config)}}
        made["status"] = {"allocation": allocation}
        if pods:
            made["status"]["reservedFor"] = [
                {"resource": "pods", "name": pod, "uid": pod_uid} for pod, pod_uid in pods.items()
            ]
        self.api.update(kinds.RESOURCE_CLAIMS, made, subresource="status")
        return str(made["metadata"]["uid"])

    def prepare(
        self,
        name: str,
        results: Sequence[Mapping[str, Any]],
        *,
        config: Sequence[Mapping[str, Any]] = (),
        pods: Mapping[str, str] | None = None,
    ) -> Prepared:
        """Allocate, then NodePrepareResources as the kubelet calls it."""
        uid = self.allocate(name, results, config=config, pods=pods)
        answer = self.call_prepare(name, uid)
        assert answer.error == "", answer.error
        cdi: dict[str, tuple[str, ...]] = {}
        for device in answer.devices:
            for request in device.request_names:
                cdi[request] = (*cdi.get(request, ()), *device.cdi_device_ids)
        return Prepared(name, uid, cdi)

    def make_pod(self, name: str, *, namespace: str, priority: int = 0, own_users: bool = False) -> str:
        """In the API; its uid, under which the kubelet would have the runtime make it."""
        with contextlib.suppress(ApiError):
            made = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
            self.api.create(kinds.NAMESPACES, made)
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {
                "nodeName": NODE,
                "priority": priority,
                "priorityClassName": "system-node-critical" if priority else "",
                "hostUsers": not own_users,
                "containers": [{"name": "c", "image": "c"}],
            },
        }
        return str(self.api.create(kinds.PODS, pod)["metadata"]["uid"])

    def call_prepare(self, name: str, uid: str) -> Any:
        request = dra_v1_pb2.NodePrepareResourcesRequest(claims=[self._claim(name, uid)])
        with grpc.insecure_channel(f"unix://{self._endpoint()}") as channel:
            answer = dra_v1_pb2_grpc.DRAPluginStub(channel).NodePrepareResources(request, timeout=PATIENCE)
        assert list(answer.claims) == [uid]
        return answer.claims[uid]

    def unprepare(self, claim: Prepared) -> None:
        request = dra_v1_pb2.NodeUnprepareResourcesRequest(claims=[self._claim(claim.name, claim.uid)])
        with grpc.insecure_channel(f"unix://{self._endpoint()}") as channel:
            answer = dra_v1_pb2_grpc.DRAPluginStub(channel).NodeUnprepareResources(request, timeout=PATIENCE)
        assert answer.claims[claim.uid].error == ""

    @property
    def _registration(self) -> Path:
        return self.kubelet_root / "plugins_registry" / f"{names.DRIVER}-reg.sock"

    def _endpoint(self) -> str:
        """Registration, as the kubelet's plugin watcher does it."""
        with grpc.insecure_channel(f"unix://{self._registration}") as channel:
            stub = pluginregistration_pb2_grpc.RegistrationStub(channel)
            info = stub.GetInfo(pluginregistration_pb2.InfoRequest(), timeout=PATIENCE, wait_for_ready=True)
            stub.NotifyRegistrationStatus(
                pluginregistration_pb2.RegistrationStatus(plugin_registered=True), timeout=PATIENCE
            )
        assert (info.type, info.name, info.supported_versions[0]) == (
            "DRAPlugin",
            names.DRIVER,
            "v1.DRAPlugin",
        )
        return str(info.endpoint)

    @staticmethod
    def _claim(name: str, uid: str) -> Any:
        return dra_v1_pb2.Claim(namespace=NAMESPACE, name=name, uid=uid)

    def _install_driver(self) -> None:
        """A library of the machine's driver version, so that there is something to mount."""
        folder = self.root / "usr" / "lib" / f"{platform.machine()}-linux-gnu"
        folder.mkdir(parents=True)
        for library in ("libcuda", "libnvidia-ml"):
            real = f"{library}.so.{self.machine.driver_version}"
            (folder / real).write_text(LIBRARY_TEXT)
            (folder / f"{library}.so.1").symlink_to(real)


def unused_majors(count: int) -> int:
    """The first of `count` consecutive character majors that no driver of this kernel serves."""
    text = Path("/proc/devices").read_text().partition("Block devices:")[0]
    taken = {int(words[0]) for line in text.splitlines() if (words := line.split()) and words[0].isdigit()}
    return next(
        first for first in range(60, 4096) if first >= 240 and not taken & set(range(first, first + count))
    )


def device_nodes_can_be_made(folder: Path) -> bool:
    """Whether root here may mknod, and open what it made (some sandboxes mount everything nodev)."""
    path = folder / "probe"
    try:
        os.mknod(path, 0o600 | 0o020000, os.makedev(1, 3))
        path.read_bytes()
    except OSError:
        return False
    finally:
        path.unlink(missing_ok=True)
    return True


def _request(name: str, alternative: str = "") -> dict[str, Any]:
    """For one GPU, which `alternative` of the request got."""
    asked = {"deviceClassName": names.CLASS_GPU, "allocationMode": "ExactCount", "count": 1}
    if not alternative:
        return {"name": name, "exactly": asked}
    return {"name": name, "firstAvailable": [{"name": alternative, **asked}]}
