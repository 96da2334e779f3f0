"""Every name that koordra writes into the Kubernetes API or reads from it, in one place."""

from __future__ import annotations

from typing import Final

DRIVER: Final = "koordra.io"
"""DRA driver name, and the domain of koordra's attributes, taints, labels and gates."""

CLASS_GPU: Final = "gpu.koordra.io"
CLASS_MIG: Final = "mig.koordra.io"
CLASS_NIC: Final = "nic.koordra.io"
CLASS_VF: Final = "vf.koordra.io"
CLASS_IMEX: Final = "imex-channel.koordra.io"
CLASS_IMEX_ALL: Final = "imex-channels.koordra.io"
IMEX_CLASSES: Final = frozenset({CLASS_IMEX, CLASS_IMEX_ALL})

JOINT_TAINT: Final = "koordra.io/joint"
"""Device taint (NoSchedule) that keeps kube-scheduler's own allocator away from devices the controller gives
out."""

HELD_TAINT: Final = "koordra.io/held"
"""Device taint: the node still uses the device for a claim that the API no longer knows."""

RELEASE_TAINT: Final = "koordra.io/driver-release"
"""Device taint (NoSchedule) of GPUs whose driver is to be free, for an upgrade; its value is how far that is:
Closing, Evicting or Released. The controller evicts the pods that hold devices with `Evicting`."""

RELEASE_ANNOTATION: Final = "koordra.io/driver-release"
"""Node annotation by the controller: the value of that taint, absent while the driver is in use."""

RELEASE_EVICTING: Final = "Evicting"

MIG_MODE_TAINT: Final = "koordra.io/mig-mode"
"""Device taint (NoSchedule) of what a card has in the MIG mode that it is not in (value `needed`), and, while
its mode is being switched, of what it has in the present one (value: the request's token)."""
MIG_MODE_NEEDED: Final = "needed"
MIG_MODE_ANNOTATION: Final = "koordra.io/mig-mode"
"""Node annotation by the controller: which cards are to be switched, and for whom (docs/mig.md)."""

NO_GPUS: Final = "koordra.io/no-gpus"
"""Node annotation by the controller: why none of the node's GPUs are given out, and what to do."""

GPU_OWNER_LABEL: Final = "koordra.io/gpu-owner"
"""Node label by an operator: who gives out the node's GPUs. `koordra`, as without it, or the name of another
stack, which is the operator's to choose (docs/migrate/node-by-node.md)."""
NIC_OWNER_LABEL: Final = "koordra.io/nic-owner"
"""Node label by an operator: who gives out the node's RDMA NICs, like koordra.io/gpu-owner."""
OWNER_KOORDRA: Final = "koordra"

HAND_OVER_TAINT: Final = "koordra.io/hand-over"
"""Device taint (NoSchedule) of devices that koordra does not give out, or is about to stop giving out; its
value is how far that is: Leaving, Left, Taking."""
HAND_OVER_LEFT: Final = "Left"

GPUS_GIVEN_TO: Final = "koordra.io/gpus-given-to"
"""Node annotation by the controller: the owner of koordra.io/gpu-owner may give the GPUs out, since nobody
has any by koordra."""
NICS_GIVEN_TO: Final = "koordra.io/nics-given-to"
"""Node annotation by the controller: the same of NICs and koordra.io/nic-owner."""

UNHEALTHY_TAINT: Final = "koordra.io/unhealthy"
"""Device taint of a device with a fault; its value is the fault (docs/health.md)."""

JOINT_GATE: Final = "koordra.io/joint-allocation"
"""Pod scheduling gate, lifted once every claim of the pod is allocated."""

MODE_LABEL: Final = "koordra.io/allocation-mode"
"""Node label that picks `joint` (default) or `native` allocation for the node's devices."""

ISOLATION_LABEL: Final = "koordra.io/isolation"
"""Node label: how the cards of the node may be kept, words with dots between them."""
CARD_ISOLATION_PREFIX: Final = "isolation.koordra.io/"
"""Node label with the name of a device, or its UUID: how that card may be kept."""

DEFAULT_POLICY: Final = "koordra"
"""The placement policy where nobody names another."""

IMMEDIATE: Final = "Immediate"
"""Value of that name as an annotation of a claim or DeviceClass: devices are given out before a pod needs
them."""

RESTRICTED_LABEL: Final = "koordra.io/restricted"
"""Label on a class, `true`: only namespaces of its annotation may name it (policy
koordra-class-namespaces)."""

CLASS_NAMESPACES: Final = "koordra.io/namespaces"
"""Annotation on a class: namespaces that may name it, separated by commas."""

APPLY_RECOMMENDATION: Final = "koordra.io/apply-recommendation"
"""Annotation on a class: claims that pods make of it get the share that was recommended by what such pods
used; `Smaller`: never more than they ask for, `Either`: more, too; `Tell`: it is only written beside."""

