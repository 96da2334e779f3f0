"""NVIDIA's driver-manager, as far as it deals with the cluster: the real program where there is one, else its
rules (NVIDIA/k8s-driver-manager cmd/driver-manager/main.go: uninstallDriver, and
internal/kubernetes/client.go).

    labels      nvidia.com/gpu.deploy.* that are "true" become "paused-for-driver-upgrade"; "false" and absent
                ones stay
    wait        until no pod on the node is of a DaemonSet and has the key nvidia.com/gpu.deploy.client in its
                nodeSelector; only where the node has that label; 5 minutes at most
    digest      equal to the one in nvidia-driver.state: nothing is unloaded, the labels are restored
    otherwise   unload the modules, restore the labels; without the Operator's upgrade policy cordon before
                it, uncordon after it, evict pods with nvidia.com/gpu* resources or claims of gpu.nvidia.com

The program is named by KOORDRA_DRIVER_MANAGER. It runs in a mount namespace with a module "nvidia" of its
own, and a seccomp filter answers its delete_module with success, or that the module is in use.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from koordra.api import kinds, objects
from koordra.kube.client import KubeClient
from koordra.kubelet_plugin.nvidia_driver.release_wanted import POLICY_ANNOTATION
from tests.patience import PATIENCE

PAUSED: Final = "paused-for-driver-upgrade"
CLIENT: Final = "nvidia.com/gpu.deploy.client"
PROGRAM: Final = os.environ.get("KOORDRA_DRIVER_MANAGER")

_IN_NAMESPACE: Final = """
import ctypes, os, struct, subprocess, sys
folder, error, *program = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)
assert libc.unshare(0x00020000) == 0, os.strerror(ctypes.get_errno())
for place in ("/sys/module", "/run"):
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "none", place], check=True)
os.makedirs("/sys/module/nvidia/holders")
open("/sys/module/nvidia/refcnt", "w").write("0")
os.makedirs("/run/nvidia")
open("/run/nvidia/nvidia-driver.state", "w").write("as-it-is")
# seccomp: delete_module (176 on x86-64) gives the error, all else is allowed.
code = [(0x20, 0, 0, 0), (0x15, 0, 1, 176), (0x06, 0, 0, 0x00050000 | int(error)), (0x06, 0, 0, 0x7fff0000)]
filters = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *each) for each in code))
rules = struct.pack("<HxxxxxxQ", len(code), ctypes.addressof(filters))
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.c_char_p(rules), 0, 0) == 0
os.environ["PATH"] = f"{folder}:{os.environ['PATH']}"
os.execv(program[0], program)
"""


@dataclass
class RealDriverManager:
    """The program; `unloading` is called when it says that it unloads the modules."""

    folder: Path
    kubeconfig: Path
    node: str

    def run(self, *, digest: str, unloading: Callable[[], None], error: int = 0) -> int:
        """`error`: what the kernel answers to the unloading."""
        assert PROGRAM is not None
        folder = self.folder / "bin"
        folder.mkdir(exist_ok=True)
        shutil.copy("/bin/true", folder / "vfio-manage")
        environment = {
            **os.environ,
            "KUBECONFIG": str(self.kubeconfig),
            "NODE_NAME": self.node,
            "DRIVER_CONFIG_DIGEST": digest,
            "ENABLE_GPU_POD_EVICTION": "true",
        }
        command = [sys.executable, "-c", _IN_NAMESPACE, str(folder), str(error), PROGRAM, "uninstall_driver"]
        with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            for line in process.stderr:
                if "Unloading NVIDIA driver kernel modules" in line:
                    unloading()
        return process.returncode


@dataclass
class ModelDriverManager:
    """Its rules."""

    client: KubeClient
    node: str

    def run(self, *, digest: str, unloading: Callable[[], None], error: int = 0) -> int:
        before = {
            key: value
            for key, value in objects.labels_of(self._node()).items()
            if key.startswith("nvidia.com/gpu.deploy.") and value == "true"
        }
        self._patch({"metadata": {"labels": dict.fromkeys(before, PAUSED)}})
        if CLIENT in before and not self._clients_are_gone():
            self._patch({"metadata": {"labels": before}})
            return 1
        if digest != "as-it-is":
            by_policy = objects.annotations_of(self._node()).get(POLICY_ANNOTATION) == "true"
            self._patch({"spec": {"unschedulable": not by_policy}})
            unloading()
            self._patch({"spec": {"unschedulable": False}})
        self._patch({"metadata": {"labels": before}})
        return int(error != 0)

    def _node(self) -> objects.Object:
        return self.client.get(kinds.NODES, self.node)

    def _patch(self, body: objects.Object) -> None:
        self.client.patch(kinds.NODES, self.node, body)

    def _clients_are_gone(self) -> bool:
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            pods, _ = self.client.list(kinds.PODS, field_selector=f"spec.nodeName={self.node}")
            if not any(
                owner.get("controller") and owner["kind"] == "DaemonSet" and CLIENT in _selector(pod)
                for pod in pods
                for owner in objects.metadata(pod).get("ownerReferences") or ()
            ):
                return True
            time.sleep(0.1)
        return False


def _selector(pod: objects.Object) -> objects.Object:
    return dict(objects.spec_of(pod).get("nodeSelector") or {})
