"""Device nodes of the GPU driver: where there is none, the numbers that the kernel knows it by.

The driver's nodes are made by nvidia-modprobe, udev rules or a driver container, not by the kernel, and may
be missing: the GPU Operator's container has them in a /dev of its own, others make them when something first
uses a card. The numbers are certain all the same. /proc/devices has the majors, that of the cards fixed at
195, the others dynamic; the minors are the driver's (kernel-open/nvidia/nv.c, nvidia-modprobe):

    /dev/nvidia<N>          major nvidia (nvidia-frontend), minor N of /proc/driver/nvidia/gpus/*/information
    /dev/nvidiactl          255
    /dev/nvidia-modeset     254, which the kernel names nvidia-modeset once that module is loaded
    /dev/nvidia-uvm         major nvidia-uvm, 0; -tools 1
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from koordra.topology.location import DeviceNode
from koordra.topology.machine import Machine

GPU_CONTROL: Final = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
"""The nodes that every holder of a GPU needs, as far as they exist."""

_CARD: Final = re.compile(r"/dev/nvidia([0-9]{1,3})", re.ASCII)
_CARD_MAJORS: Final = ("nvidia", "nvidia-frontend")
_CONTROL_NUMBERS: Final = {
    "/dev/nvidiactl": (_CARD_MAJORS, 255),
    "/dev/nvidia-modeset": (("nvidia-modeset",), 254),
    "/dev/nvidia-uvm": (("nvidia-uvm",), 0),
    "/dev/nvidia-uvm-tools": (("nvidia-uvm",), 1),
}


def majors(devices: str) -> dict[str, int]:
    """Of character devices, by the driver's name for them, from the text of /proc/devices."""
    found = re.findall(r"^ *([0-9]{1,7}) (\S{1,64})$", devices.partition("Block devices:")[0], re.MULTILINE)
    return {name: int(major) for major, name in found}


def numbered(path: str, known: Mapping[str, int]) -> DeviceNode | None:
    """The node of that path as it would be made; None for one that the kernel does not know."""
    card = _CARD.fullmatch(path)
    names, minor = (_CARD_MAJORS, int(card[1])) if card else _CONTROL_NUMBERS.get(path, ((), 0))
    major = next((known[name] for name in names if name in known), None)
    return DeviceNode(path=path, major=major, minor=minor) if major is not None else None


def nodes_of_library(
    minors: Iterable[int], known: Mapping[str, int], *, mig_minors: str
) -> tuple[DeviceNode, ...]:
    """What NVML opens: the control node, the cards of these minors, and the capabilities by which MIG is
    configured and all instances are seen (`mig_minors`: the text of that file)."""
    paths = ["/dev/nvidiactl", *(f"/dev/nvidia{minor}" for minor in minors)]
    found = [node for path in paths if (node := numbered(path, known))]
    if "nvidia-caps" in known:
        caps = re.findall(r"^(?:config|monitor) ([0-9]{1,7})$", mig_minors, re.MULTILINE)
        found += [
            DeviceNode(f"/dev/nvidia-caps/nvidia-cap{cap}", known["nvidia-caps"], int(cap)) for cap in caps
        ]
    return tuple(found)


def given_nodes(machine: Machine) -> list[DeviceNode]:
    """Those that containers can get: of cards, of MIG instances, control nodes."""
    nodes = [*machine.gpu_control, *(gpu.node for gpu in machine.gpus if gpu.node)]
    nodes += machine.imex.all if machine.imex else ()
    return nodes + [node for gpu in machine.gpus for one in gpu.mig_instances for node in one.nodes]
