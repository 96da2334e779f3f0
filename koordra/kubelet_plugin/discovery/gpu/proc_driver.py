"""The NVIDIA kernel driver's /proc/driver/nvidia.

It has each card's UUID, minor and model and the driver version, also where the library is missing. It lacks
the size of the memory, so a card known only from /proc can be shown but not offered. Where the library
answers too, the two must agree.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from koordra.kubelet_plugin.discovery.nvml.gpu_facts import UUID
from koordra.kubelet_plugin.discovery.sysfs.machine_root import MachineRoot
from koordra.topology.machine import BUS_ID

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
