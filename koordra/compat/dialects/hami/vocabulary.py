"""HAMi's words: the names that pods, nodes and HAMi's settings use, and what becomes of each."""

from __future__ import annotations

from typing import Final

from koordra.compat.dialect import (
    annotation,
    environment,
    label,
    on_nodes,
    resource,
    scheduler,
    setting,
    written,
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

NAMES: Final = (
    resource(
        COUNT,
        "slices, each on another card",
        "`count`, with `distinctAttribute: koordra.io/uuid`",
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
        "capacity `cores` (accounting only); 100 also `GpuConfig.exclusive`",
    ),
    resource(PRIORITY, "0 high, 1 low", "`GpuConfig.priority`, which has no effect, and told"),
    resource(
        "nvidia.com/mig-*",
        "MIG instances of a profile",
        "class `mig.koordra.io` with the profile",
    ),
    annotation(
        USE_TYPE,
        "models allowed: any part of the name, in either case, commas between",
        "CEL on `productName`",
    ),
    annotation(NO_TYPE, "models not allowed", "CEL on `productName`"),
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
        "is read: force is `coresPolicy: Hard`, disable is `Elastic`; told, since neither has an effect",
        warned=False,
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
        provided=True,
    ),
    environment(
        "CUDA_DEVICE_SM_LIMIT",
        "set by HAMi's device plugin for its library",
        "is not set: compute is accounting only",
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
)
