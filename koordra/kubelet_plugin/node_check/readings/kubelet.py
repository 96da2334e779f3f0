"""The kubelet of a node: its folder, and the settings that meet koordra's: from its flags, its configuration
files, and the state files of its managers, which say what it really does.

A flag wins over the file. Flags of k3s and RKE2 come as `kubelet-arg` of their own configuration; the flags
of microk8s lie in a file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from koordra.errors import InvalidManifest
from koordra.kubelet_plugin.node_check.readings.host_files import HostFiles
from koordra.kubelet_plugin.node_check.readings.processes import Process
from koordra.kubelet_plugin.node_check.readings.setting import Setting
from koordra.yaml_text import read_document

CONFIGS: Final = (
    "var/lib/kubelet/config.yaml",
    "etc/kubernetes/kubelet/config.json",
    "etc/kubernetes/kubelet/kubelet-config.json",
    "etc/kubernetes/kubelet/config",
    "etc/kubernetes/kubelet.yaml",
    "etc/kubernetes/kubelet.conf.yaml",
    "home/kubernetes/kubelet-config.yaml",
    "var/lib/k0s/kubelet-config.yaml",
)
"""kubeadm; Amazon; Bottlerocket; Talos; GKE; k0s."""
DROP_INS: Final = (
    "etc/kubernetes/kubelet.conf.d",
    "etc/kubernetes/kubelet/config.json.d",
    "var/lib/rancher/k3s/agent/etc/kubelet.conf.d",
    "var/lib/rancher/rke2/agent/etc/kubelet.conf.d",
)
_ARGUMENT_FILES: Final = ("var/snap/microk8s/current/args/kubelet",)
_RANCHER: Final = ("etc/rancher/k3s/config.yaml", "etc/rancher/rke2/config.yaml")
ROOTS: Final = (
    "/var/lib/kubelet",
    "/var/snap/microk8s/common/var/lib/kubelet",
    "/var/lib/k0s/kubelet",
    "/var/lib/rancher/k3s/agent/kubelet",
)
FIELDS: Final = {
    "cpuManagerPolicy": "cpu-manager-policy",
    "memoryManagerPolicy": "memory-manager-policy",
    "topologyManagerPolicy": "topology-manager-policy",
    "cgroupDriver": "cgroup-driver",
    "containerRuntimeEndpoint": "container-runtime-endpoint",
}
_STATE_FILES: Final = {"cpuManagerPolicy": "cpu_manager_state", "memoryManagerPolicy": "memory_manager_state"}
_FLAG: Final = re.compile(r"--?([a-z0-9-]+)(?:=(.*))?")


@dataclass(frozen=True, slots=True)
class Kubelet:
    """`root`: its folder, as the host names it, None where there is none; `settings` by their field in
    KubeletConfiguration; `policies` what the managers' state files say, by the same names; `garbled`:
    configuration files that cannot be read."""

    root: str | None
    settings: Mapping[str, Setting]
    policies: Mapping[str, str]
    garbled: tuple[str, ...] = ()

    @property
    def runtime_endpoint(self) -> str | None:
        """The path of the runtime's socket; None where nothing names it."""
        said = self.settings.get("containerRuntimeEndpoint")
        return str(said.value).removeprefix("unix://") or None if said else None


def read_kubelet(root: HostFiles, processes: tuple[Process, ...]) -> Kubelet:
    process = next((one for one in processes if one.name == "kubelet" and not one.in_pod), None)
    flags = _flags(process.arguments if process else (), where="a flag of the kubelet")
    for path in _ARGUMENT_FILES:
        flags |= _flags(root.words(path).split(), where=f"/{path}")
    for path in _RANCHER:
        flags |= _rancher_flags(root, path)
    named = flags.get("config")
    # A kubelet that is seen to run has no other files than its flags name.
    guessed = [] if process else [one for one in CONFIGS if root.is_file(one)][:1]
    paths = [str(named.value).lstrip("/")] if named else guessed
    drop_ins = [] if process else list(DROP_INS)
    folders = [str(flags["config-dir"].value).strip("/")] if "config-dir" in flags else drop_ins
    paths += [
        f"{folder}/{name}"
        for folder in folders
        for name in root.names(folder)
        if name.endswith((".conf", ".json"))
    ]
    settings, garbled = _of_files(root, paths)
    settings |= {field: flags[flag] for field, flag in FIELDS.items() if flag in flags}
    home = flags.get("root-dir")
    folder = str(home.value) if home else next((one for one in ROOTS if root.is_folder(one)), None)
    return Kubelet(folder, settings, _policies(root, folder) if folder else {}, garbled)


def _flags(arguments: Iterable[str], *, where: str) -> dict[str, Setting]:
    words, found = list(arguments), {}
    for at, word in enumerate(words):
        flag = _FLAG.fullmatch(word)
        if flag is None:
            continue
        following = words[at + 1 : at + 2]
        value = flag[2] if flag[2] is not None else (following[0] if following else "")
        found[flag[1]] = Setting(value.strip("\"'"), where)
    return found


def _rancher_flags(root: HostFiles, path: str) -> dict[str, Setting]:
    document = _document(root, path)
    given = document.get("kubelet-arg") if document else None
    listed = given if isinstance(given, list) else [given]
    return _flags([f"--{one}" for one in listed if isinstance(one, str)], where=f"/{path}")


def _of_files(root: HostFiles, paths: Iterable[str]) -> tuple[dict[str, Setting], tuple[str, ...]]:
    settings: dict[str, Setting] = {}
    garbled = []
    for path in paths:
        if not root.is_file(path):
            continue
        document = _document(root, path)
        if document is None:
            garbled.append(f"/{path}")
            continue
        for field in (*FIELDS, "failCgroupV1"):
            if field in document:
                settings[field] = Setting(document[field], _line_of(root.words(path), field, path))
    return settings, tuple(garbled)


def _document(root: HostFiles, path: str) -> dict[str, Any] | None:
    """YAML, of which JSON is a part."""
    text = root.words(path)
    try:
        # The parser in Python is slow: of what is no short configuration nothing is read.
        found = read_document(text, source=path) if len(text) < 1 << 17 else None
    except InvalidManifest:
        return None
    return found if isinstance(found, dict) else None


def _line_of(text: str, field: str, path: str) -> str:
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip().strip('"').startswith((f"{field}:", f'{field}"')):
            return f"/{path}:{number}"
    return f"/{path}"


def _policies(root: HostFiles, folder: str) -> dict[str, str]:
    found = {}
    for field, file in _STATE_FILES.items():
        try:
            document = json.loads(root.words(f"{folder}/{file}"))
        except (ValueError, RecursionError):
            continue
        policy = document.get("policyName") if isinstance(document, dict) else None
        if isinstance(policy, str):
            found[field] = policy
    return found
