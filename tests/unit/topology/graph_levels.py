"""Levels and distances from the shape of the graph or from sysfs paths alone: what those of the machine's
facts are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

import networkx as nx

from koordra.api.opaque.parameters import Scope
from koordra.topology.graph import tree
from koordra.topology.levels import Level

WORST = {
    Scope.PCIE_SWITCH: Level.PXB,
    Scope.PCIE_ROOT: Level.PHB,
    Scope.NUMA_NODE: Level.NODE,
    Scope.SOCKET: Level.SYS,
    Scope.NODE: Level.SYS,
}
"""The farthest that two devices together in a scope can be."""


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


def hops(graph: nx.Graph[str], a: str, b: str) -> int:
    """Edges between two nodes along the tree: a finer distance than the level."""
    return int(nx.shortest_path_length(tree(graph), a, b))


def level(graph: nx.Graph[str], a: str, b: str) -> tuple[Level, int]:
    """Level between two devices and its number of NVLinks, from the shape of the graph alone."""
    if a == b:
        return Level.X, 0
    if graph.has_edge(a, b) and graph.edges[a, b]["kind"] == "nvlink":
        return Level.NV, int(graph.edges[a, b]["links"])
    kinds = [str(graph.nodes[node]["kind"]) for node in nx.shortest_path(tree(graph), a, b)[1:-1]]
    if "socket" in kinds or "machine" in kinds:
        return Level.SYS, 0
    if "numa" in kinds:
        return Level.NODE, 0
    if "root" in kinds:
        return Level.PHB, 0
    # One bridge on the way is a shared port; three are a switch: down, up, down again.
    return (Level.PIX if len(kinds) <= 3 and kinds.count("upstream") <= 1 else Level.PXB), 0
