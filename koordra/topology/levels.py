"""How far apart two devices of one machine are.

The words are those of ``nvidia-smi topo -m``, near to far:

=======  ==================================================================================
X        the device itself
NV#      joined by # NVLinks (GPU to GPU; the PCIe level stays available beside it)
PIX      at most one PCIe bridge or switch between them
PXB      several PCIe bridges, without crossing the host bridge (nested switches of one board)
PHB      the same PCIe host bridge (root complex)
NODE     different host bridges of one NUMA node
SYS      different NUMA nodes (the interconnect between sockets, or between quarters of one)
=======  ==================================================================================

A level follows from what a node has published, :func:`level_between`: the allocator and the command line see
ResourceSlices, never sysfs. A device publishes the upstream port of its topmost switch
(``pcieSwitch``) and, where switches are nested, the whole chain of upstream ports (``pciePath``).

A *scope* is that within which devices must lie together, narrow to wide ``PCIeSwitch < PCIeRoot < NUMANode <
Socket < Node``: a question about *one* device ("under which switch is it?"), answered by :func:`scope_key`
from what the node has published; devices are together in a scope when their keys are equal. A device that
does not have the answer (``None``: no switch above it, NUMA node unknown) shares the scope with no other
device, because a guess would be a promise. ``Node`` has one key for all. ``PCIeRoot`` is what Koordinator
calls SamePCIe.

Nothing here imports networkx: the hot path stays light.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any

from koordra.api import names
from koordra.api.opaque.parameters import SCOPE_ATTRIBUTES, Scope


class Level(IntEnum):
    """A distance, with NVML's own numbers (nvmlGpuTopologyLevel_t), so that ``<`` means nearer."""

    X = -1
    NV = 0
    PIX = 10
    PXB = 20
    PHB = 30
    NODE = 40
    SYS = 50

    def __str__(self) -> str:
        return self.name


def attribute(attributes: Mapping[str, Any], name: str) -> Any:
    """One attribute of the driver's own domain, published as ``koordra.io/<name>`` or bare ``<name>``.

    ``name`` is the qualified one (``koordra.api.names``). A bare name in a ResourceSlice means the
    domain of the slice's driver, so both are the same attribute.
    """
    value = attributes.get(name)
    return attributes.get(name.removeprefix(names.DOMAIN)) if value is None else value


def level_between(a: Mapping[str, Any], b: Mapping[str, Any]) -> Level:
    """PCIe level between two devices of one node, from their published attributes.

    ``a`` and ``b`` map attribute names to plain values: ``{"koordra.io/numaNode": 0, ...}``.
    What is not published counts as "not shared": a missing attribute never brings devices nearer.
    NVLink is a matter of GPU pairs and is answered by the graph; here it is always the PCIe level.
    """
    bus_a, bus_b = a.get(names.STANDARD_PCI_BUS_ID), b.get(names.STANDARD_PCI_BUS_ID)
    if bus_a is not None and bus_a == bus_b:
        return Level.X
    if _share(a, b, names.ATTR_PCIE_SWITCH):
        nested_a, nested_b = attribute(a, names.ATTR_PCIE_PATH), attribute(b, names.ATTR_PCIE_PATH)
        return Level.PIX if nested_a == nested_b else Level.PXB
    root = a.get(names.STANDARD_PCIE_ROOT)
    if root is not None and root == b.get(names.STANDARD_PCIE_ROOT):
        # The functions of one card, and the devices of one secondary bus, meet at one bridge; what hangs on
        # the root bus itself meets only in the host bridge.
        buses = {str(bus_id).rpartition(":")[0] for bus_id in (bus_a, bus_b)}
        root_bus = str(root).removeprefix("pci")
        return Level.PHB if len(buses) > 1 or buses & {"", root_bus} else Level.PIX
    return Level.NODE if _share(a, b, names.ATTR_NUMA_NODE) else Level.SYS


def _share(a: Mapping[str, Any], b: Mapping[str, Any], name: str) -> bool:
    value = attribute(a, name)
    return value is not None and value == attribute(b, name)


def scope_key(attributes: Mapping[str, Any], scope: Scope) -> str | None:
    """The name of the switch, root, NUMA node or socket that this device is under; None if not known.

    ``attributes`` maps published attribute names to plain values. Keys compare within one node only.
    """
    if scope is Scope.NODE:
        return "node"
    value = attribute(attributes, SCOPE_ATTRIBUTES[scope])
    return None if value is None else str(value)


def together(devices: Iterable[Mapping[str, Any]], scope: Scope) -> bool:
    """Whether all these devices (their published attributes) lie within one instance of the scope."""
    keys = {scope_key(attributes, scope) for attributes in devices}
    return len(keys) <= 1 and None not in keys
