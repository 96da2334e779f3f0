"""How the runtime puts together what several NRI plugins ask for one container, and works the result into its
spec.

Plugins run in the order of their index; each sees the container as the earlier ones changed it. Whatever two
of them claim is a conflict that fails the creation. A key with a leading `-` removes: it releases the claim
of an earlier plugin, and for annotations, mounts, namespaces, sysctls and network devices also takes away
what the container had itself. For environment variables and device nodes it does not: what was in the
container's own spec stays (a known gap of real runtimes).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from koordra._proto.nri import nri_pb2
from koordra.errors import NRIError
from koordra_devcluster.container_runtime.oci import (
    ContainerSpec,
    DeviceNode,
    DeviceRule,
    Hook,
    Mount,
    Rlimit,
)

ANNOTATIONS, MOUNTS, DEVICES, CDI, ENV, ARGS = (
    nri_pb2.Annotations, nri_pb2.Mounts, nri_pb2.Devices, nri_pb2.CdiDevices, nri_pb2.Env, nri_pb2.Args,
)  # fmt: skip

_RESOURCES: Final = (
    (nri_pb2.MemLimit, ("memory", "limit")),
    (nri_pb2.MemReservation, ("memory", "reservation")),
    (nri_pb2.MemSwapLimit, ("memory", "swap")),
    (nri_pb2.CPUShares, ("cpu", "shares")),
    (nri_pb2.CPUQuota, ("cpu", "quota")),
    (nri_pb2.CPUPeriod, ("cpu", "period")),
    (nri_pb2.CPUSetCPUs, ("cpu", "cpus")),
    (nri_pb2.CPUSetMems, ("cpu", "mems")),
    (nri_pb2.PidsLimit, ("pids",)),
    (nri_pb2.BlockioClass, ("blockio_class",)),
    (nri_pb2.RdtClass, ("rdt_class",)),
)
_SCALARS: Final = (
    *((number, ("linux", "resources", *path)) for number, path in _RESOURCES),
    (nri_pb2.CgroupsPath, ("linux", "cgroups_path")),
    (nri_pb2.OomScoreAdj, ("linux", "oom_score_adj")),
    (nri_pb2.IoPriority, ("linux", "io_priority")),
    (nri_pb2.SeccompPolicy, ("linux", "seccomp_policy")),
    (nri_pb2.LinuxSched, ("linux", "scheduler")),
    (nri_pb2.MemoryPolicy, ("linux", "memory_policy")),
)


class MergeConflict(NRIError):
    """Two plugins want the same thing, or one wants something that cannot be."""


@dataclass(slots=True)
class Collected:
    """What has been asked for so far, and by whom: `owners` by (field, key)."""

    container: nri_pb2.Container
    adjust: nri_pb2.ContainerAdjustment = field(default_factory=nri_pb2.ContainerAdjustment)
    owners: dict[tuple[int, str], str] = field(default_factory=dict)
    updates: list[nri_pb2.ContainerUpdate] = field(default_factory=list)
    update_owners: dict[tuple[str, int], str] = field(default_factory=dict)

    def add(self, plugin: str, response: nri_pb2.CreateContainerResponse) -> None:
        """Take over one plugin's answer. Raises MergeConflict."""
        asked = response.adjust
        self._annotations(plugin, asked)
        self._mounts(plugin, asked)
        self._env(plugin, asked)
        self._args(plugin, asked)
        self._devices(plugin, asked)
        self._cdi_devices(plugin, asked)
        self._rlimits(plugin, asked)
        self.adjust.hooks.MergeFrom(asked.hooks)
        self._keyed_maps(plugin, asked)
        for number, path in _SCALARS:
            self._scalar(plugin, asked, number, path)
        self.adjust.linux.resources.devices.extend(asked.linux.resources.devices)
        self.container.linux.resources.devices.extend(asked.linux.resources.devices)
        for update in response.update:
            self._update(plugin, update)

    def claim(self, plugin: str, number: int, key: str = "") -> None:
        other = self.owners.get((number, key))
        if other is not None:
            what = f"{nri_pb2.Field.Name(number)} {key}".strip()
            raise MergeConflict(f"plugins {other!r} and {plugin!r} both tried to set {what}")
        self.owners[(number, key)] = plugin

    def _annotations(self, plugin: str, asked: nri_pb2.ContainerAdjustment) -> None:
        for key in _removals(asked.annotations):
            self.owners.pop((ANNOTATIONS, key), None)
            self.adjust.annotations.pop(key, None)
            self.container.annotations.pop(key, None)
            self.adjust.annotations[f"-{key}"] = ""
        for key, value in asked.annotations.items():
            if not key.startswith("-"):
                self.claim(plugin, ANNOTATIONS, key)
                self.adjust.annotations[key] = self.container.annotations[key] = value

    def _mounts(self, plugin: str, asked: nri_pb2.ContainerAdjustment) -> None:
        for destination in _removals(mount.destination for mount in asked.mounts):
            self.owners.pop((MOUNTS, destination), None)
            _drop(self.adjust.mounts, "destination", destination)
            _drop(self.container.mounts, "destination", destination)
            self.adjust.mounts.add(destination=f"-{destination}")
        for mount in asked.mounts:
            if not mount.destination.startswith("-"):
                self.claim(plugin, MOUNTS, mount.destination)
                _drop(self.container.mounts, "destination", mount.destination)
                self.adjust.mounts.append(mount)
                self.container.mounts.append(mount)

    def _env(self, plugin: str, asked: nri_pb2.ContainerAdjustment) -> None:
        for name in _removals(variable.key for variable in asked.env):
            if self.owners.pop((ENV, name), None) is not None:
                _drop(self.adjust.env, "key", name)
        for variable in asked.env:
            if not variable.key.startswith("-"):
                self.claim(plugin, ENV, variable.key)
                self.adjust.env.append(variable)
                kept = [one for one in self.container.env if one.partition("=")[0] != variable.key]
                del self.container.env[:]
                self.container.env.extend([*kept, f"{variable.key}={variable.value}"])

    def _args(self, plugin: str, asked: nri_pb2.ContainerAdjustment) -> None:
        if not asked.args:
            return
        args = list(asked.args)
        if args[0] == "":
            self.owners.pop((ARGS, ""), None)
            args = args[1:]
        self.claim(plugin, ARGS)
        for target in (self.adjust, self.container):
            del target.args[:]
            target.args.extend(args)

    def _devices(self, plugin: str, asked: nri_pb2.ContainerAdjustment) -> None:
        for path in _removals(device.path for device in asked.linux.devices):
            if self.owners.pop((DEVICES, path), None) is not None:
                _drop(self.adjust.linux.devices, "path", path)
                _drop(self.container.linux.devices, "path", path)
        for device in asked.linux.devices:
            if not device.path.startswith("-"):
                self.claim(plugin, DEVICES, device.path)
                _drop(self.container.linux.devices, "path", device.path)
                self.adjust.linux.devices.append(device)
                self.container.linux.devices.append(device)

    def _cdi_devices(self, plugin: str, asked: nri_pb2.ContainerAdjustment) -> None:
        for device in asked.CDI_devices:
            self.claim(plugin, CDI, device.name)
            self.adjust.CDI_devices.append(device)

    def _rlimits(self, plugin: str, asked: nri_pb2.ContainerAdjustment) -> None:
        for limit in asked.rlimits:
            self.claim(plugin, nri_pb2.Rlimits, limit.type)
            self.adjust.rlimits.append(limit)
            self.container.rlimits.append(limit)

    def _keyed_maps(self, plugin: str, asked: nri_pb2.ContainerAdjustment) -> None:
        for number, name in ((nri_pb2.Sysctl, "sysctl"), (nri_pb2.LinuxNetDevices, "net_devices")):
            theirs, ours = getattr(asked.linux, name), getattr(self.adjust.linux, name)
            for key in _removals(theirs):
                self.owners.pop((number, key), None)
                ours.pop(key, None)
            for key, value in theirs.items():
                if not key.startswith("-"):
                    self.claim(plugin, number, key)
                    if isinstance(value, str):
                        ours[key] = value
                    else:
                        ours[key].CopyFrom(value)
        for key, value in asked.linux.resources.unified.items():
            self.claim(plugin, nri_pb2.CgroupsUnified, key)
            self.adjust.linux.resources.unified[key] = value
        for page in asked.linux.resources.hugepage_limits:
            self.claim(plugin, nri_pb2.HugepageLimits, page.page_size)
            self.adjust.linux.resources.hugepage_limits.append(page)

    def _scalar(self, plugin: str, asked: Any, number: int, path: Sequence[str]) -> None:
        value = _at(asked, path)
        if value is None:
            return
        self.claim(plugin, number)
        _set(self.adjust, path, value)

    def _update(self, plugin: str, update: nri_pb2.ContainerUpdate) -> None:
        if update.container_id == self.container.id:
            raise MergeConflict(
                f"plugin {plugin!r} asked for an update of the container that is being created"
            )
        for number, path in _RESOURCES:
            if _at(update.linux.resources, path) is None:
                continue
            other = self.update_owners.setdefault((update.container_id, number), plugin)
            if other != plugin:
                what = f"{nri_pb2.Field.Name(number)} of container {update.container_id}"
                raise MergeConflict(f"plugins {other!r} and {plugin!r} both tried to set {what}")
        self.updates.append(update)

    def owning_plugins(self) -> nri_pb2.OwningPlugins:
        """The owners as a validator sees them."""
        found = nri_pb2.OwningPlugins()
        mine = found.owners[self.container.id]
        for (number, key), plugin in self.owners.items():
            if key:
                mine.compound[number].owners[key] = plugin
            else:
                mine.simple[number] = plugin
        return found


