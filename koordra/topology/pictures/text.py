"""The machine as text: the matrix of ``nvidia-smi topo -m`` with NICs, CPU and NUMA affinity, and an indented tree.

Rows and columns of the matrix are GPU0.. and NIC0.. in bus order; the legend below gives the device's published name and, for NICs,
the RDMA device. The tree has sockets, NUMA nodes, host bridges, bridges, devices. What was inferred rather than read carries a ``*``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from koordra.topology.fabrics import inferred_parts, rails
from koordra.topology.graph import MACHINE, build, tree
from koordra.topology.levels import Level, level_label
from koordra.topology.machine import (
    BUS_ID,
    Device,
    Gpu,
    Machine,
    Nic,
    bus_order,
    level,
    level_is_inferred,
)
from koordra.topology.pictures.usage import NOBODY, Usage, mig_summary

_LEGEND = """\
X    = the device itself
NV#  = # NVLinks
PIX  = at most one PCIe bridge or switch
PXB  = several PCIe bridges, without the host bridge
PHB  = the same PCIe host bridge
NODE = different host bridges of one NUMA node
SYS  = different NUMA nodes"""


def labels(machine: Machine) -> dict[str, str]:
    """Published device name -> GPU0, NIC0, ... as in the matrix."""
    gpus = {gpu.name: f"GPU{index}" for index, gpu in enumerate(machine.gpus)}
    return gpus | {nic.name: f"NIC{index}" for index, nic in enumerate(machine.nics)}


def level_text(a: Device, b: Device) -> str:
    """``X``, ``NV18``, ``PIX``, ...; a bare ``NV`` where the number of links is not known."""
    found, links = level(a, b)
    if found is Level.NV and "nvlinks" in a.inferred | b.inferred:
        return str(found)
    return level_label(found, nvlinks=links)


def matrix(machine: Machine, usage: Usage = NOBODY) -> str:
    """The matrix with its legend, as text that ends with a newline."""
    short = labels(machine)
    devices: list[Device] = [*machine.gpus, *machine.nics]
    if not devices:
        return "no GPU and no RDMA NIC\n"
    table = [["", *short.values(), "CPU Affinity", "NUMA Affinity"]]
    for device in devices:
        numa = "N/A" if device.location.numa is None else str(device.location.numa)
        table.append(
            [
                short[device.name],
                *(level_text(device, other) + "*" * level_rests_on_guess(device, other) for other in devices),
                machine.cpus_near(device) or "N/A",
                numa + "*" * ("numaNode" in device.inferred),
            ]
        )
    listed = _device_lines(machine, usage)
    marked = "*" in listed + "".join(cell for row in table for cell in row)
    note = "\n  * inferred or laid over, not read from the machine\n" if marked else ""
    return f"{aligned(table)}\nLegend:\n\n{_indented(_LEGEND)}\n\nDevices:\n\n{_indented(listed)}\n{note}"


def level_rests_on_guess(a: Device, b: Device) -> bool:
    """Whether the level that is shown (NVLink where there is any) was inferred rather than read."""
    return level(a, b)[0] is not Level.NV and level_is_inferred(a, b)


def aligned(table: Sequence[Sequence[str]]) -> str:
    """Rows as lines with columns of equal width, without blanks at line ends."""
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    )
    return "\n".join(lines) + "\n"


def number_ranges(numbers: Iterable[int]) -> str:
    """Ascending numbers as the kernel lists CPUs: ``"0,2-33"``."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][-1] + 1:
            ranges[-1][1:] = [number]
        else:
            ranges.append([number])
    return ",".join("-".join(map(str, ends)) for ends in ranges)


def device_state(device: Device, usage: Usage) -> str:
    """``not offered``, ``unhealthy: GpuLost``, ``held by ns/claim``; empty for a device that waits for work."""
    faults = device.faults if isinstance(device, Gpu) else ()
    holders = usage.holders_of(device)
    parts = [
        *(["not offered"] if not usage.is_offered(device) else []),
        *([f"unhealthy: {', '.join(faults)}"] if faults else []),
        *([f"held by {', '.join(holders)}"] if holders else []),
    ]
    return "; ".join(parts)


def _device_lines(machine: Machine, usage: Usage) -> str:
    short, rail_numbers = labels(machine), rails(machine)
    rows = []
    for gpu in machine.gpus:
        what = gpu.product_name or "unknown"
        rows.append([short[gpu.name], gpu.name, what, mig_summary(gpu), "", device_state(gpu, usage)])
    for nic in (*machine.nics, *machine.vfs):
        rail = rail_numbers.get(nic.parent or nic.location.bus_id)
        rows.append(
            [
                short.get(nic.name, "VF"),
                nic.name,
                nic.ib_device,
                port_text(nic),
                "" if rail is None else f"rail {rail}*",
                device_state(nic, usage),
            ]
        )
    kept = [column for column in range(6) if any(row[column] for row in rows)]
    return aligned([[row[column] for column in kept] for row in rows])


def port_text(nic: Nic) -> str:
    """``Ethernet 200 Gb/s``, ``InfiniBand down``, with the number of ports where there are several."""
    port = nic.port
    rate = f"{port.rate_gbps} Gb/s" if port and port.rate_gbps else "down"
    layer = port.link_layer if port and port.link_layer else "unknown"
    return f"{layer} {rate}" + (f", {len(nic.ports)} ports" if len(nic.ports) > 1 else "")


def _indented(text: str) -> str:
    return "\n".join(f"  {line}".rstrip() for line in text.rstrip("\n").split("\n"))


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
    notes = (f"  [{state}]" if state else "") + f"  * {', '.join(sorted(device.inferred))}" * bool(
        device.inferred
    )
    return f"{label} {device.name}  {what}{notes}"
