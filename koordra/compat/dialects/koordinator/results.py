"""What a pod of Koordinator's was given, in its words. Source: koordinator, apis/extension and the GPU device plugin's adapter."""

from __future__ import annotations

import json
from collections.abc import Sequence

from koordra.api import names
from koordra.api.objects import Object
from koordra.compat.dialect.allocation import Allocated, Card, Held, Variables
from koordra.compat.dialects.koordinator.requests import CORE, MEMORY, RATIO, RDMA
from koordra.quantity import canonical


def environment(cards: Sequence[Card], _pod: Sequence[Card], _unit: int) -> Variables:
    """Bytes of the first card, where it is a share."""
    first = cards[0]
    return (("CUDA_DEVICE_MEMORY_LIMIT", str(first.memory)),) if first.is_share else ()


def device_allocated(found: Allocated) -> dict[str, str]:
    """JSON, keys and spelling as Go writes it."""
    nics = [held for held in found.held if held.device.kind in (names.TYPE_NIC, names.TYPE_VF)]
    body = {"gpu": [_gpu(held) for held in found.gpus()], "rdma": [_nic(held) for held in nics]}
    text = json.dumps(
        {kind: listed for kind, listed in body.items() if listed}, separators=(",", ":"), ensure_ascii=False
    )
    return {"scheduling.koordinator.sh/device-allocated": text}


def _gpu(held: Held) -> Object:
    total = held.device.total
    ratio = held.memory * 100 // total if total else 0
    amounts = {
        MEMORY: canonical(held.memory),
        RATIO: str(ratio),
    }
    cores = 100 if total and held.memory >= total else held.cores
    if cores:
        amounts[CORE] = str(cores)
    return {"minor": held.device.minor, "resources": dict(sorted(amounts.items())), "id": held.device.uuid}


def _nic(held: Held) -> Object:
    device = held.device
    virtual = device.kind == names.TYPE_VF
    found: Object = {
        "minor": device.parent_minor if virtual else device.minor,
        "resources": {RDMA: str(1 if virtual else held.share)},
        "id": device.parent_bus_id if virtual else device.bus_id,
    }
    if virtual:
        found["extension"] = {"vfs": [{"minor": -1, "busID": device.bus_id}]}
    return found
