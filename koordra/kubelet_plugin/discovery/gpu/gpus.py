"""GPUs, merged from sysfs, NVML and /proc.

sysfs gives a card's place, NVML (or, without it, /proc/driver/nvidia) its identity. A card is offered only if
both are known and consistent: two sources with different UUIDs, two cards with one UUID or one minor, a
device node whose minor is not the card's, or a MIG mode that could not be read are disputes, and a disputed
card is not offered, whole or in parts.

/proc/driver/nvidia has each card's UUID, minor and model and the driver version, also where the library is missing. It lacks
the size of the memory, so a card known only from /proc can be shown but not offered.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from koordra.kubelet_plugin.discovery.gpu.mig_nodes import capabilities, with_nodes, without_conflicts
from koordra.kubelet_plugin.discovery.nvml.query import UUID, GpuFacts, NvmlFacts
from koordra.kubelet_plugin.discovery.result import Problem
from koordra.kubelet_plugin.discovery.sysfs.machine_root import MachineRoot, device_node, kernel_numbers
from koordra.kubelet_plugin.discovery.sysfs.pci_tree import PciFunction
from koordra.topology.machine import BUS_ID, DeviceNode, Gpu, Location

_GPUS = "proc/driver/nvidia/gpus"
_VERSION = re.compile(r"\b([0-9]{3}\.[0-9]{1,4}(?:\.[0-9]{1,4})*)\b", re.ASCII)


@dataclass(frozen=True, slots=True)
class ProcGpu:
    """``uuid`` is None while the driver has not initialised the card (it then prints question marks)."""

    uuid: str | None
    minor: int | None
    product_name: str | None


def proc_gpus(root: MachineRoot) -> dict[str, ProcGpu]:
    """The cards that the driver has bound, by bus id."""
    found = {}
    for entry in root.names(_GPUS):
        bus_id = entry.lower()
        if not BUS_ID.fullmatch(bus_id):
            continue
        text = root.text(f"{_GPUS}/{entry}/information") or ""
        fields = {
            key.strip(): value.strip()
            for key, colon, value in (line.partition(":") for line in text.splitlines())
            if colon
        }
        uuid, minor = fields.get("GPU UUID", ""), fields.get("Device Minor", "")
        found[bus_id] = ProcGpu(
            uuid=uuid if UUID.fullmatch(uuid) else None,
            minor=int(minor) if minor.isdecimal() and len(minor) <= 4 else None,
            product_name=fields.get("Model") or None,
        )
    return found


def proc_driver_version(root: MachineRoot) -> str | None:
    """``"550.54.15"`` from /proc/driver/nvidia/version, whose first line has several forms."""
    first = (root.text("proc/driver/nvidia/version") or "").partition("\n")[0]
    matched = _VERSION.search(first)
    return matched[1] if matched else None


_NVIDIA = 0x10DE
_DISPLAY_CLASSES = {0x0300, 0x0302}  # VGA controller, 3D controller

_REPORTED = {
    "uuid": "check that the NVIDIA driver is loaded for this card (nvidia-smi -L); it is not offered",
    "memory": "check that the NVML library is installed and answers (nvidia-smi -q -d MEMORY); it is not offered",
    "minor": "check that the NVIDIA driver is loaded for this card; it is not offered",
}


def is_gpu(root: MachineRoot, function: PciFunction) -> bool:
    """An NVIDIA display controller that is a card, not a virtual function of one."""
    return (
        function.vendor == _NVIDIA
        and function.base_class in _DISPLAY_CLASSES
        and root.link(f"{function.directory}/physfn") is None
    )


def gpus(
    root: MachineRoot,
    *,
    functions: Iterable[PciFunction],
    locations: Mapping[str, tuple[Location, frozenset[str]]],
    nvml: NvmlFacts,
    proc: Mapping[str, ProcGpu],
) -> tuple[list[Gpu], list[Problem]]:
    """One Gpu for each of these functions, in their order, publishable or not."""
    facts = {gpu.bus_id: gpu for gpu in nvml.gpus}
    found: list[Gpu] = []
    problems: list[Problem] = []
    for function in functions:
        gpu, new = _gpu(
            root,
            function=function,
            location=locations[function.bus_id],
            facts=facts.pop(function.bus_id, GpuFacts(bus_id=function.bus_id)),
            proc=proc.get(function.bus_id),
        )
        found.append(gpu)
        problems.extend(new)
    problems += [
        Problem(
            f"GPU {bus_id}",
            "path",
            "NVML knows it, the PCI tree does not",
            "check that sysfs is mounted completely; it is not offered",
        )
        for bus_id in facts
    ]
    found, duplicates = _without_duplicates(found)
    known = capabilities(root)
    for index, gpu in enumerate(found):
        if gpu.mig_instances:
            found[index], new = with_nodes(root, gpu, known)
            problems.extend(new)
    found, conflicts = without_conflicts(found)
    return found, problems + duplicates + conflicts


def _gpu(
    root: MachineRoot,
    *,
    function: PciFunction,
    location: tuple[Location, frozenset[str]],
    facts: GpuFacts,
    proc: ProcGpu | None,
) -> tuple[Gpu, list[Problem]]:
    subject, problems, disputed = f"GPU {function.bus_id}", [], list(facts.doubtful)
    by_proc = proc or ProcGpu(uuid=None, minor=None, product_name=None)
    for field, left, right in (("uuid", facts.uuid, by_proc.uuid), ("minor", facts.minor, by_proc.minor)):
        if left is not None and right is not None and left != right:
            disputed.append(field)
            problems.append(
                Problem(
                    subject,
                    field,
                    f"NVML says {left}, /proc/driver/nvidia says {right}",
                    "reload the NVIDIA driver; the card is not offered",
                )
            )
    uuid = facts.uuid or by_proc.uuid
    minor = facts.minor if facts.minor is not None else by_proc.minor
    for field, value in (("uuid", uuid), ("memory", facts.memory_bytes), ("minor", minor)):
        if value is None:
            problems.append(Problem(subject, field, "no source reports it", _REPORTED[field]))
    node, node_problems = _node(root, subject, minor)
    if facts.mig_enabled and not facts.mig_instances:
        problems.append(
            Problem(
                subject,
                "migMode",
                "the card is in MIG mode and has no instance",
                "make some (nvidia-smi mig -cgi ... -C) or disable MIG",
            )
        )
    where, inferred = location
    gpu = Gpu(
        location=where,
        device_id=None if function.device is None else f"{function.device:04x}",
        uuid=uuid,
        minor=minor,
        product_name=facts.product_name or by_proc.product_name,
        memory_bytes=facts.memory_bytes,
        architecture=facts.architecture,
        compute_capability=facts.compute_capability,
        mig_enabled=facts.mig_enabled,
        nvlinks=facts.nvlinks,
        node=node,
        graphics_nodes=_graphics_nodes(root, function),
        disputed=tuple(disputed),
        inferred=inferred,
        mig_profiles=facts.mig_profiles,
        mig_instances=facts.mig_instances,
        fabric=facts.fabric,
        peers=facts.peers,
        faults=facts.faults,
        recovered=facts.recovered,
    )
    return gpu, problems + node_problems


def _node(root: MachineRoot, subject: str, minor: int | None) -> tuple[DeviceNode | None, list[Problem]]:
    """/dev/nvidia<minor>, if its number is the card's: the driver gives card N the device minor N."""
    if minor is None:
        return None, []
    path = f"/dev/nvidia{minor}"
    node = device_node(root, path)
    if node is None:
        remedy = "run nvidia-smi or nvidia-modprobe -c to make it; the card is not offered"
        return None, [Problem(subject, "device node", f"{path} does not exist", remedy)]
    if node.minor != minor:
        problem = f"{path} is {node.major}:{node.minor}, not minor {minor}"
        return None, [
            Problem(subject, "device node", problem, "remove the stale node; the card is not offered")
        ]
    return node, []


