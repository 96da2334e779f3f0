"""NVIDIA's DRA driver for GPUs. Source: api/nvidia.com/resource/v1beta1, cmd/*/deviceinfo.go,
pkg/featuregates and the chart's classes of dra-driver-nvidia-gpu (main of November 2026)."""

from __future__ import annotations

from typing import Final

from koordra.compat.keys import Key, rows

KEYS: Final[tuple[Key, ...]] = rows(
    "nvidia-dra",
    """
class | y | gpu.nvidia.com | whole cards | class `gpu.koordra.io`
class | y | mig.nvidia.com | MIG instances | class `mig.koordra.io`
class | refused | vfio.gpu.nvidia.com | cards for virtual machines | vfio.gpu.nvidia.com has no class beside it there; leave the claim as it is
class | refused | compute-domain-daemon.nvidia.com | the IMEX daemon of a compute domain | compute-domain-daemon.nvidia.com has no class beside it there; leave the claim as it is
class | refused | compute-domain-default-channel.nvidia.com | an IMEX channel of a compute domain | compute-domain-default-channel.nvidia.com has no class beside it there; leave the claim as it is
attribute | y | type | gpu, mig or vfio | the same
attribute | y | uuid | of the card or instance | the same
attribute | y | productName | model | the same
attribute | refused | brand | Tesla, GeForce ... | koordra.io publishes no brand as gpu.nvidia.com does; select by type, uuid, productName, architecture, cudaComputeCapability, driverVersion, cudaDriverVersion, profile
attribute | y | architecture | Hopper ... | the same
attribute | y | cudaComputeCapability | version | the same
attribute | y | driverVersion | version | the same
attribute | y | cudaDriverVersion | version | the same
attribute | y | profile | of a MIG instance | the same
attribute | refused | addressingMode | HMM, ATS | koordra.io publishes no addressingMode as gpu.nvidia.com does; select by type, uuid, productName, architecture, cudaComputeCapability, driverVersion, cudaDriverVersion, profile
attribute | refused | gpuModuleID | place on the board, for Fabric Manager's partitions | koordra.io publishes no gpuModuleID as gpu.nvidia.com does; select by type, uuid, productName, architecture, cudaComputeCapability, driverVersion, cudaDriverVersion, profile
attribute | refused | partition8 | Fabric Manager's partition of that size (partition2, 4 ...) | koordra.io publishes no partition8 as gpu.nvidia.com does; select by type, uuid, productName, architecture, cudaComputeCapability, driverVersion, cudaDriverVersion, profile
attribute | refused | deviceID | PCI number of a card for virtual machines | koordra.io publishes no deviceID as gpu.nvidia.com does; select by type, uuid, productName, architecture, cudaComputeCapability, driverVersion, cudaDriverVersion, profile
attribute | refused | vendorID | PCI number of a card for virtual machines | koordra.io publishes no vendorID as gpu.nvidia.com does; select by type, uuid, productName, architecture, cudaComputeCapability, driverVersion, cudaDriverVersion, profile
attribute | refused | iommuFDEnabled | of a card for virtual machines | koordra.io publishes no iommuFDEnabled as gpu.nvidia.com does; select by type, uuid, productName, architecture, cudaComputeCapability, driverVersion, cudaDriverVersion, profile
capacity | y | memory | of the card or instance | the same
capacity | refused | addressableMemory | of a card for virtual machines | koordra.io publishes no addressableMemory as gpu.nvidia.com does; select by memory
capacity | refused | memorySlice0 | place of a MIG instance (memorySlice1 ...) | koordra.io publishes no memorySlice0 as gpu.nvidia.com does; select by memory
capacity | refused | multiprocessors | of a MIG instance | koordra.io publishes no multiprocessors as gpu.nvidia.com does; select by memory
match | y | gpu.nvidia.com/parentUUID | instances of one card | `koordra.io/parent`
match | y | resource.kubernetes.io/pcieRoot | beside each other | stays, koordra publishes it too
match | y | resource.kubernetes.io/pciBusID | the same card | stays, koordra publishes it too
match | y | resource.kubernetes.io/numaNode | of one NUMA node | stays, koordra publishes it too
match | refused | gpu.nvidia.com/brand | of one brand | koordra.io publishes no brand; match another
parameter | y | GpuConfig: sharing.strategy | TimeSlicing or MPS | nothing, or `GpuConfig.isolation: mps`
parameter | y | MigDeviceConfig: sharing.strategy | TimeSlicing or MPS | nothing; MPS is refused, since koordra shares whole cards by it
parameter | refused | GpuConfig: sharing.timeSlicingConfig.interval | Short, Medium or Long; Default says nothing | Short: koordra leaves the length of time slices to NVIDIA's driver; write Default, or convert --to nvidia
parameter | refused | GpuConfig: sharing.mpsConfig.defaultActiveThreadPercentage | share of the multiprocessors | defaultActiveThreadPercentage: koordra limits MPS by what the claim asks for; ask for memory and cores (capacity.requests) in claims of their own, or convert --to nvidia
parameter | refused | GpuConfig: sharing.mpsConfig.defaultPinnedDeviceMemoryLimit | memory of a client | defaultPinnedDeviceMemoryLimit: koordra limits MPS by what the claim asks for; ask for memory and cores (capacity.requests) in claims of their own, or convert --to nvidia
parameter | refused | GpuConfig: sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit | memory of a client by card | defaultPerDevicePinnedMemoryLimit: koordra limits MPS by what the claim asks for; ask for memory and cores (capacity.requests) in claims of their own, or convert --to nvidia
parameter | refused | GpuConfig: sharing.mpsConfig.multiUser | clients of several users | multiUser: koordra limits MPS by what the claim asks for; ask for memory and cores (capacity.requests) in claims of their own, or convert --to nvidia
parameter | refused | MigDeviceConfig: sharing.mpsConfig.defaultActiveThreadPercentage | share of the multiprocessors | defaultActiveThreadPercentage: koordra limits MPS by what the claim asks for; ask for memory and cores (capacity.requests) in claims of their own, or convert --to nvidia
parameter | refused | VfioDeviceConfig: iommu.backendPolicy | LegacyOnly or PreferIommuFD | VfioDeviceConfig has no form in koordra; leave these claims to NVIDIA's driver
parameter | refused | VfioDeviceConfig: iommu.enableAPIDevice | whether /dev/iommu comes too | VfioDeviceConfig has no form in koordra; leave these claims to NVIDIA's driver
parameter | refused | ComputeDomainChannelConfig: domainID | the compute domain | ComputeDomainChannelConfig has no form in koordra; leave these claims to NVIDIA's driver
parameter | refused | ComputeDomainChannelConfig: allocationMode | one channel or all | ComputeDomainChannelConfig has no form in koordra; leave these claims to NVIDIA's driver
parameter | refused | ComputeDomainDaemonConfig: domainID | the compute domain of a daemon | ComputeDomainDaemonConfig has no form in koordra; leave these claims to NVIDIA's driver
kind | warned | ComputeDomain.resource.nvidia.com | nodes with IMEX channels for a workload | stays NVIDIA's driver's; ask for class imex-channel.koordra.io in the claims of a gang
kind | y | ComputeDomainClique.resource.nvidia.com | what a compute domain has become (written by the driver) | stays
setting | y | --feature-gates=TimeSlicingSettings | whether claims set time slices | not needed
setting | y | --feature-gates=MPSSupport | whether claims share by MPS | a backend of the node's operator (docs/isolation.md)
setting | y | --feature-gates=DynamicMIG | instances are made as claims ask | not done: koordra gives out instances that there are
setting | y | --feature-gates=PassthroughSupport | cards for virtual machines | not done
setting | y | --feature-gates=NVMLDeviceHealthCheck | faulty cards are tainted | always (docs/health.md)
setting | y | --feature-gates=IMEXDaemonsWithDNSNames | daemons know each other by name | not needed
setting | y | --feature-gates=ComputeDomainCliques | domains by clique | always (docs/nvlink-domains.md)
setting | y | --feature-gates=HostManagedIMEXDaemon | the host runs the daemon | not done: koordra runs it
setting | y | --feature-gates=CrashOnNVLinkFabricErrors | no start on a faulty fabric | faults are taints (docs/health.md)
setting | y | --feature-gates=DeviceMetadata | files that tell pods of their devices | always (docs/container-contract.md)
setting | y | --feature-gates=FabricManagerPartitioning | several cards only as partitions | always, where the fabric has partitions
setting | y | --feature-gates=DRAListTypeAttributes | attributes that are lists | not needed
setting | y | --feature-gates=ConsumableShares | shares of cards by amounts | always: memory and cores of `gpu.koordra.io`
""",
)
