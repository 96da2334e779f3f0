"""The cgroup hierarchy of a node, and the kernel's mandatory access control."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

from koordra.kubelet_plugin.node_check.readings.host_files import HostFiles

Version = Literal["v1", "v2", "hybrid"]
_ROOT: Final = "sys/fs/cgroup"
_SELINUX: Final = "sys/fs/selinux"
_AUDIT_LOG: Final = "var/log/audit/audit.log"
_DENIED: Final = re.compile(r'avc:  ?denied .*? name="(nvidia[a-z0-9-]*|uverbs[0-9]+|rdma_cm)"', re.ASCII)
CONTAINER_BOOLEANS: Final = ("container_use_devices", "container_use_xserver_devices")


@dataclass(frozen=True, slots=True)
class Cgroup:
    """`split`: controllers that a hybrid hierarchy has on cgroup v2."""

    version: Version | None = None
    split: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AccessControl:
    """`enforcing` of SELinux, None without it; `booleans`: those of CONTAINER_BOOLEANS that are on; `denied`:
    device nodes that the audit log's end says were denied to somebody."""

    enforcing: bool | None = None
    booleans: frozenset[str] = frozenset()
    denied: tuple[str, ...] = ()
    apparmor: bool = False


def read_cgroup(root: HostFiles) -> Cgroup:
    if root.is_file(f"{_ROOT}/cgroup.controllers"):
        return Cgroup("v2")
    if root.is_file(f"{_ROOT}/unified/cgroup.controllers"):
        return Cgroup("hybrid", tuple(root.text(f"{_ROOT}/unified/cgroup.controllers").split()))
    return Cgroup("v1") if root.is_folder(f"{_ROOT}/devices") else Cgroup()


def read_access_control(root: HostFiles) -> AccessControl:
    enforcing = root.integer(f"{_SELINUX}/enforce")
    return AccessControl(
        enforcing=None if enforcing is None else enforcing == 1,
        booleans=frozenset(
            name for name in CONTAINER_BOOLEANS if root.line(f"{_SELINUX}/booleans/{name}").startswith("1")
        ),
        denied=tuple(sorted(set(_DENIED.findall(root.tail(_AUDIT_LOG)))) if enforcing else ()),
        apparmor=root.line("sys/module/apparmor/parameters/enabled") == "Y",
    )
