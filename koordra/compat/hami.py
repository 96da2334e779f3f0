"""HAMi on NVIDIA cards: N slices on N different cards for each container, first what its webhook does, then its scheduler.

    webhook     a percentage outside 0..100 is refused; memory, cores or a percentage in limits without a count becomes one
                card (defaultGPUNum); a count with neither memory nor cores takes the cards' compute whole (cores 100)
    memory      gpumem unless 0, else the percentage unless 0, else defaultMemory, else all of the card; MiB times memoryFactor
    cores       above 100 is 100; 100 wants the card alone; 0 or none is neither reserved nor limited
    limits      count before requests, as every other figure

A value of gpumem that does not fit into 32 bits makes HAMi forget the whole request; here it is refused. Init containers run
before the others, so a card is charged the larger of both. Mode `mig` gives instances with enough memory, which may lie on
one card. The limits are kept by a library, so shares ask for isolation.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from koordra.api.classic_notes import Notes
from koordra.api.parameters import CoresPolicy, DevicePolicy, NodePolicy
from koordra.compat import selectors
from koordra.compat.containers import Container, amount
from koordra.compat.dialect import (
    Dialect,
    PodView,
    exclusively,
    mig_shares,
    resource_names,
    split_list,
    tell_zeros,
)
from koordra.compat.normal import MIB, WHOLE, InitRule, Memory, Share, Wish, percent_of
from koordra.compat.settings import HAMI, Settings, VgpuSettings
from koordra.compat.vocabulary import (
    Vocabulary,
    annotation,
    environment,
    label,
    on_nodes,
    resource,
    scheduler,
    setting,
    written,
)

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

MOST_MIB: Final = 2**31 - 1
_TRUE: Final = ("1", "t", "T", "TRUE", "true", "True")
_FALSE: Final = ("0", "f", "F", "FALSE", "false", "False")

VOCABULARY: Final = Vocabulary(
    HAMI,
    "HAMi",
    (
        resource(
            COUNT,
            "slices, each on another card",
            "`count`, with `distinctAttribute: koordra.io/uuid`",
            also=("plain", "koordinator"),
        ),
        resource(MEMORY, "MiB on each card, times memoryFactor", "capacity `memory`"),
        resource(
            PERCENT,
            "percent of each card's memory, where gpumem is 0 or absent",
            "`GpuConfig.memoryPercent`; 100 is all of the card",
        ),
        resource(
            CORES,
            "percent of each card's compute; 100 wants the card alone",
            "capacity `cores`; 100 also `GpuConfig.exclusive`",
        ),
        resource(PRIORITY, "0 high, 1 low", "`GpuConfig.priority`"),
        resource(
            "nvidia.com/mig-*",
            "MIG instances of a profile",
            "class `mig.koordra.io` with the profile",
            also=("plain",),
        ),
        annotation(
            USE_TYPE,
            "models allowed: any part of the name, in either case, commas between",
            "CEL on `productName`",
            also=("volcano-vgpu",),
        ),
        annotation(NO_TYPE, "models not allowed", "CEL on `productName`", also=("volcano-vgpu",)),
        annotation(USE_UUID, "cards allowed, by UUID", "CEL on `uuid`"),
        annotation(NO_UUID, "cards not allowed", "CEL on `uuid`"),
        annotation(
            NUMA_BIND,
            "all cards of a container on one NUMA node",
            "`JointAllocation` NUMANode, Required, Together",
        ),
        annotation(
            MODE,
            "hami-core, mig or mps",
            "isolation `limiter` or `mps`; `mig`: class `mig.koordra.io` with enough memory",
        ),
        annotation(NODE_POLICY, "binpack or spread over nodes", "`PlacementPolicy.node`"),
        annotation(
            CARD_POLICY,
            "binpack, spread, mutex, topology-aware or numa, commas between",
            "`PlacementPolicy.device`; mutex: `GpuConfig.exclusive` (stricter: nobody joins later); numa: NUMANode, Preferred",
        ),
        annotation(
            WEIGHTS,
            "weights of slots, cores and memory in the score of cards",
            "checked, and told: koordra has a score of its own",
        ),
        label(OPT_OUT, "`ignore`: HAMi leaves the pod alone", "koordra leaves it alone too"),
        annotation(
            "hami.io/*",
            "other annotations of HAMi",
            "decide the dialect, with a warning that nobody reads them",
        ),
        written("hami.io/vgpu-node", "node that was chosen"),
        written("hami.io/vgpu-time", "when it was chosen"),
        written("hami.io/bind-time", "when the pod was bound"),
        written("hami.io/bind-phase", "how far the binding is"),
        written("hami.io/vgpu-devices-to-allocate", "cards that were chosen"),
        written("hami.io/vgpu-devices-allocated", "cards that were given"),
        written("hami.io/vgpu-mig-allocations", "MIG instances that were given"),
        environment(
            CORE_SWITCH,
            "default, force or disable the limit on compute",
            "is read: force is `coresPolicy: Hard`, disable is `Elastic`",
            told=False,
        ),
        environment(
            "CUDA_DISABLE_CONTROL",
            "switches HAMi's library off for the container",
            "is not honoured: a share is always kept",
        ),
        environment(
            "CUDA_DEVICE_MEMORY_LIMIT",
            "set by HAMi's device plugin",
            "`CUDA_DEVICE_MEMORY_LIMIT_<i>` is set by koordra to what the claim was given",
            given=True,
        ),
        environment(
            "CUDA_DEVICE_SM_LIMIT",
            "set by HAMi's device plugin",
            "is set by koordra to what the claim was given",
            given=True,
        ),
        scheduler(
            "hami-scheduler",
            "HAMi's scheduler, set by its webhook",
            "taken out: kube-scheduler places the pod",
        ),
        setting(
            "resourceCountName, resourceMemoryName, ...",
            "the names above in this cluster",
            "read from device-config.yaml",
        ),
        setting(
            "memoryFactor, defaultMemory, defaultCores, defaultGPUNum",
            "units and defaults",
            "read from device-config.yaml",
        ),
        setting("gpuCorePolicy", "default, force or disable", "as the environment variable above"),
        setting(
            "deviceMemoryScaling",
            "more memory than the card has",
            "above 1 every pod is refused: there is no memory behind it",
        ),
        setting(
            "deviceCoreScaling",
            "more compute than the card has",
            "above 1 it is told: the shares of a card add up to 100",
        ),
        setting("deviceSplitCount", "shares a card takes", "`koordra kubelet-plugin --slots-per-gpu`"),
        setting(
            "filterdevices, operatingmode, migstrategy, preConfiguredDeviceMemory",
            "per node",
            "flags of the kubelet plugin; taints for cards to leave out",
        ),
        on_nodes(
            "hami.io/node-nvidia-register, node-handshake, mutex.lock, device-cordon ...",
            "HAMi's own records on nodes",
            "not read; cordon a card with `koordra cordon-device`",
        ),
    ),
)


def understand(view: PodView, settings: Settings, notes: Notes) -> Wish:
    """Raises Refused for what HAMi would refuse, forget or never place, and for what koordra cannot honour."""
    own = settings.of(HAMI)
    _check_scaling(own, notes)
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
    node, device, mutex, numa = _policies(view, notes)
    if mutex:
        shares = [exclusively(share) for share in shares]
    return Wish(
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


def _check_scaling(own: VgpuSettings, notes: Notes) -> None:
    if own.memory_scaling > 1:
        raise notes.refuse(
            "deviceMemoryScaling",
            f"{own.memory_scaling:g} gives out more memory than a card has, which koordra does not",
            "set it to 1 and ask for what the pod needs",
        )
    if own.core_scaling > 1:
        notes.warn(
            "deviceCoreScaling", f"{own.core_scaling:g} is not honoured: the compute of a card adds up to 100"
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
        notes.warn(
            container.where,
            "no limit on compute: the share is counted, and idle compute may be used beyond it",
        )
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


def _policies(
    view: PodView, notes: Notes
) -> tuple[NodePolicy | None, DevicePolicy | None, bool, bool | None]:
    """(node policy, card policy, mutex, NUMA: True required, False preferred, None neither)."""
    node = _word(view, NODE_POLICY, {"binpack": NodePolicy.BINPACK, "spread": NodePolicy.SPREAD}, notes)
    device: DevicePolicy | None = None
    mutex, numa = False, _numa_bind(view, notes)
    for word in split_list(view, CARD_POLICY, notes=notes) or ():
        if word == "mutex":
            mutex = True
            notes.warn(
                view.field(CARD_POLICY), "mutex: the card is kept alone, also from pods that come later"
            )
        elif word in ("numa", "numa-bind"):
            numa = numa or False
        elif word not in _DEVICE_POLICIES:
            notes.warn(
                view.field(CARD_POLICY),
                f"{word!r} is no policy and is left out",
                f"policies are {', '.join(_DEVICE_POLICIES)}, mutex and numa",
            )
        elif device is None:
            device = _DEVICE_POLICIES[word]
        else:
            notes.warn(view.field(CARD_POLICY), f"{word!r} comes after another policy and is left out")
    _check_weights(view, notes)
    return node, device, mutex, numa


_DEVICE_POLICIES: Final = {
    "binpack": DevicePolicy.BINPACK,
    "spread": DevicePolicy.SPREAD,
    "topology-aware": DevicePolicy.TOPOLOGY_AWARE,
}


def _word(view: PodView, key: str, words: dict[str, NodePolicy], notes: Notes) -> NodePolicy | None:
    said = view.annotation(key)
    if said is None or not said.strip():
        return None
    if said.strip() not in words:
        notes.warn(view.field(key), f"{said!r} is no policy and is left out", f"write {' or '.join(words)}")
    return words.get(said.strip())


def _numa_bind(view: PodView, notes: Notes) -> bool | None:
    said = view.annotation(NUMA_BIND)
    if said is None or said in _FALSE:
        return None
    if said not in _TRUE:
        notes.warn(view.field(NUMA_BIND), f"{said!r} is neither true nor false; HAMi takes it for false")
        return None
    return True


def _check_weights(view: PodView, notes: Notes) -> None:
    said = view.annotation(WEIGHTS)
    if said is None:
        return
    pairs = [entry.strip().partition("=") for entry in said.split(",")]
    weights = {name.strip(): value.strip() for name, _, value in pairs}
    numbers = [int(value) for value in weights.values() if value.isascii() and value.isdigit()]
    if set(weights) != {"slot", "core", "memory"} or len(numbers) != 3 or len(pairs) != 3 or not any(numbers):
        raise notes.refuse(
            view.field(WEIGHTS),
            f"{said!r} would keep HAMi from placing the pod",
            'write it like "slot=1,core=1,memory=3"',
        )
    notes.warn(view.field(WEIGHTS), "koordra has a score of its own; the weights are left out")


def _selectors(view: PodView, notes: Notes) -> tuple[str, ...]:
    found = []
    for key, deny in ((USE_TYPE, False), (NO_TYPE, True)):
        entries = split_list(view, key, notes=notes)
        if entries:
            found.append(selectors.model_in(entries, deny=deny))
    for key, deny in ((USE_UUID, False), (NO_UUID, True)):
        entries = split_list(view, key, notes=notes)
        if entries:
            found.append(selectors.uuid_in(entries, deny=deny))
    return tuple(found)


DIALECT: Final = Dialect(VOCABULARY, understand)
