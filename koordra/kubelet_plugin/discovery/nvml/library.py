"""GPU facts from NVML; the only module that loads the NVIDIA management library.

A GPU fact comes from one of three sources behind one small protocol, :class:`GpuFactsSource`:

* :class:`NvmlLibrary`, the real library through ``nvidia-ml-py`` (which loads it when first asked, so that
  machines without GPUs need neither library nor driver);
* :class:`RecordedNvml`, a file ``nvml.json`` beside a captured or made-up machine, in the format of
  ``recorded``;
* none: discovery then falls back to /proc/driver/nvidia, which has identities but not sizes.

NVMLError never leaves this package; ``query`` says how single calls may fail.
"""

from __future__ import annotations

import contextlib
import ctypes
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations
from typing import Any

import pynvml

from koordra.kubelet_plugin.discovery.nvml.mig import mig_facts
from koordra.kubelet_plugin.discovery.nvml.query import (
    UUID,
    CardQuery,
    NvmlFacts,
    NvmlQuery,
    normal_bus_id,
    text,
)
from koordra.kubelet_plugin.discovery.result import Problem
from koordra.topology.machine import Gpu, Location, NvLink
from koordra.topology.partitions import Fabric

# nvmlDeviceArchitecture_t; newer numbers are unknown rather than guessed.
ARCHITECTURES = {
    2: "Kepler",
    3: "Maxwell",
    4: "Pascal",
    5: "Volta",
    6: "Turing",
    7: "Ampere",
    8: "Ada",
    9: "Hopper",
    10: "Blackwell",
    13: "Rubin",
}

# NVML_FI_DEV_GET_GPU_RECOVERY_ACTION and nvmlDeviceGpuRecoveryAction_t; older bindings do not name them.
_RECOVERY_ACTION = 230
_NOTHING, _REBOOTS = 0, (2, 7)


class NvmlUnavailable(Exception):
    """The library cannot be used at all. Stays within discovery."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(problem)
        self.problem = Problem("NVML", "library", problem, remedy)


@contextmanager
def session() -> Iterator[Any]:
    """The library, initialised; NvmlUnavailable where that cannot be."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise NvmlUnavailable(str(error), "check that the NVIDIA driver is installed and loaded") from error
    try:
        yield pynvml
    finally:
        # All answers have been read.
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


class NvmlLibrary:
    """The real library. Initialised and shut down in every reading, so that a driver can be reloaded in
    between."""

    def read(self) -> NvmlFacts:
        try:
            with session() as nvml:
                return _facts(NvmlQuery(nvml))
        except NvmlUnavailable as error:
            return NvmlFacts(problems=(error.problem,))


def _facts(query: NvmlQuery) -> NvmlFacts:
    nvml = query.nvml
    driver = query.ask("NVML", "driverVersion", nvml.nvmlSystemGetDriverVersion)
    cuda = query.ask("NVML", "cudaDriverVersion", nvml.nvmlSystemGetCudaDriverVersion_v2)
    count = query.ask("NVML", "count", nvml.nvmlDeviceGetCount) or 0
    cards = [card for card in (_card(query, index) for index in range(count)) if card]
    reachable = peers(cards)
    gpus = tuple(_gpu(card, reachable.get(card.bus_id)) for card in cards)
    return NvmlFacts(
        driver_version=text(driver),
        cuda_version=cuda if isinstance(cuda, int) and cuda > 0 else None,
        gpus=gpus,
        problems=tuple(query.problems),
    )


def _card(query: NvmlQuery, index: int) -> CardQuery | None:
    nvml = query.nvml
    handle = query.ask(f"GPU index {index}", "handle", lambda: nvml.nvmlDeviceGetHandleByIndex(index))
    if handle is None:
        return None
    pci = query.ask(f"GPU index {index}", "pciBusID", lambda: nvml.nvmlDeviceGetPciInfo(handle))
    bus_id = normal_bus_id(text(pci.busId) or "") if pci is not None else None
    return CardQuery(query, bus_id, handle) if bus_id else None


def _gpu(card: CardQuery, reachable: tuple[str, ...] | None) -> Gpu:
    nvml, ask = card.nvml, card.ask
    uuid = text(ask("uuid", nvml.nvmlDeviceGetUUID))
    memory = ask("memory", nvml.nvmlDeviceGetMemoryInfo)
    capability = ask("cudaComputeCapability", nvml.nvmlDeviceGetCudaComputeCapability)
    mig = mig_facts(card)
    recovered = _recovered(card)
    return Gpu(
        location=Location(card.bus_id, ()),
        uuid=uuid if uuid and UUID.fullmatch(uuid) else None,
        minor=ask("minor", nvml.nvmlDeviceGetMinorNumber),
        product_name=text(ask("productName", nvml.nvmlDeviceGetName)),
        memory_bytes=int(memory.total) if memory is not None and memory.total else None,
        architecture=ARCHITECTURES.get(ask("architecture", nvml.nvmlDeviceGetArchitecture)),
        compute_capability=f"{capability[0]}.{capability[1]}" if capability else None,
        mig_enabled=mig.enabled,
        nvlinks=nvlinks(card),
        mig_profiles=mig.profiles,
        mig_instances=mig.instances,
        fabric=fabric(card),
        peers=reachable,
        faults=tuple(sorted(card.faults)),
        recovered=recovered,
        disputed=("migMode",) if mig.unknown else (),
    )


def _recovered(card: CardQuery) -> bool | None:
    """Whether the driver reports that the card needs neither reset nor reboot (drivers since R560)."""
    values = card.ask("recoveryAction", card.nvml.nvmlDeviceGetFieldValues, [_RECOVERY_ACTION])
    if not values or values[0].nvmlReturn != card.nvml.NVML_SUCCESS:
        return None
    action = values[0].value.uiVal
    if action != _NOTHING:
        fault = "NeedsReboot" if action in _REBOOTS else "NeedsReset"
        card.faults.add(fault)
        card.problem("recoveryAction", f"the driver says {fault} ({action})", "drain the card, then do so")
    return bool(action == _NOTHING)


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
