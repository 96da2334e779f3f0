"""HAMi. Source: pkg/device/nvidia, pkg/util, pkg/scheduler/config and the chart of HAMi 2.10, docs of 2.8
(the geometries); the variables of HAMi-core."""

from __future__ import annotations

from typing import Final

from koordra.compat.keys import Key, rows

KEYS: Final[tuple[Key, ...]] = rows(
    "hami",
    """
resource | y | nvidia.com/gpu | slices, each on another card | `count`, with `distinctAttribute: koordra.io/uuid`
resource | y | nvidia.com/gpumem | MiB on each card, times memoryFactor | capacity `memory`
resource | y | nvidia.com/gpumem-percentage | percent of each card's memory, where gpumem is 0 or absent | `GpuConfig.memoryPercent`; 100 is all of the card
resource | y | nvidia.com/gpucores | percent of each card's compute; 100 wants the card alone | capacity `cores` (accounting only, which is reported); 100 also `GpuConfig.exclusive`
resource | y | nvidia.com/priority | 0 high, 1 low | `GpuConfig.priority`; reported, since most nodes do not act by it
resource | y | nvidia.com/mig-* | MIG instances of a profile | class `mig.koordra.io` with the profile
annotation | y | nvidia.com/use-gputype | models allowed: any part of the name, in either case, commas between | CEL on `productName`
annotation | y | nvidia.com/nouse-gputype | models not allowed | CEL on `productName`
annotation | y | nvidia.com/use-gpuuuid | cards allowed, by UUID | CEL on `uuid`
annotation | y | nvidia.com/nouse-gpuuuid | cards not allowed | CEL on `uuid`
annotation | y | nvidia.com/numa-bind | all cards of a container on one NUMA node | `JointAllocation` NUMANode, Required, Together
annotation | y | nvidia.com/vgpu-mode | hami-core, mig or mps | isolation `limiter`, which is reported, or by the settings `hami-core`; or `mps`; `mig`: class `mig.koordra.io` with enough memory; several: cards, or else instances (`firstAvailable`)
annotation | y | hami.io/node-scheduler-policy | binpack or spread over nodes | `PlacementPolicy.node`
annotation | y | hami.io/gpu-scheduler-policy | binpack, spread, mutex, topology-aware or numa, commas between | `PlacementPolicy.device`; mutex: `GpuConfig.exclusive` (stricter: nobody joins later); numa: NUMANode, Preferred
annotation | warned | hami.io/device-scoring-weights | weights of slots, cores and memory in the score of cards | are left out: koordra has a score of its own; take it out
annotation | warned | hami.io/vgpu-node | node that was chosen | taken out: koordra does not trust allocations in manifests
annotation | warned | hami.io/vgpu-time | when it was chosen | taken out: koordra does not trust allocations in manifests
annotation | warned | hami.io/bind-time | when the pod was bound | taken out: koordra does not trust allocations in manifests
annotation | warned | hami.io/bind-phase | how far the binding is | taken out: koordra does not trust allocations in manifests
annotation | warned | hami.io/vgpu-devices-to-allocate | cards that were chosen | taken out: koordra does not trust allocations in manifests
annotation | warned | hami.io/vgpu-devices-allocated | cards that were given | taken out: koordra does not trust allocations in manifests
annotation | warned | hami.io/vgpu-mig-allocations | MIG instances that were given | taken out: koordra does not trust allocations in manifests
annotation | warned | hami.io/*-devices-to-allocate | cards of another vendor that were chosen | means nothing on NVIDIA cards; take it out
annotation | warned | hami.io/*-devices-allocated | cards of another vendor that were given | means nothing on NVIDIA cards; take it out
annotation | warned | hami.io/use-*-uuid | cards of another vendor that are allowed | means nothing on NVIDIA cards; nvidia.com/use-gpuuuid is what selects them
annotation | warned | hami.io/no-use-*-uuid | cards of another vendor that are not allowed | means nothing on NVIDIA cards; nvidia.com/nouse-gpuuuid is what selects them
annotation | warned | hami.io/gpu-use-uuid | AMD cards that are allowed | means nothing on NVIDIA cards; nvidia.com/use-gpuuuid is what selects them
annotation | warned | hami.io/gpu-no-use-uuid | AMD cards that are not allowed | means nothing on NVIDIA cards; nvidia.com/nouse-gpuuuid is what selects them
label | warned | hami.io/webhook | `ignore`: HAMi leaves the pod alone | koordra leaves it alone too; take the label out for koordra to convert the pod
label | warned | hami.io/dra | true: HAMi's DRA webhook makes a claim of the pod | is not read: koordra makes the claim; take it out, or HAMi's webhook makes a second one
label | warned | hami.io/gpu-scheduler-policy | the policy, where an annotation is read | is read as an annotation alone; write it under annotations
label | warned | hami.io/node-scheduler-policy | the policy, where an annotation is read | is read as an annotation alone; write it under annotations
environment | y | GPU_CORE_UTILIZATION_POLICY | default, force or disable the limit on compute | force is `coresPolicy: Hard`, disable is `Elastic`; reported, since most nodes do not act by them
environment | warned | CUDA_DISABLE_CONTROL | switches HAMi's library off for the container | is not honoured: a share is always kept
environment | y | CUDA_DEVICE_MEMORY_LIMIT | set by HAMi's device plugin | `CUDA_DEVICE_MEMORY_LIMIT_<i>` is set by koordra to what the claim was given
environment | warned | CUDA_DEVICE_SM_LIMIT | set by HAMi's device plugin for its library | is not read: koordra sets it for isolation hami-core alone; ask for cores
environment | warned | CUDA_DEVICE_MEMORY_SHARED_CACHE | where HAMi's library keeps its counts | is not read: the limiter has a region of its own
environment | warned | CUDA_OVERSUBSCRIBE | memory beyond the card's | is not honoured: there is no memory behind it; ask for what the pod needs
environment | warned | CUDA_TASK_PRIORITY | 0 high, 1 low | is not read: compute is not shared by priority; ask for more cores, or a card alone (nvidia.com/gpucores 100)
environment | warned | ACTIVE_OOM_KILLER | ends a process that goes past its share | is not read: an allocation past the share fails, and nobody is ended; handle the error of the allocation
environment | warned | LIBCUDA_LOG_LEVEL | what HAMi's library logs | is not read: the limiter logs nothing in containers; see `koordra claims` and the metrics
environment | warned | RECORD_KERNEL_INTERVAL | how often HAMi's library looks at kernels | is not read: compute is accounting only; take it out
environment | warned | CUDA_REDIRECT | where HAMi's library finds the driver | is not read: the driver's own library is used; take it out
schedulerName | warned | hami-scheduler | HAMi's scheduler, set by its webhook | taken out: kube-scheduler places the pod
schedulerName | warned | 4pd-vgpu-scheduler | HAMi's scheduler under its first name | taken out: kube-scheduler places the pod
setting | y | resourceCountName | the name of nvidia.com/gpu in this cluster | read from device-config.yaml
setting | y | resourceMemoryName | the name of nvidia.com/gpumem | read from device-config.yaml
setting | y | resourceMemoryPercentageName | the name of nvidia.com/gpumem-percentage | read from device-config.yaml
setting | y | resourceCoreName | the name of nvidia.com/gpucores | read from device-config.yaml
setting | y | resourcePriorityName | the name of nvidia.com/priority | read from device-config.yaml
setting | y | memoryFactor | MiB of a unit of gpumem | read from device-config.yaml
setting | y | defaultMemory | MiB where none is asked for | read from device-config.yaml
setting | y | defaultMem | MiB where none is asked for, older name | read from device-config.yaml
setting | y | defaultCores | compute where none is asked for | read from device-config.yaml
setting | y | defaultGPUNum | cards where none is asked for | read from device-config.yaml
setting | y | gpuCorePolicy | default, force or disable | as the environment variable
setting | y | deviceMemoryScaling | more memory than the card has | above 1 every pod is refused: there is no memory behind it
setting | y | deviceCoreScaling | more compute than the card has | above 1 every pod is warned: the shares of a card add up to 100
setting | y | migProfileAllowlist | MIG profiles that may be made, by model | of pods in mode mig: CEL on `productName` and `profile`
setting | y | knownMigGeometries | sets of MIG instances that a card may be cut into, by model (before 2.10) | of pods in mode mig: CEL on the profiles that the sets have
setting | y | overwriteEnv | hides every card from pods that ask for none | koordra's hook does that to every container
setting | warned | deviceSplitCount | shares a card takes | is said on the node; koordra kubelet-plugin --slots-per-gpu
setting | warned | preConfiguredDeviceMemory | MiB of cards that tell none (GB10) | is said on the node; koordra reads what the card or the system has
setting | warned | libCudaLogLevel | what HAMi's library logs | means nothing to koordra's limiter; take it out
setting | warned | enableNumaTopology | whether the kubelet is told the NUMA node of a card | is not needed: the node's slices say it; GpuConfig.numaAffinity brings the processors of the card
setting | warned | runtimeClassName | put into pods that ask for cards | is not needed: devices come with the claim; `nvidia` is taken out of pods, and what runtimeClasses in koordra's settings lists instead
setting | warned | operatingmode | hami-core or mig, by node | is said on the node; `koordra kubelet-plugin --node-modes` reads HAMi's list of nodes, or label the Node `koordra.io/isolation`
setting | warned | migstrategy | none, single or mixed, by node | is said on the node; koordra gives instances out by their profile
setting | warned | filterdevices | cards that are not given out, by node | is said on the node; koordra cordon-device
setting | warned | enablegetpreferredallocation | who chooses the cards, by node | is not needed: the controller chooses; take it out
node | warned | gpu=on | where HAMi's device plugin runs, by its chart | is taken off nodes together with HAMi's device plugin, and the pod then waits for ever; take it out of the pod, or select nodes by a label of your own
node | y | hami.io/node-nvidia-register | what a node has | ResourceSlices tell it
node | y | hami.io/node-nvidia-score | how near cards are | ResourceSlices tell it
node | y | hami.io/node-handshake* | whether HAMi's plugin lives | not needed
node | y | hami.io/mutex.lock | one binding at a time | not needed: the claim's version guards it
node | y | hami.io/device-cordon | cards that are left out | `koordra cordon-device`
""",
)
