"""The pods that deploy/kustomize runs on a node, on one whose kubelet, runtime and machine are elsewhere.

What a component of deploy/kustomize/distribution does for a distribution of Kubernetes: a path is the same
inside and outside, and options name it.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from koordra.api import names

Pod = dict[str, Any]
_KUBELET: Final = "/var/lib/kubelet"
_BUNDLES: Final = "/run/containerd/io.containerd.runtime.v2.task"


@dataclass(frozen=True, slots=True)
class Places:
    """`machine`: a made-up one; `nri`: the runtime's socket; `bundles`: the folder of the runtime's pods;
    `hook`: for the CDI hook."""

    machine: Path
    kubelet: Path
    cdi: Path
    nri: Path
    bundles: Path
    hook: Path


def moved(pod: Pod, places: Places) -> Pod:
    """The `spec` of a pod template."""
    found = copy.deepcopy(pod)
    folders = {
        "/": places.machine,
        _KUBELET: places.kubelet,
        f"{_KUBELET}/plugins/{names.DRIVER}": places.kubelet / "plugins" / names.DRIVER,
        f"{_KUBELET}/plugins_registry": places.kubelet / "plugins_registry",
        "/var/run/cdi": places.cdi,
        "/var/lib/koordra": places.hook,
        "/var/run/nri": places.nri.parent,
        _BUNDLES: places.bundles.parent,
    }
    (container,) = found["containers"]
    mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
    for volume in found["volumes"]:
        host = volume.get("hostPath")
        if host and host["path"] in folders:
            place = str(folders[host["path"]])
            host["path"] = mounts[volume["name"]]["mountPath"] = place
    container["args"] = [each for each in container["args"] if not each.startswith("--host-root=")]
    container["args"] += _OPTIONS[container["name"]](places) if container["name"] in _OPTIONS else []
    container["env"] = [each for each in container.get("env", ()) if each["name"] != "KOORDRA_HOST_ROOT"]
    return found


_OPTIONS: Final = {
    "kubelet-plugin": lambda at: [
        f"--root={at.machine}",
        f"--kubelet-root={at.kubelet}",
        f"--cdi-dir={at.cdi}",
        f"--hook-dir={at.hook}",
    ],
    "nri": lambda at: [
        f"--state-dir={at.kubelet}/plugins/{names.DRIVER}",
        f"--socket={at.nri}",
        f"--bundles={at.bundles}",
    ],
}
