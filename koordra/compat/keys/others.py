"""Aliyun and ACK, Alnair, Elastic GPU with TKE's qGPU, and GaiaGPU. Source: the schedulers, plugins and
agents of each, ACK's guide to shared GPUs (March 2026)."""

from __future__ import annotations

from typing import Final

from koordra.compat.keys import Key, rows

KEYS: Final[tuple[Key, ...]] = (
    *rows(
        "aliyun",
        """
resource | y | aliyun.com/gpu-mem | GiB (MiB with --memory-unit=MiB); the sum over the pod lies on one card | capacity `memory`; `matchAttribute: koordra.io/uuid` over the pod
resource | y | aliyun.com/gpu-core.percentage | percent of the card's compute (ACK) | capacity `cores` (accounting only, which is reported)
resource | refused | aliyun.com/gpu-count | what a node has | is what a node has and cannot be asked for; ask for aliyun.com/gpu-mem, and write the number of cards into the pod's label aliyun.com/gpu-count
resource | refused | alibabacloud.com/gpu-core.percentage | percent of a card's compute (ACS) | is served by ACS alone, which has no nodes of its own to run koordra on; ask for aliyun.com/gpu-core.percentage
resource | refused | alibabacloud.com/gpu-memory.percentage | percent of a card's memory (ACS) | is served by ACS alone, which has no nodes of its own to run koordra on; ask for aliyun.com/gpu-mem
label | y | aliyun.com/gpu-count | number of cards that the memory is split over (ACK) | `count`, the memory divided by it, with `distinctAttribute: koordra.io/uuid`
label | warned | gpushare | true: the pod shares a card (arena, older guides) | is not needed: its resources say it; take it out
label | warned | cgpu | true: the pod shares a card (arena, older guides) | is not needed: its resources say it; take it out
annotation | warned | ALIYUN_COM_GPU_MEM_IDX | card that was chosen | taken out: koordra does not trust allocations in manifests
annotation | warned | ALIYUN_COM_GPU_MEM_POD | memory of the pod | taken out: koordra does not trust allocations in manifests
annotation | warned | ALIYUN_COM_GPU_MEM_DEV | memory of the card | taken out: koordra does not trust allocations in manifests
annotation | warned | ALIYUN_COM_GPU_MEM_ASSIGNED | whether the plugin has taken it | taken out: koordra does not trust allocations in manifests
annotation | warned | ALIYUN_COM_GPU_MEM_ASSUME_TIME | when it was chosen | taken out: koordra does not trust allocations in manifests
annotation | warned | ALIYUN_COM_GPU_MEM_ASSIGN_TIME | when the plugin has taken it | taken out: koordra does not trust allocations in manifests
annotation | warned | scheduler.framework.gpushare.allocation | cards that the commercial scheduler chose | taken out: koordra does not trust allocations in manifests
environment | y | ALIYUN_COM_GPU_MEM_* | set by the plugin: card, memory of pod, container and card | IDX, POD, CONTAINER and DEV are set by koordra to what the claim was given
environment | warned | CGPU_DISABLE | set by the plugin where cards are not isolated | is not read: isolation.aliyun in koordra's settings says it
schedulerName | warned | gpushare-scheduler | Aliyun's scheduler, where it is one of its own | taken out: kube-scheduler places the pod
setting | y | --memory-unit | GiB or MiB | `aliyun.memoryUnit` in koordra's settings
node | warned | gpushare=true | where Aliyun's device plugin runs | is taken off nodes together with Aliyun's device plugin, and the pod then waits for ever; take it out of the pod, or select nodes by a label of your own
node | y | cgpu.disable.isolation | shares are not isolated | `isolation.aliyun` in koordra's settings
node | y | ack.node.gpu.schedule | exclusive, shared or topology-aware cards, by node | not needed: a card is given out as pods ask
node | y | ack.node.gpu.placement | binpack or spread, by node | `PlacementPolicy.device` in a claim or a class
node | y | aliyun.accelerator/nvidia_name, nvidia_count, nvidia_mem | the cards of a node | are written by koordra too
""",
    ),
    *rows(
        "alnair",
        """
resource | y | alnair/vgpu-memory | GiB of one card | capacity `memory`
resource | y | alnair/vgpu-compute | percent of that card's compute; 100 and above, or none: no limit | capacity `cores` (accounting only, which is reported) below 100, otherwise none
annotation | warned | ai.centaurus.io/alnair-gpu-id | card that was chosen | taken out: koordra does not trust allocations in manifests
annotation | warned | ai.centaurus.io/alnair-id | name of the slice | taken out: koordra does not trust allocations in manifests
annotation | warned | ai.centaurus.io/scheduler-timestamp | when it was chosen | taken out: koordra does not trust allocations in manifests
annotation | y | alnair.centaurusinfra.io/max_* | the profiler's figures | stays: figures of what was used
annotation | y | ai.centaurus.io/gpu-* | the profiler's figures | stays: figures of what was used
environment | warned | ALNAIR_VGPU_COMPUTE_PERCENTILE | set by the plugin for Alnair's library | is not set: compute is accounting only
environment | warned | ALNAIR_* | others, set by the plugin (ID, SOCKET, WORKSPACE_PATH) | are not set any more
schedulerName | warned | alnair-cost-saving | packs nodes | `PlacementPolicy.node: Binpack`, and is taken out: kube-scheduler places the pod
schedulerName | warned | alnair-high-performance | spreads over nodes | `PlacementPolicy.node: Spread`, and is taken out: kube-scheduler places the pod
kind | warned | UnifiedJob.ai.centauruscloud.io | a job whose controller chooses the number of cards | stays, and its pods are made by Alnair's controller; write a Job or a gang (docs/gangs.md)
node | y | ai.centaurus.io/physical-gpu-count, physical-gpu-uuids, virtual-gpu-count | what a node has | ResourceSlices tell it
""",
    ),
    *rows(
        "elastic-gpu",
        """
resource | y | elasticgpu.io/gpu-core | percent, 100 a card: below 100 a share, from 100 up whole cards | capacity `cores` (accounting only), or `count` whole cards
resource | y | elasticgpu.io/gpu-memory | MiB of the share | capacity `memory`; reported and left out for whole cards
resource | y | elasticgpu.com/gpu-core | newer name of the same | as elasticgpu.io/gpu-core
resource | y | elasticgpu.com/gpu-memory | newer name of the same | as elasticgpu.io/gpu-memory
resource | y | elasticgpu.io/gpu-tflops | TFLOPS of the share, which the README names beside percent; the name is koordra's | `GpuConfig.tflops` in the precision of `elastic.tflopsPrecision` (FP32): percent of whatever card is chosen (accounting only)
resource | y | elasticgpu.com/gpu-tflops | newer name of the same | as elasticgpu.io/gpu-tflops
resource | y | tke.cloud.tencent.com/qgpu-core | percent, 100 a card (TKE qGPU) | as elasticgpu.io/gpu-core, which is reported
resource | y | tke.cloud.tencent.com/qgpu-core-greedy | percent that idle compute may exceed | capacity `cores` (accounting only) with `GpuConfig.coresPolicy: Elastic`
resource | y | tke.cloud.tencent.com/qgpu-memory | GB of the share | capacity `memory`, as GiB
resource | refused | gpushare.provisioner.elasticgpu.io/gpu-core | in the README alone | is a name for ElasticGPUClaims; use elasticgpu.io/gpu-core and gpu-memory
resource | refused | gpushare.provisioner.elasticgpu.io/gpu-memory | in the README alone | is a name for ElasticGPUClaims; use elasticgpu.io/gpu-core and gpu-memory
annotation | refused | egpuc.elasticgpu.io/* | the ElasticGPUClaim of a container | refers to an ElasticGPUClaim, which is served in the cluster and cannot be converted in a file; ask for elasticgpu.io/gpu-core and elasticgpu.io/gpu-memory in the container
annotation | warned | elasticgpu.io/container-* | cards that were chosen | taken out: koordra does not trust allocations in manifests
annotation | warned | elasticgpu.io/assumed | that they were | taken out: koordra does not trust allocations in manifests
annotation | warned | tke.cloud.tencent.com/app-class | online or offline: which of two pods on a card gives way | is not read: koordra has no pods that give way on a card; ask for more cores, or a card alone
annotation | warned | tke.cloud.tencent.com/qgpu-assigned | whether qGPU's agent has taken the card | is written by qGPU's programs; take it out
annotation | warned | tke.cloud.tencent.com/qgpu-index* | cards that were chosen | is written by qGPU's programs; take it out
label | warned | elasticgpu.io/assumed | that cards were chosen | is written by Elastic GPU's scheduler; take it out
environment | warned | GPU | set by the agent to a hash | is not set any more
schedulerName | warned | elastic-gpu-scheduler | its scheduler | taken out: kube-scheduler places the pod
kind | y | ElasticGPUClass.elasticgpu.io | a way to get shares | stays: koordra's controller serves it (--elastic-gpu)
kind | y | ElasticGPUClaim.elasticgpu.io | a share | stays: koordra's controller serves it (--elastic-gpu)
kind | y | ElasticGPU.elasticgpu.io | a share that exists | stays: koordra's controller writes them (--elastic-gpu)
kind | y | GPU.elasticgpu.io | a card | stays: koordra's controller writes them (--elastic-gpu)
setting | y | unit of TFLOPS | no precision is said | `elastic.tflopsPrecision` in koordra's settings, FP32
setting | y | unit of gpu-memory | MiB in agent and README, GB in a comment of the scheduler | `elastic.memoryUnit` in koordra's settings, MiB
node | y | tke.cloud.tencent.com/qgpu-schedule-policy | fixed-share, guaranteed-share-burst ..., by node | not read: compute is accounting only
""",
    ),
    *rows(
        "tke",
        """
resource | y | tencent.com/vcuda-core | percent, 100 a card: 1..99 of one card, or multiples of 100 | capacity `cores` (accounting only, which is reported), or `count` whole cards
resource | y | tencent.com/vcuda-memory | blocks of 256 MiB, below a whole card | capacity `memory`; reported and left out for whole cards
annotation | warned | tencent.com/vcuda-core-limit | percent up to which idle compute may be used | `GpuConfig.coresPolicy: Elastic` where it is above the request, which is a preview; take it out
annotation | warned | tencent.com/predicate-gpu-idx-* | cards that were chosen | taken out: koordra does not trust allocations in manifests
annotation | warned | tencent.com/predicate-node | node that was chosen | taken out: koordra does not trust allocations in manifests
annotation | warned | tencent.com/predicate-time | when it was chosen | taken out: koordra does not trust allocations in manifests
annotation | warned | tencent.com/gpu-assigned | whether the manager has taken it | taken out: koordra does not trust allocations in manifests
annotation | warned | tencent.com/vcuda-device | devices that were given | taken out: koordra does not trust allocations in manifests
environment | y | LD_LIBRARY_PATH | pointed at the manager's own driver library | is left as it is; /usr/local/nvidia is not mounted any more
node | warned | nvidia-device-enable=enable | where TKE's gpu-manager runs | is taken off nodes together with gpu-manager, and the pod then waits for ever; take it out of the pod, or select nodes by a label of your own
node | warned | gaia.tencent.com/gpu-model | the model of a node's cards | is not written by koordra; select on `productName` in a claim or class, or by a label of your own
""",
    ),
    *rows(
        "kueue",
        """
kind | y | ClusterQueue.kueue.x-k8s.io | what a queue may have | stays; what it says of devices is reported field by field
kind | y | Cohort.kueue.x-k8s.io | what queues lend each other | stays; what it says of devices is reported field by field
kind | y | *.kueue.x-k8s.io | flavors, queues of namespaces, workloads | stays: about jobs
field | warned | ClusterQueue.kueue.x-k8s.io: spec.resourceGroups | what the queue may have | counts devices by names that claims do not use; count them by deviceClassMappings of Kueue's configuration (docs/quota.md)
field | warned | Cohort.kueue.x-k8s.io: spec.resourceGroups | what queues lend each other | counts devices by names that claims do not use; count them by deviceClassMappings of Kueue's configuration (docs/quota.md)
""",
    ),
)
