"""A cheap fingerprint of everything that can change without an event.

It covers states of InfiniBand ports, MIG instances (created by an ioctl), device nodes (created by udev or
nvidia-modprobe) and a reloaded driver. It takes some milliseconds on a machine with 16 NICs and 128 virtual
functions, so it can be taken every few seconds.
"""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path

from koordra.kubelet_plugin.discovery.nvml.recorded import FILE
from koordra.kubelet_plugin.discovery.rdma.subfunctions import AUXILIARY
from koordra.kubelet_plugin.discovery.sysfs.machine_root import MachineRoot
from koordra.kubelet_plugin.discovery.sysfs.pci_tree import PCI_DEVICES

_RDMA = "sys/class/infiniband"
_CAPABILITIES = "proc/driver/nvidia/capabilities"


def probe(directory: Path) -> Hashable:
    """The fingerprint of the machine below ``directory``; equal for machines that read alike."""
    root = MachineRoot(directory)
    recorded = root.status(FILE)
    return (
        tuple(root.names(PCI_DEVICES)),
        tuple(root.names(AUXILIARY)),
        tuple(_ports(root)),
        tuple(_nodes(root)),
        root.text("proc/driver/nvidia/version"),
        tuple(root.names("proc/driver/nvidia/gpus")),
        tuple((card, tuple(root.names(f"{_CAPABILITIES}/{card}/mig"))) for card in root.names(_CAPABILITIES)),
        (recorded.st_mtime_ns, recorded.st_size) if recorded else None,
    )


def _ports(root: MachineRoot) -> list[tuple[str, str | None]]:
    found = []
    for name in root.names(_RDMA):
        # The link, too: the same name on another function is another NIC.
        found.append((name, root.link(f"{_RDMA}/{name}")))
        ports = f"{_RDMA}/{name}/ports"
        found += [(port, root.line(f"{ports}/{port}/state")) for port in root.names(ports)]
    return found


def _nodes(root: MachineRoot) -> list[tuple[str, int, int]]:
    paths = [f"dev/{name}" for name in root.names("dev") if name.startswith("nvidia")]
    paths += [
        f"dev/{folder}/{name}"
        for folder in ("nvidia-caps", "infiniband")
        for name in root.names(f"dev/{folder}")
    ]
    found = []
    for path in paths:
        status = root.status(path)
        if status is not None:
            # A stand-in of a captured machine has its numbers in its text, so its time shows a change.
            found.append((path, status.st_rdev, 0 if status.st_rdev else status.st_mtime_ns))
    return found
