"""The part of a container that the rules use, as values, and their changes, as NRI messages.

`Container` is made from the messages of a CreateContainer request; CDI devices from the CRI are already
applied to its environment, devices, device rules and mounts. The names of its CDI devices are missing:
current runtimes do not pass them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from koordra._proto.nri import nri_pb2
from koordra.errors import KoordraError
from koordra.inert import shortened
from koordra.topology.location import DeviceNode

RLIM_INFINITY: Final = 2**64 - 1
LONGEST_REFUSAL: Final = 2000
"""Characters. The kubelet shows a thousand of them in an Event."""


@dataclass(frozen=True, slots=True)
class DeviceRule:
    """One rule of the device cgroup; None is a wildcard, and an empty `type` or "a" means both types."""

    allow: bool
    type: str = ""
    major: int | None = None
    minor: int | None = None
    access: str = "rwm"

    def covers(self, number: tuple[str, int, int]) -> bool:
        kind, major, minor = number
        return (
            self.type in ("", "a", kind)
            and (self.major is None or self.major == major)
            and (self.minor is None or self.minor == minor)
        )


def can_open(rules: Iterable[DeviceRule], number: tuple[str, int, int]) -> bool:
    """Whether the rules, applied in order, let a container read or write the device.

    A device that no rule covers is denied, as by runc, whether or not the first rule denies all.
    """
    allowed = {"r": False, "w": False}
    for rule in rules:
        if rule.covers(number):
            allowed.update(dict.fromkeys(allowed.keys() & set(rule.access or "rwm"), rule.allow))
    return any(allowed.values())


@dataclass(frozen=True, slots=True)
class Mount:
    """A mount of the container; `source` is a path of the host when `bind` is true."""

    source: str
    destination: str
    bind: bool
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class Container:
    """A container about to be created, and the pod it belongs to. `env` keeps the order in which variables
    were set; `cpus` is the cpuset that the kubelet chose for it, empty for all; `host_network` is known while
    it is created only."""

    namespace: str
    pod: str
    name: str
    env: tuple[tuple[str, str], ...] = ()
    devices: tuple[DeviceNode, ...] = ()
    rules: tuple[DeviceRule, ...] = ()
    mounts: tuple[Mount, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    pod_annotations: Mapping[str, str] = field(default_factory=dict)
    rlimits: tuple[str, ...] = ()
    id: str = ""
    pod_uid: str = ""
    pod_labels: Mapping[str, str] = field(default_factory=dict)
    cpus: str = ""
    host_network: bool = False

    def __str__(self) -> str:
        return f"container {self.name} of pod {self.namespace}/{self.pod}"


def container_of(pod: nri_pb2.PodSandbox, container: nri_pb2.Container) -> Container:
    linux = container.linux
    return Container(
        namespace=pod.namespace,
        pod=pod.name,
        name=container.name,
        env=variables_of(container.env),
        devices=tuple(DeviceNode(node.path, node.major, node.minor, node.type) for node in linux.devices),
        rules=tuple(
            DeviceRule(
                allow=rule.allow,
                type=rule.type,
                major=number_of(rule.major.value if rule.HasField("major") else None),
                minor=number_of(rule.minor.value if rule.HasField("minor") else None),
                access=rule.access,
            )
            for rule in linux.resources.devices
        ),
        mounts=tuple(
            mount_of(mount.source, mount.destination, mount.type, mount.options) for mount in container.mounts
        ),
        annotations=dict(container.annotations),
        pod_annotations=dict(pod.annotations),
        rlimits=tuple(limit.type for limit in container.rlimits),
        id=container.id,
        pod_uid=pod.uid,
        pod_labels=dict(pod.labels),
        cpus=linux.resources.cpu.cpus,
        host_network=all(space.type != "network" for space in pod.linux.namespaces),
    )


def variables_of(env: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """From `NAME=value`."""
    return tuple((name, value) for name, _, value in [entry.partition("=") for entry in env])


def mount_of(source: str, destination: str, kind: str, options: Collection[str]) -> Mount:
    """A mount of the OCI specification."""
    bind = kind == "bind" or not {"bind", "rbind"}.isdisjoint(options)
    return Mount(source, destination, bind, read_only="ro" in options)


def number_of(value: int | None) -> int | None:
    """A major or minor of a rule; the OCI specification also writes a wildcard as -1."""
    return None if value is None or value < 0 else value


RULES: Final = (
    "CannotDeny",
    "ConflictingEnv",
    "ForeignCDIDevice",
    "ForeignDeviceNamed",
    "ForeignMount",
    "ForgedMarker",
    "HamiCoreCards",
    "KoordinatorAnnotation",
    "KoordinatorIsolation",
    "KoordinatorMismatch",
    "MpsDaemons",
    "NetworkElsewhere",
    "NetworkNotAttached",
    "NodeState",
    "OtherPlugin",
    "RepeatedVariable",
    "UngrantedDevice",
    "UnknownClaim",
    "UnknownClaims",
    "UnreadableState",
)
"""By which containers are refused."""


class Refusal(KoordraError):
    """Why a container may not be created. `rule` is a stable name, for counting; the text tells its author
    what to change, and quotes no more than a person reads."""

    def __init__(self, rule: str, message: str) -> None:
        self.rule = rule
        super().__init__(shortened(message, LONGEST_REFUSAL))


@dataclass(frozen=True, slots=True)
class Adjustment:
    """The changes to a container; empty parts change nothing.

    `env` adds or overrides; `last_env` (`NAME=value`, with a `=` in the value) is put after all variables of
    the container, whatever their names; `deny` are device rules appended to the container's own; `rlimits`
    become unlimited; `cpus` and `mems` are cpusets; `unified` are files of a cgroup of version 2; `devices`
    and `mounts` are added. What another plugin set under a name or path in `taken_over` is removed first, or
    the runtime would fail the container for the conflict. `confined` is False where devices are open to it
    that it does not hold and nothing can be done about it.
    """

    env: tuple[tuple[str, str], ...] = ()
    last_env: tuple[str, ...] = ()
    deny: tuple[DeviceRule, ...] = ()
    rlimits: tuple[str, ...] = ()
    cpus: str = ""
    mems: str = ""
    unified: tuple[tuple[str, str], ...] = ()
    devices: tuple[DeviceNode, ...] = ()
    mounts: tuple[Mount, ...] = ()
    taken_over: tuple[str, ...] = ()
    confined: bool = True


def adjustment_message(adjustment: Adjustment) -> nri_pb2.ContainerAdjustment:
    message = nri_pb2.ContainerAdjustment()
    for name in adjustment.taken_over:
        if name.startswith("/"):
            message.linux.devices.add(path=f"-{name}")
        else:
            message.env.add(key=f"-{name}")
    for name, value in adjustment.env:
        message.env.add(key=name, value=value)
    for assignment in adjustment.last_env:
        # The runtime looks for a variable of the key's name, and finds none: the key holds a `=`.
        key, _, value = assignment.rpartition("=")
        message.env.add(key=key, value=value)
    for rule in adjustment.deny:
        entry = message.linux.resources.devices.add(allow=rule.allow, type=rule.type, access=rule.access)
        if rule.major is not None:
            entry.major.value = rule.major
        if rule.minor is not None:
            entry.minor.value = rule.minor
    for limit in adjustment.rlimits:
        message.rlimits.add(type=limit, hard=RLIM_INFINITY, soft=RLIM_INFINITY)
    if adjustment.cpus:
        message.linux.resources.cpu.cpus = adjustment.cpus
        message.linux.resources.cpu.mems = adjustment.mems
    for name, value in adjustment.unified:
        message.linux.resources.unified[name] = value
    for node in adjustment.devices:
        device = message.linux.devices.add(path=node.path, type=node.type, major=node.major, minor=node.minor)
        device.file_mode.value = 0o666
    for mount in adjustment.mounts:
        message.mounts.add(
            destination=mount.destination,
            source=mount.source,
            type="bind",
            options=["rbind", "ro" if mount.read_only else "rw"],
        )
    return message
