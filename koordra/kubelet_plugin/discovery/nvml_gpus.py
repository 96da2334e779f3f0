"""Facts of the GPUs from NVML: identity, size, NVLinks, fabric, and MIG.

The library is initialised and shut down in every reading, so that a driver can be reloaded in between. Where
there is none, discovery falls back to /proc/driver/nvidia, which has identities but not sizes; a captured or
made-up machine has a recording (nvml_recording.py).

Of MIG, only a GPU instance with exactly one compute instance that covers it is taken. The compute instances
of a GPU instance that is divided further share its memory without a limit, so they are reported and left out.
"""

from __future__ import annotations

import ctypes
import uuid
from collections import Counter
from dataclasses import replace
from typing import Any

from koordra.kubelet_plugin.discovery.gpu_health import health, judge_fabric
from koordra.kubelet_plugin.discovery.nvml_query import (
    UUID,
    NvmlFacts,
    NvmlQuery,
    bus_id_of,
    matching,
    text,
)
from koordra.kubelet_plugin.nvidia_driver.nvml_session import (
    BY_NAME,
    NvmlLetGo,
    NvmlLibrary,
    NvmlUnavailable,
)
from koordra.topology.location import Location
from koordra.topology.machine import Gpu, NvLink
from koordra.topology.partitions import MIG_PROFILE, MIG_UUID, FabricInfo, MigInstance, MigProfile
from koordra.topology.problems import Problem

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

# CUDA cores of a multiprocessor by compute capability, for what can be in MIG mode (NVIDIA's CUDA C++
# Programming Guide, "Arithmetic Instructions": 32-bit floating-point results per clock cycle).
_CUDA_CORES = {(8, 0): 64, (9, 0): 128, (10, 0): 128, (10, 3): 128, (12, 0): 128}

_MIB = 1 << 20
_MOST_PLACEMENTS = 64


def nvml_facts(library: NvmlLibrary = BY_NAME) -> NvmlFacts:
    return LastFacts(library)()


class LastFacts:
    """What NVML says; while it is let go, what it said last, but for its word that a card needs no reset."""

    def __init__(self, library: NvmlLibrary) -> None:
        self._library = library
        self._last: NvmlFacts | None = None

    def __call__(self) -> NvmlFacts:
        try:
            with self._library.session() as nvml:
                self._last = _facts(NvmlQuery(nvml, []), self._library)
                return self._last
        except NvmlUnavailable as error:
            if isinstance(error, NvmlLetGo) and self._last is not None:
                return replace(
                    self._last, gpus=tuple(replace(gpu, recovered=None) for gpu in self._last.gpus)
                )
            self._last = None
            remedy = "check that the NVIDIA driver is installed and loaded"
            return NvmlFacts(problems=(Problem("NVML", "library", str(error), remedy),))


def _facts(query: NvmlQuery, library: NvmlLibrary) -> NvmlFacts:
    """Raises NvmlLetGo: a card takes a second to say everything where nothing keeps it awake."""
    driver = query.ask("driverVersion", "nvmlSystemGetDriverVersion")
    cuda = query.ask("cudaDriverVersion", "nvmlSystemGetCudaDriverVersion_v2")
    gpus = []
    for index in range(query.ask("count", "nvmlDeviceGetCount") or 0):
        library.require()
        card = _card(query, index)
        if card is not None:
            gpus.append(_gpu(card))
    return NvmlFacts(
        driver_version=text(driver),
        cuda_version=cuda if isinstance(cuda, int) and cuda > 0 else None,
        gpus=tuple(gpus),
        problems=tuple(query.problems),
    )


def _card(query: NvmlQuery, index: int) -> NvmlQuery | None:
    """The query of one card; None for a card that cannot be told from others."""
    card = replace(query, subject=f"GPU index {index}")
    card.handle = card.ask("handle", "nvmlDeviceGetHandleByIndex", index)
    pci = card.ask("pciBusID", "nvmlDeviceGetPciInfo") if card.handle is not None else None
    bus_id = bus_id_of(pci)
    return NvmlQuery(query.nvml, query.problems, f"GPU {bus_id}", bus_id, card.handle) if bus_id else None


def _gpu(card: NvmlQuery) -> Gpu:
    ask = card.ask
    state = health(card)
    capability = ask("cudaComputeCapability", "nvmlDeviceGetCudaComputeCapability")
    cores = ask("cores", "nvmlDeviceGetNumGpuCores")
    gpu = Gpu(
        location=Location(card.bus_id),
        uuid=matching(UUID, text(ask("uuid", "nvmlDeviceGetUUID"))),
        minor=ask("minor", "nvmlDeviceGetMinorNumber"),
        product_name=text(ask("productName", "nvmlDeviceGetName")),
        memory_bytes=_usable_memory(card),
        architecture=ARCHITECTURES.get(ask("architecture", "nvmlDeviceGetArchitecture")),
        compute_capability=f"{capability[0]}.{capability[1]}" if capability else None,
        multiprocessors=cores // _CUDA_CORES.get(tuple(capability), cores + 1) or None
        if cores and capability
        else None,
        nvlinks=nvlinks(card),
        fabric=fabric(card),
        recovered=state.recovered,
        errors=state.errors,
    )
    return replace(_with_mig(gpu, card), faults=tuple(sorted(card.faults)))


