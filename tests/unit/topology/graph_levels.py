"""Levels and distances from the shape of the graph alone: what those of the machine's facts are compared with."""

from __future__ import annotations

import networkx as nx

from koordra.topology.graph import tree
from koordra.topology.levels import Level


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
