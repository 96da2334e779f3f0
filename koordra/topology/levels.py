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

Two ways lead to a level, and a test holds that they agree:

* from the tree, :func:`level_on_paths`: take both devices' sysfs paths, drop what they share;
  what is left says how many bridges lie below their lowest common ancestor;
* from what a node has published, :func:`level_between`: the allocator and the command line see
  ResourceSlices, never sysfs. A device publishes the upstream port of its topmost switch
  (``pcieSwitch``) and, where switches are nested, the whole chain of upstream ports (``pciePath``).

A *scope* is that within which devices must lie together, narrow to wide ``PCIeSwitch < PCIeRoot < NUMANode < Socket < Node``:
a question about *one* device ("under which switch is it?"), answered by :func:`scope_key` from what the node has
published; devices are together in a scope when their keys are equal. A device that does not have
the answer (``None``: no switch above it, NUMA node unknown) shares the scope with no other device, because
a guess would be a promise. ``Node`` has one key for all. Every scope allows levels up to a worst one; that is how a Required
scope is explained to people ("PCIeRoot is required, the nearest pair is NODE"). ``PCIeRoot`` is what Koordinator calls SamePCIe.

Nothing here imports networkx: the hot path stays light.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from itertools import takewhile
from typing import Any, Final

from koordra.api import names
from koordra.api.opaque.parameters import Scope


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


def parse_level(text: str) -> Level:
    """``"PIX"`` or ``"NV18"`` -> Level; ValueError for anything else."""
    name = "NV" if re.fullmatch(r"NV\d*", text) else text
    if name not in Level.__members__:
        raise ValueError(f"{text!r} is no level; the levels are {', '.join(Level.__members__)}")
    return Level[name]


def level_label(level: Level, *, nvlinks: int = 0) -> str:
    """The level as nvidia-smi prints it: NV with the number of links, otherwise the bare word."""
    return f"NV{nvlinks}" if level is Level.NV else level.name


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
    root = a.get(names.STANDARD_PCIE_ROOT)
    same_root = root is not None and root == b.get(names.STANDARD_PCIE_ROOT)
    if _share(a, b, names.ATTR_PCIE_SWITCH):
        nested_a, nested_b = attribute(a, names.ATTR_PCIE_PATH), attribute(b, names.ATTR_PCIE_PATH)
        return Level.PIX if nested_a == nested_b else Level.PXB
    if same_root:
        return Level.PIX if _same_secondary_bus(str(root), bus_a, bus_b) else Level.PHB
    return Level.NODE if _share(a, b, names.ATTR_NUMA_NODE) else Level.SYS


def level_on_paths(a: Sequence[str], b: Sequence[str], *, same_numa: bool) -> Level:
    """PCIe level between two devices from their sysfs paths.

    A path is ``("pci0000:07", "0000:07:01.0", ..., "0000:0f:00.0")``: host bridge, bridges, device.
    ``same_numa`` is false when either NUMA node is unknown.
    """
    pairs = zip(a, b, strict=False)
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    if shared == 0:
        return Level.NODE if same_numa else Level.SYS
    if shared == max(len(a), len(b)):
        return Level.X
    if shared == 1:
        return Level.PHB
    # Below a switch's upstream port: its downstream port, then the device. Below one port's
    # secondary bus (the functions of one card): the device alone.
    return Level.PIX if max(len(a), len(b)) - shared <= 2 else Level.PXB


def _share(a: Mapping[str, Any], b: Mapping[str, Any], name: str) -> bool:
    value = attribute(a, name)
    return value is not None and value == attribute(b, name)


def _same_secondary_bus(root: str, bus_a: Any, bus_b: Any) -> bool:
    """Functions of one card, and devices of one secondary bus, meet at one bridge.

    The root bus itself is no such bus: what hangs on it meets only in the host bridge.
    """
    if not isinstance(bus_a, str) or not isinstance(bus_b, str):
        return False
    bus = bus_a.rpartition(":")[0]
    return bool(bus) and bus == bus_b.rpartition(":")[0] and root != f"pci{bus}"


SCOPES: Final = tuple(Scope)
"""All scopes, narrow to wide."""

_WORST: Final = dict(zip(SCOPES, (Level.PXB, Level.PHB, Level.NODE, Level.SYS, Level.SYS), strict=True))
_SCOPE_ATTRIBUTES: Final = {
    Scope.PCIE_SWITCH: names.ATTR_PCIE_SWITCH,
    Scope.PCIE_ROOT: names.STANDARD_PCIE_ROOT,
    Scope.NUMA_NODE: names.ATTR_NUMA_NODE,
    Scope.SOCKET: names.ATTR_SOCKET,
}


def parse_scope(text: str) -> Scope:
    """``"PCIeRoot"`` -> Scope; ValueError names the scopes there are."""
    try:
        return Scope(text)
    except ValueError:
        raise ValueError(f"{text!r} is no scope; the scopes are {', '.join(SCOPES)}") from None


def scopes_from(scope: Scope | str) -> tuple[Scope, ...]:
    """The scope itself and every wider one: the relaxation levels of a Preferred scope."""
    return SCOPES[SCOPES.index(parse_scope(scope)) :]


def worst_level(scope: Scope | str) -> Level:
    """The farthest that two devices together in this scope can be."""
    return _WORST[parse_scope(scope)]


def scope_key(attributes: Mapping[str, Any], scope: Scope | str) -> str | None:
    """The name of the switch, root, NUMA node or socket that this device is under; None if not known.

    ``attributes`` maps published attribute names to plain values. Keys compare within one node only.
    """
    wanted = parse_scope(scope)
    if wanted is Scope.NODE:
        return "node"
    value = attribute(attributes, _SCOPE_ATTRIBUTES[wanted])
    return None if value is None else str(value)


def together(devices: Iterable[Mapping[str, Any]], scope: Scope | str) -> bool:
    """Whether all these devices (their published attributes) lie within one instance of the scope."""
    keys = {scope_key(attributes, scope) for attributes in devices}
    return len(keys) <= 1 and None not in keys
