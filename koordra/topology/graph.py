"""The machine as a networkx graph: who asks about paths, neighbourhoods and cliques asks here.

Nodes, by id, with attribute ``kind``::

    machine                    machine
    socket-0                   socket
    numa-0                     numa
    pci0000:07                 root          (host bridge)
    0000:08:00.0               root-port | upstream | downstream | bridge
    0000:0f:00.0               gpu | nic | vf        (attribute ``name``: the published one)

Tree edges have ``kind`` "fabric" above the host bridges and "pcie" below; edges of kind "nvlink" between GPUs
come on top and carry ``links``. A host bridge hangs below the NUMA node that its devices name, below the
machine where they disagree or do not know. Without the NVLink edges the graph is a tree.

networkx is slow to import, so that only pictures import this module: allocation reads tables and attributes.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import combinations

import networkx as nx

from koordra.topology.machine import Machine, nvlinks_between

MACHINE = "machine"


def build(machine: Machine) -> nx.Graph[str]:
    """The graph of one machine."""
    graph: nx.Graph[str] = nx.Graph()
    graph.add_node(MACHINE, kind="machine")
    for node in machine.numa_nodes:
        path = [MACHINE, f"numa-{node.id}"]
        if node.socket is not None:
            path.insert(1, f"socket-{node.socket}")
            graph.add_node(path[1], kind="socket")
        nx.add_path(graph, path, kind="fabric")
        graph.add_node(path[-1], kind="numa", cpus=node.cpus)
    kinds = {bridge.bus_id: bridge.kind.value for bridge in machine.bridges}
    below: defaultdict[str, set[int | None]] = defaultdict(set)
    for location in (device.location for device in machine.devices()):
        below[location.root].add(location.numa)
        nx.add_path(graph, location.path, kind="pcie")
        graph.add_node(location.root, kind="root")
        graph.add_nodes_from((part, {"kind": kinds.get(part, "bridge")}) for part in location.path[1:-1])
    for device in machine.devices():
        graph.add_node(device.location.bus_id, kind=device.type, name=device.name)
    for root, numbers in sorted(below.items()):
        numa = f"numa-{next(iter(numbers))}" if len(numbers) == 1 else MACHINE
        graph.add_edge(numa if numa in graph else MACHINE, root, kind="fabric")
    for one, other in combinations(machine.gpus, 2):
        if links := nvlinks_between(one, other):
            graph.add_edge(one.location.bus_id, other.location.bus_id, kind="nvlink", links=links)
    return graph


def tree(graph: nx.Graph[str]) -> nx.Graph[str]:
    """The graph without its NVLink edges."""
    return nx.subgraph_view(graph, filter_edge=lambda a, b: graph.edges[a, b]["kind"] != "nvlink")


def nvlink_cliques(graph: nx.Graph[str]) -> list[frozenset[str]]:
    """Largest sets of GPUs in which every pair is joined by NVLink, the largest and first in bus order
    first."""
    nvlink = graph.edge_subgraph(edge for edge in graph.edges if graph.edges[edge]["kind"] == "nvlink")
    return sorted(map(frozenset, nx.find_cliques(nvlink)), key=lambda gpus: (-len(gpus), sorted(gpus)))
