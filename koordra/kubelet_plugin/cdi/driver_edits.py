"""What a container gets of NVIDIA's driver with the GPUs of one request: files, links and nodes of the parts
that are asked for. Pure.

    any part            /dev/nvidiactl, nvidia-uvm, nvidia-uvm-tools, nvidia-modeset, and the files of the
                        part (nvidia_driver/driver_files.py)
    graphics, display   the card's DRM nodes, also under udev's names in /dev/dri/by-path; of a MIG instance
                        only where its profile has graphics (`+gfx`), as others cannot draw
    gdrcopy, gds, imex  the nodes of that name
    adminAccess         the sockets of nvidia-persistenced and of the fabric manager. They command every card
                        and switch of the node, and nothing that computes needs them, so that the holder of
                        one card does not get them
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from koordra.api import names
from koordra.api.opaque.driver_capabilities import DRAWING, DriverCapabilities, DriverCapability
from koordra.kubelet_plugin.claims.claim_record import ContainerEdits
from koordra.kubelet_plugin.nvidia_driver.driver_files import in_default_folders
from koordra.kubelet_plugin.publish.devices import MigDevice
from koordra.kubelet_plugin.publish.node_inventory import NodeDevice, NodeInventory
from koordra.topology.location import DeviceNode
from koordra.topology.machine import Gpu

_NODES: Final[Mapping[DriverCapability, re.Pattern[str]]] = {
    DriverCapability.GDRCOPY: re.compile(r"/dev/gdrdrv"),
    DriverCapability.GDS: re.compile(r"/dev/nvidia-fs[0-9]+"),
    DriverCapability.IMEX: re.compile(r"/dev/nvidia-caps-imex-channels/channel0"),
}
_REMEDY: Final[Mapping[DriverCapability, str]] = {
    DriverCapability.GDRCOPY: "load the module gdrdrv",
    DriverCapability.GDS: "load the module nvidia_fs",
    DriverCapability.IMEX: "set NVreg_CreateImexChannel0=1 of the module nvidia, or make the channel's node",
}


def driver_edits(
    capabilities: DriverCapabilities, *, inventory: NodeInventory, admin_access: bool
) -> ContainerEdits:
    """What holders of a request's GPUs get once, whatever cards these are."""
    machine, files = inventory.machine, inventory.driver_files
    optional = [
        node
        for capability, pattern in _NODES.items()
        if capability in capabilities
        for node in machine.gpu_optional
        if pattern.fullmatch(node.path)
    ]
    return ContainerEdits(
        device_nodes=(*machine.gpu_control, *optional),
        mounts=files.sockets if admin_access else (),
    ) + in_default_folders(files.edits(capabilities))


def drawing_nodes(device: NodeDevice | None, capabilities: DriverCapabilities) -> tuple[DeviceNode, ...]:
    """The DRM nodes that come with this device."""
    if not capabilities & DRAWING:
        return ()
    match device:
        case Gpu():
            return device.graphics_nodes
        case MigDevice() if "gfx" in device.profile.name:
            return device.gpu.graphics_nodes
    return ()


def by_path_nodes(bus_id: str, nodes: tuple[DeviceNode, ...]) -> tuple[DeviceNode, ...]:
    """The DRM nodes under udev's names, by which EGL and Vulkan programs tell cards apart. On the host these
    are links; a container's /dev is the runtime's, where nothing but the runtime makes anything, so that they
    are nodes there."""
    kinds = {"card": "card", "renderD": "render"}
    return tuple(
        replace(node, path=f"/dev/dri/by-path/pci-{bus_id}-{kind}")
        for node in nodes
        for prefix, kind in kinds.items()
        if re.fullmatch(rf"/dev/dri/{prefix}[0-9]+", node.path)
    )


def unavailable(capabilities: DriverCapabilities, *, inventory: NodeInventory) -> str | None:
    """Why this node cannot give what was asked for, with a remedy."""
    if DriverCapability.IMEX in capabilities and inventory.offering.imex:
        return (
            "driverCapabilities: the node's IMEX channels are devices of claims, each in the domain of its gang; "
            f"ask for one of class {names.CLASS_IMEX}, and leave imex out"
        )
    for capability, pattern in _NODES.items():
        there = any(pattern.fullmatch(node.path) for node in inventory.machine.gpu_optional)
        if capability in capabilities and not there:
            return (
                f"driverCapabilities: this node has no {pattern.pattern} for {capability}; "
                f"{_REMEDY[capability]}, or leave {capability} out"
            )
    return None
