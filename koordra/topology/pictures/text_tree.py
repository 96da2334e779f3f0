"""The machine as an indented tree of text: sockets, NUMA nodes, host bridges, bridges, devices."""

from __future__ import annotations

from koordra.topology.graph import MACHINE, build, tree
from koordra.topology.inferred import inferred_parts
from koordra.topology.machine import BUS_ID, Device, Gpu, Machine, bus_order, number_ranges
from koordra.topology.pictures.matrix import device_state, labels, port_text
from koordra.topology.pictures.usage import NOBODY, Usage, mig_summary


def text_tree(machine: Machine, usage: Usage = NOBODY) -> str:
    """One line for each node of the machine's tree, ending with a newline. ``*`` marks what was inferred or laid over."""
    graph = tree(build(machine))
    short = labels(machine)
    devices = {device.location.bus_id: device for device in machine.devices()}
    memory = {f"numa-{node.id}" for node in machine.memory_only()}
    inferred = inferred_parts(machine)
    lines: list[str] = []

    def visit(node: str, parent: str | None, prefix: str, joint: str) -> None:
        data = graph.nodes[node]
        device = devices.get(node)
        text = (
            _device_text(device, short, usage)
            if device
            else _text(node, str(data["kind"]), str(data.get("cpus", ""))) + "  *" * (node in inferred)
        )
        lines.append(f"{prefix}{joint}{text}")
        children = sorted(
            (child for child in graph.neighbors(node) if child not in memory | {parent}), key=_order
        )
        inside = prefix + {"": "", "├─ ": "│  ", "└─ ": "   "}[joint]
        for child in children:
            visit(child, node, inside, "└─ " if child == children[-1] else "├─ ")

    visit(MACHINE, None, "", "")
    if memory:
        numbers = number_ranges(node.id for node in machine.memory_only())
        lines.append(f"memory only: NUMA node{'s' if len(memory) > 1 else ''} {numbers}")
    if any(device.inferred for device in devices.values()):
        lines.append("* inferred or laid over, not read from the machine")
    return "\n".join(lines) + "\n"


def _order(node: str) -> tuple[int, tuple[int, ...], str]:
    """Sockets and NUMA nodes by number, everything on PCI in bus order."""
    if BUS_ID.fullmatch(node):
        return 2, bus_order(node), ""
    if node.startswith("pci"):
        return 1, bus_order(node.removeprefix("pci")), ""
    return 0, (int(node.rpartition("-")[2]),), node


def _text(node: str, kind: str, cpus: str) -> str:
    match kind:
        case "machine":
            return "machine"
        case "socket" | "numa":
            label = f"{'NUMA node' if kind == 'numa' else 'socket'} {node.rpartition('-')[2]}"
            return f"{label} (CPUs {cpus})" if cpus else label
        case "root":
            return f"{node} host bridge"
        case _:
            return f"{node} {kind}{' port' if kind in {'upstream', 'downstream'} else ''}".replace(
                "root-port", "root port"
            )


def _device_text(device: Device, short: dict[str, str], usage: Usage) -> str:
    label = short.get(device.name, "VF")
    if isinstance(device, Gpu):
        cut = mig_summary(device)
        what = (device.product_name or "GPU of unknown model") + (f", {cut}" if cut else "")
    else:
        what = f"{device.ib_device}, {port_text(device)}"
    state = device_state(device, usage)
    place = sorted("numaNode" if field == "numa" else field for field in device.inferred)
    notes = (f"  [{state}]" if state else "") + (f"  * {', '.join(place)}" if place else "")
    return f"{label} {device.name}  {what}{notes}"
