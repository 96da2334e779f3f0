"""HAMi on NVIDIA cards: N slices on N different cards for each container, first what its webhook does, then
its scheduler.

    webhook     a percentage outside 0..100 is refused; memory, cores or a percentage in limits without a
                count becomes one card (defaultGPUNum); a count with neither memory nor cores takes the cards'
                compute whole (cores 100)
    memory      gpumem unless 0, else the percentage unless 0, else defaultMemory, else all of the card; MiB
                times memoryFactor
    cores       above 100 is 100; 100 wants the card alone; 0 or none reserves none
    limits      count before requests, as every other amount
    policies    binpack and spread, mutex, NUMA, weights: a word that HAMi does not know is left out with a
                warning, as HAMi leaves it out; weights that would keep HAMi from placing the pod are refused

A value of gpumem that does not fit into 32 bits makes HAMi forget the whole request; here it is refused. Init
containers run before the others, so a card is charged the larger of both. Mode `mig` gives instances with
enough memory, which may lie on one card; beside another mode, cards or else instances. The limits are
enforced by a library, so shares ask for isolation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from koordra.api.opaque.parameters import CoresPolicy, DevicePolicy, NodePolicy
from koordra.compat.dialect import (
    MIB,
    MIG,
    WHOLE,
    Allocated,
    Container,
    ContainerRequest,
    Dialect,
    Memory,
    NormalizedRequest,
    PodView,
    Share,
    charges,
    exclusively,
    memory_limits,
    mig_shares,
    percent_of,
    split_list,
)
from koordra.compat.dialect.vgpu import (
    ISOLATION,
    LIBRARY,
    MOST_MIB,
    VgpuSettings,
    as_mig,
    check_scaling,
    mig_profile_in,
    model_in,
    uuid_in,
    vgpu_settings,
    warn_of_library,
)

HAMI: Final = "hami"
COUNT: Final = "nvidia.com/gpu"
MEMORY: Final = "nvidia.com/gpumem"
PERCENT: Final = "nvidia.com/gpumem-percentage"
CORES: Final = "nvidia.com/gpucores"
PRIORITY: Final = "nvidia.com/priority"

USE_TYPE: Final = "nvidia.com/use-gputype"
NO_TYPE: Final = "nvidia.com/nouse-gputype"
USE_UUID: Final = "nvidia.com/use-gpuuuid"
NO_UUID: Final = "nvidia.com/nouse-gpuuuid"
NUMA_BIND: Final = "nvidia.com/numa-bind"
MODE: Final = "nvidia.com/vgpu-mode"
NODE_POLICY: Final = "hami.io/node-scheduler-policy"
CARD_POLICY: Final = "hami.io/gpu-scheduler-policy"
WEIGHTS: Final = "hami.io/device-scoring-weights"
OPT_OUT: Final = "hami.io/webhook"
CORE_SWITCH: Final = "GPU_CORE_UTILIZATION_POLICY"

_TRUE: Final = ("1", "t", "T", "TRUE", "true", "True")
_FALSE: Final = ("0", "f", "F", "FALSE", "false", "False")

_NODE_POLICIES: Final = {"binpack": NodePolicy.BINPACK, "spread": NodePolicy.SPREAD}
_DEVICE_POLICIES: Final = {
    "binpack": DevicePolicy.BINPACK,
    "spread": DevicePolicy.SPREAD,
    "topology-aware": DevicePolicy.TOPOLOGY_AWARE,
}


def policies_of(view: PodView) -> tuple[NodePolicy | None, DevicePolicy | None, bool, bool | None]:
    """(node policy, card policy, mutex, NUMA: True required, False preferred, None neither)."""
    device: DevicePolicy | None = None
    mutex, numa = False, _numa_bind(view)
    for word in split_list(view, CARD_POLICY) or ():
        if word == "mutex":
            mutex = True
            view.warn(CARD_POLICY, "mutex: the card is kept alone, also from pods that come later")
        elif word in ("numa", "numa-bind"):
            numa = numa or False
        elif word not in _DEVICE_POLICIES:
            known = f"policies are {', '.join(_DEVICE_POLICIES)}, mutex and numa"
            view.warn(CARD_POLICY, f"{word!r} is no policy and is left out", known)
        elif device is None:
            device = _DEVICE_POLICIES[word]
        else:
            view.warn(CARD_POLICY, f"{word!r} comes after another policy and is left out")
    _check_weights(view)
    text = view.annotations.get(NODE_POLICY) or ""
    if text.strip() and text.strip() not in _NODE_POLICIES:
        remedy = f"write {' or '.join(_NODE_POLICIES)}"
        view.warn(NODE_POLICY, f"{text!r} is no policy and is left out", remedy)
    return _NODE_POLICIES.get(text.strip()), device, mutex, numa


def _numa_bind(view: PodView) -> bool | None:
    text = view.annotations.get(NUMA_BIND, "false")
    if text not in (*_TRUE, *_FALSE):
        view.warn(NUMA_BIND, f"{text!r} is neither true nor false; HAMi takes it for false")
    return True if text in _TRUE else None


def _check_weights(view: PodView) -> None:
    text = view.annotations.get(WEIGHTS)
    if text is None:
        return
    pairs = [entry.strip().partition("=") for entry in text.split(",")]
    weights = {name.strip(): value.strip() for name, _, value in pairs}
    numbers = [int(value) for value in weights.values() if value.isascii() and value.isdigit()]
    if set(weights) != {"slot", "core", "memory"} or len(numbers) != 3 or len(pairs) != 3 or not any(numbers):
        raise view.refuse(
            WEIGHTS,
            f"{text!r} would keep HAMi from placing the pod",
            'write it like "slot=1,core=1,memory=3"',
        )
    view.warn(WEIGHTS, "are left out: koordra has a score of its own", "take it out")


def parse(view: PodView) -> NormalizedRequest:
    """Raises Refused for what HAMi would refuse, forget or never place, or koordra cannot honour."""
    check_scaling(vgpu_settings(view.settings, HAMI), view.notes)
    modes = _modes(view)
    shares = view.shares(_share)
    if modes == {"mig"}:
        remedy = f"write {MEMORY}, or ask for a profile: nvidia.com/mig-<profile>"
        shares = tuple(as_mig(share, view, MODE, cores=CORES, remedy=remedy) for share in shares)
    elif "mig" in modes:
        shares = tuple(replace(share, or_mig=share.memory.bytes is not None) for share in shares)
    mig = mig_shares(view)
    allowed = mig_profile_in(vgpu_settings(view.settings, HAMI)) if "mig" in modes else ""
    node, device, mutex, numa = policies_of(view)
    if mutex:
        shares = tuple(map(exclusively, shares))
    return NormalizedRequest(
        (*shares, *mig),
        selectors=tuple(_selectors(view)),
        of_instances=(allowed,) if allowed else (),
        numa=numa,
        node_policy=node,
        device_policy=device,
        isolation="mps" if modes - {"mig"} == {"mps"} else None,
    )


def _share(request: ContainerRequest) -> Share | None:
    own = vgpu_settings(request.pod.settings, HAMI)
    percent = request.amount(PERCENT)
    if percent is not None and percent > 100:
        raise request.refuse(PERCENT, f"{percent} is no percentage", "write 0 to 100")
    memory, cores, priority = request.amount(MEMORY), request.amount(CORES), request.amount(PRIORITY)
    if priority is not None and priority > 1:
        raise request.refuse(PRIORITY, f"{priority} is no priority", "write 0 (high) or 1 (low)")
    count = request.amount(COUNT)
    if count is None:
        count = _default_count(request, own)
    if count is None:
        if priority is not None:
            request.warn(PRIORITY, "is for nothing: the container asks for no card")
        return None
    if cores is None:
        alone = percent == 100 if percent is not None else memory is None
        cores = 100 if alone else own.default_cores
    if cores > 100:
        request.warn(CORES, f"{cores} counts as 100, as it does in HAMi")
        cores = 100
    share = request.share(
        count,
        memory=_memory(request, memory, percent, own),
        cores=cores,
        priority=priority,
        cores_policy=_cores_policy(request.container, own),
        limited_by=request.name(CORES),
    )
    return exclusively(share) if cores == 100 else share


def _default_count(request: ContainerRequest, own: VgpuSettings) -> int | None:
    """The webhook adds a count where one of the others stands in limits."""
    names = (MEMORY, PERCENT, CORES)
    if limited := [name for name in names if request.has(name, "limits")]:
        if own.default_count == 0:
            raise request.refuse(limited[0], "comes without a count of cards, and defaultGPUNum is 0")
        return own.default_count
    if requested := [name for name in names if request.has(name)]:
        raise request.refuse(
            requested[0],
            "stands in requests without a count of cards, which HAMi does not read",
            "write it in limits",
        )
    return None


def _memory(request: ContainerRequest, memory: int | None, percent: int | None, own: VgpuSettings) -> Memory:
    factor = max(own.memory_factor, 1)
    if memory:
        if memory > MOST_MIB // factor:
            raise request.refuse(
                MEMORY,
                f"{memory} is more MiB than HAMi can hold, which then forgets the request for cards",
                "write a plain number of MiB",
            )
        return Memory(bytes=memory * factor * MIB)
    if percent:
        return percent_of(percent)
    return Memory(bytes=own.default_memory * MIB) if own.default_memory else WHOLE


def _cores_policy(container: Container, own: VgpuSettings) -> CoresPolicy | None:
    switch = container.environment.get(CORE_SWITCH, own.core_policy if own.core_limit else "disable")
    return {"force": CoresPolicy.HARD, "disable": CoresPolicy.ELASTIC}.get(switch.lower())


def _modes(view: PodView) -> frozenset[str]:
    """Of `hami-core`, `mps` and `mig`; HAMi asks whether the annotation contains the node's mode. Without it
    a pod may be on nodes of any mode; here it has cards, since an instance has the compute of its profile."""
    text = view.annotations.get(MODE)
    if text is None:
        return frozenset({LIBRARY})
    found = [mode for mode in (LIBRARY, "mps", "mig") if mode in text]
    if not found:
        raise view.refuse(MODE, f"{text!r} is the mode of no node", "write hami-core, mig or mps")
    if LIBRARY in found:
        warn_of_library(view, MODE)
    if {LIBRARY, "mps"} <= set(found):
        view.warn(MODE, f"{text!r} allows hami-core and mps; hami-core is taken")
    return frozenset(found)


def _selectors(view: PodView) -> Iterator[str]:
    for key, expression, deny in (
        (USE_TYPE, model_in, False),
        (NO_TYPE, model_in, True),
        (USE_UUID, uuid_in, False),
        (NO_UUID, uuid_in, True),
    ):
        entries = split_list(view, key)
        if entries:
            yield expression(entries, deny=deny)


def _annotations(found: Allocated) -> dict[str, str]:
    return {
        "hami.io/vgpu-devices-allocated": "".join(f"{found.vgpus(name)};" for name in found.containers),
        "hami.io/vgpu-node": found.node,
        "hami.io/vgpu-time": str(found.at),
        "hami.io/bind-time": str(found.at),
        "hami.io/bind-phase": "success",
    }


DIALECT: Final = Dialect(
    HAMI,
    "HAMi",
    parse,
    {
        COUNT: charges.count,
        MEMORY: charges.memory_in(lambda settings: MIB * vgpu_settings(settings, HAMI).memory_factor),
        PERCENT: charges.percent,
        CORES: charges.cores,
        PRIORITY: None,
        f"{MIG}*": None,
    },
    isolation=ISOLATION,
    charges_partitions=True,
    annotations=(
        USE_TYPE,
        NO_TYPE,
        USE_UUID,
        NO_UUID,
        NUMA_BIND,
        MODE,
        NODE_POLICY,
        CARD_POLICY,
        WEIGHTS,
        "hami.io/*",
    ),
    labels=(OPT_OUT,),
    written=(
        "hami.io/vgpu-node",
        "hami.io/vgpu-time",
        "hami.io/bind-time",
        "hami.io/bind-phase",
        "hami.io/vgpu-devices-to-allocate",
        "hami.io/vgpu-devices-allocated",
        "hami.io/vgpu-mig-allocations",
    ),
    provided_variables=("CUDA_DEVICE_MEMORY_LIMIT",),
    environment=memory_limits,
    allocation_annotations=_annotations,
    schedulers={"hami-scheduler": True, "4pd-vgpu-scheduler": True},
    opt_out=(OPT_OUT, "ignore"),
    domains=("nvidia.com/", "hami.io/"),
    device_config={
        "resourceCountName": COUNT,
        "resourceMemoryName": MEMORY,
        "resourceMemoryPercentageName": PERCENT,
        "resourceCoreName": CORES,
        "resourcePriorityName": PRIORITY,
    },
    device_section=HAMI,
)
