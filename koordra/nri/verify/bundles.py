"""The running containers of this node, read from the runtime's bundles and the kernel.

    <bundles>/<container id>/config.json      the OCI spec that was given to runc: variables, nodes, mounts,
                                              device rules
    <bundles>/<container id>/init.pid         the container's first process
    <cgroups>/devices/<its cgroup>/devices.list    what the kernel lets it open (cgroup version 1)
    <proc>/<pid>/net/dev                      the network interfaces of its pod

containerd keeps the bundles in /run/containerd/io.containerd.runtime.v2.task/k8s.io, and has one for every
container that has been started and not ended, also for one that no plugin was asked about.

The kernel's list is used if it is that of the container's own cgroup (an `init.pid` may outlive its process,
and its number may be another container's) and is conclusive. It is not for a container whose spec allows
everything except some devices (version 1 then prints `a *:* rwm` without exceptions), and version 2 has none,
since a BPF program decides: then the rules of the spec are used. A spec does not change; it is read once, but
for a large one: variables by the ten thousand, in each of a node's pods, are not kept.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from koordra.nri.hook.oci import Container, DeviceRule, mount_of, number_of, variables_of
from koordra.nri.hook.ungranted_access import is_privileged
from koordra.topology.location import DeviceNode

_TYPE: Final = "io.kubernetes.cri.container-type"
_KEYS: Final = {
    "namespace": ("io.kubernetes.cri.sandbox-namespace", "io.kubernetes.pod.namespace"),
    "pod": ("io.kubernetes.cri.sandbox-name", "io.kubernetes.pod.name"),
    "pod_uid": ("io.kubernetes.cri.sandbox-uid", "io.kubernetes.pod.uid"),
    "name": ("io.kubernetes.cri.container-name", "io.kubernetes.container.name"),
}
"""Annotations of a spec that say whose container it is: containerd's, CRI-O's."""
_EVERYTHING: Final = (DeviceRule(True),)
LARGEST_KEPT: Final = 64 << 10
"""Bytes of a spec that is read once. An ordinary one has 10 to 20 KiB."""


@dataclass(frozen=True, slots=True)
class Running:
    """A container as it runs. `rules` of the container are the kernel's where `from_kernel`, else the
    spec's."""

    container: Container
    pid: int | None = None
    from_kernel: bool = False


@dataclass(eq=False)
class Bundles:
    """The running containers of a node. `proc` and `cgroups` are those of the host."""

    folder: Path
    proc: Path = Path("/proc")
    cgroups: Path = Path("/sys/fs/cgroup")
    _specs: dict[str, Container | None] = field(default_factory=dict)

    def containers(self) -> Iterator[Running]:
        """Every container that runs; sandboxes (pause processes) are left out, unreadable bundles skipped."""
        try:
            bundles = sorted(self.folder.iterdir())
        except FileNotFoundError:
            return
        for gone in self._specs.keys() - {bundle.name for bundle in bundles}:
            del self._specs[gone]
        for bundle in bundles:
            container = self._container(bundle)
            if container is not None:
                yield self._running(bundle, container)

    def since(self, container_id: str) -> float | None:
        """When the container was made (Unix time); None once its bundle is gone, which the runtime removes
        before it forgets the container."""
        try:
            return (self.folder / container_id / "config.json").stat().st_mtime
        except OSError:
            return None

    def interfaces(self, running: Running) -> frozenset[str] | None:
        """The network interfaces that the container has; None if unknown."""
        if running.pid is None:
            return None
        process = self.proc / str(running.pid)
        try:
            # Names of control groups and interfaces are the tenant's to choose, and may be any bytes.
            own = running.container.id in (process / "cgroup").read_text(errors="replace")
            lines = (process / "net" / "dev").read_text(errors="surrogateescape").split("\n")[2:]
        except OSError:
            return None  # it has ended
        return frozenset(line.partition(":")[0].strip() for line in lines if line) if own else None

    def _container(self, bundle: Path) -> Container | None:
        if bundle.name in self._specs:
            return self._specs[bundle.name]
        try:
            text = (bundle / "config.json").read_bytes()
            spec = json.loads(text)
        except (OSError, ValueError):
            return None  # being created, or just gone
        annotations = spec.get("annotations") or {}
        pause = "sandbox" in (annotations.get(_TYPE), annotations.get("io.kubernetes.cri-o.ContainerType"))
        container = None if pause else container_of_spec(bundle.name, spec)
        if len(text) <= LARGEST_KEPT:
            self._specs[bundle.name] = container
        return container

    def _running(self, bundle: Path, container: Container) -> Running:
        try:
            pid = int((bundle / "init.pid").read_text())
        except (OSError, ValueError):
            return Running(container)
        rules = self._kernel_rules(pid, bundle.name)
        if rules is None or (rules == _EVERYTHING and is_privileged(container)):
            return Running(container, pid)
        return Running(replace(container, rules=rules), pid, from_kernel=True)

    def _kernel_rules(self, pid: int, container_id: str) -> tuple[DeviceRule, ...] | None:
        """The device rules of the container's cgroup in the kernel; None if unknown."""
        with contextlib.suppress(OSError, ValueError):
            for line in (self.proc / str(pid) / "cgroup").read_text(errors="surrogateescape").split("\n"):
                _, controllers, path = line.split(":", 2)
                if "devices" in controllers.split(",") and container_id in path:
                    text = (self.cgroups / "devices" / path.lstrip("/") / "devices.list").read_text()
                    return _EVERYTHING if "a *:* rwm" in text else tuple(map(_kernel_rule, text.splitlines()))
        return None


def container_of_spec(container_id: str, spec: Mapping[str, Any]) -> Container:
    annotations = dict(spec.get("annotations") or {})
    process, linux = spec.get("process") or {}, spec.get("linux") or {}
    resources = linux.get("resources") or {}
    who = {
        field: next((annotations[key] for key in keys if key in annotations), "")
        for field, keys in _KEYS.items()
    }
    return Container(
        namespace=who["namespace"],
        pod=who["pod"],
        pod_uid=who["pod_uid"],
        name=who["name"] or container_id[:12],
        id=container_id,
        env=variables_of(process.get("env") or ()),
        devices=tuple(
            DeviceNode(node["path"], int(node.get("major", 0)), int(node.get("minor", 0)), node["type"])
            for node in linux.get("devices") or ()
        ),
        rules=tuple(
            DeviceRule(
                allow=bool(rule.get("allow")),
                type=rule.get("type") or "",
                major=number_of(rule.get("major")),
                minor=number_of(rule.get("minor")),
                access=rule.get("access") or "rwm",
            )
            for rule in resources.get("devices") or ()
        ),
        mounts=tuple(
            mount_of(
                mount.get("source", ""),
                mount["destination"],
                mount.get("type", ""),
                mount.get("options") or (),
            )
            for mount in spec.get("mounts") or ()
        ),
        rlimits=tuple(limit["type"] for limit in process.get("rlimits") or ()),
        cpus=str((resources.get("cpu") or {}).get("cpus", "")),
    )


def _kernel_rule(line: str) -> DeviceRule:
    kind, numbers, access = line.split()
    major, minor = [None if number == "*" else int(number) for number in numbers.split(":")]
    return DeviceRule(True, kind, major, minor, access)
