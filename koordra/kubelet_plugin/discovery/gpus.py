"""GPUs, merged from sysfs, NVML and /proc, with the capability nodes of their MIG instances.

sysfs gives a card's place, NVML (or, without it, /proc/driver/nvidia) its identity. A card is offered only if
both are known and consistent: two sources with different UUIDs, two cards with one UUID or one minor, a
device node whose minor is not the card's, or a MIG mode that could not be read are disputes, and a disputed
card is not offered, whole or in parts.

/proc/driver/nvidia has each card's UUID, minor and model and the driver version, also where the library is
missing. It lacks the size of the memory, so a card known only from /proc can be shown but not offered.

A process may use a MIG instance if it can open ``/dev/nvidia-caps/nvidia-capM`` of the GPU instance and of
the compute instance. Their major is that of "nvidia-caps" in /proc/devices; their minors are in two places,
which must agree:

    /proc/driver/nvidia-caps/mig-minors                         gpu0/gi1/access 12
    /proc/driver/nvidia/capabilities/gpu0/mig/gi1/access        DeviceFileMinor: 12

(the number after "gpu" is the card's minor). The nodes are created on demand and need not exist on the host;
one that exists must have these numbers.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from koordra.kubelet_plugin.discovery.machine_root import MachineRoot
from koordra.kubelet_plugin.discovery.nvml_query import UUID, matching
from koordra.kubelet_plugin.discovery.pci_tree import PciFunction, PciTree
from koordra.kubelet_plugin.nvidia_driver.node_numbers import majors, nodes_of_library, numbered
from koordra.topology.location import BUS_ID, DeviceNode, Location
from koordra.topology.machine import Gpu
from koordra.topology.partitions import ImexNodes, MigInstance

_GPUS = "proc/driver/nvidia/gpus"
_VERSION = re.compile(r"\b([0-9]{3}\.[0-9]{1,4}(?:\.[0-9]{1,4})*)\b", re.ASCII)


def proc_gpus(root: MachineRoot) -> dict[str, Gpu]:
    """The cards that the driver has bound, by bus id. ``uuid`` is None while the driver has not initialised
    the card (it then prints question marks)."""
    found = {}
    for entry in root.names(_GPUS):
        bus_id = entry.lower()
        if not BUS_ID.fullmatch(bus_id):
            continue
        text = root.text(f"{_GPUS}/{entry}/information")
        fields = {
            key.strip(): value.strip()
            for key, colon, value in (line.partition(":") for line in text.splitlines())
            if colon
        }
        minor = fields.get("Device Minor", "")
        found[bus_id] = Gpu(
            location=Location(bus_id),
            uuid=matching(UUID, fields.get("GPU UUID")),
            minor=int(minor) if minor.isdecimal() and len(minor) <= 4 else None,
            product_name=fields.get("Model") or None,
        )
    return found


def kernel_majors(root: MachineRoot) -> dict[str, int]:
    return majors(root.text("proc/devices", most=_LISTING))


def gpu_node(root: MachineRoot, path: str, known: Mapping[str, int]) -> DeviceNode | None:
    """The node of that path; where nothing is there, as it would be made. `known`: the kernel's majors."""
    if root.status(path.lstrip("/")) is not None:
        return root.device_node(path)
    return numbered(path, known)


def library_nodes(root: MachineRoot) -> tuple[DeviceNode, ...]:
    """The nodes that NVML opens, where a driver is loaded."""
    minors = [gpu.minor for gpu in proc_gpus(root).values() if gpu.minor is not None]
    listed = root.text("proc/driver/nvidia-caps/mig-minors", most=_LISTING)
    return nodes_of_library(minors, kernel_majors(root), mig_minors=listed) if minors else ()


def proc_driver_version(root: MachineRoot) -> str | None:
    """``"550.54.15"`` from /proc/driver/nvidia/version, whose first line has several forms."""
    matched = _VERSION.search(root.text("proc/driver/nvidia/version").partition("\n")[0])
    return matched[1] if matched else None


_NVIDIA = "10de"
_DISPLAY_CLASSES = 0x0300, 0x0302  # VGA controller, 3D controller

NO_INSTANCE: Final = "the card is in MIG mode and has no instance"
"""What is no problem on a node that makes instances on demand."""

_REPORTED = {
    "uuid": "check that the NVIDIA driver is loaded for this card (nvidia-smi -L); it is not offered",
    "memory": "check that the NVML library is installed and answers (nvidia-smi -q -d MEMORY); it is not offered",
    "minor": "check that the NVIDIA driver is loaded for this card; it is not offered",
}


def is_gpu(root: MachineRoot, function: PciFunction) -> bool:
    """An NVIDIA display controller that is a card, not a virtual function of one."""
    return (
        function.vendor == _NVIDIA
        and function.is_a(*_DISPLAY_CLASSES)
        and not root.link(f"{function.directory}/physfn")
    )


