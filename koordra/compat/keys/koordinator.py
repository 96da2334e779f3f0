"""Koordinator. Source: apis/extension, apis/scheduling, apis/quota and apis/thirdparty of Koordinator at July
2026; its webhooks and scheduler plugins for who reads what."""

from __future__ import annotations

from typing import Final

from koordra.compat.keys import Key, rows

KEYS: Final[tuple[Key, ...]] = rows(
    "koordinator",
    """
resource | y | nvidia.com/gpu | whole cards | `count`, `cores` 100, all of each card's memory
resource | y | koordinator.sh/gpu | percent: 50 is half a card, 200 two cards | as gpu-core and gpu-memory-ratio of the same amount
resource | y | koordinator.sh/gpu-core | percent of compute, over all cards | capacity `cores` (accounting only), divided by the cards
resource | y | koordinator.sh/gpu-memory | bytes, over all cards | capacity `memory`, divided by the cards
resource | y | koordinator.sh/gpu-memory-ratio | percent of memory, over all cards | `GpuConfig.memoryPercent`, divided by the cards; 100 is all of a card
resource | y | koordinator.sh/gpu.shared | number of cards that the amounts are split over | `count`, with `distinctAttribute: koordra.io/uuid`
resource | y | koordinator.sh/rdma | percent of a NIC; 100 n is n NICs | request `rdma`: `count` and capacity `share`, or virtual functions
resource | refused | koordinator.sh/fpga | percent of an FPGA | koordra serves GPUs and NICs; leave the pod to Koordinator
resource | refused | kubernetes.io/gpu | koordinator.sh/gpu under its first name | is read by no release of Koordinator since 1.0; write koordinator.sh/gpu
resource | refused | kubernetes.io/gpu-core | koordinator.sh/gpu-core under its first name | is read by no release of Koordinator since 1.0; write koordinator.sh/gpu-core
resource | refused | kubernetes.io/gpu-memory | koordinator.sh/gpu-memory under its first name | is read by no release of Koordinator since 1.0; write koordinator.sh/gpu-memory
resource | refused | kubernetes.io/gpu-memory-ratio | koordinator.sh/gpu-memory-ratio under its first name | is read by no release of Koordinator since 1.0; write koordinator.sh/gpu-memory-ratio
resource | refused | kubernetes.io/rdma | koordinator.sh/rdma under its first name | is read by no release of Koordinator since 1.0; write koordinator.sh/rdma
resource | refused | kubernetes.io/fpga | koordinator.sh/fpga under its first name | koordra serves GPUs and NICs; leave the pod to Koordinator
resource | y | kubernetes.io/batch-cpu | CPU that others leave idle | stays: about CPUs, and given by koordlet
resource | y | kubernetes.io/batch-memory | memory that others leave idle | stays: about memory, and given by koordlet
resource | y | kubernetes.io/mid-cpu | CPU of the middle class | stays: about CPUs, and given by koordlet
resource | y | kubernetes.io/mid-memory | memory of the middle class | stays: about memory, and given by koordlet
annotation | y | scheduling.koordinator.sh/device-joint-allocate | devices near each other; SamePCIe: it has to be so | `JointAllocation` PCIeRoot, Required or Preferred; as many NICs as cover the GPUs' roots
annotation | y | scheduling.koordinator.sh/device-allocate-hint | selector, vfSelector, allocateStrategy, requiredTopologyScope, exclusivePolicy | CEL on attributes `koordinator.sh/<label>`; class `vf.koordra.io`; `allocationMode: All` or a count; `JointAllocation` over the GPUs; `GpuConfig.exclusive`, capacity `share` 100
annotation | y | scheduling.koordinator.sh/gpu-partition-spec | whole partitions of the NVLink fabric | `GpuConfig.partition: Honor`; ringBusBandwidth is reported
annotation | y | scheduling.koordinator.sh/numa-topology-spec | SingleNUMANode, Restricted or BestEffort: CPUs, memory and devices on NUMA nodes | `JointAllocation` NUMANode over all devices (SingleNUMANode Required, else Preferred) and `GpuConfig.numaAffinity`; singleNUMANodeExclusive is reported
annotation | warned | scheduling.koordinator.sh/resource-spec | how the CPUs are bound (FullPCPUs ...) | binds no CPUs on koordra's word; the kubelet's CPU manager does (static, full-pcpus-only), and GpuConfig.numaAffinity keeps them beside the GPUs
annotation | warned | scheduling.koordinator.sh/resource-status | the CPUs that were given | is written by Koordinator's scheduler; take it out
annotation | refused | scheduling.koordinator.sh/reservation-affinity | the Reservation that the pod has to run in, or would like to | koordra's devices are in no Reservation of Koordinator's; take it out, and name the pod in the owners of a koordra Reservation
annotation | warned | scheduling.koordinator.sh/exact-match-reservation | resources of which a Reservation has to hold the very amount | is not compared; take it out
annotation | warned | scheduling.koordinator.sh/reservation-allocated | the Reservation that the pod is in | taken out: koordra does not trust allocations in manifests
annotation | refused | scheduling.koordinator.sh/reservation-owners | the pod itself is a reservation, for these owners | a pod that holds devices for others cannot be converted; write a koordra Reservation
annotation | warned | scheduling.koordinator.sh/reservation-current-owner | who is in the pod that is a reservation | is written by Koordinator's scheduler; take it out
annotation | warned | scheduling.koordinator.sh/reservation-restricted-options | resources that come from the Reservation alone | is about Reservations of Koordinator's; take it out
annotation | warned | scheduling.koordinator.sh/device-allocated | devices that were given | taken out: koordra does not trust allocations in manifests
annotation | warned | scheduling.koordinator.sh/bind-timestamp | when the pod was bound | taken out: koordra does not trust allocations in manifests
annotation | warned | scheduling.koordinator.sh/gpu-minors | cards that were given | taken out: koordra does not trust allocations in manifests
annotation | warned | scheduling.koordinator.sh/scheduling-hint | nodes to try first, of Koordinator's own controllers | is not read; write node affinity
annotation | warned | internal.scheduling.koordinator.sh/scheduling-hint | nodes to try first, of Koordinator's own controllers | is not read; write node affinity
annotation | warned | scheduling.koordinator.sh/bind-gang-group-id | the gang that was bound | is written by Koordinator's scheduler; take it out
annotation | warned | internal.scheduling.koordinator.sh/bind-gang-group-id | the gang that was bound | is written by Koordinator's scheduler; take it out
annotation | warned | scheduling.koordinator.sh/bind-gang-member-count | how many of the gang were bound | is written by Koordinator's scheduler; take it out
annotation | warned | internal.scheduling.koordinator.sh/bind-gang-member-count | how many of the gang were bound | is written by Koordinator's scheduler; take it out
annotation | warned | internal.scheduling.koordinator.sh/original-scheduler-name | the scheduler's name before a webhook changed it | is not read; write schedulerName
annotation | warned | scheduling.koordinator.sh/network-topology-selector | which network topology a pod belongs to | is not read; koordra's gangs name their levels (docs/gangs.md)
annotation | y | scheduling.koordinator.sh/load-estimated-scaling-factors | what the pod is expected to use of its CPUs | stays: about CPUs and memory
annotation | y | scheduling.koordinator.sh/load-estimated-seconds-after-initialized | how long that is believed | stays: about CPUs and memory
annotation | y | scheduling.koordinator.sh/load-estimated-seconds-after-pod-scheduled | how long that is believed | stays: about CPUs and memory
annotation | y | scheduling.koordinator.sh/usage-thresholds | how full a node's CPUs may be | stays: about CPUs and memory
annotation | y | scheduling.koordinator.sh/eviction-cost | which pods Koordinator's descheduler takes first | stays: its descheduler reads it
annotation | y | scheduling.koordinator.sh/soft-eviction | that its descheduler would like the pod to go | stays: its descheduler reads it
annotation | y | gang.scheduling.koordinator.sh/name | the gang of the pod | stays: koordra's controller reads it too
annotation | y | gang.scheduling.koordinator.sh/min-available | members that start together | stays: koordra's controller reads it too
annotation | y | gang.scheduling.koordinator.sh/total-number | members of the gang | stays: koordra's controller reads it too
annotation | y | gang.scheduling.koordinator.sh/mode | Strict or NonStrict | stays: koordra's controller reads it too
annotation | y | gang.scheduling.koordinator.sh/waiting-time | how long members wait for each other | stays: koordra's controller reads it too
annotation | y | gang.scheduling.koordinator.sh/groups | gangs that start together | stays: koordra's controller reads it too
annotation | y | gang.scheduling.koordinator.sh/match-policy | which members count | stays: koordra's controller reads it too
annotation | y | gang.scheduling.koordinator.sh/timeout | when the gang gave up | stays: written by Koordinator's scheduler about gangs
annotation | y | gang.scheduling.koordinator.sh/network-topology-spec | levels of the network | stays: koordra's controller reads it too
annotation | y | gang.scheduling.koordinator.sh/network-topology-index | the pod's number in the network | stays: koordra's controller reads it too
annotation | y | pod-group.scheduling.sigs.k8s.io/match-policy | which members count | stays: koordra's controller reads it too
annotation | y | node.koordinator.sh/extended-resource-spec | batch and mid resources of the containers | stays: about CPUs and memory
annotation | y | node.koordinator.sh/resctrl | cache and memory bandwidth | stays: about CPUs and memory
annotation | y | koordinator.sh/networkQOS | bandwidth of the pod's network | stays: koordlet reads it
annotation | y | koordinator.sh/oom-score-adj | who is ended first for want of memory | stays: koordlet reads it
annotation | y | koordinator.sh/oom-score-adj-spec | who is ended first for want of memory, by container | stays: koordlet reads it
annotation | y | koordinator.sh/eviction-policy | how koordlet evicts the pod | stays: koordlet reads it
annotation | y | koordinator.sh/eviction-priority | in which order koordlet evicts | stays: koordlet reads it
annotation | y | koordinator.sh/cpuSuppress | CPUs of best-effort pods | stays: koordlet reads it
annotation | y | koordinator.sh/cpuBurst | CPUs above the limit for a moment | stays: koordlet reads it
annotation | y | koordinator.sh/cpuQOS | how CPUs are weighed | stays: koordlet reads it
annotation | y | koordinator.sh/memoryQOS | how memory is kept | stays: koordlet reads it
annotation | y | koordinator.sh/blkioQOS | how disks are shared | stays: koordlet reads it
annotation | y | pod.koordinator.sh/replace-resources | resources that are put in place of others | stays: about CPUs and memory
annotation | warned | pod.koordinator.sh/pre-allocatable-priority | in which order a Reservation takes pods over | is about Reservations of Koordinator's; take it out
label | y | koordinator.sh/gpu-isolation-provider | HAMi-core: the share is kept by a library | isolation `limiter`
label | y | koordinator.sh/qosClass | LSE, LSR, LS, BE, SYSTEM | stays: koordlet reads it
label | y | koordinator.sh/priority-class | koord-prod, koord-mid, koord-batch, koord-free | stays: koordlet reads it
label | warned | koordinator.sh/priority | urgency among pods of one priority class | is not read where kube-scheduler places the pod; write a PriorityClass with that value
label | y | koordinator.sh/eviction-enabled | whether its descheduler may evict the pod | stays: its descheduler reads it
label | warned | scheduling.koordinator.sh/preemption-policy | whom the pod may displace | is not read where koordra displaces pods; write preemptionPolicy of a PriorityClass
label | warned | scheduling.koordinator.sh/disable-preemptible | the pod is never displaced | is not read where koordra displaces pods; give it the highest PriorityClass, or a PodDisruptionBudget
label | refused | scheduling.koordinator.sh/operating-mode | Reservation: the pod holds what it asks for, for others | a pod that holds devices for others cannot be converted; write a koordra Reservation
label | warned | scheduling.koordinator.sh/reservation-ignored | the pod takes nothing out of Reservations | is about Reservations of Koordinator's; take it out
label | warned | scheduling.koordinator.sh/reservation-order | in which order Reservations are tried | is about Reservations of Koordinator's; take it out
label | warned | scheduling.koordinator.sh/pre-allocation-required | the pod waits until a Reservation has room | is about Reservations of Koordinator's; take it out
label | y | scheduling.koordinator.sh/scheduler-name | which of several schedulers | stays: where that is, schedulerName says too
label | y | scheduling.koordinator.sh/questioned-object-key | asks Koordinator's scheduler to explain itself | stays: koordra explain says it of koordra
label | y | scheduling.koordinator.sh/topology-key-to-explain | asks Koordinator's scheduler to explain itself | stays: koordra explain says it of koordra
label | warned | pod.koordinator.sh/is-pre-allocatable | a Reservation may take the pod over | is about Reservations of Koordinator's; take it out
label | y | pod.koordinator.sh/mutating-update | Koordinator's webhook looks at updates too | stays: its webhook reads it
label | y | pod.koordinator.sh/skip-enhanced-validation | Koordinator's webhook looks less closely | stays: its webhook reads it
label | warned | quota.scheduling.koordinator.sh/name | the ElasticQuota that the pod counts in | does not see claims; count them in a ResourceQuota (docs/quota.md)
label | warned | quota.scheduling.koordinator.sh/tree-id | the tree of that quota | does not see claims; count them in a ResourceQuota (docs/quota.md)
label | warned | quota.scheduling.koordinator.sh/preemptible | whether the quota may take the pod's part back | is not read where koordra displaces pods; write a PriorityClass
label | y | pod-group.scheduling.sigs.k8s.io | the PodGroup of the pod | stays: koordra's controller reads it too
label | y | pod-group.scheduling.sigs.k8s.io/name | the gang of the pod | stays: koordra's controller reads it too
label | y | pod-group.scheduling.sigs.k8s.io/min-available | members that start together | stays: koordra's controller reads it too
schedulerName | warned | koord-scheduler | Koordinator's scheduler | stays, and has to honour ResourceClaims; take it out
kind | y | Reservation.scheduling.koordinator.sh | what a template asks for, kept for owners | `koordra.io/v1alpha1 Reservation` of the devices, in the namespace of its owners; preAllocation, Restricted, taints and owners of several namespaces are refused
kind | y | PodGroup.scheduling.sigs.k8s.io | a gang | stays: koordra's controller reads it too
kind | y | ElasticQuota.scheduling.sigs.k8s.io | least and most of a quota | stays; what it says of devices is reported field by field
kind | y | ElasticQuotaProfile.quota.koordinator.sh | quotas made from node pools | stays: Koordinator's controller makes quotas of it
kind | warned | Device.scheduling.koordinator.sh | what a node has, written by koordlet | is not read: ResourceSlices tell it; take koordlet's device reporting off the node
kind | y | ClusterColocationProfile.config.koordinator.sh | what its webhook puts into pods | stays: its webhook does that before koordra sees the pod
kind | y | NodeSLO.slo.koordinator.sh | how koordlet shares CPUs and memory | stays: about CPUs and memory
kind | y | NodeMetric.slo.koordinator.sh | what a node uses | stays: about CPUs and memory
kind | y | PodMigrationJob.scheduling.koordinator.sh | an eviction with a Reservation first | stays: its descheduler does that
kind | y | ClusterNetworkTopology.scheduling.koordinator.sh | levels of the network | stays: koordra's controller reads it too
kind | y | Recommendation.analysis.koordinator.sh | what a workload should ask for | stays: about CPUs and memory
field | warned | ElasticQuota.scheduling.sigs.k8s.io: spec.min | what the quota is sure of | counts devices by names that claims do not use; bound shares by koordra.io/gpu, koordra.io/gpu-memory, ... in a ResourceQuota (docs/quota.md)
field | warned | ElasticQuota.scheduling.sigs.k8s.io: spec.max | what the quota may have at most | counts devices by names that claims do not use; bound shares by koordra.io/gpu, koordra.io/gpu-memory, ... in a ResourceQuota (docs/quota.md)
field | warned | PodGroup.scheduling.sigs.k8s.io: spec.minResources | what the gang needs to start | counts devices by names that claims do not use; take the devices out: minMember and the members' claims say it
node | y | node.koordinator.sh/gpu-partition-policy | Honor or Prefer | is read by koordra too
node | y | scheduling.koordinator.sh/gpu-partitions (Device) | the partitions of a node | koordra works them out from NVLink
node | y | node.koordinator.sh/gpu-model, gpu-vendor, gpu-driver-version | the cards of a node | are written by koordra too
node | y | node.koordinator.sh/numa-topology-policy | the NUMA policy of a node | say it in the claim: `JointAllocation` NUMANode
node | y | node.koordinator.sh/secondary-device-well-planned | NICs are left out of the scheduler's count | not needed: NICs are chosen with the GPUs
node | y | gpu-shared-resource-templates (ConfigMap) | sizes of virtual NPUs | not used: NPUs are another vendor's
""",
)