ASKED_SHARE: Final = "koordra.io/asked-share"
"""Annotation on a claim by the webhook: what it asked for, before it got what was recommended."""

RECOMMENDED_SHARE: Final = "koordra.io/recommended-share"
"""Annotation on a TrainingJob by `koordra profiler`: what its pods asked for, used, and what would have done;
on a claim by the webhook, where its class says `Tell`: what would have done, and by which template that is
known."""

RECLAIM_POLICY: Final = "koordra.io/reclaim-policy"
"""Annotation on a DeviceClass: `Retain` where claims of it keep their devices between pods."""

RETAIN: Final = "Retain"

IMMEDIATE_DEVICES: Final = "koordra.io/immediate-devices"
"""Annotation on a Namespace: how many devices its Immediate claims may have."""

PARTITION_POLICY_LABELS: Final = (
    "koordra.io/gpu-partition-policy",
    "node.koordinator.sh/gpu-partition-policy",
)
"""Node labels that say whether whole GPUs are given out as partitions of the NVLink fabric only; the first
one present counts."""

PARTITION_HONOR: Final = "Honor"

MODE_JOINT: Final = "joint"
MODE_NATIVE: Final = "native"

ALLOCATOR_CONTROLLER: Final = "controller"
ALLOCATOR_SCHEDULER: Final = "scheduler"
ALLOCATOR_NOBODY: Final = "none"
"""Values of the attribute koordra.io/allocator. `none` is the quarantine between the modes: nobody gives the
device out."""

QUARANTINE_TAINT: Final = "koordra.io/quarantine"
"""Device taint (NoSchedule) of a device that changes hands between joint and native allocation."""

QUARANTINE_SEEN: Final = "koordra.io/quarantine-seen"
"""Node annotation by the controller: the pool generation whose quarantine it has seen and acts on."""

DELETE_PROTECTION: Final = "resource.kubernetes.io/delete-protection"
"""Builtin claim finalizer; with it kube-controller-manager frees the claim when its last pod ends."""

RETAIN_FINALIZER: Final = "koordra.io/retain"
"""Finalizer on a ResourceClaim, in place of the builtin one: the claim keeps its devices between pods, and
after it was deleted until koordra frees it."""

POD_CLAIM_NAME: Final = "resource.kubernetes.io/pod-claim-name"
"""Annotation on a claim made from a template: which entry of pod.spec.resourceClaims it serves."""

DEMO_EXPECT: Final = "koordra.io/demo-expect"
"""Annotation on a claim or pod of the demo's manifests: `Pending` where waiting is the point."""

FIELD_COMPONENT: Final = "koordra"
"""Field owner and Event source component prefix (`koordra-controller`, `koordra-kubelet-plugin`)."""

