"""The machine in the language of Graphviz, for those who want to draw it their own way: ``dot -Tpdf``.

Clusters are sockets and NUMA nodes; tree edges are PCIe, green ones NVLink with the number of links. What was
inferred or laid over has dashed outlines.
"""

from __future__ import annotations

import itertools
import json

from koordra.topology.fabrics import inferred_parts
from koordra.topology.graph import build
from koordra.topology.machine import Device, Machine
from koordra.topology.pictures.usage import NOBODY, MachineUsage, description, labels

_SHAPES = {
    "gpu": 'shape=box style="filled,rounded" fillcolor="#eaf4dc"',
    "nic": 'shape=box style="filled,rounded" fillcolor="#e0eefa"',
    "vf": 'shape=box style="filled,rounded" fillcolor="#f4f9fd"',
    "root": "shape=hexagon",
    "upstream": 'shape=box style=filled fillcolor="#3b4d63" fontcolor=white',
}


def dot(machine: Machine, usage: MachineUsage = NOBODY) -> str:
    """A graph of the machine, as text that ends with a newline."""
    graph = build(machine)
    devices = {device.location.bus_id: device for device in machine.devices()}
    short = labels(machine)
    lines = ["graph machine {", '  node [fontname="Helvetica" fontsize=10];', '  edge [color="#3b4d63"];']
    inferred = inferred_parts(machine)
    clustered: dict[str, list[str]] = {}
    roots = {part: device.location.root for device in devices.values() for part in device.location.path}
    for node, data in graph.nodes(data=True):
        if data["kind"] in {"machine", "socket", "numa"}:
            continue
        above = [other for other in graph.neighbors(roots[node]) if other.startswith("numa-")]
        kind = str(data["kind"])
        attributes = _attributes(node, kind, devices.get(node), short, usage)
        if node in inferred:
            attributes = f"label={json.dumps(f'{kind} {node} *')} shape=box style=dashed"
        clustered.setdefault(above[0] if above else "", []).append(f"  {json.dumps(node)} [{attributes}];")
    memory = machine.memory_only()
    for numa in (node for node in machine.numa_nodes if node not in memory):
        label = f"NUMA {numa.id}" + (f", socket {numa.socket}" if numa.socket is not None else "")
        lines += [f"  subgraph cluster_numa_{numa.id} {{", f"    label={json.dumps(label)};"]
        lines += [*(f"  {line}" for line in clustered.pop(f"numa-{numa.id}", [])), "  }"]
    lines += itertools.chain(*clustered.values())
    for a, b, data in graph.edges(data=True):
        style = ""
        if data["kind"] == "nvlink":
            links = data["links"]
            width = min(4, 1 + links / 6)
            style = f' [color="#5f8d1f" penwidth={width:.1f} constraint=false label="NV{links}"]'
        if data["kind"] != "fabric":
            lines.append(f"  {json.dumps(a)} -- {json.dumps(b)}{style};")
    return "\n".join([*lines, "}"]) + "\n"


def _attributes(
    node: str, kind: str, device: Device | None, short: dict[str, str], usage: MachineUsage
) -> str:
    style = _SHAPES.get(kind, "shape=box")
    if device is None:
        text = node if kind == "root" else f"{kind} {node}"
        return f"label={json.dumps(text)} {style}"
    words = [short[device.name], device.name, *description(device), usage.state(device)]
    if device.location.inferred:
        style = style.replace("filled,rounded", "filled,rounded,dashed")
        words.append(f"* {','.join(sorted(device.location.inferred))}")
    return f"label={json.dumps(chr(10).join(word for word in words if word))} {style}"
