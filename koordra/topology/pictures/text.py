"""The machine as text: how near GPUs and NICs are to each other, the whole matrix of ``nvidia-smi topo -m``
with NICs, CPU and NUMA affinity, and an indented tree.

Rows and columns are GPU0.. and NIC0.. in bus order; the legend below gives the device's
published name and, for NICs, the RDMA device. The tree has sockets, NUMA nodes, host bridges, bridges,
devices. What was inferred rather than read carries a ``*``.
"""

from __future__ import annotations

import textwrap
from dataclasses import replace
from typing import Final

from koordra.topology.cpu_lists import number_ranges
from koordra.topology.fabrics import inferred_parts, rails
from koordra.topology.graph import MACHINE, build, tree
from koordra.topology.levels import Level
from koordra.topology.location import BUS_ID, bus_order
from koordra.topology.machine import Device, Gpu, Machine, level, level_is_inferred
from koordra.topology.pictures.columns import GAP, aligned, table
from koordra.topology.pictures.usage import NOBODY, MachineUsage, description, labels

_LEGEND = """\
X    = the device itself
NV#  = # NVLinks
PIX  = at most one PCIe bridge or switch
PXB  = several PCIe bridges, without the host bridge
PHB  = the same PCIe host bridge
NODE = different host bridges of one NUMA node
SYS  = different NUMA nodes"""

_BAR: Final = 20
_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"
INFERRED = "* inferred or laid over, not read from the machine"


def level_text(a: Device, b: Device) -> str:
    """``X``, ``NV18``, ``PIX``, ...: NVLink with the number of links, as nvidia-smi prints it."""
    found, links = level(a, b)
    return f"NV{links}" if found is Level.NV else found.name


def matrix(machine: Machine, usage: MachineUsage = NOBODY) -> str:
    """The matrix with its legend, as text that ends with a newline."""
    short = labels(machine)
    devices: list[Device] = [*machine.gpus, *machine.nics]
    if not devices:
        return "no GPU and no RDMA NIC\n"
    rows = [
        ["", *(short[device.name] for device in devices), "CPU Affinity", "NUMA Affinity"],
        *(
            [
                short[device.name],
                *(level_text(device, other) + "*" * level_is_inferred(device, other) for other in devices),
                machine.cpus_near(device) or "N/A",
                _numa(device),
            ]
            for device in devices
        ),
    ]
    levels, listed = aligned(rows), _device_lines(machine, usage)
    note = f"\n  {INFERRED}\n" if "*" in levels + listed else ""
    return f"{levels}\nLegend:\n\n{_indented(_LEGEND)}\n\nDevices:\n\n{_indented(listed)}\n{note}"


