"""Volcano vGPU: HAMi's idea with rules of its own.

The percentage wins over the memory; a container counts when it has
the number or the memory in *limits* (memory alone is one card); cores of a card add up to 100 at most; init containers are not
looked at; the allow list of models hides the deny list.
"""

from __future__ import annotations

from typing import Final

from koordra.api.classic.notes import Notes
from koordra.api.opaque.parameters import DevicePolicy
from koordra.compat.dialect import (
    Dialect,
    PodView,
    charges,
    exclusively,
    resource_names,
    split_list,
    tell_zeros,
)
from koordra.compat.dialect.allocation import Allocated, memory_limits
from koordra.compat.dialect.containers import Container, amount, only_limit
from koordra.compat.dialect.vgpu import check_scaling, model_in, read, uuid_in, vgpu_settings
from koordra.compat.dialect.vocabulary import (
    Vocabulary,
    annotation,
    environment,
    on_nodes,
    resource,
    scheduler,
    setting,
    written,
)
from koordra.compat.normalized_request import (
    MIB,
    WHOLE,
    InitRule,
    Memory,
    NormalizedRequest,
    Share,
    percent_of,
)
from koordra.compat.settings import Settings

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

_MOST_MIB: Final = 2**31 - 1

VOCABULARY: Final = Vocabulary(
    VOLCANO,
    "Volcano vGPU",
    (
        resource(
            NUMBER, "slices, each on another card", "`count`, with `distinctAttribute: koordra.io/uuid`"
        ),
        resource(
            MEMORY,
            "MiB on each card, times gpuMemoryFactor",
            "capacity `memory`; left out where the percentage is there",
        ),
        resource(
            PERCENT,
            "percent of each card's memory; wins over the memory",
            "`GpuConfig.memoryPercent`; 100 is all of the card",
        ),
        resource(
            CORES,
            "percent of each card's compute; 100 wants the card alone",
            "capacity `cores` (accounting only); 100 also `GpuConfig.exclusive`",
        ),
        annotation(
            USE_TYPE,
            "models allowed: any part of the name, in either case",
            "CEL on `productName`; hides the deny list",
        ),
        annotation(NO_TYPE, "models not allowed", "CEL on `productName`"),
        annotation(USE_UUID, "cards allowed, by UUID", "CEL on `uuid`"),
        annotation(NO_UUID, "cards not allowed", "CEL on `uuid`"),
        annotation(
            MODE,
            "hami-core, mig or mps",
            "isolation `limiter` or `mps`; `mig`: class `mig.koordra.io` with enough memory",
        ),
        annotation(
            GROUP_POLICY,
            "spread: no card has two pods of a pod group",
            "`PlacementPolicy.device: Spread`, told: better so, not demanded",
        ),
        written("volcano.sh/vgpu-ids-new", "cards that were given"),
        written("volcano.sh/devices-to-allocate", "cards that were chosen"),
        written("volcano.sh/vgpu-node", "node that was chosen"),
        written("volcano.sh/vgpu-time", "when it was chosen"),
        written("volcano.sh/bind-time", "when the pod was bound"),
        written("volcano.sh/bind-phase", "how far the binding is"),
        environment(
            "CUDA_DEVICE_MEMORY_LIMIT",
            "set by the device plugin",
            "`CUDA_DEVICE_MEMORY_LIMIT_<i>` is set by koordra to what the claim was given",
            given=True,
        ),
        environment(
            "CUDA_DISABLE_CONTROL",
            "switches the library off for the container",
            "is not honoured: a share is always kept",
        ),
        scheduler("volcano", "Volcano's scheduler", "stays, with a warning: it has to honour ResourceClaims"),
        setting(
            "resourceCountName, resourceMemoryName, ...",
            "the names above in this cluster",
            "read from device-config.yaml",
        ),
        setting("gpuMemoryFactor", "unit of the memory in MiB", "read from device-config.yaml"),
        setting(
            "deviceMemoryScaling",
            "more memory than the card has",
            "above 1 every pod is refused: there is no memory behind it",
        ),
        setting("deviceSplitCount", "shares a card takes", "`koordra kubelet-plugin --slots-per-gpu`"),
        on_nodes("volcano.sh/node-vgpu-register, mutex.lock", "Volcano's own records on nodes", "not read"),
    ),
)


def parse(view: PodView, settings: Settings, notes: Notes) -> NormalizedRequest:
    """A pod of volcano-vgpu."""
    own = vgpu_settings(settings, VOLCANO)
    check_scaling(own, notes)
    isolation = settings.isolation.get(VOLCANO, "limiter")
    shares = [
        share for container in view.containers if (share := _share(container, settings, notes)) is not None
    ]
    mode = view.annotation(MODE)
    if mode is not None and mode not in ("hami-core", "mig", "mps"):
        raise notes.refuse(
            view.field(MODE), f"{mode!r} is the mode of no node", "write hami-core, mig or mps"
        )
    if mode == "mig":
        shares = [_as_mig(share, view, notes) for share in shares]
    return NormalizedRequest(
        VOLCANO,
        shares=tell_zeros(shares),
        init=InitRule.IGNORED,
        selectors=_selectors(view, notes),
        device_policy=_group_policy(view, notes),
        isolation="mps" if mode == "mps" else isolation,
        names=resource_names(VOCABULARY, settings),
        results=VOCABULARY.results(list(view.annotations)),
    )