def _usable_memory(card: NvmlQuery) -> int | None:
    """Bytes that programs can have: the card's memory without what the driver keeps for itself, which drivers
    since R510 tell. None where it is not known."""
    version = card.nvml.nvmlMemory_v2
    memory = card.ask("memory", "nvmlDeviceGetMemoryInfo", version)
    if memory is not None:
        return max(0, int(memory.total - memory.reserved)) or None
    if "memory" in card.failed:
        return None
    memory = card.ask("memory", "nvmlDeviceGetMemoryInfo")
    return int(memory.total) if memory is not None and memory.total else None


_TO_GPU, _TO_SWITCH = 0, 2  # nvmlIntNvLinkDeviceType_t


def nvlinks(card: NvmlQuery) -> tuple[NvLink, ...]:
    """Active links, counted by peer. Links that the product does not have answer "invalid argument"."""
    nvml = card.nvml
    quiet = (nvml.NVML_ERROR_INVALID_ARGUMENT,)
    counted: Counter[tuple[str, bool]] = Counter()
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        name = f"nvlink {link}"
        if card.ask(name, "nvmlDeviceGetNvLinkState", link, quiet=quiet) != nvml.NVML_FEATURE_ENABLED:
            continue
        kind = card.ask(name, "nvmlDeviceGetNvLinkRemoteDeviceType", link, quiet=quiet)
        pci = card.ask(name, "nvmlDeviceGetNvLinkRemotePciInfo", link, quiet=quiet)
        peer = bus_id_of(pci) or ""
        # In a VM the switches have no PCI address; they still count as one fabric.
        if kind == _TO_SWITCH or (kind == _TO_GPU and peer):
            counted[peer, kind == _TO_SWITCH] += 1
    return tuple(NvLink(peer, links, to_switch) for (peer, to_switch), links in sorted(counted.items()))


def fabric(card: NvmlQuery) -> FabricInfo | None:
    """The fabric over several nodes that the card has finished joining; None before, and where there is
    none: a fabric within one machine has a cluster UUID of zeros."""
    nvml = card.nvml
    info = nvml.c_nvmlGpuFabricInfo_v2_t()
    answer = card.ask("fabric", "nvmlDeviceGetGpuFabricInfoV", ctypes.byref(info))
    if answer is None:
        return None
    judge_fabric(card, info)
    if info.state != nvml.NVML_GPU_FABRIC_STATE_COMPLETED or info.status != nvml.NVML_SUCCESS:
        return None
    cluster = uuid.UUID(bytes=bytes(info.clusterUuid))
    return FabricInfo(cluster=str(cluster), clique=int(info.cliqueId)) if cluster.int else None


def _with_mig(gpu: Gpu, card: NvmlQuery) -> Gpu:
    """The card with its MIG mode, profiles and instances; disputed if it may have MIG and did not answer."""
    nvml = card.nvml
    mode = card.ask("migMode", "nvmlDeviceGetMigMode")
    if not mode:
        return replace(gpu, disputed=("migMode",)) if "migMode" in card.failed else gpu
    current, pending = mode
    if current != pending:
        card.faults.add("MigModePending")
        card.problem("migMode", "a change of the MIG mode waits for a reset", "reset the GPU (nvidia-smi -r)")
    profiles, enabled = _profiles(card), current == nvml.NVML_DEVICE_MIG_ENABLE
    instances = _instances(card, profiles) if enabled else ()
    return replace(
        gpu,
        mig_enabled=enabled,
        mig_profiles=profiles,
        mig_instances=instances,
        mig_halves=_halves(card, profiles, instances) if enabled else (),
    )