def gpus(
    tree: PciTree, functions: Iterable[PciFunction], *, nvml: Iterable[Gpu], proc: Mapping[str, Gpu]
) -> tuple[Gpu, ...]:
    """One Gpu for each of these functions, in their order, publishable or not."""
    by_nvml = {gpu.location.bus_id: gpu for gpu in nvml}
    kernel = kernel_majors(tree)
    found = [
        _gpu(
            tree,
            function,
            kernel,
            nvml=by_nvml.pop(function.bus_id, Gpu(Location(function.bus_id))),
            proc=proc.get(function.bus_id, Gpu(Location(function.bus_id))),
        )
        for function in functions
    ]
    for bus_id in by_nvml:
        tree.problem(
            f"GPU {bus_id}",
            "path",
            "NVML knows it, the PCI tree does not",
            "check that sysfs is mounted completely; it is not offered",
        )
    known = capabilities(tree)
    return tuple(
        without_conflicts(tree, [with_nodes(tree, gpu, known) for gpu in _without_duplicates(tree, found)])
    )


def _gpu(tree: PciTree, function: PciFunction, known: dict[str, int], *, nvml: Gpu, proc: Gpu) -> Gpu:
    report, disputed = partial(tree.problem, f"GPU {function.bus_id}"), list(nvml.disputed)
    for field, left, right in (("uuid", nvml.uuid, proc.uuid), ("minor", nvml.minor, proc.minor)):
        if left is not None and right is not None and left != right:
            disputed.append(field)
            what = f"NVML says {left}, /proc/driver/nvidia says {right}"
            report(field, what, "reload the NVIDIA driver; the card is not offered")
    uuid = nvml.uuid or proc.uuid
    minor = nvml.minor if nvml.minor is not None else proc.minor
    for field, value in (("uuid", uuid), ("memory", nvml.memory_bytes), ("minor", minor)):
        if value is None:
            report(field, "no source reports it", _REPORTED[field])
    if nvml.mig_enabled and not nvml.mig_instances:
        report("migMode", NO_INSTANCE, "make some (nvidia-smi mig -cgi ... -C) or disable MIG")
    path = f"/dev/nvidia{minor}"
    node = gpu_node(tree, path, known) if minor is not None else None
    if minor is not None and node is None:
        remedy = "run nvidia-smi or nvidia-modprobe -c to make it; the card is not offered"
        report("device node", f"{path} does not exist", remedy)
    elif node is not None and node.minor != minor:  # the driver gives card N the device minor N
        what = f"{path} is {node.major}:{node.minor}, not minor {minor}"
        report("device node", what, "remove the stale node; the card is not offered")
        node = None
    return replace(
        nvml,
        location=tree.location(function),
        device_id=function.device,
        uuid=uuid,
        minor=minor,
        product_name=nvml.product_name or proc.product_name,
        node=node,
        graphics_nodes=_graphics_nodes(tree, function),
        disputed=tuple(disputed),
    )


def _graphics_nodes(root: MachineRoot, function: PciFunction) -> tuple[DeviceNode, ...]:
    """/dev/dri nodes of the card, as far as their numbers agree with sysfs."""
    return tuple(
        node
        for entry in root.names(f"{function.directory}/drm")
        if (node := root.device_node(f"/dev/dri/{entry}"))
        and root.kernel_numbers(f"{function.directory}/drm/{entry}/dev") == (node.major, node.minor)
    )


def _without_duplicates(root: MachineRoot, found: list[Gpu]) -> Iterator[Gpu]:
    """The cards, with a dispute on each whose identity another card claims too."""
    counts: dict[str, Counter[object]] = {
        "uuid": Counter(gpu.uuid for gpu in found if gpu.uuid is not None),
        "minor": Counter(gpu.minor for gpu in found if gpu.minor is not None),
    }
    for gpu in found:
        claimed = tuple(field for field, count in counts.items() if count[getattr(gpu, field)] > 1)
        for field in claimed:
            root.problem(
                f"GPU {gpu.location.bus_id}",
                field,
                "another card claims the same one",
                "reload the NVIDIA driver; neither card is offered",
            )
        yield replace(gpu, disputed=gpu.disputed + claimed)


_OPTIONAL: Final = re.compile(r"gdrdrv|nvidia-fs[0-9]{1,4}", re.ASCII)
_IMEX_CHANNEL: Final = "/dev/nvidia-caps-imex-channels/channel0"


_CAPS = "dev/nvidia-caps"
_LISTING = 4 << 20
_LINE = re.compile(r"(\S{1,64}) ([0-9]{1,7})", re.ASCII)
_CAP = re.compile(r"nvidia-cap[0-9]{1,7}", re.ASCII)


Capabilities = tuple[int | None, dict[str, int]]
"""The driver's capability nodes: their major, and minors by path (``gpu0/gi1/access``)."""


def capabilities(root: MachineRoot) -> Capabilities:
    lines = root.text("proc/driver/nvidia-caps/mig-minors", most=_LISTING).splitlines()
    minors = {line[1]: int(line[2]) for line in filter(None, map(_LINE.fullmatch, lines))}
    return kernel_majors(root).get("nvidia-caps"), minors


