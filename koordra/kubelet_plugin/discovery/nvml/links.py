"""Connections of the GPUs from NVML: NVLinks, peer access, the fabric."""

from __future__ import annotations

import ctypes
import uuid
from collections.abc import Sequence
from itertools import combinations

from koordra.kubelet_plugin.discovery.nvml.gpu_facts import normal_bus_id
from koordra.kubelet_plugin.discovery.nvml.query import CardQuery, text
from koordra.topology.machine import NvLink
from koordra.topology.partitions import Fabric

_TO_GPU, _TO_SWITCH = 0, 2  # nvmlIntNvLinkDeviceType_t
# nvmlGpuP2PCapsIndex_t; pynvml's NVML_P2P_CAPS_INDEX_READ is a tuple by mistake.
_READ, _WRITE = 0, 1


def nvlinks(card: CardQuery) -> tuple[NvLink, ...]:
    """Active links, counted by peer. Links that the product does not have answer "invalid argument"."""
    nvml = card.nvml
    quiet = (nvml.NVML_ERROR_INVALID_ARGUMENT,)
    counted: dict[tuple[str, bool], int] = {}
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        name = f"nvlink {link}"
        if card.ask(name, nvml.nvmlDeviceGetNvLinkState, link, quiet=quiet) != nvml.NVML_FEATURE_ENABLED:
            continue
        kind = card.ask(name, nvml.nvmlDeviceGetNvLinkRemoteDeviceType, link, quiet=quiet)
        pci = card.ask(name, nvml.nvmlDeviceGetNvLinkRemotePciInfo, link, quiet=quiet)
        peer = normal_bus_id(text(pci.busId) or "") if pci is not None else None
        if kind == _TO_SWITCH:
            # In a VM the switches have no PCI address; they still count as one fabric.
            counted[peer or "", True] = counted.get((peer or "", True), 0) + 1
        elif kind == _TO_GPU and peer:
            counted[peer, False] = counted.get((peer, False), 0) + 1
    return tuple(
        NvLink(peer=peer, links=links, to_switch=to_switch)
        for (peer, to_switch), links in sorted(counted.items())
    )


def peers(cards: Sequence[CardQuery]) -> dict[str, tuple[str, ...]]:
    """Bus id -> bus ids whose memory it can read and write directly; left out where one answer is missing."""
    found: dict[str, list[str] | None] = {card.bus_id: [] for card in cards}
    for one, other in combinations(cards, 2):
        answers = [_status(one, other, index) for index in (_READ, _WRITE)]
        for here, there in ((one, other), (other, one)):
            known = found[here.bus_id]
            if None in answers:
                found[here.bus_id] = None
            elif known is not None and answers == [one.nvml.NVML_P2P_STATUS_OK] * 2:
                known.append(there.bus_id)
    return {bus_id: tuple(known) for bus_id, known in found.items() if known is not None}


def _status(one: CardQuery, other: CardQuery, index: int) -> int | None:
    """A lost card is not reported here: the call names both cards, and the card's own calls tell which it
    is."""
    nvml = one.nvml
    status: int | None = one.query.ask(
        f"GPU {one.bus_id}",
        f"p2p with {other.bus_id}",
        lambda: nvml.nvmlDeviceGetP2PStatus(one.handle, other.handle, index),
        quiet=(nvml.NVML_ERROR_GPU_IS_LOST,),
    )
    return status


def fabric(card: CardQuery) -> Fabric | None:
    """The fabric that the card has finished joining; None before, and where there is none."""
    nvml = card.nvml
    info = nvml.c_nvmlGpuFabricInfo_v2_t()
    if card.ask("fabric", nvml.nvmlDeviceGetGpuFabricInfoV, ctypes.byref(info)) is None:
        return None
    if info.state != nvml.NVML_GPU_FABRIC_STATE_COMPLETED or info.status != nvml.NVML_SUCCESS:
        return None
    return Fabric(cluster=str(uuid.UUID(bytes=bytes(info.clusterUuid))), clique=int(info.cliqueId))
