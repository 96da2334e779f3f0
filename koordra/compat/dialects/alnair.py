"""Alnair: a slice of one card, memory in GiB and compute in percent.

Compute from 100 up, or none, reserves none. Memory that is not asked for is not limited either: such a
container may fill the card, so here it has all of the card's memory. Which card is the two kubelet plugins'
luck; here memory and compute are of one card. Alnair has two schedulers for two policies (`schedulerName`):
cost-saving packs nodes, high-performance spreads over them.
"""

from __future__ import annotations

from typing import Final

from koordra.api.opaque.parameters import NodePolicy
from koordra.compat.dialect import (
    GIB,
    WHOLE,
    ContainerRequest,
    Dialect,
    Memory,
    NormalizedRequest,
    PodView,
    Share,
    charges,
)

ALNAIR: Final = "alnair"
MEMORY: Final = "alnair/vgpu-memory"
COMPUTE: Final = "alnair/vgpu-compute"
SCHEDULERS: Final = {
    "alnair-cost-saving": NodePolicy.BINPACK,
    "alnair-high-performance": NodePolicy.SPREAD,
}


def parse(view: PodView) -> NormalizedRequest:
    return NormalizedRequest(
        view.shares(_share), node_policy=SCHEDULERS.get(str(view.spec.get("schedulerName")))
    )


def _share(request: ContainerRequest) -> Share | None:
    memory, compute = request.amount(MEMORY), request.amount(COMPUTE)
    if not memory and not compute:
        return None
    if not memory:
        request.warn(
            COMPUTE,
            "comes without memory, which is not limited then: the share has all of the card's memory",
            f"ask for {MEMORY} to share the card",
        )
    return request.share(
        1,
        memory=Memory(bytes=memory * GIB) if memory else WHOLE,
        cores=compute if compute and compute < 100 else 0,
        limited_by=request.name(COMPUTE),
    )


DIALECT: Final = Dialect(
    ALNAIR,
    "Alnair",
    parse,
    {MEMORY: charges.memory_in(lambda _: GIB), COMPUTE: charges.cores},
    isolation="limiter",
    annotations=("ai.centaurus.io/*",),
    written=(
        "ai.centaurus.io/alnair-gpu-id",
        "ai.centaurus.io/alnair-id",
        "ai.centaurus.io/scheduler-timestamp",
    ),
    publishers=(("alnair/vgpu-", "Alnair's device plugin"),),
    schedulers=dict.fromkeys(SCHEDULERS, True),
    like_resources=("alnair/",),
    domains=("ai.centaurus.io/", "alnair.centaurusinfra.io/"),
)