def with_nodes(root: MachineRoot, gpu: Gpu, known: Capabilities) -> Gpu:
    """The card with the nodes of its instances, as far as they are certain."""
    found: list[MigInstance] = []
    for instance in gpu.mig_instances:
        nodes = []
        ids = instance.gpu_instance, instance.compute_instance
        for answer in instance_nodes(root, gpu.minor, *ids, known=known):
            if isinstance(answer, DeviceNode):
                nodes.append(answer)
            else:
                remedy = "check /proc/driver/nvidia-caps; it is not offered"
                root.problem(
                    f"GPU {gpu.location.bus_id}", f"MIG instance {instance.gpu_instance}", answer, remedy
                )
        found.append(replace(instance, nodes=tuple(nodes)))
    return replace(gpu, mig_instances=tuple(found))


def instance_nodes(
    root: MachineRoot,
    card: int | None,
    gpu_instance: int,
    compute_instance: int,
    *,
    known: Capabilities | None = None,
) -> Iterator[DeviceNode | str]:
    """The nodes of a GPU instance and of its compute instance, or why one is not known. `card` is its
    minor."""
    known = known or capabilities(root)
    here = f"gpu{card}/gi{gpu_instance}"
    for path in (f"{here}/access", f"{here}/ci{compute_instance}/access"):
        yield _capability_node(root, path, known)


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
                root.problem(
                    f"GPU {gpu.location.bus_id}",
                    f"MIG instance {instance.gpu_instance}",
                    "another instance claims the same",
                    "check nvidia-smi mig -lgi; neither is offered",
                )
            instances.append(replace(instance, uuid=None) if contested else instance)
        yield replace(gpu, mig_instances=tuple(instances))


def _claims(gpu: Gpu, instance: MigInstance) -> Iterator[object]:
    if instance.uuid:
        yield instance.uuid
    yield from (node.path for node in instance.nodes)
    yield gpu.location.bus_id, "instance", instance.gpu_instance
    for memory_slice in range(instance.start, instance.start + min(instance.size, 64)):
        yield gpu.location.bus_id, "slice", memory_slice


def _capability_node(root: MachineRoot, capability: str, known: Capabilities) -> DeviceNode | str:
    """The node of one capability, or why there is none."""
    card, _, rest = capability.partition("/")
    file = root.text(f"proc/driver/nvidia/capabilities/{card}/mig/{rest}")
    reported = re.search(r"^DeviceFileMinor: +([0-9]{1,7})$", file, re.MULTILINE)
    major, listed = known
    in_file = int(reported[1]) if reported else None
    minors = {minor for minor in (listed.get(capability), in_file) if minor is not None}
    if major is None or not minors:
        return f"the numbers of its node {capability} are not known"
    if len(minors) > 1:
        return f"the driver gives {capability} the minors {' and '.join(map(str, sorted(minors)))}"
    minor = minors.pop()
    path = f"/{_CAPS}/nvidia-cap{minor}"
    node = root.device_node(path)
    if node is not None and (node.major, node.minor) != (major, minor):
        return f"{path} is {node.major}:{node.minor}, the driver says {major}:{minor}"
    return node or DeviceNode(path=path, major=major, minor=minor)


def gpu_optional_nodes(root: MachineRoot) -> tuple[DeviceNode, ...]:
    """Nodes that holders of a GPU get who ask for them by name (api/opaque/driver_capabilities.py)."""
    paths = [f"/dev/{name}" for name in root.names("dev") if _OPTIONAL.fullmatch(name)]
    return root.device_nodes([*paths, _IMEX_CHANNEL])


_CHANNELS: Final = re.compile(r"^ImexChannelCount: ([0-9]{1,5})$", re.ASCII | re.MULTILINE)
_USUAL_CHANNELS: Final = 2048


def imex_nodes(root: MachineRoot) -> ImexNodes | None:
    """The driver's IMEX channels; their number is a parameter of the module (NVreg_ImexChannelCount)."""
    major = kernel_majors(root).get("nvidia-caps-imex-channels")
    said = _CHANNELS.search(root.text("proc/driver/nvidia/params"))
    count = int(said[1]) if said else _USUAL_CHANNELS
    return ImexNodes(major, count) if major is not None and count else None


def gpu_management_nodes(root: MachineRoot, gpus: Iterable[Gpu]) -> tuple[DeviceNode, ...]:
    """Nodes that no container gets: to partition cards, to monitor all instances, NVSwitches."""
    given = {node.path for gpu in gpus for instance in gpu.mig_instances for node in instance.nodes}
    paths = [f"/{_CAPS}/{name}" for name in root.names(_CAPS) if _CAP.fullmatch(name)]
    paths += [
        f"/dev/{name}" for name in root.names("dev") if re.fullmatch(r"nvidia-nvswitch(?:ctl|\d+)", name)
    ]
    return root.device_nodes(path for path in paths if path not in given)
