"""Volcano: its vGPU and gpu-share device plugins, and what its jobs and queues say of devices. Source:
pkg/scheduler/api/devices and the API of Volcano at August 2026, volcano-vgpu-device-plugin,
volcano-sh/devices."""

from __future__ import annotations

from typing import Final

from koordra.compat.keys import Key, rows

KEYS: Final[tuple[Key, ...]] = (
    *rows(
        "volcano-vgpu",
        """
resource | y | volcano.sh/vgpu-number | slices, each on another card | `count`, with `distinctAttribute: koordra.io/uuid`
resource | y | volcano.sh/vgpu-memory | MiB on each card, times gpuMemoryFactor | capacity `memory`; left out where the percentage is there
resource | y | volcano.sh/vgpu-memory-percentage | percent of each card's memory; wins over the memory | `GpuConfig.memoryPercent`; 100 is all of the card
resource | y | volcano.sh/vgpu-cores | percent of each card's compute; 100 wants the card alone | capacity `cores` (accounting only, which is reported); 100 also `GpuConfig.exclusive`
resource | warned | volcano.sh/vgpu-priority | in the chart alone; nothing reads it | is no name that Volcano or koordra reads, and stays: the pod waits for ever; take it out
annotation | y | nvidia.com/use-gputype | models allowed: any part of the name, in either case | CEL on `productName`; hides the deny list
annotation | y | nvidia.com/nouse-gputype | models not allowed | CEL on `productName`
annotation | y | volcano.sh/vgpu-use-gpuuuid | cards allowed, by UUID | CEL on `uuid`
annotation | y | volcano.sh/vgpu-nouse-gpuuuid | cards not allowed | CEL on `uuid`
annotation | y | volcano.sh/vgpu-mode | hami-core, mig or mps | isolation `limiter`, which is reported, or by the settings `hami-core`; or `mps`; `mig`: class `mig.koordra.io` with enough memory
annotation | warned | volcano.sh/vgpu-podgroup-policy | spread: no card has two pods of a pod group | `PlacementPolicy.device: Spread`: better so, not demanded
annotation | warned | volcano.sh/vgpu-ids-new | cards that were given | taken out: koordra does not trust allocations in manifests
annotation | warned | volcano.sh/vgpu-ids | cards that were given, before | taken out: koordra does not trust allocations in manifests
annotation | warned | volcano.sh/devices-to-allocate | cards that were chosen | taken out: koordra does not trust allocations in manifests
annotation | warned | volcano.sh/vgpu-node | node that was chosen | taken out: koordra does not trust allocations in manifests
annotation | warned | volcano.sh/vgpu-time | when it was chosen | taken out: koordra does not trust allocations in manifests
annotation | warned | volcano.sh/bind-time | when the pod was bound | taken out: koordra does not trust allocations in manifests
annotation | warned | volcano.sh/bind-phase | how far the binding is | taken out: koordra does not trust allocations in manifests
environment | y | CUDA_DEVICE_MEMORY_LIMIT | set by the device plugin | `CUDA_DEVICE_MEMORY_LIMIT_<i>` is set by koordra to what the claim was given
environment | warned | CUDA_DISABLE_CONTROL | switches the library off for the container | is not honoured: a share is always kept
environment | warned | CUDA_DEVICE_SM_LIMIT | set by the device plugin for the library | is not read: koordra sets it for isolation hami-core alone; ask for cores
environment | warned | CUDA_DEVICE_MEMORY_SHARED_CACHE | where the library keeps its counts | is not read: the limiter has a region of its own
environment | warned | CUDA_OVERSUBSCRIBE | memory beyond the card's | is not honoured: there is no memory behind it; ask for what the pod needs
environment | warned | CUDA_TASK_PRIORITY | 0 high, 1 low | is not read: compute is not shared by priority; ask for more cores, or a card alone (volcano.sh/vgpu-cores 100)
environment | warned | ACTIVE_OOM_KILLER | ends a process that goes past its share | is not read: an allocation past the share fails, and nobody is ended; handle the error of the allocation
environment | warned | GPU_CORE_UTILIZATION_POLICY | default, force or disable the limit on compute | is not read: compute is accounting only
environment | warned | LIBCUDA_LOG_LEVEL | what the library logs | is not read: the limiter logs nothing in containers; see `koordra claims` and the metrics
environment | warned | CUDA_MPS_PIPE_DIRECTORY | where the MPS daemon listens, set by the device plugin | is set by koordra for shares that mps keeps; take it out
environment | warned | CUDA_MPS_LOG_DIRECTORY | where the MPS daemon logs, set by the device plugin | is set by koordra for shares that mps keeps; take it out
schedulerName | warned | volcano | Volcano's scheduler | stays, and has to honour ResourceClaims; take it out
annotation | y | scheduling.volcano.sh/group-name | the PodGroup of the pod | stays: koordra's controller reads it too
annotation | y | scheduling.volcano.sh/queue-name | the queue | stays: Volcano's scheduler reads it
annotation | y | scheduling.volcano.sh/group-min-member | members that start together | stays: Volcano's controller makes a PodGroup of it, which koordra reads
annotation | warned | scheduling.volcano.sh/group-min-resources | what the gang needs to start | counts devices by names that claims do not use; take the devices out
annotation | y | volcano.sh/network-topology-* | levels of the network | stays: koordra's controller reads it too
annotation | y | volcano.sh/task-spec | the task of a Job | stays: koordra's controller reads it too
annotation | y | volcano.sh/task-index | the number in its task | stays: koordra's controller reads it too
annotation | y | volcano.sh/job-* | the Job of the pod | stays: about jobs
annotation | y | volcano.sh/queue-name | the queue of the pod | stays: about jobs
annotation | y | volcano.sh/template-uid | the template of a pod | stays: about jobs
annotation | y | volcano.sh/preemptable | whether Volcano may take the pod | stays: Volcano's scheduler reads it
annotation | y | volcano.sh/cooldown-time | for how long not | stays: Volcano's scheduler reads it
annotation | y | volcano.sh/revocable-zone | nodes that are lent | stays: Volcano's scheduler reads it
annotation | y | volcano.sh/jdb-min-available | members that have to stay | stays: Volcano's scheduler reads it
annotation | y | volcano.sh/jdb-max-unavailable | members that may go | stays: Volcano's scheduler reads it
annotation | y | volcano.sh/sla-waiting-time | how long a job may wait | stays: Volcano's scheduler reads it
annotation | y | volcano.sh/task-priority | which task starts first | stays: Volcano's scheduler reads it
annotation | y | volcano.sh/task-topology* | tasks on one node, or apart | stays: Volcano's scheduler reads it
annotation | y | volcano.sh/qos-level | CPUs and memory of colocated pods | stays: about CPUs and memory
annotation | y | volcano.sh/enable-quota-burst | CPUs above the limit | stays: about CPUs and memory
annotation | y | volcano.sh/quota-burst-time | for how long | stays: about CPUs and memory
annotation | warned | volcano.sh/numa-topology-policy | single-numa-node, restricted, best-effort: CPUs on NUMA nodes | binds no devices on Volcano's word; write JointAllocation NUMANode and GpuConfig.numaAffinity in the claim
annotation | y | volcano.sh/resource-strategy-* | how nodes are scored | stays: Volcano's scheduler reads it
annotation | y | volcano.sh/scheduling-priority* | which job goes first | stays: Volcano's scheduler reads it
annotation | y | volcano.sh/partition-id | the part of a job | stays: about jobs
annotation | y | volcano.sh/createdBy* | what made the job | stays: about jobs
label | y | volcano.sh/job-* | the Job of the pod | stays: about jobs
label | y | volcano.sh/task-* | the task of a Job | stays: about jobs
label | y | volcano.sh/queue-name | the queue | stays: about jobs
label | y | volcano.sh/createdBy* | what made the job | stays: about jobs
label | y | volcano.sh/partition-id | the part of a job | stays: about jobs
label | y | volcano.sh/preemptable | whether Volcano may take the pod | stays: Volcano's scheduler reads it
label | y | volcano.sh/qos-level | CPUs and memory of colocated pods | stays: about CPUs and memory
label | y | volcano.sh/resource-group | nodes of a group | stays: Volcano's scheduler reads it
kind | y | Job.batch.volcano.sh | tasks with pods | its pods are converted
kind | y | CronJob.batch.volcano.sh | a Job at times | its pods are converted
kind | y | JobFlow.flow.volcano.sh | jobs after each other | stays: about jobs
kind | y | JobTemplate.flow.volcano.sh | a job for a flow | its pods are converted
kind | y | PodGroup.scheduling.volcano.sh | a gang | stays: koordra's controller reads it too
kind | y | Queue.scheduling.volcano.sh | a queue | stays; what it says of devices is reported field by field
kind | y | Command.bus.volcano.sh | an order to a job | stays: about jobs
kind | y | HyperNode.topology.volcano.sh | levels of the network | stays: koordra's controller reads it too
kind | y | Numatopology.nodeinfo.volcano.sh | NUMA nodes of a node | stays: koordra reads the node itself
field | warned | Job.batch.volcano.sh: spec.schedulerName | the scheduler of all its pods | stays, and has to honour ResourceClaims; take it out for kube-scheduler
field | warned | CronJob.batch.volcano.sh: spec.jobTemplate.spec.schedulerName | the scheduler of all its pods | stays, and has to honour ResourceClaims; take it out for kube-scheduler
field | warned | JobTemplate.flow.volcano.sh: spec.schedulerName | the scheduler of all its pods | stays, and has to honour ResourceClaims; take it out for kube-scheduler
field | warned | Job.batch.volcano.sh: spec.minResources | what the gang needs to start | counts devices by names that claims do not use; take the devices out: minAvailable and the members' claims say it
field | warned | PodGroup.scheduling.volcano.sh: spec.minResources | what the gang needs to start | counts devices by names that claims do not use; take the devices out: minMember and the members' claims say it
field | warned | Queue.scheduling.volcano.sh: spec.capability | what the queue may have at most | counts devices by names that claims do not use; bound shares by koordra.io/gpu, koordra.io/gpu-memory, ... in a ResourceQuota (docs/quota.md)
field | warned | Queue.scheduling.volcano.sh: spec.deserved | what the queue is to have | counts devices by names that claims do not use; bound shares by koordra.io/gpu, koordra.io/gpu-memory, ... in a ResourceQuota (docs/quota.md)
field | warned | Queue.scheduling.volcano.sh: spec.guarantee.resource | what the queue is sure of | counts devices by names that claims do not use; bound shares by koordra.io/gpu, koordra.io/gpu-memory, ... in a ResourceQuota (docs/quota.md)
setting | y | resourceCountName | the name of vgpu-number in this cluster | read from device-config.yaml
setting | y | resourceMemoryName | the name of vgpu-memory | read from device-config.yaml
setting | y | resourceMemoryPercentageName | the name of vgpu-memory-percentage | read from device-config.yaml
setting | y | resourceCoreName | the name of vgpu-cores | read from device-config.yaml
setting | y | resourcePriorityName | the name of a priority that nothing reads | read from device-config.yaml
setting | y | gpuMemoryFactor | MiB of a unit of the memory | read from device-config.yaml
setting | y | defaultMemory | MiB where none is asked for | Volcano does not apply it to pods, and koordra neither
setting | y | defaultCores | compute where none is asked for | Volcano does not apply it to pods, and koordra neither
setting | y | defaultGPUNum | cards where none is asked for | Volcano does not apply it to pods, and koordra neither
setting | y | deviceMemoryScaling | more memory than the card has | above 1 every pod is refused: there is no memory behind it
setting | y | deviceCoreScaling | more compute than the card has | above 1 every pod is warned: the shares of a card add up to 100
setting | y | disableCoreLimit | whether compute is limited | compute is accounting only
setting | y | knownMigGeometries | sets of MIG instances that a card may be cut into, by model | of pods in mode mig: CEL on the profiles that the sets have
setting | y | overwriteEnv | hides every card from pods that ask for none | koordra's hook does that to every container
setting | warned | deviceSplitCount | shares a card takes | is said on the node; koordra kubelet-plugin --slots-per-gpu
setting | warned | operatingmode | hami-core, mig or mps, by node | is said on the node; `koordra kubelet-plugin --node-modes` reads HAMi's list of nodes, or label the Node `koordra.io/isolation`
setting | warned | migstrategy | none, single or mixed, by node | is said on the node; koordra gives instances out by their profile
setting | warned | filterdevices | cards that are not given out, by node | is said on the node; koordra cordon-device
node | y | volcano.sh/node-vgpu-register | what a node has | ResourceSlices tell it
node | y | volcano.sh/node-vgpu-handshake | whether the plugin lives | not needed
node | y | volcano.sh/mutex.lock | one binding at a time | not needed: the claim's version guards it
""",
    ),
    *rows(
        "volcano-gpu",
        """
resource | y | volcano.sh/gpu-memory | MiB times GPU_MEMORY_FACTOR; the sum over the pod lies on one card | capacity `memory`; `matchAttribute: koordra.io/uuid` over the pod
resource | y | volcano.sh/gpu-number | whole cards | `count`, no capacity: all of each card
annotation | warned | volcano.sh/gpu-index | cards that were chosen | taken out: koordra does not trust allocations in manifests
annotation | warned | volcano.sh/predicate-time | when they were chosen | taken out: koordra does not trust allocations in manifests
annotation | warned | volcano.sh/gpu-assigned | whether the plugin has taken them | taken out: koordra does not trust allocations in manifests
environment | y | VOLCANO_GPU_* | set by the device plugin: memory that was given | ALLOCATED and MEMORY_TOTAL are set by koordra to what the claim was given
schedulerName | warned | volcano | Volcano's scheduler | stays, and has to honour ResourceClaims; take it out
setting | y | --gpu-memory-factor | unit of the memory in MiB | `volcanoGpu.gpuMemoryFactor` in koordra's settings
setting | y | --gpu-strategy | share or number, by node | not needed: a card is given out whole or in shares, as pods ask
node | y | volcano.sh/gpu-unhealthy-ids | cards that failed | device taints tell it
""",
    ),
)