def _share(container: Container, settings: Settings, notes: Notes) -> Share | None:
    number_name, memory_name = settings.name(NUMBER, VOLCANO), settings.name(MEMORY, VOLCANO)
    percent_name, cores_name = settings.name(PERCENT, VOLCANO), settings.name(CORES, VOLCANO)
    limits = container.asked("limits")
    asked = [
        name for name in (number_name, memory_name, percent_name, cores_name) if name in container.resources()
    ]
    if not asked:
        return None
    if number_name not in limits and memory_name not in limits:
        raise notes.refuse(
            container.field(asked[0]),
            "comes without a number or memory in limits, and Volcano gives nothing then",
            f"add {NUMBER}",
        )
    count = only_limit(container, number_name, notes=notes)
    units = amount(container, memory_name, notes=notes) or 0
    factor = max(vgpu_settings(settings, VOLCANO).memory_factor, 1)
    if units > _MOST_MIB // factor:
        raise notes.refuse(
            container.field(memory_name),
            f"{units} is more MiB than Volcano can hold",
            "write a plain number of MiB",
        )
    percent = amount(container, percent_name, notes=notes)
    if percent is not None and not 1 <= percent <= 100:
        raise notes.refuse(container.field(percent_name), f"{percent} is no part of a card", "write 1 to 100")
    cores = amount(container, cores_name, notes=notes) or 0
    if cores > 100:
        raise notes.refuse(container.field(cores_name), f"{cores} fits on no card", "write 0 to 100")
    if percent is not None and units:
        notes.warn(container.field(memory_name), f"is left out: {percent_name} wins in Volcano")
    memory = WHOLE if not units else Memory(bytes=units * factor * MIB)
    share = Share(
        container.name,
        container.phase,
        1 if count is None else count,
        memory=memory if percent is None else percent_of(percent),
        cores=cores,
    )
    return exclusively(share) if cores == 100 else share


def _as_mig(share: Share, view: PodView, notes: Notes) -> Share:
    if share.memory.bytes is None:
        raise notes.refuse(
            view.field(MODE),
            f"{share.phase} {share.container}: an instance cannot be chosen by {share.memory}",
            f"write {MEMORY}",
        )
    if share.cores:
        notes.warn(
            view.field(MODE),
            f"{share.phase} {share.container}: an instance has the compute of its profile, {CORES} is left out",
        )
    return Share(share.container, share.phase, share.count, memory=share.memory, distinct=False, mig=True)


def _group_policy(view: PodView, notes: Notes) -> DevicePolicy | None:
    said = view.annotation(GROUP_POLICY)
    if said is None:
        return None
    if said != "spread":
        notes.warn(view.field(GROUP_POLICY), f"{said!r} is no policy and is left out", "write spread")
        return None
    notes.warn(
        view.field(GROUP_POLICY), "cards without other pods are taken where there are any; it is not demanded"
    )
    return DevicePolicy.SPREAD


def _selectors(view: PodView, notes: Notes) -> tuple[str, ...]:
    found = []
    allowed, denied = (split_list(view, key, notes=notes, strip=False) for key in (USE_TYPE, NO_TYPE))
    if allowed:
        found.append(model_in(allowed))
        if denied:
            notes.warn(view.field(NO_TYPE), f"is left out: Volcano does not look at it beside {USE_TYPE}")
    elif denied:
        found.append(model_in(denied, deny=True))
    for key, deny in ((USE_UUID, False), (NO_UUID, True)):
        entries = [entry.strip() for entry in (view.annotation(key) or "").split(",")]
        kept = [entry for entry in entries if entry]
        if kept:
            found.append(uuid_in(kept, deny=deny))
    return tuple(found)


def _annotations(found: Allocated) -> dict[str, str]:
    return {
        "volcano.sh/vgpu-ids-new": ";".join(found.vgpus(container) for container in found.app),
        "volcano.sh/vgpu-node": found.node,
        "volcano.sh/vgpu-time": str(found.at),
        "volcano.sh/bind-time": str(found.at),
        "volcano.sh/bind-phase": "success",
    }


_RESOURCE_FIELDS: Final = {
    "resourceCountName": NUMBER,
    "resourceMemoryName": MEMORY,
    "resourceMemoryPercentageName": PERCENT,
    "resourceCoreName": CORES,
    "resourcePriorityName": "volcano.sh/vgpu-priority",
}


def _section(settings: Settings, section: object, source: str) -> Settings:
    return read(settings, section, f"{source}: volcano", dialect=VOLCANO, resources=_RESOURCE_FIELDS)


DIALECT: Final = Dialect(
    VOCABULARY,
    parse,
    charges={
        NUMBER: charges.count,
        MEMORY: charges.memory_in(lambda settings: MIB * vgpu_settings(settings, VOLCANO).memory_factor),
        PERCENT: charges.percent,
        CORES: charges.cores,
    },
    environment=memory_limits,
    annotations=_annotations,
    publishers=(("volcano.sh/vgpu-", "Volcano's vGPU device plugin"),),
    schedulers={"volcano": False},
    like_resources=("volcano.sh/vgpu",),
    like_annotations=("volcano.sh/vgpu-",),
    sections={"volcano": _section},
    device_config=_RESOURCE_FIELDS,
)
