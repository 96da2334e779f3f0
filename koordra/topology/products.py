"""Product names people select by, from what the hardware calls itself."""

from __future__ import annotations

import re

_FAMILY = re.compile(r"[A-Z]{1,3}[0-9]{1,4}[A-Z]{0,2}", re.ASCII)

# (PCI vendor, PCI device) of RDMA-capable functions; pci.ids. Virtual functions have ids of their own.
_NICS = {
    ("15b3", "1013"): "ConnectX-4",
    ("15b3", "1015"): "ConnectX-4 Lx",
    ("15b3", "1017"): "ConnectX-5",
    ("15b3", "1019"): "ConnectX-5 Ex",
    ("15b3", "101b"): "ConnectX-6",
    ("15b3", "101d"): "ConnectX-6 Dx",
    ("15b3", "101f"): "ConnectX-6 Lx",
    ("15b3", "1021"): "ConnectX-7",
    ("15b3", "1023"): "ConnectX-8",
    ("15b3", "a2d6"): "BlueField-2",
    ("15b3", "a2dc"): "BlueField-3",
    ("1d0f", "efa0"): "EFA",
    ("1d0f", "efa1"): "EFA",
    ("1d0f", "efa2"): "EFA",
    ("1d0f", "efa3"): "EFA",
    ("14e4", "1750"): "BCM57508",
    ("14e4", "1760"): "BCM57608",
    ("8086", "1592"): "E810-C",
    ("8086", "1593"): "E810-C",
}


def gpu_model(product_name: str) -> str:
    """``"NVIDIA A100-SXM4-40GB"`` -> ``"A100"``, ``"Tesla T4"`` -> ``"T4"``; a name without a short form stays."""
    name = re.sub(r"^(?:NVIDIA|Tesla)\s+", "", re.sub(r"^NVIDIA\s+", "", product_name.strip()))
    first = re.split(r"[\s-]", name, maxsplit=1)[0]
    return first if _FAMILY.fullmatch(first) else name


def nic_model(vendor: str | None, device_id: str | None) -> str | None:
    """``("15b3", "1021")`` -> ``"ConnectX-7"``; None for what is not in the table."""
    return _NICS.get((vendor or "", device_id or ""))
