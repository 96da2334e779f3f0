"""Capability nodes of MIG instances: ``/dev/nvidia-caps/nvidia-capM``.

A process may use an instance if it can open the node of the GPU instance and that of the compute instance.
Their major is that of "nvidia-caps" in /proc/devices; their minors are in two places, which must agree:

    /proc/driver/nvidia-caps/mig-minors                         gpu0/gi1/access 12
    /proc/driver/nvidia/capabilities/gpu0/mig/gi1/access        DeviceFileMinor: 12

(the number after "gpu" is the card's minor). The nodes are created on demand and need not exist on the host;
one that exists must have these numbers.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from koordra.kubelet_plugin.discovery.sysfs.machine_root import MachineRoot
from koordra.topology.machine import DeviceNode, Gpu
from koordra.topology.partitions import MigInstance

_CAPS = "dev/nvidia-caps"
_LISTING = 4 << 20
_LINE = re.compile(r"(\S{1,64}) ([0-9]{1,7})", re.ASCII)
_CAP = re.compile(r"nvidia-cap[0-9]{1,7}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The driver's capability nodes: their major, and minors by path (``gpu0/gi1/access``)."""

    major: int | None
    minors: dict[str, int]


def capabilities(root: MachineRoot) -> Capabilities:
    listed = root.text("proc/devices", most=_LISTING) or ""
    devices = re.search(r"^ *([0-9]{1,7}) nvidia-caps$", listed, re.MULTILINE)
    lines = (root.text("proc/driver/nvidia-caps/mig-minors", most=_LISTING) or "").splitlines()
    matched = filter(None, map(_LINE.fullmatch, lines))
    return Capabilities(
        major=int(devices[1]) if devices else None, minors={line[1]: int(line[2]) for line in matched}
    )


def with_nodes(root: MachineRoot, gpu: Gpu, known: Capabilities) -> Gpu:
    """The card with the nodes of its instances, as far as they are certain."""
    found: list[MigInstance] = []
    for instance in gpu.mig_instances:
        here = f"gpu{gpu.minor}/gi{instance.gpu_instance}"
        answers = [
            _node(root, path, known)
            for path in (f"{here}/access", f"{here}/ci{instance.compute_instance}/access")
        ]
        for answer in answers:
            if isinstance(answer, str):
                _instance_problem(
                    root, gpu, instance, answer, "check /proc/driver/nvidia-caps; it is not offered"
                )
        nodes = tuple(answer for answer in answers if isinstance(answer, DeviceNode))
        found.append(replace(instance, nodes=nodes))
    return replace(gpu, mig_instances=tuple(found))


def without_conflicts(root: MachineRoot, gpus: list[Gpu]) -> Iterator[Gpu]:
    """The cards, with the UUID taken from every instance that claims another's identity, memory or nodes."""
    claims: Counter[object] = Counter(
        claim for gpu in gpus for instance in gpu.mig_instances for claim in _claims(gpu, instance)
    )
    for gpu in gpus:
        instances = []
        for instance in gpu.mig_instances:
            contested = any(claims[claim] > 1 for claim in _claims(gpu, instance))
            if contested:
                remedy = "check nvidia-smi mig -lgi; neither is offered"
                _instance_problem(root, gpu, instance, "another instance claims the same", remedy)
            instances.append(replace(instance, uuid=None) if contested else instance)
        yield replace(gpu, mig_instances=tuple(instances))


def _instance_problem(root: MachineRoot, gpu: Gpu, instance: MigInstance, what: str, remedy: str) -> None:
    root.problem(f"GPU {gpu.location.bus_id}", f"MIG instance {instance.gpu_instance}", what, remedy)


def _claims(gpu: Gpu, instance: MigInstance) -> Iterator[object]:
    """The keys that must be unique to an instance."""
    if instance.uuid:
        yield instance.uuid
    yield from (node.path for node in instance.nodes)
    yield gpu.location.bus_id, "instance", instance.gpu_instance
    for memory_slice in range(instance.start, instance.start + min(instance.size, 64)):
        yield gpu.location.bus_id, "slice", memory_slice


def _node(root: MachineRoot, capability: str, known: Capabilities) -> DeviceNode | str:
    """The node of one capability, or why there is none."""
    card, _, rest = capability.partition("/")
    file = root.text(f"proc/driver/nvidia/capabilities/{card}/mig/{rest}") or ""
    reported = re.search(r"^DeviceFileMinor: +([0-9]{1,7})$", file, re.MULTILINE)
    minors = {
        minor
        for minor in (known.minors.get(capability), int(reported[1]) if reported else None)
        if minor is not None
    }
    if known.major is None or not minors:
        return f"the numbers of its node {capability} are not known"
    if len(minors) > 1:
        return f"the driver gives {capability} the minors {' and '.join(map(str, sorted(minors)))}"
    minor = minors.pop()
    path = f"/{_CAPS}/nvidia-cap{minor}"
    node = root.device_node(path)
    if node is not None and (node.major, node.minor) != (known.major, minor):
        return f"{path} is {node.major}:{node.minor}, the driver says {known.major}:{minor}"
    return DeviceNode(path=path, major=known.major, minor=minor)


def gpu_management_nodes(root: MachineRoot, gpus: Iterable[Gpu]) -> tuple[DeviceNode, ...]:
    """Nodes that no container gets: to partition cards, to monitor all instances, NVSwitches."""
    given = {node.path for gpu in gpus for instance in gpu.mig_instances for node in instance.nodes}
    paths = [f"/{_CAPS}/{name}" for name in root.names(_CAPS) if _CAP.fullmatch(name)]
    paths += [
        f"/dev/{name}" for name in root.names("dev") if re.fullmatch(r"nvidia-nvswitch(?:ctl|\d+)", name)
    ]
    return root.device_nodes(path for path in paths if path not in given)
