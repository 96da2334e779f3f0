"""Alnair: a slice of one card, memory in GiB and compute in percent.

Compute from 100 up, or none, reserves none. Memory that is not asked for is not limited either: such a container may fill the
card, so here it has all of the card's memory. Which card is the two kubelet plugins' luck; here memory and compute are of one
card. Alnair has two schedulers for two policies (`schedulerName`): cost-saving packs nodes, high-performance spreads over them.
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
    annotation,
    charges,
    environment,
    on_nodes,
    resource,
    scheduler,
    written,
)

ALNAIR: Final = "alnair"
MEMORY: Final = "alnair/vgpu-memory"
COMPUTE: Final = "alnair/vgpu-compute"
SCHEDULERS: Final = {
    "alnair-cost-saving": NodePolicy.BINPACK,
    "alnair-high-performance": NodePolicy.SPREAD,
}

NAMES: Final = (
    resource(MEMORY, "GiB of one card", "capacity `memory`"),
    resource(
        COMPUTE,
        "percent of that card's compute; 100 and above, or none: no limit",
        "capacity `cores` (accounting only) below 100, otherwise none",
    ),
    written("ai.centaurus.io/alnair-gpu-id", "card that was chosen"),
    written("ai.centaurus.io/alnair-id", "name of the slice"),
    written("ai.centaurus.io/scheduler-timestamp", "when it was chosen"),
    annotation(
        "ai.centaurus.io/*",
        "other annotations",
        "decide the dialect, with a warning that nobody reads them",
    ),
    environment(
        "ALNAIR_VGPU_COMPUTE_PERCENTILE",
        "set by the plugin for Alnair's library",
        "is not set: compute is accounting only",
    ),
    environment("ALNAIR_", "others, set by the plugin (ID, SOCKET, WORKSPACE_PATH)", "are not set any more"),
    scheduler(
        "alnair-cost-saving",
        "packs nodes",
        "`PlacementPolicy.node: Binpack`; the scheduler's name is taken out",
    ),
    scheduler(
        "alnair-high-performance",
        "spreads over nodes",
        "`PlacementPolicy.node: Spread`; the scheduler's name is taken out",
    ),
    on_nodes(
        "ai.centaurus.io/physical-gpu-count, physical-gpu-uuids, virtual-gpu-count",
        "what a node has",
        "ResourceSlices tell it",
    ),
    on_nodes("alnair.centaurusinfra.io/max_*", "the profiler's figures on pods", "left as they are"),
)


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
    )


DIALECT: Final = Dialect(
    ALNAIR,
    "Alnair",
    NAMES,
    parse,
    isolation="limiter",
    charges={MEMORY: charges.memory_in(lambda _: GIB), COMPUTE: charges.cores},
    publishers=(("alnair/vgpu-", "Alnair's device plugin"),),
    schedulers=dict.fromkeys(SCHEDULERS, True),
    like_resources=("alnair/",),
    like_annotations=("ai.centaurus.io/",),
)