def _profiles(card: NvmlQuery) -> tuple[MigProfile, ...]:
    """The card's MIG profiles. Those the product lacks answer "invalid argument" or "not supported"."""
    nvml = card.nvml
    quiet = (nvml.NVML_ERROR_INVALID_ARGUMENT,)
    found: dict[int, MigProfile] = {}
    for number in range(nvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        subject = f"MIG profile {number}"
        info = card.ask(subject, "nvmlDeviceGetGpuInstanceProfileInfo", number, quiet=quiet)
        if info is None:
            continue
        name = (text(info.name) or "").removeprefix("MIG ")
        if not MIG_PROFILE.fullmatch(name):
            card.problem(
                subject, f"its name is {name!r}", "update the NVIDIA driver; the profile is not offered"
            )
            continue
        placements = _placements(card, subject, info.id)
        if placements is not None:
            found[info.id] = MigProfile(
                id=info.id,
                name=name,
                memory_bytes=info.memorySizeMB * _MIB,
                compute_slices=info.sliceCount,
                most=info.instanceCount,
                placements=placements,
                multiprocessors=info.multiprocessorCount,
                copy_engines=info.copyEngineCount,
                decoders=info.decoderCount,
                encoders=info.encoderCount,
                jpeg_engines=info.jpegCount,
                ofa_engines=info.ofaCount,
            )
    return tuple(found[number] for number in sorted(found))


def _placements(card: NvmlQuery, subject: str, profile: int) -> tuple[tuple[int, int], ...] | None:
    nvml = card.nvml
    count = ctypes.c_uint(0)
    call = "nvmlDeviceGetGpuInstancePossiblePlacements"
    if card.ask(subject, call, profile, None, ctypes.byref(count)) is None:
        return None
    room = (nvml.c_nvmlGpuInstancePlacement_t * min(count.value, _MOST_PLACEMENTS))()
    count = ctypes.c_uint(len(room))
    if card.ask(subject, call, profile, room, ctypes.byref(count)) is None:
        return None
    return tuple(sorted((place.start, place.size) for place in room[: count.value]))


def _instances(card: NvmlQuery, profiles: tuple[MigProfile, ...]) -> tuple[MigInstance, ...]:
    """The instances that exist. A slot without one answers "not found"."""
    nvml = card.nvml
    quiet = (nvml.NVML_ERROR_NOT_FOUND, nvml.NVML_ERROR_INVALID_ARGUMENT)
    most = card.ask("MIG devices", "nvmlDeviceGetMaxMigDeviceCount") or 0
    found = []
    for index in range(most):
        handle = card.ask("MIG devices", "nvmlDeviceGetMigDeviceHandleByIndex", index, quiet=quiet)
        if handle is not None and (instance := _instance(replace(card, handle=handle), card, index)):
            found.append(instance)
    parts = Counter(instance.gpu_instance for instance in found)
    known = {profile.id for profile in profiles}
    whole = []
    for instance in found:
        subject = f"MIG instance {instance.gpu_instance}"
        if parts[instance.gpu_instance] > 1:
            card.problem(subject, "it is cut into several compute instances", "make one that covers it")
        elif instance.profile_id not in known:
            card.problem(subject, f"profile {instance.profile_id} is not known", "update the NVIDIA driver")
        else:
            whole.append(instance)
    return tuple(sorted(whole, key=lambda instance: (instance.start, instance.gpu_instance)))


def _halves(
    card: NvmlQuery, profiles: tuple[MigProfile, ...], whole: tuple[MigInstance, ...]
) -> tuple[tuple[int, int, int], ...] | None:
    """Profile id, start and size of the GPU instances that are none of `whole`. They have no MIG device, so
    that they are asked for by profile. None where the driver does not say."""
    known = {instance.gpu_instance for instance in whole}
    found = []
    for profile in profiles:
        listed = gpu_instances(card, profile)
        if listed is None:
            return None
        for instance in listed:
            info = replace(card, handle=instance).ask("GPU instances", "nvmlGpuInstanceGetInfo")
            if info is None:
                return None
            if info.id not in known:
                found.append((profile.id, info.placement.start, info.placement.size))
    return tuple(sorted(found))


def gpu_instances(card: NvmlQuery, profile: MigProfile) -> list[Any] | None:
    """The handles of the profile's GPU instances; None where the driver does not say."""
    room = (card.nvml.c_nvmlGpuInstance_t * profile.most)()
    count = ctypes.c_uint(0)
    call, quiet = "nvmlDeviceGetGpuInstances", (card.nvml.NVML_ERROR_NO_PERMISSION,)
    done = card.ask("GPU instances", call, profile.id, room, ctypes.byref(count), quiet=quiet)
    return None if done is None else list(room[: count.value])


def _instance(mig: NvmlQuery, card: NvmlQuery, index: int) -> MigInstance | None:
    """One MIG device; None where anything but its UUID is missing, since then it is not known what it is."""
    subject = f"MIG device {index}"
    gpu_instance = mig.ask(subject, "nvmlDeviceGetGpuInstanceId")
    compute_instance = mig.ask(subject, "nvmlDeviceGetComputeInstanceId")
    attributes = mig.ask(subject, "nvmlDeviceGetAttributes_v2")
    uuid = matching(MIG_UUID, text(mig.ask(subject, "nvmlDeviceGetUUID")))
    if None in (gpu_instance, compute_instance, attributes):
        return None
    if attributes.computeInstanceSliceCount != attributes.gpuInstanceSliceCount:
        card.problem(subject, "its compute instance does not cover its GPU instance", "make one that does")
        return None
    instance = card.ask(subject, "nvmlDeviceGetGpuInstanceById", gpu_instance)
    info = instance and replace(card, handle=instance).ask(subject, "nvmlGpuInstanceGetInfo")
    if info is None:
        return None
    return MigInstance(
        gpu_instance=gpu_instance,
        compute_instance=compute_instance,
        profile_id=info.profileId,
        start=info.placement.start,
        size=info.placement.size,
        uuid=uuid,
    )
