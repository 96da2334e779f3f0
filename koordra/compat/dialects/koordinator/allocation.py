"""An allocation in Koordinator's words: the annotation that its scheduler writes, the variable that its
device plugin sets.

Source of the annotation and the variable: koordinator, apis/extension and the GPU device plugin's adapter.
"""

from __future__ import annotations

import json

from koordra.api import names
from koordra.api.objects import Object
from koordra.compat.dialect import (
    Allocated,
    Device,
    Granted,
    Variables,
)
from koordra.compat.dialects.koordinator.requests import CORE, MEMORY, RATIO, RDMA
from koordra.quantity import canonical


def environment(granted: Granted) -> Variables:
    """Bytes of the first card, where it is a share."""
    first = granted.cards[0]
    return (("CUDA_DEVICE_MEMORY_LIMIT", str(first.memory)),) if first.is_share else ()


def device_allocated(found: Allocated) -> dict[str, str]:
    """JSON, keys and spelling as Go writes it."""
    body = {
        "gpu": [_gpu(held) for held in found.gpus()],
        "rdma": [_nic(held) for held in found.held if held.kind in (names.TYPE_NIC, names.TYPE_VF)],
    }
    given = {kind: listed for kind, listed in body.items() if listed}
    text = json.dumps(given, separators=(",", ":"), ensure_ascii=False)
    return {"scheduling.koordinator.sh/device-allocated": text}


def _gpu(held: Device) -> Object:
    total = held.total
    amounts = {
        MEMORY: canonical(held.memory),
        RATIO: str(held.memory * 100 // total if total else 0),
    }
    cores = 100 if total and held.memory >= total else held.cores
    if cores:
        amounts[CORE] = str(cores)
    return {"minor": held.minor, "resources": dict(sorted(amounts.items())), "id": held.uuid}


def _nic(held: Device) -> Object:
    virtual = held.kind == names.TYPE_VF
    found: Object = {
        "minor": held.parent_minor if virtual else held.minor,
        "resources": {RDMA: str(1 if virtual else held.share)},
        "id": held.parent_bus_id if virtual else held.bus_id,
    }
    if virtual:
        found["extension"] = {"vfs": [{"minor": -1, "busID": held.bus_id}]}
    return found
