"""GaiaGPU, TKE's gpu-manager: percent of compute and blocks of 256 MiB of one card; from 100 up whole cards.

A container counts when it asks for compute, and below a whole card for memory too; anything else is not looked at there and
refused here. Above 100 only multiples of 100 mean something; the memory of whole cards is theirs anyway. Only limits of
ordinary containers are read. `vcuda-core-limit` above the request lets a container use idle compute up to there.
"""

from __future__ import annotations

from typing import Final

from koordra.api.classic.notes import Notes
from koordra.api.opaque.parameters import CoresPolicy
from koordra.compat.dialect import Dialect, PodView, charges, resource_names, tell_zeros
from koordra.compat.dialect.allocation import NANOSECONDS, Allocated
from koordra.compat.dialect.containers import Container, only_limit
from koordra.compat.dialect.vocabulary import Vocabulary, annotation, environment, resource, written
from koordra.compat.normalized_request import MIB, InitRule, Memory, NormalizedRequest, Share
from koordra.compat.settings import Settings

TKE: Final = "tke"
CORES: Final = "tencent.com/vcuda-core"
MEMORY: Final = "tencent.com/vcuda-memory"
CORE_LIMIT: Final = "tencent.com/vcuda-core-limit"
BLOCK: Final = 256 * MIB

VOCABULARY: Final = Vocabulary(
    TKE,
    "GaiaGPU (TKE gpu-manager)",
    (
        resource(
            CORES,
            "percent, 100 a card: 1..99 of one card, or multiples of 100",
            "capacity `cores` (accounting only), or `count` whole cards",
        ),
        resource(
            MEMORY,
            "blocks of 256 MiB, below a whole card",
            "capacity `memory`; told and left out for whole cards",
        ),
        annotation(
            CORE_LIMIT,
            "percent up to which idle compute may be used",
            "`GpuConfig.coresPolicy: Elastic`, which has no effect; told, as the upper end is",
        ),
        written("tencent.com/predicate-gpu-idx-*", "cards that were chosen"),
        written("tencent.com/predicate-node", "node that was chosen"),
        written("tencent.com/predicate-time", "when it was chosen"),
        written("tencent.com/gpu-assigned", "whether the manager has taken it"),
        written("tencent.com/vcuda-device", "devices that were given"),
        environment(
            "LD_LIBRARY_PATH",
            "pointed at the manager's own driver library",
            "is left as it is; /usr/local/nvidia is not mounted any more",
            told=False,
        ),
    ),
)


def parse(view: PodView, settings: Settings, notes: Notes) -> NormalizedRequest:
    limit = _core_limit(view, notes)
    shares = [
        share
        for container in view.containers
        if (share := _share(container, limit, view, settings, notes)) is not None
    ]
    return NormalizedRequest(
        TKE,
        shares=tell_zeros(shares),
        init=InitRule.IGNORED,
        isolation=settings.isolation.get(TKE, "limiter"),
        names=resource_names(VOCABULARY, settings),
        results=VOCABULARY.results(list(view.annotations)),
    )


def _core_limit(view: PodView, notes: Notes) -> int | None:
    said = view.annotation(CORE_LIMIT)
    if said is None:
        return None
    if not (said.isascii() and said.isdigit()) or not 1 <= int(said) <= 100:
        raise notes.refuse(view.field(CORE_LIMIT), f"{said!r} is no percentage", "write 1 to 100")
    return int(said)


def _share(
    container: Container, limit: int | None, view: PodView, settings: Settings, notes: Notes
) -> Share | None:
    core_name, memory_name = settings.name(CORES), settings.name(MEMORY)
    cores = only_limit(container, core_name, notes=notes)
    blocks = only_limit(container, memory_name, notes=notes)
    if not cores and not blocks:
        return None
    if not cores:
        raise notes.refuse(
            container.field(memory_name),
            "comes without compute, and such a container gets nothing there",
            f"add {CORES}",
        )
    if cores > 100 and cores % 100:
        raise notes.refuse(
            container.field(core_name),
            f"{cores} is neither below 100 nor a multiple of it",
            "write 1 to 99, 100, 200 ...",
        )
    if cores >= 100:
        if blocks:
            notes.warn(container.field(memory_name), "is left out: a whole card comes with all its memory")
        return Share(container.name, container.phase, cores // 100, cores=100)
    if not blocks:
        raise notes.refuse(
            container.field(core_name),
            "comes without memory, and such a container gets nothing there",
            f"add {MEMORY}",
        )
    policy = None
    if limit is not None and limit > cores:
        policy = CoresPolicy.ELASTIC
        notes.warn(view.field(CORE_LIMIT), f"idle compute may be used beyond {cores}%, also beyond {limit}%")
    elif limit is not None and limit < cores:
        notes.warn(
            view.field(CORE_LIMIT),
            f"{limit} is below the {cores}% of container {container.name} and is left out",
        )
    return Share(
        container.name,
        container.phase,
        1,
        memory=Memory(bytes=blocks * BLOCK),
        cores=cores,
        cores_policy=policy,
    )


def _annotations(found: Allocated) -> dict[str, str]:
    indexes = {
        f"tencent.com/predicate-gpu-idx-{number}": text
        for number, container in enumerate(found.app)
        if (text := found.minors(container))
    }
    return {
        **indexes,
        "tencent.com/predicate-node": found.node,
        "tencent.com/predicate-time": str(found.at * NANOSECONDS),
        "tencent.com/gpu-assigned": "true",
    }


DIALECT: Final = Dialect(
    VOCABULARY,
    parse,
    charges={CORES: charges.compute, MEMORY: charges.memory_in(lambda _: BLOCK, of_shares=True)},
    annotations=_annotations,
    publishers=(("tencent.com/vcuda-", "TKE's gpu-manager"),),
    like_resources=("tencent.com/vcuda",),
    like_annotations=("tencent.com/vcuda",),
)
