"""HAMi on NVIDIA cards: N slices on N different cards for each container, first what its webhook does, then its scheduler.

    webhook     a percentage outside 0..100 is refused; memory, cores or a percentage in limits without a count becomes one
                card (defaultGPUNum); a count with neither memory nor cores takes the cards' compute whole (cores 100)
    memory      gpumem unless 0, else the percentage unless 0, else defaultMemory, else all of the card; MiB times memoryFactor
    cores       above 100 is 100; 100 wants the card alone; 0 or none reserves none
    limits      count before requests, as every other figure

A value of gpumem that does not fit into 32 bits makes HAMi forget the whole request; here it is refused. Init containers run
before the others, so a card is charged the larger of both. Mode `mig` gives instances with enough memory, which may lie on
one card. The limits are kept by a library, so shares ask for isolation.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from koordra.api.classic.notes import Notes
from koordra.api.opaque.parameters import CoresPolicy
from koordra.compat.dialect import (
    Dialect,
    PodView,
    charges,
    exclusively,
    mig_shares,
    resource_names,
    split_list,
    tell_zeros,
)
from koordra.compat.dialect.allocation import Allocated, memory_limits
from koordra.compat.dialect.containers import Container, amount
from koordra.compat.dialect.vgpu import VgpuSettings, check_scaling, model_in, read, uuid_in, vgpu_settings
from koordra.compat.dialects.hami.policies import policies_of
from koordra.compat.dialects.hami.vocabulary import (
    CORE_SWITCH,
    CORES,
    COUNT,
    HAMI,
    MEMORY,
    MODE,
    NO_TYPE,
    NO_UUID,
    OPT_OUT,
    PERCENT,
    PRIORITY,
    USE_TYPE,
    USE_UUID,
    VOCABULARY,
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

MOST_MIB: Final = 2**31 - 1


def parse(view: PodView, settings: Settings, notes: Notes) -> NormalizedRequest:
    """Raises Refused for what HAMi would refuse, forget or never place, and for what koordra cannot honour."""
    own = vgpu_settings(settings, HAMI)
    check_scaling(own, notes)
    isolation = settings.isolation.get(HAMI, "limiter")
    mode = _mode(view, notes)
    shares = [
        share
        for container in view.containers
        if (share := _share(container, own, settings, notes)) is not None
    ]
    if mode == "mig":
        shares = [_as_mig(share, view, notes) for share in shares]
    elif mode == "mps":
        isolation = "mps"
    mig, mig_names = mig_shares(view, notes)
    node, device, mutex, numa = policies_of(view, notes)
    if mutex:
        shares = [exclusively(share) for share in shares]
    return NormalizedRequest(
        HAMI,
        shares=(*tell_zeros(shares), *mig),
        init=InitRule.MAX,
        selectors=_selectors(view, notes),
        numa=numa,
        node_policy=node,
        device_policy=device,
        isolation=isolation,
        names=resource_names(VOCABULARY, settings) | mig_names,
        results=VOCABULARY.results(list(view.annotations)),
    )


def _share(container: Container, own: VgpuSettings, settings: Settings, notes: Notes) -> Share | None:
    """What the container asks for; None for nothing."""
    count_name, cores_name = settings.name(COUNT, HAMI), settings.name(CORES, HAMI)
    memory_name, percent_name = settings.name(MEMORY, HAMI), settings.name(PERCENT, HAMI)
    percent = amount(container, percent_name, notes=notes)
    if percent is not None and percent > 100:
        raise notes.refuse(container.field(percent_name), f"{percent} is no percentage", "write 0 to 100")
    memory = amount(container, memory_name, notes=notes)
    cores = amount(container, cores_name, notes=notes)
    priority = _priority(container, settings, notes)
    count = amount(container, count_name, notes=notes)
    if count is None:
        count = _default_count(container, (memory_name, percent_name, cores_name), own, notes)
        if count is None:
            if priority is not None:
                notes.warn(
                    container.field(settings.name(PRIORITY, HAMI)),
                    "is for nothing: the container asks for no card",
                )
            return None
    if cores is None:
        alone = percent == 100 if percent is not None else memory is None
        cores = 100 if alone else own.default_cores
    if cores > 100:
        notes.warn(container.field(cores_name), f"{cores} counts as 100, as it does in HAMi")
        cores = 100
    share = Share(
        container.name,
        container.phase,
        count,
        memory=_memory(container, memory_name, memory, percent, own=own, notes=notes),
        cores=cores,
        priority=priority,
        cores_policy=_cores_policy(container, own, notes),
    )
    return exclusively(share) if cores == 100 else share


def _default_count(
    container: Container, names: tuple[str, ...], own: VgpuSettings, notes: Notes
) -> int | None:
    """The webhook adds a count where one of the others stands in limits."""
    limited = [name for name in names if name and name in container.asked("limits")]
    if limited:
        if own.default_count == 0:
            raise notes.refuse(
                container.field(limited[0]), "comes without a count of cards, and defaultGPUNum is 0"
            )
        return own.default_count
    requested = [name for name in names if name and name in container.asked("requests")]
    if requested:
        raise notes.refuse(
            container.field(requested[0]),
            "stands in requests without a count of cards, which HAMi does not read",
            "write it in limits",
        )
    return None


def _memory(
    container: Container,
    name: str,
    memory: int | None,
    percent: int | None,
    *,
    own: VgpuSettings,
    notes: Notes,
) -> Memory:
    factor = max(own.memory_factor, 1)
    if memory:
        if memory > MOST_MIB // factor:
            raise notes.refuse(
                container.field(name),
                f"{memory} is more MiB than HAMi can hold, which then forgets the request for cards",
                "write a plain number of MiB",
            )
        return Memory(bytes=memory * factor * MIB)
    if percent:
        return percent_of(percent)
    return Memory(bytes=own.default_memory * MIB) if own.default_memory else WHOLE


def _priority(container: Container, settings: Settings, notes: Notes) -> int | None:
    name = settings.name(PRIORITY, HAMI)
    priority = amount(container, name, notes=notes)
    if priority is not None and priority > 1:
        raise notes.refuse(container.field(name), f"{priority} is no priority", "write 0 (high) or 1 (low)")
    return priority


def _cores_policy(container: Container, own: VgpuSettings, notes: Notes) -> CoresPolicy | None:
    said = container.environment().get(CORE_SWITCH, own.core_policy if own.core_limit else "disable")
    if said.lower() == "force":
        return CoresPolicy.HARD
    if said.lower() == "disable":
        return CoresPolicy.ELASTIC
    return None


def _mode(view: PodView, notes: Notes) -> str:
    """`hami-core`, `mps` or `mig`; HAMi asks whether the annotation contains the node's mode."""
    said = view.annotation(MODE)
    if said is None:
        return "hami-core"
    found = [mode for mode in ("hami-core", "mps", "mig") if mode in said]
    if not found:
        raise notes.refuse(
            view.field(MODE), f"{said!r} is the mode of no node", "write hami-core, mig or mps"
        )
    if len(found) > 1:
        notes.warn(view.field(MODE), f"{said!r} allows {', '.join(found)}; {found[0]} is taken")
    return found[0]