DOMAIN: Final = "koordra.io/"
ATTR_TYPE: Final = "koordra.io/type"
"""`gpu`, `mig`, `nic`, `vf` or `imex`."""
ATTR_ALLOCATOR: Final = "koordra.io/allocator"
"""Who gives the device out: `controller`, `scheduler`, or `none` while it changes hands."""
ATTR_UUID: Final = "koordra.io/uuid"
"""As NVML and nvidia-smi have it."""
ATTR_MODEL: Final = "koordra.io/model"
"""The card's model, without memory and form factor."""
ATTR_PRODUCT_NAME: Final = "koordra.io/productName"
"""The card's name by NVML."""
ATTR_ARCHITECTURE: Final = "koordra.io/architecture"
"""The GPU's architecture."""
ATTR_MINOR: Final = "koordra.io/minor"
"""N of /dev/nvidiaN."""
ATTR_DRIVER_VERSION: Final = "koordra.io/driverVersion"
"""NVIDIA's driver, where its version has three parts, as CEL compares."""
ATTR_DRIVER_VERSION_TEXT: Final = "koordra.io/driverVersionText"
"""NVIDIA's driver as it says itself."""
ATTR_CUDA_DRIVER_VERSION: Final = "koordra.io/cudaDriverVersion"
"""The newest CUDA that the driver has."""
ATTR_CUDA_COMPUTE_CAPABILITY: Final = "koordra.io/cudaComputeCapability"
"""The GPU's compute capability."""
ATTR_NUMA_NODE: Final = "koordra.io/numaNode"
"""The NUMA node that the device is beside, where the kernel knows it."""
ATTR_SOCKET: Final = "koordra.io/socket"
"""The processor socket of that NUMA node."""
ATTR_PCIE_SWITCH: Final = "koordra.io/pcieSwitch"
"""The PCIe switch nearest to the device, by its address; absent for a device at a root port."""
ATTR_PCIE_PATH: Final = "koordra.io/pciePath"
"""The bridges from the root to the device."""
ATTR_NVLINK_DOMAIN: Final = "koordra.io/nvlinkDomain"
"""GPUs of the node that reach each other over NVLink have the same."""
ATTR_CLIQUE: Final = "koordra.io/clique"
"""The part of an NVLink fabric over several nodes that it has joined, `<cluster UUID>.<clique
id>`, as GPU feature discovery writes it in the node label nvidia.com/gpu.clique."""
ATTR_NVLINKS: Final = "koordra.io/nvlinks"
"""How many NVLinks of the card are up."""
ATTR_NVLINK_PEERS: Final = "koordra.io/nvlinkPeers"
"""With which other GPUs of the node it has NVLinks, and how many, where not all have the same."""
ATTR_RAIL: Final = "koordra.io/rail"
"""The NIC's number among those of its node, by which the network is wired."""
ATTR_INFERRED: Final = "koordra.io/inferred"
"""What of the device's place is not read from the machine, but filled in."""
ATTR_PARENT: Final = "koordra.io/parent"
"""The card of a MIG instance, the NIC of a virtual function."""
ATTR_IB_DEVICE: Final = "koordra.io/ibDevice"
"""The RDMA device, as /sys/class/infiniband has it."""
ATTR_NETDEV: Final = "koordra.io/netdev"
"""The network interface on the host."""
ATTR_LINK_LAYER: Final = "koordra.io/linkLayer"
"""InfiniBand or Ethernet."""
ATTR_RATE_GBPS: Final = "koordra.io/rateGbps"
"""The port's rate, while the link is up."""
ATTR_ISOLATION: Final = "koordra.io/isolation"
"""Prefix of the attributes by backend: whether the node lets it keep shares of a GPU (docs/isolation.md)."""
ATTR_MPS_SHARED: Final = "koordra.io/mpsShared"
"""Claims of several namespaces may have shares of the GPU by MPS."""
ATTR_MPS_PROTOCOL: Final = "koordra.io/mpsProtocol"
"""The version of MPS's protocol that the node's driver has: from 3 on each claim has limits of its own."""
ATTR_PROFILE: Final = "koordra.io/profile"
"""The MIG profile."""
ATTR_PLACEMENT_START: Final = "koordra.io/placementStart"
"""The first memory slice of the card that the instance takes."""

CNI_DEVICE_ID: Final = "k8s.cni.cncf.io/deviceID"
CNI_RESOURCE_NAME: Final = "k8s.cni.cncf.io/resourceName"
"""The attributes by which Multus finds the device of an allocation for a network that names a resource
(multus-cni, pkg/draclient): the PCI address, and the name in the NetworkAttachmentDefinition's annotation."""

STANDARD_PCIE_ROOT: Final = "resource.kubernetes.io/pcieRoot"
STANDARD_PCI_BUS_ID: Final = "resource.kubernetes.io/pciBusID"
STANDARD_NUMA_NODE: Final = "resource.kubernetes.io/numaNode"

TYPE_GPU: Final = "gpu"
TYPE_MIG: Final = "mig"
TYPE_NIC: Final = "nic"
TYPE_VF: Final = "vf"
TYPE_IMEX: Final = "imex"
TYPE_REMOTE: Final = "remote"
"""What a node calls a device that is on no node, whatever its pool publishes of it."""
IMEX_DEVICE: Final = "imex"
"""A node's IMEX channels, which are one device."""
IMEX_DOMAIN: Final = "koordra.io/imex-domain"
"""Label and annotation on a ConfigMap that says which nodes are in an IMEX domain: which domain it is."""
IMEX_CLIQUE: Final = "koordra.io/imex-clique"
"""Annotation on the same ConfigMap: the clique of the domain's nodes."""
IMEX_DOMAIN_LABEL: Final = IMEX_DOMAIN
GPU_TYPES: Final = frozenset({TYPE_GPU, TYPE_MIG})
NIC_TYPES: Final = frozenset({TYPE_NIC, TYPE_VF})

CAPACITY_MEMORY: Final = "memory"
"""Bytes of the card's memory."""
CAPACITY_CORES: Final = "cores"
"""Percent of the card's compute."""
CAPACITY_SLOTS: Final = "slots"
"""How many shares the card takes; each takes one."""
CAPACITY_SHARE: Final = "share"
"""Percent of the NIC."""
CAPACITY_BANDWIDTH: Final = "bandwidth"
"""Bits per second; not there while the link is down."""


def pci_device_name(prefix: str, bus_id: str) -> str:
    """The DNS label of a device at a PCI address: `gpu`, `0000:1F:00.0` -> `gpu-0000-1f-00-0`."""
    return f"{prefix}-{bus_id.lower().replace(':', '-').replace('.', '-')}"
