"""The part of an OCI container spec that the runtime double keeps: what CDI and NRI change, and who asked for
it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

"""RLIM_INFINITY."""


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A device node inside the container. `type` is b, c, u or p."""

    path: str
    type: str
    major: int
    minor: int
    file_mode: int | None = None
    uid: int | None = None
    gid: int | None = None


@dataclass(frozen=True, slots=True)
class DeviceRule:
    """A rule of the device cgroup; later rules win. None means every number."""

    allow: bool
    type: str = ""
    major: int | None = None
    minor: int | None = None
    access: str = "rwm"


@dataclass(frozen=True, slots=True)
class Mount:
    destination: str
    source: str
    type: str = "bind"
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Rlimit:
    type: str
    hard: int
    soft: int


@dataclass(frozen=True, slots=True)
class Hook:
    """`stage` is prestart, createRuntime, createContainer, startContainer, poststart or poststop."""

    stage: str
    path: str
    args: tuple[str, ...] = ()


@dataclass(slots=True)
class ContainerSpec:
    """One container's spec while it is being put together. `resources`: flat names like `cpu.cpus`."""

    env: dict[str, str] = field(default_factory=dict)
    args: list[str] = field(default_factory=list)
    devices: dict[str, DeviceNode] = field(default_factory=dict)
    device_rules: list[DeviceRule] = field(default_factory=list)
    mounts: list[Mount] = field(default_factory=list)
    rlimits: list[Rlimit] = field(default_factory=list)
    hooks: list[Hook] = field(default_factory=list)
    annotations: dict[str, str] = field(default_factory=dict)
    additional_gids: list[int] = field(default_factory=list)
    net_devices: dict[str, str] = field(default_factory=dict)
    resources: dict[str, Any] = field(default_factory=dict)

    def add_device(self, node: DeviceNode, access: str) -> None:
        """A node (replacing one at the same path) and, for block and character devices, its allow rule."""
        self.devices[node.path] = node
        if node.type in ("b", "c"):
            self.device_rules.append(DeviceRule(True, node.type, node.major, node.minor, access))

    def add_mount(self, mount: Mount) -> None:
        """Replaces a mount at the same destination; the list stays sorted by depth."""
        self.mounts = [one for one in self.mounts if one.destination != mount.destination] + [mount]
        self.mounts.sort(key=lambda one: one.destination.rstrip("/").count("/"))
