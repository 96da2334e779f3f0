"""The facts of one machine, as frozen values.

Discovery makes a :class:`Machine`, everything else reads it. A value that is not known is ``None`` and stays
so; nothing here guesses. ``inferred`` names the fields of a location that were inferred rather than read, so
that every picture can mark them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from koordra.api import names
from koordra.topology.levels import Level, level_between
from koordra.topology.location import DeviceNode, Location, bus_order
from koordra.topology.partitions import (
    FabricInfo,
    ImexNodes,
    MigInstance,
    MigProfile,
    PublishedFabrics,
    SubFunction,
)


class BridgeKind(StrEnum):
    """What a PCI bridge is; the words are those of the PCIe capability's device/port type."""

    ROOT_PORT = "root-port"
    UPSTREAM = "upstream"
    DOWNSTREAM = "downstream"
    OTHER = "bridge"


@dataclass(frozen=True, slots=True)
class NumaNode:
    """``cpus`` is the kernel's list form ("0-55,112-167"), empty for memory-only nodes; ``distances`` is the
    node's SLIT row, in the order of the machine's nodes (their numbers may have gaps); ``socket`` is the
    CPUs' physical package, None where they disagree or there are none."""

    id: int
    cpus: str
    distances: tuple[int, ...] = ()
    socket: int | None = None


@dataclass(frozen=True, slots=True)
class Bridge:
    """``inferred`` where the kind could not be read and follows from the place in the tree."""

    bus_id: str
    path: tuple[str, ...]
    kind: BridgeKind
    inferred: bool = False


