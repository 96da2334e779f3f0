"""Koordinator's words: the names that pods, nodes and its settings use, and what becomes of each; and how an allocation is written in them.

Source of the annotation and the variable: koordinator, apis/extension and the GPU device plugin's adapter.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from koordra.api import names
from koordra.api.objects import Object
from koordra.compat.dialect import (
    Allocated,
    Card,
    Held,
    Place,
    Variables,
    annotation,
    hint,
    label,
    on_nodes,
    resource,
    scheduler,
    written,
)
from koordra.compat.dialects.koordinator.hints import HINT, JOINT, PARTITION
from koordra.compat.dialects.koordinator.requests import CORE, FPGA, GPU, MEMORY, NVIDIA, RATIO, RDMA, SHARED
from koordra.quantity import canonical

KOORDINATOR: Final = "koordinator"
PROVIDER: Final = "koordinator.sh/gpu-isolation-provider"

NAMES: Final = (
    resource(NVIDIA, "whole cards", "`count`, `cores` 100, all of each card's memory"),
    resource(
        GPU,
        "percent: 50 is half a card, 200 two cards",
        "as gpu-core and gpu-memory-ratio of the same amount",
    ),
    resource(
        CORE,
        "percent of compute, over all cards",
        "capacity `cores` (accounting only), divided by the cards",
    ),
    resource(MEMORY, "bytes, over all cards", "capacity `memory`, divided by the cards"),
    resource(
        RATIO,
        "percent of memory, over all cards",
        "`GpuConfig.memoryPercent`, divided by the cards; 100 is all of a card",
    ),
    resource(
        SHARED,
        "number of cards that the amounts are split over",
        "`count`, with `distinctAttribute: koordra.io/uuid`",
    ),
    resource(
        RDMA,
        "percent of a NIC; 100 n is n NICs",
        "request `rdma`: `count` and capacity `share`, or virtual functions",
    ),
    resource(FPGA, "percent of an FPGA", "refused: koordra serves GPUs and NICs"),
    annotation(
        JOINT,
        "devices near each other; SamePCIe: it has to be so",
        "`JointAllocation` PCIeRoot, Required or Preferred; as many NICs as cover the GPUs' roots",
    ),
    annotation(
        HINT,
        "selector, vfSelector, allocateStrategy, requiredTopologyScope, exclusivePolicy",
        "CEL on attributes `koordinator.sh/<label>`; class `vf.koordra.io`; `allocationMode: All` or a count; `JointAllocation` over the GPUs; "
        "`GpuConfig.exclusive`, capacity `share` 100",
    ),
    annotation(
        PARTITION,
        "whole partitions of the NVLink fabric",
        "`GpuConfig.partition: Honor`; ringBusBandwidth is told",
    ),
    label(PROVIDER, "HAMi-core: the share is kept by a library", "isolation `limiter`"),
    written("scheduling.koordinator.sh/device-allocated", "devices that were given"),
    written("scheduling.koordinator.sh/bind-timestamp", "when the pod was bound"),
    written("scheduling.koordinator.sh/gpu-minors", "cards that were given"),
    hint(
        "koordinator.sh/*",
        Place.LABEL,
        "other labels (QoS, priority)",
        "stay; where only nvidia.com/gpu is asked for they make it Koordinator's",
    ),
    hint(
        "*koordinator.sh/*",
        Place.ANNOTATION,
        "other annotations (gangs, reservations, quota)",
        "stay; as the labels",
    ),
    scheduler(
        "koord-scheduler",
        "Koordinator's scheduler",
        "stays, with a warning: it has to honour ResourceClaims",
    ),
    on_nodes("node.koordinator.sh/gpu-partition-policy", "Honor or Prefer", "is read by koordra too"),
    on_nodes(
        "scheduling.koordinator.sh/gpu-partitions (Device)",
        "the partitions of a node",
        "koordra works them out from NVLink",
    ),
    on_nodes(
        "gpu-shared-resource-templates (ConfigMap)",
        "sizes of virtual NPUs",
        "not used: NPUs are another vendor's",
    ),
)


def environment(cards: Sequence[Card], _pod: Sequence[Card], _unit: int) -> Variables:
    """Bytes of the first card, where it is a share."""
    first = cards[0]
    return (("CUDA_DEVICE_MEMORY_LIMIT", str(first.memory)),) if first.is_share else ()


def device_allocated(found: Allocated) -> dict[str, str]:
    """JSON, keys and spelling as Go writes it."""
    body = {
        "gpu": [_gpu(held) for held in found.gpus()],
        "rdma": [_nic(held) for held in found.held if held.device.kind in (names.TYPE_NIC, names.TYPE_VF)],
    }
    given = {kind: listed for kind, listed in body.items() if listed}
    text = json.dumps(given, separators=(",", ":"), ensure_ascii=False)
    return {"scheduling.koordinator.sh/device-allocated": text}


def _gpu(held: Held) -> Object:
    total = held.device.total
    amounts = {
        MEMORY: canonical(held.memory),
        RATIO: str(held.memory * 100 // total if total else 0),
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
