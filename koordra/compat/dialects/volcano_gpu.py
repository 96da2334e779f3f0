"""Volcano gpu-share, the older of Volcano's sharing stacks: `gpu-memory` of a pod is summed and lies on one card, `gpu-number` is
whole cards; a node offers one of the two. The memory is counted and not kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from koordra.compat.dialect import (
    MIB,
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
    charges,
    environment,
    number_section,
    on_nodes,
    resource,
    scheduler,
    setting,
    written,
)

NAME: Final = "volcano-gpu"
MEMORY: Final = "volcano.sh/gpu-memory"
NUMBER: Final = "volcano.sh/gpu-number"

NAMES: Final = (
    resource(
        MEMORY,
        "MiB times GPU_MEMORY_FACTOR; the sum over the pod lies on one card",
        "capacity `memory`; `matchAttribute: koordra.io/uuid` over the pod",
    ),
    resource(NUMBER, "whole cards", "`count`, no capacity: all of each card"),
    written("volcano.sh/gpu-index", "cards that were chosen"),
    written("volcano.sh/predicate-time", "when they were chosen"),
    written("volcano.sh/gpu-assigned", "whether the plugin has taken them"),
    environment(
        "VOLCANO_GPU_",
        "set by the device plugin: memory that was given",
        "ALLOCATED and MEMORY_TOTAL are set by koordra to what the claim was given",
        provided=True,
    ),
    setting(
        "--gpu-memory-factor",
        "unit of the memory in MiB",
        "`volcanoGpu.gpuMemoryFactor` in koordra's settings",
    ),
    scheduler("volcano", "Volcano's scheduler", "stays, with a warning: it has to honour ResourceClaims"),
    on_nodes("volcano.sh/gpu-unhealthy-ids", "cards that failed", "device taints tell it"),
)


def _factor(settings: Settings) -> int:
    return int(settings.option("volcanoGpu", "gpuMemoryFactor", 1))


def parse(view: PodView) -> NormalizedRequest:
    shared, whole = view.shares(_memory), view.shares(_cards)
    if shared and whole:
        both = " and ".join(sorted(view.settings.name(name) for name in (MEMORY, NUMBER)))
        raise view.notes.refuse(
            view.where, f"asks for {both}, and a node offers one of the two", "use one of them"
        )
    return NormalizedRequest(
        shared or whole, together=Together.ONE_CARD if shared else Together.PER_CONTAINER
    )


def _memory(request: ContainerRequest) -> Share | None:
    units = request.limit(MEMORY) or 0
    memory = Memory(bytes=units * _factor(request.pod.settings) * MIB)
    return request.share(1, memory=memory) if units else None


def _cards(request: ContainerRequest) -> Share | None:
    count = request.limit(NUMBER)
    return request.share(count) if count else None


def _environment(cards: Sequence[Card], _pod: Sequence[Card], _unit: int) -> Variables:
    if not cards[0].is_share:
        return ()
    return (
        ("VOLCANO_GPU_ALLOCATED", str(cards[0].memory // MIB)),
        ("VOLCANO_GPU_MEMORY_TOTAL", str(cards[0].total // MIB)),
    )


def _annotations(found: Allocated) -> dict[str, str]:
    return {
        "volcano.sh/gpu-index": found.minors(),
        "volcano.sh/predicate-time": str(found.at * NANOSECONDS),
        "volcano.sh/gpu-assigned": "true",
    }


DIALECT: Final = Dialect(
    NAME,
    "Volcano gpu-share",
    NAMES,
    parse,
    charges={
        NUMBER: charges.whole_cards,
        MEMORY: charges.memory_in(lambda settings: MIB * _factor(settings), of_shares=True),
    },
    environment=_environment,
    annotations=_annotations,
    publishers=(("volcano.sh/gpu-", "Volcano's device plugin"),),
    like_resources=("volcano.sh/gpu",),
    like_annotations=("volcano.sh/gpu-",),
    sections={"volcanoGpu": partial(number_section, name="gpuMemoryFactor")},
)
