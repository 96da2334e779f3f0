"""Elastic GPU: percent of compute and MiB of memory for each container; from 100 up whole cards.

It reads requests (which the API server fills from limits), of ordinary containers. From 100 up the hundreds
count and the memory does not. A share by compute alone is charged no memory; the least that koordra can
charge is 1Mi. Nothing is kept in the open source version, so shares ask for no isolation unless the settings
do; a limit of 1Mi would be none, so then it is all of the card's memory.

TFLOPS, which the README has beside percent and no program reads, are `gpu-tflops` here: a whole number of
them, in the precision that the settings name (FP32), of whatever card is chosen.

TKE's qGPU (`tke.cloud.tencent.com/qgpu-*`, memory in GB) is read the same way, `-greedy` as compute that idle
time may exceed. One container uses one of the families of names.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

from koordra.api.opaque.parameters import CoresPolicy
from koordra.api.opaque.precision import Precision
from koordra.api.reader import Reader
from koordra.compat.dialect import (
    GIB,
    LEAST,
    MIB,
    REQUESTS_FIRST,
    WHOLE,
    Allocated,
    ContainerRequest,
    Dialect,
    Memory,
    NormalizedRequest,
    PodView,
    Settings,
    Share,
    charges,
)
from koordra.compat.settings import UNITS

ELASTIC: Final = "elastic-gpu"
CLAIM_PREFIX: Final = "egpuc.elasticgpu.io/"
QGPU_GREEDY: Final = "tke.cloud.tencent.com/qgpu-core-greedy"


@dataclass(frozen=True, slots=True)
class Family:
    """Names that belong together; `unit` None is the operator's; `limits`: compute is limited by them, and
    not only counted."""

    cores: str
    memory: str
    unit: int | None = None
    greedy: str = ""
    tflops: str = ""
    limits: bool = False


FAMILIES: Final = (
    *(
        Family(f"{domain}/gpu-core", f"{domain}/gpu-memory", tflops=f"{domain}/gpu-tflops")
        for domain in ("elasticgpu.io", "elasticgpu.com")
    ),
    Family(
        "tke.cloud.tencent.com/qgpu-core",
        "tke.cloud.tencent.com/qgpu-memory",
        GIB,
        QGPU_GREEDY,
        limits=True,
    ),
)
README_ONLY: Final = (
    "gpushare.provisioner.elasticgpu.io/gpu-core",
    "gpushare.provisioner.elasticgpu.io/gpu-memory",
)


def parse(view: PodView) -> NormalizedRequest:
    claims = [key for key in view.annotations if key.startswith(CLAIM_PREFIX)]
    if claims:
        raise view.refuse(
            claims[0],
            "refers to an ElasticGPUClaim, which is served in the cluster and cannot be converted in a file",
            "ask for elasticgpu.io/gpu-core and elasticgpu.io/gpu-memory in the container",
        )
    return NormalizedRequest(view.shares(_share, REQUESTS_FIRST), ignores_init=True)


def _share(request: ContainerRequest) -> Share | None:
    asked = [(family, found) for family in FAMILIES if (found := _read(request, family)) is not None]
    if not asked:
        return None
    if len(asked) > 1:
        two = " and ".join(family.cores.partition("/")[0] for family, _ in asked)
        raise request.pod.notes.refuse(
            request.container.where, f"asks under {two} at once", "use one family of names"
        )
    (family, (cores, memory, policy)) = asked[0]
    if tflops := request.amount(family.tflops) or 0:
        if cores:
            raise request.refuse(family.tflops, f"stands beside {family.cores}", "use one of the two")
        return request.share(
            1,
            memory=Memory(bytes=memory) if memory else _without_memory(request, family),
            tflops=tflops,
            precision=request.pod.settings.option("elastic", "tflopsPrecision", Precision.FP32),
        )
    if cores < 100:
        return request.share(
            1,
            memory=Memory(bytes=memory) if memory else _without_memory(request, family),
            cores=cores,
            cores_policy=policy,
            limited_by=request.name(family.cores) if family.limits else "",
        )
    if memory:
        request.warn(family.memory, "is left out: a whole card comes with all its memory")
    if cores % 100:
        request.warn(family.cores, f"{cores} is {cores // 100} whole cards, the rest does not count")
    return request.share(cores // 100, cores=100)


def _read(request: ContainerRequest, family: Family) -> tuple[int, int, CoresPolicy | None] | None:
    """(compute, memory in bytes, policy); None where nothing is asked under these names."""
    cores, units, greedy = (
        request.amount(name) or 0 for name in (family.cores, family.memory, family.greedy)
    )
    if greedy and cores:
        raise request.refuse(family.greedy, f"stands beside {family.cores}", "use one of the two")
    if not (cores or units or greedy or request.amount(family.tflops)):
        return None
    return (
        cores or greedy,
        (units * _unit_of(family, request.pod.settings)),
        CoresPolicy.ELASTIC if greedy else None,
    )


def _without_memory(request: ContainerRequest, family: Family) -> Memory:
    """The least that can be charged; all of the card where something enforces the share."""
    least = WHOLE if request.pod.settings.isolation.get(ELASTIC) not in (None, "none") else LEAST
    request.warn(
        family.cores,
        f"comes without memory: the share is charged {'all of the card' if least.whole else 'the least there is, 1Mi'}",
        f"ask for {family.memory}",
    )
    return least


def _unit_of(family: Family, settings: Settings) -> int:
    return family.unit or int(settings.option("elastic", "memoryUnit", MIB))


def _annotations(found: Allocated) -> dict[str, str]:
    return {
        **{
            f"elasticgpu.io/container-{container}": text
            for container in found.app
            if (text := found.minors(container))
        },
        "elasticgpu.io/assumed": "true",
    }


def _section(settings: Settings, read: Reader) -> Settings:
    read.only("memoryUnit", "tflopsPrecision", problem="is no setting of Elastic GPU")
    if unit := read.choice("memoryUnit", UNITS):
        settings = settings.with_option("elastic", "memoryUnit", UNITS[unit])
    if precision := read.choice("tflopsPrecision", list(Precision)):
        settings = settings.with_option("elastic", "tflopsPrecision", Precision(precision))
    return settings


DIALECT: Final = Dialect(
    ELASTIC,
    "Elastic GPU",
    parse,
    {
        **{family.cores: charges.compute for family in FAMILIES},
        **{family.tflops: None for family in FAMILIES if family.tflops},
        **{
            family.memory: charges.memory_in(partial(_unit_of, family), of_shares=True) for family in FAMILIES
        },
        **dict.fromkeys((QGPU_GREEDY, *README_ONLY)),
    },
    annotations=(f"{CLAIM_PREFIX}*",),
    labels=("elasticgpu.io/assumed",),
    written=("elasticgpu.io/container-*", "elasticgpu.io/assumed"),
    allocation_annotations=_annotations,
    publishers=(
        ("elasticgpu.io/gpu-", "Elastic GPU's agent"),
        ("elasticgpu.com/gpu-", "Elastic GPU's agent"),
        ("tke.cloud.tencent.com/qgpu-", "TKE's qGPU agent"),
    ),
    schedulers={"elastic-gpu-scheduler": True},
    asking=(CLAIM_PREFIX,),
    like_resources=("elasticgpu.io/", "elasticgpu.com/", "tke.cloud.tencent.com/qgpu"),
    domains=("elasticgpu.io/", "egpuc.elasticgpu.io/", "tke.cloud.tencent.com/"),
    sections={"elastic": _section},
)
