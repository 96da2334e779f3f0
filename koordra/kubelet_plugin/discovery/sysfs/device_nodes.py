"""Character device nodes and their numbers.

Numbers are always read, never assumed: those of /dev/nvidia-uvm, /dev/nvidia-caps, rdma_cm and all uverbs
above the 32nd change from boot to boot. On the real machine only a character device counts. In a captured
machine, made without the right to mknod, a regular file with the text ``c MAJOR:MINOR`` stands for one.
"""

from __future__ import annotations

import os
import re
import stat

from koordra.kubelet_plugin.discovery.sysfs.machine_root import MachineRoot
from koordra.topology.machine import DeviceNode

_STAND_IN = re.compile(r"c ([0-9]{1,7}):([0-9]{1,7})", re.ASCII)
_NUMBERS = re.compile(r"([0-9]{1,7}):([0-9]{1,7})", re.ASCII)


def device_node(root: MachineRoot, path: str) -> DeviceNode | None:
    """The character device at ``/dev/...``; None where there is none (a link or a block device is none)."""
    inside = path.lstrip("/")
    status = root.status(inside)
    if status is None:
        return None
    if stat.S_ISCHR(status.st_mode):
        return DeviceNode(path=path, major=os.major(status.st_rdev), minor=os.minor(status.st_rdev))
    if stat.S_ISREG(status.st_mode) and not root.is_real:
        written = _STAND_IN.fullmatch(root.line(inside) or "")
        if written:
            return DeviceNode(path=path, major=int(written[1]), minor=int(written[2]))
    return None


def kernel_numbers(root: MachineRoot, path: str) -> tuple[int, int] | None:
    """``(major, minor)`` from a sysfs ``dev`` attribute."""
    written = _NUMBERS.fullmatch(root.line(path) or "")
    return (int(written[1]), int(written[2])) if written else None


def gpu_control_nodes(root: MachineRoot) -> tuple[DeviceNode, ...]:
    """The nodes that every holder of a GPU needs, as far as they exist."""
    wanted = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
    return tuple(node for node in (device_node(root, path) for path in wanted) if node)