def _as_mig(share: Share, view: PodView, notes: Notes) -> Share:
    if share.memory.bytes is None:
        raise notes.refuse(
            view.field(MODE),
            f"{share.phase} {share.container}: an instance cannot be chosen by {share.memory}",
            f"write {MEMORY}, or ask for a profile: nvidia.com/mig-<profile>",
        )
    if share.cores:
        notes.warn(
            view.field(MODE),
            f"{share.phase} {share.container}: an instance has the compute of its profile, {CORES} is left out",
        )
    return replace(share, mig=True, distinct=False, exclusive=False, cores=0, cores_policy=None)


def _selectors(view: PodView, notes: Notes) -> tuple[str, ...]:
    found = []
    for key, deny in ((USE_TYPE, False), (NO_TYPE, True)):
        entries = split_list(view, key, notes=notes)
        if entries:
            found.append(model_in(entries, deny=deny))
    for key, deny in ((USE_UUID, False), (NO_UUID, True)):
        entries = split_list(view, key, notes=notes)
        if entries:
            found.append(uuid_in(entries, deny=deny))
    return tuple(found)


def _annotations(found: Allocated) -> dict[str, str]:
    per_container = [found.vgpus(container) for container in found.containers]
    return {
        "hami.io/vgpu-devices-allocated": "".join(f"{text};" for text in per_container),
        "hami.io/vgpu-node": found.node,
        "hami.io/vgpu-time": str(found.at),
        "hami.io/bind-time": str(found.at),
        "hami.io/bind-phase": "success",
    }


_RESOURCE_FIELDS: Final = {
    "resourceCountName": COUNT,
    "resourceMemoryName": MEMORY,
    "resourceMemoryPercentageName": PERCENT,
    "resourceCoreName": CORES,
    "resourcePriorityName": PRIORITY,
}


def _section(settings: Settings, section: object, source: str) -> Settings:
    return read(settings, section, f"{source}: {HAMI}", dialect=HAMI, resources=_RESOURCE_FIELDS)


DIALECT: Final = Dialect(
    VOCABULARY,
    parse,
    charges={
        COUNT: charges.count,
        MEMORY: charges.memory_in(lambda settings: MIB * vgpu_settings(settings, HAMI).memory_factor),
        PERCENT: charges.percent,
        CORES: charges.cores,
    },
    charges_partitions=True,
    environment=memory_limits,
    annotations=_annotations,
    schedulers={"hami-scheduler": True, "4pd-vgpu-scheduler": False},
    opt_out=(OPT_OUT, "ignore"),
    like_annotations=("nvidia.com/", "hami.io/"),
    sections={HAMI: _section},
    device_config=_RESOURCE_FIELDS,
)