@dataclass(frozen=True, slots=True)
class NvLink:
    """Active NVLinks of one GPU to one peer. ``peer`` is a bus id; ``to_switch``: the peer is an NVSwitch,
    not a GPU."""

    peer: str
    links: int
    to_switch: bool


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. ``uuid``, ``memory_bytes`` and ``node`` must be known for it to be offered.

    ``node`` is ``/dev/nvidia<minor>``; ``graphics_nodes`` (DRM) belong to the card too: they are guarded, and
    not given out. ``multiprocessors`` are all that the card has, in MIG mode too. ``mig_enabled`` None means
    that the card cannot be partitioned, or that it is not known. ``mig_halves`` are profile id, start and
    size of GPU instances that are no MIG devices, since they have no compute instance or several: they take
    their slices all the same; None where the driver does not list them. ``faults`` say why nothing should be
    placed on the card now (``Xid79``, ``GpuLost``); ``recovered`` is the driver's own word that the card
    needs no recovery, None where it does not say. ``errors`` counts what went wrong on the card by kind
    (``ecc_corrected``), for metrics.
    """

    location: Location
    device_id: str | None = None
    uuid: str | None = None
    minor: int | None = None
    product_name: str | None = None
    memory_bytes: int | None = None
    architecture: str | None = None
    compute_capability: str | None = None
    multiprocessors: int | None = None
    mig_enabled: bool | None = None
    nvlinks: tuple[NvLink, ...] = ()
    node: DeviceNode | None = None
    graphics_nodes: tuple[DeviceNode, ...] = ()
    disputed: tuple[str, ...] = ()
    mig_profiles: tuple[MigProfile, ...] = ()
    mig_instances: tuple[MigInstance, ...] = ()
    mig_halves: tuple[tuple[int, int, int], ...] | None = ()
    fabric: FabricInfo | None = None
    faults: tuple[str, ...] = ()
    recovered: bool | None = None
    errors: Mapping[str, int] = field(default_factory=dict, hash=False)

    @property
    def type(self) -> str:
        return names.TYPE_GPU

    @property
    def name(self) -> str:
        return names.pci_device_name(names.TYPE_GPU, self.location.bus_id)

    @property
    def certain(self) -> bool:
        """Identity, size and device node are known, and nothing contradicts them."""
        return bool(self.uuid and self.memory_bytes and self.node and not self.disputed)

    @property
    def publishable(self) -> bool:
        """Certain enough to be offered whole, and not in MIG mode (then its instances are to be used)."""
        return self.certain and not self.mig_enabled


@dataclass(frozen=True, slots=True)
class RdmaPort:
    """One port of an RDMA device. ``rate_gbps`` is None while the link is down: sysfs then shows a nominal
    value. ``pkeys`` is the beginning of an InfiniBand port's table of partitions, up to the first empty
    place."""

    number: int
    link_layer: str | None = None
    active: bool | None = None
    rate_gbps: int | None = None
    gid: str | None = None
    pkeys: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Nic:
    """One RDMA-capable PCI function of any vendor.

    ``verbs`` is ``/dev/infiniband/uverbsN``, which a container is given; ``management_nodes`` (umad, issm)
    belong to the NIC as well: they are guarded, and not given out. ``parent`` is the physical function's bus
    id for an SR-IOV virtual function, None for a physical one; ``vf_index`` is its number there, None where
    the physical function does not list it. ``faults`` say why nothing should be placed on it now besides the
    state of its ports; ``downs`` counts how often its link went down. ``upper`` is the bond or bridge that
    its own interface is part of (with RoCE LAG ``netdev`` itself, as the RDMA device is the bond's),
    ``needed`` whether the host needs ``netdev``: its default route goes by it, or an interface stands on it.
    """

    location: Location
    ib_device: str
    vendor: str | None = None
    device_id: str | None = None
    guid: str | None = None
    netdev: str | None = None
    ports: tuple[RdmaPort, ...] = ()
    verbs: DeviceNode | None = None
    management_nodes: tuple[DeviceNode, ...] = ()
    sriov_total: int = 0
    sriov_active: int = 0
    parent: str | None = None
    disputed: tuple[str, ...] = ()
    vf_index: int | None = None
    faults: tuple[str, ...] = ()
    downs: int | None = None
    upper: str | None = None
    needed: bool = False

    @property
    def type(self) -> str:
        return names.TYPE_NIC if self.parent is None else names.TYPE_VF

    @property
    def name(self) -> str:
        """``nic-0000-0c-00-0``, ``nic-0000-0c-00-0-vf-3``; a virtual function without a number has its own
        address."""
        if self.parent is not None and self.vf_index is not None:
            return f"{names.pci_device_name(names.TYPE_NIC, self.parent)}-vf-{self.vf_index}"
        return names.pci_device_name(names.TYPE_NIC, self.location.bus_id)

    @property
    def port(self) -> RdmaPort | None:
        """The port that speaks for the NIC: the first active one, else the first."""
        return next((port for port in self.ports if port.active), self.ports[0] if self.ports else None)

    @property
    def publishable(self) -> bool:
        """Certain enough to be offered: identity, a port and the verbs node are known and nothing contradicts
        them; of a virtual function also its number."""
        known = self.guid and self.ports and self.verbs and not self.disputed
        return bool(known and (self.parent is None or self.vf_index is not None))


Device = Gpu | Nic


def in_bus_order(device: Device) -> tuple[tuple[int, ...], str]:
    """Sort key of devices; several RDMA devices of one function by name."""
    return bus_order(device.location.bus_id), "" if isinstance(device, Gpu) else device.ib_device


@dataclass(frozen=True, slots=True)
class Machine:
    """One node. Devices are in bus order; ``vfs`` are Nics whose ``parent`` is one of ``nics``.

    ``gpu_control`` (nvidiactl, nvidia-uvm) and ``rdma_control`` (rdma_cm) are the nodes that any holder of a
    GPU or of a NIC needs; ``gpu_management`` (the right to partition cards, NVSwitches) and ``sub_functions``
    are guarded and never given out. ``gpu_optional`` (gdrdrv, nvidia-fs, an IMEX channel) is for holders of
    a GPU who ask for it; ``imex`` are all channels of a driver on GPUs of a fabric over several nodes.
    ``cuda_version`` is NVML's number (12040 is CUDA 12.4). ``rdma_exclusive``: RDMA
    devices belong to network namespaces. ``published_fabrics`` is for a machine that is seen through its
    ResourceSlices, None where the machine itself was read.
    """

    numa_nodes: tuple[NumaNode, ...] = ()
    bridges: tuple[Bridge, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    nics: tuple[Nic, ...] = ()
    vfs: tuple[Nic, ...] = ()
    driver_version: str | None = None
    cuda_version: int | None = None
    gpu_control: tuple[DeviceNode, ...] = ()
    rdma_control: tuple[DeviceNode, ...] = ()
    boot_id: str | None = None
    gpu_management: tuple[DeviceNode, ...] = ()
    gpu_optional: tuple[DeviceNode, ...] = ()
    sub_functions: tuple[SubFunction, ...] = ()
    rdma_exclusive: bool = False
    imex: ImexNodes | None = None
    published_fabrics: PublishedFabrics | None = None

    def devices(self) -> tuple[Device, ...]:
        """GPUs, then NICs, then virtual functions."""
        return *self.gpus, *self.nics, *self.vfs

    def device(self, name: str) -> Device | None:
        """The device published under this name (``gpu-0000-0f-00-0``)."""
        return next((device for device in self.devices() if device.name == name), None)

    def numa(self, number: int | None) -> NumaNode | None:
        return next((node for node in self.numa_nodes if node.id == number), None)

    def distance(self, one: int, other: int) -> int | None:
        """The SLIT distance between two NUMA nodes."""
        node, ids = self.numa(one), [node.id for node in self.numa_nodes]
        if node is None or len(node.distances) != len(ids) or other not in ids:
            return None
        return node.distances[ids.index(other)]

    def memory_only(self) -> tuple[NumaNode, ...]:
        """NUMA nodes with neither CPUs nor devices: the memory of Grace's GPUs (up to 32 nodes of a board),
        of CXL cards."""
        used = {device.location.numa for device in self.devices()}
        return tuple(node for node in self.numa_nodes if not node.cpus and node.id not in used)

    def cpus_near(self, device: Device) -> str | None:
        """The CPU list of the device's NUMA node ("0-55,112-167"), None where unknown."""
        node = self.numa(device.location.numa)
        return (node.cpus or None) if node else None


def with_switches(machine: Machine) -> Machine:
    """The machine with the switches above its devices among its bridges, in bus order."""
    found = {bridge.bus_id: bridge for bridge in machine.bridges}
    for location in (device.location for device in machine.devices()):
        for depth, part in enumerate(location.path):
            if part in location.switches and part not in found:
                found[part] = Bridge(part, location.path[: depth + 1], BridgeKind.UPSTREAM)
    return replace(machine, bridges=tuple(found[bus_id] for bus_id in sorted(found, key=bus_order)))


def pcie_level(a: Device, b: Device) -> Level:
    """The PCIe level between two devices of one machine: what the allocator concludes from what they
    publish."""
    return level_between(a.location.attributes(), b.location.attributes())


def level_is_inferred(a: Device, b: Device) -> bool:
    """Whether the level between two devices rests on something that was inferred or laid over, not read;
    NVLink never does."""
    return _DECIDED_BY.get(level(a, b)[0]) in a.location.inferred | b.location.inferred


_DECIDED_BY = {
    Level.PIX: "pcieSwitch",
    Level.PXB: "pcieSwitch",
    Level.PHB: "pcieRoot",
    Level.NODE: "numaNode",
    Level.SYS: "numaNode",
}


def nvlinks_between(a: Gpu, b: Gpu) -> int:
    """How many NVLinks join two GPUs: the direct ones, or what the narrower of the two has to shared
    NVSwitches.

    An NVSwitch fabric is non-blocking within a machine, so every pair on it has the width of its narrower
    member (this is what nvidia-smi prints as NV18 for every pair of an HGX H100).
    """
    direct = sum(link.links for link in a.nvlinks if not link.to_switch and link.peer == b.location.bus_id)
    return direct or min(sum(link.links for link in gpu.nvlinks if link.to_switch) for gpu in (a, b))


def level(a: Device, b: Device) -> tuple[Level, int]:
    """The level as people see it, and the number of NVLinks behind it (0 unless the level is NV)."""
    links = 0
    if isinstance(a, Gpu) and isinstance(b, Gpu) and a.location.bus_id != b.location.bus_id:
        links = nvlinks_between(a, b)
    return (Level.NV, links) if links else (pcie_level(a, b), 0)
