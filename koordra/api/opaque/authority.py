"""Whose word each field of koordra's parameters is: a claim's, or the operator's alone.

A claim is written by a tenant, and so are templates of claims, and the pods and objects of other stacks that
become claims. Of the parameters they may say what CLAIMS_MAY_SAY lists. Everything else decides how tenants
are kept apart, or whom a pod can reach and with which priority. It stands in a DeviceClass or ResourceClass,
and is refused anywhere else: at admission, by the allocator and by Prepare, which all decode by this table. A
field that is added later is the operator's until it is listed.

In an allocation, `source` says where an entry of the configuration comes from. The allocator writes it: with
the API server's own roles no tenant may write a claim's status (docs/isolation.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from koordra.api.reader import Reader

CAPABILITIES: Final = "GpuConfig.driverCapabilities"
NETWORK: Final = "RdmaConfig.network"

CLAIMS_MAY_SAY: Final[Mapping[str, tuple[str, ...]]] = {
    "JointAllocation": ("scope", "enforcement", "pairing"),
    "PlacementPolicy": ("node", "device"),
    "GpuConfig": (
        "isolation",
        "coresPolicy",
        "priority",
        "memoryPercent",
        "tflops",
        "tflopsPrecision",
        "exclusive",
        "partition",
        "numaAffinity",
        "driverCapabilities",
        "timeSlice",
    ),
    CAPABILITIES: (
        "all",
        "compute",
        "utility",
        "video",
        "graphics",
        "display",
        "ngx",
        "gdrcopy",
        "gds",
    ),
    "RdmaConfig": ("mode", "memlock", "network"),
    "ImexConfig": (),
    NETWORK: ("interface", "mtu"),
}
"""Kind, or kind and field, -> its fields or words that a claim may say. `isolation` is among what node and
class allow, and the parts of the driver that draw are for whole cards (isolation.py)."""


def refuse_operators(read: Reader, said: Iterable[str], *, of: str, at: str = "") -> None:
    """Raises the reader's error for the first of the fields that is not a claim's to say; `at`: where a list
    says it."""
    listed = CLAIMS_MAY_SAY[of]
    for name in sorted(set(said) - set(listed)):
        raise read.wrong(
            f"{f'{name} ' if at else ''}is for the operator to say, in a DeviceClass or ResourceClass",
            f"leave it out of the claim, which may say {', '.join(listed) or 'nothing of that'}",
            at=at or name,
        )
