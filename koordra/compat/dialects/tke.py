"""GaiaGPU, TKE's gpu-manager: percent of compute and blocks of 256 MiB of one card; from 100 up whole cards.

A container counts when it asks for compute, and below a whole card for memory too; anything else is not
looked at there and refused here. Above 100 only multiples of 100 mean something; the memory of whole cards is
theirs anyway. Only limits of ordinary containers are read. `vcuda-core-limit` above the request lets a
container use idle compute up to there.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from koordra.api.opaque.parameters import CoresPolicy
from koordra.compat.dialect import (
    MIB,
    NANOSECONDS,
    Allocated,
    ContainerRequest,
    Dialect,
    Memory,
    NormalizedRequest,
    PodView,
    Share,
    charges,
)

TKE: Final = "tke"
CORES: Final = "tencent.com/vcuda-core"
MEMORY: Final = "tencent.com/vcuda-memory"
CORE_LIMIT: Final = "tencent.com/vcuda-core-limit"
BLOCK: Final = 256 * MIB


def parse(view: PodView) -> NormalizedRequest:
    text = view.annotations.get(CORE_LIMIT)
    if text is not None and not (
        text.isascii() and text.isdigit() and len(text) < 4 and 1 <= int(text) <= 100
    ):
        raise view.refuse(CORE_LIMIT, f"{text!r} is no percentage", "write 1 to 100")
    share = partial(_share, limit=int(text) if text else None)
    return NormalizedRequest(view.shares(share), ignores_init=True)


def _share(request: ContainerRequest, *, limit: int | None) -> Share | None:
    cores, blocks = request.limit(CORES), request.limit(MEMORY)
    if not cores and not blocks:
        return None
    if not cores:
        raise request.refuse(
            MEMORY, "comes without compute, and such a container gets nothing there", f"add {CORES}"
        )
    if cores > 100 and cores % 100:
        raise request.refuse(
            CORES, f"{cores} is neither below 100 nor a multiple of it", "write 1 to 99, 100, 200 ..."
        )
    if cores >= 100:
        if blocks:
            request.warn(MEMORY, "is left out: a whole card comes with all its memory")
        return request.share(cores // 100, cores=100)
    if not blocks:
        raise request.refuse(
            CORES, "comes without memory, and such a container gets nothing there", f"add {MEMORY}"
        )
    policy = CoresPolicy.ELASTIC if limit is not None and limit > cores else None
    if policy:
        request.pod.warn(
            CORE_LIMIT, f"idle compute may be used beyond {cores}%, also beyond {limit}%", "take it out"
        )
    elif limit is not None and limit < cores:
        request.pod.warn(
            CORE_LIMIT,
            f"{limit} is below the {cores}% of container {request.container.name} and is left out",
            "take it out",
        )
    return request.share(
        1,
        memory=Memory(bytes=blocks * BLOCK),
        cores=cores,
        cores_policy=policy,
        limited_by=request.name(CORES),
    )


def _annotations(found: Allocated) -> dict[str, str]:
    return {
        **{
            f"tencent.com/predicate-gpu-idx-{number}": text
            for number, container in enumerate(found.app)
            if (text := found.minors(container))
        },
        "tencent.com/predicate-node": found.node,
        "tencent.com/predicate-time": str(found.at * NANOSECONDS),
        "tencent.com/gpu-assigned": "true",
    }


DIALECT: Final = Dialect(
    TKE,
    "GaiaGPU (TKE gpu-manager)",
    parse,
    {CORES: charges.compute, MEMORY: charges.memory_in(lambda _: BLOCK, of_shares=True)},
    isolation="limiter",
    annotations=(CORE_LIMIT,),
    written=(
        "tencent.com/predicate-gpu-idx-*",
        "tencent.com/predicate-node",
        "tencent.com/predicate-time",
        "tencent.com/gpu-assigned",
        "tencent.com/vcuda-device",
    ),
    allocation_annotations=_annotations,
    publishers=(("tencent.com/vcuda-", "TKE's gpu-manager"),),
    like_resources=("tencent.com/vcuda",),
    domains=("tencent.com/",),
)
