"""Volcano gpu-share, the older of Volcano's sharing stacks: `gpu-memory` of a pod is summed and lies on one
card, `gpu-number` is whole cards; a node offers one of the two. The memory is counted and not kept.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from koordra.compat.dialect import (
    MIB,
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
    number_section,
)

NAME: Final = "volcano-gpu"
MEMORY: Final = "volcano.sh/gpu-memory"
NUMBER: Final = "volcano.sh/gpu-number"


def _factor(settings: Settings) -> int:
    return int(settings.option("volcanoGpu", "gpuMemoryFactor", 1))


def parse(view: PodView) -> NormalizedRequest:
    shared, whole = view.shares(_memory), view.shares(_cards)
    if shared and whole:
        both = " and ".join(sorted(view.settings.name(name) for name in (MEMORY, NUMBER)))
        raise view.notes.refuse(
            view.where, f"asks for {both}, and a node offers one of the two", "use one of them"
        )
    return NormalizedRequest(shared or whole, together=Sharing.ONE_CARD if shared else Sharing.PER_CONTAINER)


def _memory(request: ContainerRequest) -> Share | None:
    units = request.limit(MEMORY) or 0
    memory = Memory(bytes=units * _factor(request.pod.settings) * MIB)
    return request.share(1, memory=memory) if units else None


def _cards(request: ContainerRequest) -> Share | None:
    count = request.limit(NUMBER)
    return request.share(count) if count else None


def _environment(granted: Granted) -> Variables:
    first = granted.cards[0]
    if not first.is_share:
        return ()
    return (
        ("VOLCANO_GPU_ALLOCATED", str(first.memory // MIB)),
        ("VOLCANO_GPU_MEMORY_TOTAL", str(first.total // MIB)),
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
    parse,
    {
        NUMBER: charges.whole_cards,
        MEMORY: charges.memory_in(lambda settings: MIB * _factor(settings), of_shares=True),
    },
    written=("volcano.sh/gpu-index", "volcano.sh/predicate-time", "volcano.sh/gpu-assigned"),
    provided_variables=("VOLCANO_GPU_",),
    environment=_environment,
    allocation_annotations=_annotations,
    publishers=(("volcano.sh/gpu-", "Volcano's device plugin"),),
    like_resources=("volcano.sh/gpu",),
    sections={"volcanoGpu": partial(number_section, name="gpuMemoryFactor")},
)
