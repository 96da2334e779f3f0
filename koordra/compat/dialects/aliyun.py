"""Aliyun gpushare: memory in GiB (or MiB, as the plugin is set), summed over the pod's containers, on one card.

Only limits are read, and only those of ordinary containers; an init container gets what its pod has. Memory is counted and not
enforced: the container reads its part in variables and is trusted. So shares ask for no isolation unless the settings do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from koordra.compat.dialect import (
    GIB,
    NANOSECONDS,
    Allocated,
    Card,
    ContainerRequest,
    Dialect,
    Memory,
    NormalizedRequest,
    PodView,
    Settings,
    Share,
    Together,
    Variables,
    annotation,
    charges,
    environment,
    memory_unit_section,
    on_nodes,
    resource,
    setting,
    written,
)

ALIYUN: Final = "aliyun"
MEMORY: Final = "aliyun.com/gpu-mem"
COUNT: Final = "aliyun.com/gpu-count"
MULTI: Final = "scheduler.framework.gpushare.allocation"
_LARGEST_CARD: Final = 1 << 40

NAMES: Final = (
    resource(
        MEMORY,
        "GiB (MiB with --memory-unit=MiB); the sum over the pod lies on one card",
        "capacity `memory`; `matchAttribute: koordra.io/uuid` over the pod",
    ),
    resource(COUNT, "what a node has; not for pods", "refused: it cannot be asked for"),
    written("ALIYUN_COM_GPU_MEM_IDX", "card that was chosen"),
    written("ALIYUN_COM_GPU_MEM_POD", "memory of the pod"),
    written("ALIYUN_COM_GPU_MEM_DEV", "memory of the card"),
    written("ALIYUN_COM_GPU_MEM_ASSIGNED", "whether the plugin has taken it"),
    written("ALIYUN_COM_GPU_MEM_ASSUME_TIME", "when it was chosen"),
    written(MULTI, "cards that the commercial scheduler chose"),
    annotation(
        "aliyun.com/gpu-*",
        "other annotations",
        "decide the dialect, with a warning that nobody reads them",
    ),
    environment(
        "ALIYUN_COM_GPU_MEM_",
        "set by the plugin: card, memory of pod, container and card",
        "IDX, POD, CONTAINER and DEV are set by koordra to what the claim was given",
        provided=True,
    ),
    setting("--memory-unit", "GiB or MiB", "`aliyun.memoryUnit` in koordra's settings"),
    on_nodes(
        "cgpu.disable.isolation",
        "node label of the commercial plugin",
        "not read; `isolation.aliyun` in koordra's settings",
    ),
)


def parse(view: PodView) -> NormalizedRequest:
    return NormalizedRequest(view.shares(_share), together=Together.ONE_CARD, ignores_init=True)


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


def _environment(cards: Sequence[Card], pod: Sequence[Card], unit: int) -> Variables:
    return (
        ("ALIYUN_COM_GPU_MEM_IDX", str(cards[0].minor)),
        ("ALIYUN_COM_GPU_MEM_POD", str(sum(card.memory for card in pod) // unit)),
        ("ALIYUN_COM_GPU_MEM_CONTAINER", str(sum(card.memory for card in cards) // unit)),
        ("ALIYUN_COM_GPU_MEM_DEV", str(cards[0].total // unit)),
    )


def _annotations(found: Allocated) -> dict[str, str]:
    cards = {held.device.minor: held.device for held in found.gpus()}
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
    NAMES,
    parse,
    charges={MEMORY: charges.memory_in(_unit)},
    environment=_environment,
    annotations=_annotations,
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
