"""Annotations that other programs read from pods, in the words of the stack that a pod was written for. Pure.

    pod, its claims, the published devices ──> what each container has (held.py) ──> the dialect's annotations

    koordinator    scheduling.koordinator.sh/device-allocated     JSON, keys and spelling as Go writes it
    hami           hami.io/vgpu-devices-allocated, -node, -time, bind-time, bind-phase
    volcano-vgpu   volcano.sh/vgpu-ids-new, -node, -time, bind-time, bind-phase
    volcano-gpu    volcano.sh/gpu-index, predicate-time, gpu-assigned
    aliyun         ALIYUN_COM_GPU_MEM_IDX, _POD, _DEV, _ASSIGNED, _ASSUME_TIME
    tke            tencent.com/predicate-gpu-idx-<n>, predicate-node, predicate-time, gpu-assigned
    elastic-gpu    elasticgpu.io/container-<name>, elasticgpu.io/assumed

Others (plain, alnair) left nothing that is known to be read. What those stacks wrote for their own node programs to act on
(`vgpu-devices-to-allocate`) is not written. Times are those of the allocation, so that the same allocation is the same text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from koordra.api import names, objects
from koordra.api.objects import Object
from koordra.controller.peers.held import Allocated, Devices, Held, allocated
from koordra.quantity import canonical

DIALECT: Final = names.DOMAIN + "dialect"
"""Annotation of a pod that came through the shim: the dialect it was written in."""

MIB: Final = 1 << 20
VENDOR: Final = "NVIDIA"


def wanted(pod: Object, claims: Sequence[Object], devices: Devices) -> dict[str, str]:
    """The annotations of a bound pod whose claims are all allocated; none for dialects that left none."""
    write = _DIALECTS.get(objects.annotations_of(pod).get(DIALECT, ""))
    if write is None:
        return {}
    found = allocated(pod, claims, devices)
    return write(found) if found is not None and found.held else {}


# the dialects


def koordinator(found: Allocated) -> dict[str, str]:
    body: dict[str, list[Object]] = {}
    gpus = [_koordinator_gpu(held) for held in found.gpus()]
    nics = [
        _koordinator_nic(held) for held in found.held if held.device.kind in (names.TYPE_NIC, names.TYPE_VF)
    ]
    if gpus:
        body["gpu"] = gpus
    if nics:
        body["rdma"] = nics
    text = json.dumps(body, separators=(",", ":"), ensure_ascii=False)
    return {"scheduling.koordinator.sh/device-allocated": text}


def hami(found: Allocated) -> dict[str, str]:
    per_container = [_tuples(found, container) for container in found.containers]
    return {
        "hami.io/vgpu-devices-allocated": "".join(f"{text};" for text in per_container),
        "hami.io/vgpu-node": found.node,
        "hami.io/vgpu-time": str(found.at),
        "hami.io/bind-time": str(found.at),
        "hami.io/bind-phase": "success",
    }


def volcano_vgpu(found: Allocated) -> dict[str, str]:
    per_container = [_tuples(found, container) for container in found.app]
    return {
        "volcano.sh/vgpu-ids-new": ";".join(per_container),
        "volcano.sh/vgpu-node": found.node,
        "volcano.sh/vgpu-time": str(found.at),
        "volcano.sh/bind-time": str(found.at),
        "volcano.sh/bind-phase": "success",
    }


def volcano_gpu(found: Allocated) -> dict[str, str]:
    return {
        "volcano.sh/gpu-index": _indexes(found.gpus()),
        "volcano.sh/predicate-time": str(found.at * 1_000_000_000),
        "volcano.sh/gpu-assigned": "true",
    }


def aliyun(found: Allocated) -> dict[str, str]:
    cards = {held.device.minor: held.device for held in found.gpus()}
    if len(cards) != 1:
        return {}
    ((index, card),) = cards.items()
    return {
        "ALIYUN_COM_GPU_MEM_IDX": str(index),
        "ALIYUN_COM_GPU_MEM_POD": str(sum(held.memory for held in found.gpus()) // found.unit),
        "ALIYUN_COM_GPU_MEM_DEV": str(card.total // found.unit),
        "ALIYUN_COM_GPU_MEM_ASSIGNED": "true",
        "ALIYUN_COM_GPU_MEM_ASSUME_TIME": str(found.at * 1_000_000_000),
    }


def tke(found: Allocated) -> dict[str, str]:
    indexes = {
        f"tencent.com/predicate-gpu-idx-{number}": text
        for number, container in enumerate(found.app)
        if (text := _indexes(_of(found, container)))
    }
    return {
        **indexes,
        "tencent.com/predicate-node": found.node,
        "tencent.com/predicate-time": str(found.at * 1_000_000_000),
        "tencent.com/gpu-assigned": "true",
    }


def elastic_gpu(found: Allocated) -> dict[str, str]:
    indexes = {
        f"elasticgpu.io/container-{container}": text
        for container in found.app
        if (text := _indexes(_of(found, container)))
    }
    return {**indexes, "elasticgpu.io/assumed": "true"}


_DIALECTS: Final[Mapping[str, Callable[[Allocated], dict[str, str]]]] = {
    "koordinator": koordinator,
    "hami": hami,
    "volcano-vgpu": volcano_vgpu,
    "volcano-gpu": volcano_gpu,
    "aliyun": aliyun,
    "tke": tke,
    "elastic-gpu": elastic_gpu,
}


# parts


def _koordinator_gpu(held: Held) -> Object:
    total = held.device.total
    ratio = held.memory * 100 // total if total else 0
    amounts = {
        "koordinator.sh/gpu-memory": canonical(held.memory),
        "koordinator.sh/gpu-memory-ratio": str(ratio),
    }
    cores = 100 if total and held.memory >= total else held.cores
    if cores:
        amounts["koordinator.sh/gpu-core"] = str(cores)
    return {"minor": held.device.minor, "resources": dict(sorted(amounts.items())), "id": held.device.uuid}


def _koordinator_nic(held: Held) -> Object:
    device = held.device
    virtual = device.kind == names.TYPE_VF
    found: Object = {
        "minor": device.parent_minor if virtual else device.minor,
        "resources": {"koordinator.sh/rdma": str(1 if virtual else held.share)},
        "id": device.parent_bus_id if virtual else device.bus_id,
    }
    if virtual:
        found["extension"] = {"vfs": [{"minor": -1, "busID": device.bus_id}]}
    return found


def _tuples(found: Allocated, container: str) -> str:
    return "".join(
        f"{held.device.uuid},{VENDOR},{held.memory // MIB},{held.cores}:" for held in _of(found, container)
    )


def _of(found: Allocated, container: str) -> list[Held]:
    return [held for held in found.gpus() if container in held.containers]


def _indexes(held: Iterable[Held]) -> str:
    return ",".join(str(index) for index in sorted({one.device.minor for one in held}))