def gpu_nic_matrix(machine: Machine, usage: MachineUsage = NOBODY, *, width: int) -> str:
    """How near every NIC and GPU is to every GPU, within a width: GPUs that do not fit beside each other are
    under each other. Of a machine without GPUs, or without NICs, it is what the other are to each other."""
    short = labels(machine)
    columns: list[Device] = [*machine.gpus] or [*machine.nics]
    if not columns:
        return "no GPU and no RDMA NIC\n"
    rows: list[Device] = [*machine.gpus, *machine.nics]
    ends = [[_numa(device)] for device in rows]
    cells = [
        [level_text(row, column) + "*" * level_is_inferred(row, column) for column in columns] for row in rows
    ]
    side = (
        max(len(short[device.name]) for device in rows)
        + max(len(end[0]) for end in ends)
        + 2 * GAP
        + len("NUMA")
    )
    widest = max(len(cell) for row in [*cells, [short[one.name] for one in columns]] for cell in row) + GAP
    fitting = max(1, (width - side) // widest)
    blocks = [
        aligned(
            [
                ["", *(short[one.name] for one in columns[start : start + fitting]), "NUMA"],
                *(
                    [short[row.name], *own[start : start + fitting], *end]
                    for row, own, end in zip(rows, cells, ends, strict=True)
                ),
            ]
        )
        for start in range(0, len(columns), fitting)
    ]
    near = "".join(f"  NUMA {node.id}: CPUs {node.cpus}\n" for node in machine.numa_nodes if node.cpus)
    listed = _device_lines(machine, replace(usage, holders={}), width=width - 2)
    held = held_lines(machine, usage)
    parts = ["\n".join(blocks), f"Legend:\n\n{_indented(_LEGEND)}\n", f"CPUs:\n\n{near}" if near else ""]
    parts += [f"Devices:\n\n{_indented(listed)}\n", f"Held:\n\n{_indented(held)}\n" if held else ""]
    text = "\n".join(filter(None, parts))
    return text + (f"\n  {INFERRED}\n" if "*" in "".join(blocks) + listed else "")


def _numa(device: Device) -> str:
    numa = "N/A" if device.location.numa is None else str(device.location.numa)
    return numa + "*" * ("numaNode" in device.location.inferred)


def held_lines(machine: Machine, usage: MachineUsage) -> str:
    """Who has what of which device, by full name: a bar for each capacity that is given in parts, in it a
    letter for each claim."""
    short, lines = labels(machine), []
    side = max(map(len, short.values()), default=0) + GAP
    for device in machine.devices():
        holders = usage.holders_of(device)
        letters = {claim: _LETTERS[number % len(_LETTERS)] for number, claim in enumerate(holders)}
        amounts = {part.claim: part.amounts for part in usage.parts.get(device.name, ())}
        own = []
        for name, given in usage.bars(device):
            bar = "".join(letters[part.claim] * max(1, round(size * _BAR)) for part, size in given)
            own.append(f"{name:6} [{bar[:_BAR]:·<{_BAR}}] {sum(size for _, size in given):.0%}")
        for claim in holders:
            what = ", ".join(f"{name} {amount}" for name, amount in amounts.get(claim, {}).items())
            own.append(f"{letters[claim]} {claim}" + (f" ({what})" if what else ""))
        label = short[device.name] if device.type != "vf" else device.name
        lines += [f"{label if not place else '':{side}}{line}" for place, line in enumerate(own)]
    return "".join(f"{line}\n" for line in lines)


def _device_lines(machine: Machine, usage: MachineUsage, *, width: int | None = None) -> str:
    short, rail_numbers = labels(machine), rails(machine)
    rows = []
    for device in machine.devices():
        bus_id = (
            device.location.bus_id if isinstance(device, Gpu) else device.parent or device.location.bus_id
        )
        rail = f"rail {rail_numbers[bus_id]}*" if bus_id in rail_numbers else ""
        rows.append([short[device.name], device.name, *description(device), rail, usage.state(device)])
    kept = [column for column in zip(*rows, strict=True) if any(column)]
    return table([[[cell] for cell in row] for row in zip(*kept, strict=True)], width=width)


def _indented(text: str) -> str:
    return textwrap.indent(text.rstrip("\n"), "  ")


def text_tree(machine: Machine, usage: MachineUsage = NOBODY) -> str:
    """One line for each node of the machine's tree, ending with a newline. ``*`` marks what was inferred or
    laid over."""
    graph = tree(build(machine))
    short = labels(machine)
    devices = {device.location.bus_id: device for device in machine.devices()}
    memory = {f"numa-{node.id}" for node in machine.memory_only()}
    inferred = inferred_parts(machine)
    lines: list[str] = []

    def visit(node: str, parent: str, prefix: str, joint: str) -> None:
        data = graph.nodes[node]
        if node in devices:
            text = _device_text(devices[node], short, usage)
        else:
            text = _text(node, str(data["kind"]), str(data.get("cpus", ""))) + "  *" * (node in inferred)
        lines.append(f"{prefix}{joint}{text}")
        children = sorted({*graph.neighbors(node)} - memory - {parent}, key=_order)
        inside = prefix + {"": "", "├─ ": "│  ", "└─ ": "   "}[joint]
        for child in children:
            visit(child, node, inside, "└─ " if child == children[-1] else "├─ ")

    visit(MACHINE, "", "", "")
    if memory:
        numbers = number_ranges(node.id for node in machine.memory_only())
        lines.append(f"memory only: NUMA node{'s' if len(memory) > 1 else ''} {numbers}")
    if any(device.location.inferred for device in devices.values()):
        lines.append(INFERRED)
    held = held_lines(machine, usage)
    return "\n".join(lines) + "\n" + (f"\n{held}" if held else "")


def _order(node: str) -> tuple[int, tuple[int, ...], str]:
    """Sockets and NUMA nodes by number, everything on PCI in bus order."""
    if BUS_ID.fullmatch(node):
        return 2, bus_order(node), ""
    if node.startswith("pci"):
        return 1, bus_order(node.removeprefix("pci")), ""
    return 0, (int(node.rpartition("-")[2]),), node


_WORDS = {
    "root": "host bridge",
    "root-port": "root port",
    "upstream": "upstream port",
    "downstream": "downstream port",
    "bridge": "bridge",
}


def _text(node: str, kind: str, cpus: str) -> str:
    if kind == "machine":
        return kind
    if kind in _WORDS:
        return f"{node} {_WORDS[kind]}"
    number = node.rpartition("-")[2]
    return f"{'NUMA node' if kind == 'numa' else 'socket'} {number}" + (f" (CPUs {cpus})" if cpus else "")


def _device_text(device: Device, short: dict[str, str], usage: MachineUsage) -> str:
    what = ", ".join(filter(None, description(device)))
    state, inferred = usage.state(device), ", ".join(sorted(device.location.inferred))
    text = f"{short[device.name]} {device.name}  {what}"
    return text + (f"  [{state}]" if state else "") + (f"  * {inferred}" if inferred else "")
