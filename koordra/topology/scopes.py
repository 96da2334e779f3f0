"""Within what two devices must lie together.

Narrow to wide: ``PCIeSwitch < PCIeRoot < NUMANode < Socket < Node``. A scope is a question about
*one* device ("under which switch is it?"), answered by :func:`scope_key` from what the node has
published; devices are together in a scope when their keys are equal. A device that does not have
the answer (``None``: no switch above it, NUMA node unknown) shares the scope with no other device, because
a guess would be a promise. ``Node`` has one key for all.

Every scope allows levels up to a worst one; that is how a Required scope is explained to people
("PCIeRoot is required, the nearest pair is NODE"). ``PCIeRoot`` is what Koordinator calls SamePCIe.

Nothing here imports networkx: the hot path stays light.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from koordra.api import names
from koordra.api.opaque.parameters import Scope
from koordra.topology.levels import Level, attribute

SCOPES: tuple[Scope, ...] = (
    Scope.PCIE_SWITCH,
    Scope.PCIE_ROOT,
    Scope.NUMA_NODE,
    Scope.SOCKET,
    Scope.NODE,
)
"""All scopes, narrow to wide."""

_WORST: dict[Scope, Level] = {
    Scope.PCIE_SWITCH: Level.PXB,
    Scope.PCIE_ROOT: Level.PHB,
    Scope.NUMA_NODE: Level.NODE,
    Scope.SOCKET: Level.SYS,
    Scope.NODE: Level.SYS,
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
    match parse_scope(scope):
        case Scope.PCIE_SWITCH:
            return _text(attribute(attributes, names.ATTR_PCIE_SWITCH))
        case Scope.PCIE_ROOT:
            return _text(attributes.get(names.STANDARD_PCIE_ROOT))
        case Scope.NUMA_NODE:
            return _text(attribute(attributes, names.ATTR_NUMA_NODE))
        case Scope.SOCKET:
            return _text(attribute(attributes, names.ATTR_SOCKET))
        case _:
            return "node"


def together(devices: Iterable[Mapping[str, Any]], scope: Scope | str) -> bool:
    """Whether all these devices (their published attributes) lie within one instance of the scope."""
    keys = {scope_key(attributes, scope) for attributes in devices}
    return len(keys) <= 1 and None not in keys


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