def apply(spec: ContainerSpec, adjust: nri_pb2.ContainerAdjustment) -> None:
    """Work the merged adjustment into the spec, except for CDI devices (the caller injects those after `env`
    and `hooks`)."""
    for key, value in adjust.annotations.items():
        if key.startswith("-"):
            spec.annotations.pop(key[1:], None)
        else:
            spec.annotations[key] = value
    for device in adjust.linux.devices:
        mode = device.file_mode.value if device.HasField("file_mode") else None
        node = DeviceNode(device.path, device.type, device.major, device.minor, mode)
        spec.add_device(node, "rw" if device.type == "c" else "rwm")
    spec.net_devices.update({key: device.name for key, device in adjust.linux.net_devices.items()})
    spec.resources.update(flat_resources(adjust.linux.resources))
    for path in ("cgroups_path", "oom_score_adj"):
        value = _at(adjust.linux, (path,))
        if value is not None:
            spec.resources[path] = getattr(value, "value", value)
    for rule in adjust.linux.resources.devices:
        spec.device_rules.append(_rule(rule))
    for mount in adjust.mounts:
        if mount.destination.startswith("-"):
            spec.mounts = [one for one in spec.mounts if one.destination != mount.destination[1:]]
        else:
            spec.add_mount(Mount(mount.destination, mount.source, mount.type, tuple(mount.options)))
    spec.rlimits += [Rlimit(limit.type, limit.hard, limit.soft) for limit in adjust.rlimits]


