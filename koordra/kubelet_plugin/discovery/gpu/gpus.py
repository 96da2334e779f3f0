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
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from koordra.kubelet_plugin.discovery.gpu.mig_nodes import capabilities, with_nodes, without_conflicts
from koordra.kubelet_plugin.discovery.nvml.query import UUID, NvmlFacts
from koordra.kubelet_plugin.discovery.sysfs.machine_root import MachineRoot
from koordra.kubelet_plugin.discovery.sysfs.pci_tree import PciFunction
from koordra.topology.machine import BUS_ID, DeviceNode, Gpu, Location

_GPUS = "proc/driver/nvidia/gpus"
_VERSION = re.compile(r"\b([0-9]{3}\.[0-9]{1,4}(?:\.[0-9]{1,4})*)\b", re.ASCII)


def proc_gpus(root: MachineRoot) -> dict[str, Gpu]:
    """The cards that the driver has bound, by bus id. ``uuid`` is None while the driver has not initialised the card (it then
    prints question marks)."""
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
        found[bus_id] = Gpu(
            location=Location(bus_id, ()),
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
    proc: Mapping[str, Gpu],
) -> tuple[Gpu, ...]:
    """One Gpu for each of these functions, in their order, publishable or not."""
    by_nvml = {gpu.location.bus_id: gpu for gpu in nvml.gpus}
    found = [
        _gpu(
            root,
            function,
            locations[function.bus_id],
            nvml=by_nvml.pop(function.bus_id, Gpu(Location(function.bus_id, ()))),
            proc=proc.get(function.bus_id, Gpu(Location(function.bus_id, ()))),
        )
        for function in functions
    ]
    for bus_id in by_nvml:
        remedy = "check that sysfs is mounted completely; it is not offered"
        root.problem(f"GPU {bus_id}", "path", "NVML knows it, the PCI tree does not", remedy)
    known = capabilities(root)
    return tuple(
        without_conflicts(root, [with_nodes(root, gpu, known) for gpu in _without_duplicates(root, found)])
    )


def _gpu(
    root: MachineRoot,
    function: PciFunction,
    location: tuple[Location, frozenset[str]],
    *,
    nvml: Gpu,
    proc: Gpu,
) -> Gpu:
    subject, disputed = f"GPU {function.bus_id}", list(nvml.disputed)
    for field, left, right in (("uuid", nvml.uuid, proc.uuid), ("minor", nvml.minor, proc.minor)):
        if left is not None and right is not None and left != right:
            disputed.append(field)
            said = f"NVML says {left}, /proc/driver/nvidia says {right}"
            root.problem(subject, field, said, "reload the NVIDIA driver; the card is not offered")
    uuid = nvml.uuid or proc.uuid
    minor = nvml.minor if nvml.minor is not None else proc.minor
    for field, value in (("uuid", uuid), ("memory", nvml.memory_bytes), ("minor", minor)):
        if value is None:
            root.problem(subject, field, "no source reports it", _REPORTED[field])
    if nvml.mig_enabled and not nvml.mig_instances:
        remedy = "make some (nvidia-smi mig -cgi ... -C) or disable MIG"
        root.problem(subject, "migMode", "the card is in MIG mode and has no instance", remedy)
    where, inferred = location
    return replace(
        nvml,
        location=where,
        device_id=None if function.device is None else f"{function.device:04x}",
        uuid=uuid,
        minor=minor,
        product_name=nvml.product_name or proc.product_name,
        node=_node(root, subject, minor),
        graphics_nodes=_graphics_nodes(root, function),
        disputed=tuple(disputed),
        inferred=inferred,
    )


def _node(root: MachineRoot, subject: str, minor: int | None) -> DeviceNode | None:
    """/dev/nvidia<minor>, if its number is the card's: the driver gives card N the device minor N."""
    if minor is None:
        return None
    path = f"/dev/nvidia{minor}"
    node = root.device_node(path)
    if node is None:
        remedy = "run nvidia-smi or nvidia-modprobe -c to make it; the card is not offered"
        root.problem(subject, "device node", f"{path} does not exist", remedy)
    elif node.minor != minor:
        problem = f"{path} is {node.major}:{node.minor}, not minor {minor}"
        root.problem(subject, "device node", problem, "remove the stale node; the card is not offered")
        return None
    return node


def _graphics_nodes(root: MachineRoot, function: PciFunction) -> tuple[DeviceNode, ...]:
    """/dev/dri nodes of the card, as far as their numbers agree with sysfs."""
    nodes = []
    for entry in root.names(f"{function.directory}/drm"):
        numbers = root.kernel_numbers(f"{function.directory}/drm/{entry}/dev")
        node = root.device_node(f"/dev/dri/{entry}") if numbers else None
        if node and numbers == (node.major, node.minor):
            nodes.append(node)
    return tuple(nodes)


def _without_duplicates(root: MachineRoot, found: list[Gpu]) -> Iterator[Gpu]:
    """The cards, with a dispute on each whose identity another card claims too."""
    counts: dict[str, Counter[object]] = {
        "uuid": Counter(gpu.uuid for gpu in found if gpu.uuid is not None),
        "minor": Counter(gpu.minor for gpu in found if gpu.minor is not None),
    }
    for gpu in found:
        claimed = tuple(field for field, count in counts.items() if count[getattr(gpu, field)] > 1)
        for field in claimed:
            remedy = "reload the NVIDIA driver; neither card is offered"
            root.problem(f"GPU {gpu.location.bus_id}", field, "another card claims the same one", remedy)
        yield replace(gpu, disputed=gpu.disputed + claimed)


GPU_CONTROL = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
"""The nodes that every holder of a GPU needs, as far as they exist."""
