"""The matrix that ``nvidia-smi topo -m`` prints, with NICs, CPU and NUMA affinity.

Rows and columns are GPU0.. and NIC0.. in bus order; the legend below gives the device's published name and, for NICs,
the RDMA device. What was inferred rather than read carries a ``*``.
"""

from __future__ import annotations

from collections.abc import Sequence

from koordra.topology.inferred import rails
from koordra.topology.levels import Level, level_label
from koordra.topology.machine import Device, Gpu, Machine, Nic, level, level_is_inferred
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
                *(
                    level_text(device, other) + _mark(level_rests_on_guess(device, other))
                    for other in devices
                ),
                machine.cpus_near(device) or "N/A",
                numa + _mark("numa" in device.inferred),
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


def _mark(inferred: bool) -> str:
    return "*" if inferred else ""


def _indented(text: str) -> str:
    return "\n".join(f"  {line}".rstrip() for line in text.rstrip("\n").split("\n"))