def _graphics_nodes(root: MachineRoot, function: PciFunction) -> tuple[DeviceNode, ...]:
    """/dev/dri nodes of the card, as far as their numbers agree with sysfs."""
    nodes = []
    for entry in root.names(f"{function.directory}/drm"):
        numbers = kernel_numbers(root, f"{function.directory}/drm/{entry}/dev")
        node = device_node(root, f"/dev/dri/{entry}") if numbers else None
        if node and numbers == (node.major, node.minor):
            nodes.append(node)
    return tuple(nodes)


def _without_duplicates(found: list[Gpu]) -> tuple[list[Gpu], list[Problem]]:
    """The cards, with a dispute on each whose identity another card claims too."""
    counts: dict[str, Counter[object]] = {
        "uuid": Counter(gpu.uuid for gpu in found if gpu.uuid is not None),
        "minor": Counter(gpu.minor for gpu in found if gpu.minor is not None),
    }
    marked: list[Gpu] = []
    problems: list[Problem] = []
    for gpu in found:
        claimed = tuple(field for field, count in counts.items() if count[getattr(gpu, field)] > 1)
        problems += [
            Problem(
                f"GPU {gpu.location.bus_id}",
                field,
                "another card claims the same one",
                "reload the NVIDIA driver; neither card is offered",
            )
            for field in claimed
        ]
        marked.append(replace(gpu, disputed=gpu.disputed + claimed) if claimed else gpu)
    return marked, problems
