"""Product names and versions as they are published, from what hardware and driver call themselves.

Versions are those that Kubernetes takes: strict semver 2.0.0, without a leading v or leading zeros. Driver
versions are not semver: ``535.104.05`` has a leading zero, ``525.60`` two parts, ``470.57.02.01`` four, and
``535.129.03-grid`` a vendor's suffix. The first three numbers are kept, so that order is kept; what follows
goes into build metadata, which semver ignores when it compares (as a pre-release it would sort *before* the
plain version).
"""

from __future__ import annotations

import re

_FAMILY = re.compile(r"[A-Z]{1,3}[0-9]{1,4}[A-Z]{0,2}", re.ASCII)

# PCI vendor and device of RDMA-capable functions; pci.ids. Virtual functions have ids of their own.
_NICS = {
    "15b3:1013": "ConnectX-4",
    "15b3:1015": "ConnectX-4 Lx",
    "15b3:1017": "ConnectX-5",
    "15b3:1019": "ConnectX-5 Ex",
    "15b3:101b": "ConnectX-6",
    "15b3:101d": "ConnectX-6 Dx",
    "15b3:101f": "ConnectX-6 Lx",
    "15b3:1021": "ConnectX-7",
    "15b3:1023": "ConnectX-8",
    "15b3:a2d6": "BlueField-2",
    "15b3:a2dc": "BlueField-3",
    "1d0f:efa0": "EFA",
    "1d0f:efa1": "EFA",
    "1d0f:efa2": "EFA",
    "1d0f:efa3": "EFA",
    "14e4:1750": "BCM57508",
    "14e4:1760": "BCM57608",
    "8086:1592": "E810-C",
    "8086:1593": "E810-C",
}


def gpu_model(product_name: str) -> str:
    """``"NVIDIA A100-SXM4-40GB"`` -> ``"A100"``, ``"Tesla T4"`` -> ``"T4"``; a name without a short form
    stays."""
    name = re.sub(r"^(?:NVIDIA|Tesla)\s+", "", re.sub(r"^NVIDIA\s+", "", product_name.strip()))
    first = re.split(r"[\s-]", name, maxsplit=1)[0]
    return first if _FAMILY.fullmatch(first) else name


def nic_model(vendor: str | None, device_id: str | None) -> str | None:
    """``("15b3", "1021")`` -> ``"ConnectX-7"``; None for what is not in the table."""
    return _NICS.get(f"{vendor}:{device_id}")


_VERSION = re.compile(
    r"v?([0-9]{1,9})(?![0-9])(?:\.([0-9]{1,9}))?(?:\.([0-9]{1,9}))?(.*)", re.ASCII | re.DOTALL
)
_LONGEST = 64


def semver(text: str) -> str | None:
    """``"535.104.05"`` -> ``"535.104.5"``; None for text that does not begin with a number."""
    matched = _VERSION.fullmatch(text.strip())
    if not matched:
        return None
    major, minor, patch, rest = matched.groups()
    version = ".".join(str(int(part or 0)) for part in (major, minor, patch))
    build = re.sub(r"[^0-9A-Za-z-]+", ".", rest).strip(".-")
    full = f"{version}+{build}" if build else version
    return full if len(full) <= _LONGEST else version


def cuda_semver(number: int) -> str:
    """NVML's CUDA version, 1000 x major + 10 x minor: ``12040`` -> ``"12.4.0"``."""
    return f"{number // 1000}.{number % 1000 // 10}.0"
