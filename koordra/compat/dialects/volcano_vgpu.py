"""Volcano vGPU: HAMi's idea with rules of its own.

The percentage wins over the memory; a container counts when it has
the number or the memory in *limits* (memory alone is one card); cores of a card add up to 100 at most; init
containers are not looked at; the allow list of models hides the deny list.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from koordra.api.opaque.parameters import DevicePolicy
from koordra.compat.dialect import (
    MIB,
    WHOLE,
    Allocated,
    ContainerRequest,
    Dialect,
    Memory,
    NormalizedRequest,
    PodView,
    Share,
    charges,
    exclusively,
    memory_limits,
    percent_of,
    split_list,
)
from koordra.compat.dialect.vgpu import (
    ISOLATION,
    LIBRARY,
    MOST_MIB,
    as_mig,
    check_scaling,
    mig_profile_in,
    model_in,
    uuid_in,
    vgpu_settings,
    warn_of_library,
)

VOLCANO: Final = "volcano-vgpu"
USE_TYPE: Final = "nvidia.com/use-gputype"
NO_TYPE: Final = "nvidia.com/nouse-gputype"
NUMBER: Final = "volcano.sh/vgpu-number"
MEMORY: Final = "volcano.sh/vgpu-memory"
PERCENT: Final = "volcano.sh/vgpu-memory-percentage"
CORES: Final = "volcano.sh/vgpu-cores"
MODE: Final = "volcano.sh/vgpu-mode"
USE_UUID: Final = "volcano.sh/vgpu-use-gpuuuid"
NO_UUID: Final = "volcano.sh/vgpu-nouse-gpuuuid"
GROUP_POLICY: Final = "volcano.sh/vgpu-podgroup-policy"


def parse(view: PodView) -> NormalizedRequest:
    check_scaling(vgpu_settings(view.settings, VOLCANO), view.notes)
    shares = view.shares(_share)
    mode = view.annotations.get(MODE)
    if mode is not None and mode not in (LIBRARY, "mig", "mps"):
        raise view.refuse(MODE, f"{mode!r} is the mode of no node", "write hami-core, mig or mps")
    if mode == LIBRARY:
        warn_of_library(view, MODE)
    if mode == "mig":
        shares = tuple(as_mig(share, view, MODE, cores=CORES, remedy=f"write {MEMORY}") for share in shares)
    allowed = mig_profile_in(vgpu_settings(view.settings, VOLCANO)) if mode == "mig" else ""
    return NormalizedRequest(
        shares,
        ignores_init=True,
        selectors=(*_selectors(view), *([allowed] if allowed else ())),
        device_policy=_group_policy(view),
        isolation="mps" if mode == "mps" else None,
    )


def _share(request: ContainerRequest) -> Share | None:
    asked = [name for name in (NUMBER, MEMORY, PERCENT, CORES) if request.has(name)]
    if not asked:
        return None
    if not request.has(NUMBER, "limits") and not request.has(MEMORY, "limits"):
        raise request.refuse(
            asked[0],
            "comes without a number or memory in limits, and Volcano gives nothing then",
            f"add {NUMBER}",
        )
    count, units, percent = request.limit(NUMBER), request.amount(MEMORY) or 0, request.amount(PERCENT)
    own = vgpu_settings(request.pod.settings, VOLCANO)
    factor = max(own.memory_factor, 1)
    if units > MOST_MIB // factor:
        raise request.refuse(
            MEMORY, f"{units} is more MiB than Volcano can hold", "write a plain number of MiB"
        )
    if percent is not None and not 1 <= percent <= 100:
        raise request.refuse(PERCENT, f"{percent} is no part of a card", "write 1 to 100")
    cores = request.amount(CORES) or 0
    if cores > 100:
        raise request.refuse(CORES, f"{cores} fits on no card", "write 0 to 100")
    if percent is not None and units:
        request.warn(MEMORY, f"is left out: {request.name(PERCENT)} wins in Volcano")
    memory = Memory(bytes=units * factor * MIB) if units else WHOLE
    if percent is not None:
        memory = percent_of(percent)
    share = request.share(
        1 if count is None else count,
        memory=memory,
        cores=cores,
        limited_by=request.name(CORES) if own.core_limit else "",
    )
    return exclusively(share) if cores == 100 else share


def _group_policy(view: PodView) -> DevicePolicy | None:
    text = view.annotations.get(GROUP_POLICY)
    if text == "spread":
        view.warn(GROUP_POLICY, "cards without other pods are taken where there are any; it is not demanded")
        return DevicePolicy.SPREAD
    if text is not None:
        view.warn(GROUP_POLICY, f"{text!r} is no policy and is left out", "write spread")
    return None


def _selectors(view: PodView) -> Iterator[str]:
    allowed, denied = (split_list(view, key, strip=False) for key in (USE_TYPE, NO_TYPE))
    if allowed:
        yield model_in(allowed)
        if denied:
            view.warn(NO_TYPE, f"is left out: Volcano does not look at it beside {USE_TYPE}")
    elif denied:
        yield model_in(denied, deny=True)
    for key, deny in ((USE_UUID, False), (NO_UUID, True)):
        entries = (entry.strip() for entry in view.annotations.get(key, "").split(","))
        if kept := [entry for entry in entries if entry]:
            yield uuid_in(kept, deny=deny)


def _annotations(found: Allocated) -> dict[str, str]:
    return {
        "volcano.sh/vgpu-ids-new": ";".join(found.vgpus(container) for container in found.app),
        "volcano.sh/vgpu-node": found.node,
        "volcano.sh/vgpu-time": str(found.at),
        "volcano.sh/bind-time": str(found.at),
        "volcano.sh/bind-phase": "success",
    }


DIALECT: Final = Dialect(
    VOLCANO,
    "Volcano vGPU",
    parse,
    {
        NUMBER: charges.count,
        MEMORY: charges.memory_in(lambda settings: MIB * vgpu_settings(settings, VOLCANO).memory_factor),
        PERCENT: charges.percent,
        CORES: charges.cores,
    },
    isolation=ISOLATION,
    annotations=(USE_TYPE, NO_TYPE, USE_UUID, NO_UUID, MODE, GROUP_POLICY),
    written=(
        "volcano.sh/vgpu-ids-new",
        "volcano.sh/vgpu-ids",
        "volcano.sh/devices-to-allocate",
        "volcano.sh/vgpu-node",
        "volcano.sh/vgpu-time",
        "volcano.sh/bind-time",
        "volcano.sh/bind-phase",
    ),
    provided_variables=("CUDA_DEVICE_MEMORY_LIMIT",),
    environment=memory_limits,
    allocation_annotations=_annotations,
    publishers=(("volcano.sh/vgpu-", "Volcano's vGPU device plugin"),),
    schedulers={"volcano": False},
    like_resources=("volcano.sh/vgpu",),
    domains=("volcano.sh/", "scheduling.volcano.sh/"),
    device_config={
        "resourceCountName": NUMBER,
        "resourceMemoryName": MEMORY,
        "resourceMemoryPercentageName": PERCENT,
        "resourceCoreName": CORES,
        "resourcePriorityName": "volcano.sh/vgpu-priority",
    },
    device_section="volcano",
)