def apply_first(spec: ContainerSpec, adjust: nri_pb2.ContainerAdjustment) -> None:
    """What goes in before CDI devices that plugins ask for: environment, arguments, hooks."""
    for variable in adjust.env:
        spec.env[variable.key] = variable.value
    if adjust.args:
        spec.args = list(adjust.args)
    stages = (
        ("prestart", adjust.hooks.prestart), ("createRuntime", adjust.hooks.create_runtime),
        ("createContainer", adjust.hooks.create_container), ("startContainer", adjust.hooks.start_container),
        ("poststart", adjust.hooks.poststart), ("poststop", adjust.hooks.poststop),
    )  # fmt: skip
    spec.hooks += [Hook(stage, hook.path, tuple(hook.args)) for stage, hooks in stages for hook in hooks]


def flat_resources(resources: nri_pb2.LinuxResources) -> dict[str, Any]:
    """`{"cpu.cpus": "0-3", "memory.limit": 1024, "unified.cpu.idle": "1"}`."""
    found: dict[str, Any] = {}
    for _, path in _RESOURCES:
        value = _at(resources, path)
        if value is not None:
            found[".".join(path)] = getattr(value, "limit" if path == ("pids",) else "value", value)
    found |= {f"unified.{key}": value for key, value in resources.unified.items()}
    found |= {f"hugepages.{page.page_size}": page.limit for page in resources.hugepage_limits}
    return found


def _rule(rule: nri_pb2.LinuxDeviceCgroup) -> DeviceRule:
    major = rule.major.value if rule.HasField("major") else None
    minor = rule.minor.value if rule.HasField("minor") else None
    return DeviceRule(rule.allow, rule.type, major, minor, rule.access)


def _removals(keys: Iterable[str]) -> list[str]:
    return [key[1:] for key in keys if key.startswith("-")]


def _drop(messages: Any, attribute: str, value: str) -> None:
    kept = [message for message in messages if getattr(message, attribute) != value]
    del messages[:]
    messages.extend(kept)


def _at(message: Any, path: Sequence[str]) -> Any:
    """The set value at a path of fields, None where it is not set."""
    for name in path:
        descriptor = message.DESCRIPTOR.fields_by_name[name]
        if descriptor.message_type is not None and not message.HasField(name):
            return None
        message = getattr(message, name)
    return message or None if isinstance(message, str) else message


def _set(message: Any, path: Sequence[str], value: Any) -> None:
    for name in path[:-1]:
        message = getattr(message, name)
    if isinstance(value, str):
        setattr(message, path[-1], value)
    else:
        getattr(message, path[-1]).CopyFrom(value)
