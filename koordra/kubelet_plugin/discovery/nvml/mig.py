"""MIG from NVML: the mode of a card, its instances and its profiles.

Only a GPU instance with exactly one compute instance that covers it is taken. The compute instances of a GPU
instance that is divided further share its memory without a limit, so they are reported and left out.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from dataclasses import dataclass
from typing import Any

from koordra.kubelet_plugin.discovery.nvml.query import CardQuery, text
from koordra.topology.partitions import MIG_PROFILE, MIG_UUID, MigInstance, MigProfile

_MIB = 1 << 20
_MOST_PLACEMENTS = 64


@dataclass(frozen=True, slots=True)
class MigFacts:
    """``enabled`` is None if the card has no MIG; ``unknown`` if it may have MIG and did not answer."""

    enabled: bool | None = None
    unknown: bool = False
    profiles: tuple[MigProfile, ...] = ()
    instances: tuple[MigInstance, ...] = ()


def mig_facts(card: CardQuery) -> MigFacts:
    nvml = card.nvml
    failures: list[int] = []
    mode = card.ask("migMode", nvml.nvmlDeviceGetMigMode, failed=failures.append)
    if not mode:
        return MigFacts(unknown=bool(failures))
    current, pending = mode
    if current != pending:
        card.problem("migMode", "a change of the MIG mode waits for a reset", "reset the GPU (nvidia-smi -r)")
    profiles = _profiles(card)
    enabled = current == nvml.NVML_DEVICE_MIG_ENABLE
    return MigFacts(
        enabled=enabled, profiles=profiles, instances=_instances(card, profiles) if enabled else ()
    )


def _profiles(card: CardQuery) -> tuple[MigProfile, ...]:
    """The card's MIG profiles. Profiles that the product lacks answer "invalid argument" or "not
    supported"."""
    nvml = card.nvml
    quiet = (nvml.NVML_ERROR_INVALID_ARGUMENT,)
    found: dict[int, MigProfile] = {}
    for number in range(nvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        subject = f"MIG profile {number}"
        info = card.ask(subject, nvml.nvmlDeviceGetGpuInstanceProfileInfo, number, quiet=quiet)
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
            found[info.id] = _profile(info, name, placements)
    return tuple(found[number] for number in sorted(found))


def _profile(info: Any, name: str, placements: tuple[tuple[int, int], ...]) -> MigProfile:
    return MigProfile(
        id=info.id,
        name=name,
        memory_bytes=info.memorySizeMB * _MIB,
        compute_slices=info.sliceCount,
        most=info.instanceCount,
        placements=placements,
        copy_engines=info.copyEngineCount,
        decoders=info.decoderCount,
        encoders=info.encoderCount,
        jpeg_engines=info.jpegCount,
        ofa_engines=info.ofaCount,
    )


def _placements(card: CardQuery, subject: str, profile: int) -> tuple[tuple[int, int], ...] | None:
    nvml = card.nvml
    count = ctypes.c_uint(0)
    ask = nvml.nvmlDeviceGetGpuInstancePossiblePlacements
    if card.ask(subject, ask, profile, None, ctypes.byref(count)) is None:
        return None
    room = (nvml.c_nvmlGpuInstancePlacement_t * min(count.value, _MOST_PLACEMENTS))()
    count = ctypes.c_uint(len(room))
    if card.ask(subject, ask, profile, room, ctypes.byref(count)) is None:
        return None
    return tuple(sorted((place.start, place.size) for place in room[: count.value]))


def _instances(card: CardQuery, profiles: tuple[MigProfile, ...]) -> tuple[MigInstance, ...]:
    """The instances that exist. A slot without one answers "not found"."""
    nvml = card.nvml
    quiet = (nvml.NVML_ERROR_NOT_FOUND, nvml.NVML_ERROR_INVALID_ARGUMENT)
    most = card.ask("MIG devices", nvml.nvmlDeviceGetMaxMigDeviceCount) or 0
    found = []
    for index in range(most):
        handle = card.ask("MIG devices", nvml.nvmlDeviceGetMigDeviceHandleByIndex, index, quiet=quiet)
        if handle is not None:
            instance = _instance(CardQuery(card.query, card.bus_id, handle), card, index)
            if instance is not None:
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


def _instance(mig: CardQuery, card: CardQuery, index: int) -> MigInstance | None:
    """One MIG device; None where anything but its UUID is missing, since then it is not known what it is."""
    nvml, subject = mig.nvml, f"MIG device {index}"
    gpu_instance = mig.ask(subject, nvml.nvmlDeviceGetGpuInstanceId)
    compute_instance = mig.ask(subject, nvml.nvmlDeviceGetComputeInstanceId)
    attributes = mig.ask(subject, nvml.nvmlDeviceGetAttributes_v2)
    uuid = text(mig.ask(subject, nvml.nvmlDeviceGetUUID))
    card.faults |= mig.faults
    if None in (gpu_instance, compute_instance, attributes):
        return None
    if attributes.computeInstanceSliceCount != attributes.gpuInstanceSliceCount:
        card.problem(subject, "its compute instance does not cover its GPU instance", "make one that does")
        return None
    instance = card.ask(subject, nvml.nvmlDeviceGetGpuInstanceById, gpu_instance)
    info = (
        card.query.ask(f"GPU {card.bus_id}", subject, lambda: nvml.nvmlGpuInstanceGetInfo(instance))
        if instance is not None
        else None
    )
    if info is None:
        return None
    return MigInstance(
        gpu_instance=gpu_instance,
        compute_instance=compute_instance,
        profile_id=info.profileId,
        start=info.placement.start,
        size=info.placement.size,
        uuid=uuid if uuid and MIG_UUID.fullmatch(uuid) else None,
    )
