"""Aliyun gpushare: memory in GiB (or MiB, as the plugin is set), summed over the pod's containers, on one
card.

Only limits are read, and only those of ordinary containers; an init container gets what its pod has. Memory
is counted and not enforced: the container reads its part in variables and is trusted. So shares ask for no
isolation unless the settings do.
"""

from __future__ import annotations

from typing import Final

from koordra.compat.dialect import (
    GIB,
    NANOSECONDS,
    Allocated,
    ContainerRequest,
    Dialect,
    Granted,
    Memory,
    NormalizedRequest,
    PodView,
    Settings,
    Share,
    Sharing,
    Variables,
    charges,
    memory_unit_section,
)

ALIYUN: Final = "aliyun"
MEMORY: Final = "aliyun.com/gpu-mem"
COUNT: Final = "aliyun.com/gpu-count"
_LARGEST_CARD: Final = 1 << 40


def parse(view: PodView) -> NormalizedRequest:
    return NormalizedRequest(view.shares(_share), together=Sharing.ONE_CARD, ignores_init=True)


def _share(request: ContainerRequest) -> Share | None:
    if request.has(COUNT):
        raise request.refuse(COUNT, "is what a node has and cannot be asked for", f"ask for {MEMORY}")
    units = request.limit(MEMORY)
    if units is None:
        return None
    unit = _unit(request.pod.settings)
    if units * unit >= _LARGEST_CARD and unit == GIB:
        request.warn(
            MEMORY,
            f"{units}GiB is more than any card has",
            "is the unit MiB? say so: aliyun: {memoryUnit: MiB}",
        )
    return request.share(1 if units else 0, memory=Memory(bytes=units * unit))


def _unit(settings: Settings) -> int:
    return int(settings.option(ALIYUN, "memoryUnit", GIB))


def _environment(granted: Granted) -> Variables:
    first = granted.cards[0]
    return (
        ("ALIYUN_COM_GPU_MEM_IDX", str(first.minor)),
        ("ALIYUN_COM_GPU_MEM_POD", str(sum(card.memory for card in granted.pod) // granted.unit)),
        ("ALIYUN_COM_GPU_MEM_CONTAINER", str(sum(card.memory for card in granted.cards) // granted.unit)),
        ("ALIYUN_COM_GPU_MEM_DEV", str(first.total // granted.unit)),
    )


def _annotations(found: Allocated) -> dict[str, str]:
    cards = {held.minor: held for held in found.gpus()}
    if len(cards) != 1:
        return {}
    ((index, card),) = cards.items()
    return {
        "ALIYUN_COM_GPU_MEM_IDX": str(index),
        "ALIYUN_COM_GPU_MEM_POD": str(sum(held.memory for held in found.gpus()) // found.unit),
        "ALIYUN_COM_GPU_MEM_DEV": str(card.total // found.unit),
        "ALIYUN_COM_GPU_MEM_ASSIGNED": "true",
        "ALIYUN_COM_GPU_MEM_ASSUME_TIME": str(found.at * NANOSECONDS),
    }


DIALECT: Final = Dialect(
    ALIYUN,
    "Aliyun gpushare",
    parse,
    {MEMORY: charges.memory_in(_unit), COUNT: None},
    annotations=("aliyun.com/gpu-*",),
    written=(
        "ALIYUN_COM_GPU_MEM_IDX",
        "ALIYUN_COM_GPU_MEM_POD",
        "ALIYUN_COM_GPU_MEM_DEV",
        "ALIYUN_COM_GPU_MEM_ASSIGNED",
        "ALIYUN_COM_GPU_MEM_ASSUME_TIME",
        "scheduler.framework.gpushare.allocation",
    ),
    provided_variables=("ALIYUN_COM_GPU_MEM_",),
    environment=_environment,
    allocation_annotations=_annotations,
    memory_unit=_unit,
    node_labels={
        "aliyun.accelerator/nvidia_name": lambda cards: cards.product,
        "aliyun.accelerator/nvidia_count": lambda cards: str(cards.count),
        "aliyun.accelerator/nvidia_mem": lambda cards: f"{cards.memory}MiB" if cards.memory else "",
    },
    publishers=(("aliyun.com/gpu-", "Aliyun's gpushare device plugin"),),
    schedulers={"gpushare-scheduler": False},
    like_resources=("aliyun.com/gpu",),
    like_annotations=("aliyun.com/gpu",),
    sections={ALIYUN: memory_unit_section},
)
