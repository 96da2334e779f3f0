"""The machine as one plain document, for ``koordra topology -o json`` and for programs.

    {"devices": [{"name", "type", "busId", "numaNode", "socket", "pcieRoot", "pcieSwitch", ..., "inferred",
                  "holders", "shares": [{"claim", "memory": "20Gi", "cores": "30"}]}],
     "levels": {"<device>": {"<device>": "PIX"}},
     "inferredLevels": [["<device>", "<device>"]],
     "numaNodes": [{"id", "socket", "cpus", "distances"}],
     "nvlinkCliques": [["<device>", "<device>"]]}

What is not known is null. ``inferred`` names the fields that were inferred or laid over rather than read, and
``inferredLevels`` the pairs whose level rests on such a field. ``distances`` is the node's SLIT row, in
the order of ``numaNodes``.
"""

from __future__ import annotations

from dataclasses import asdict
from itertools import combinations
from typing import Any

from koordra.topology.fabrics import nvlink_domains, rails
from koordra.topology.graph import build, nvlink_cliques
from koordra.topology.machine import Device, Gpu, Machine, Nic, level_is_inferred
from koordra.topology.pictures.text import level_text
from koordra.topology.pictures.usage import NOBODY, MachineUsage, mig_summary


def document(machine: Machine, usage: MachineUsage = NOBODY) -> dict[str, Any]:
    """Every GPU and NIC with its place, and the level of every pair."""
    domains, rail_numbers, devices = nvlink_domains(machine), rails(machine), machine.devices()

    def described(device: Device) -> dict[str, Any]:
        bus_id = device.location.bus_id
        if isinstance(device, Gpu):
            return {**_place(device, usage), **_gpu(device), "nvlinkDomain": domains.get(bus_id)}
        rail, place = rail_numbers.get(device.parent or bus_id), _place(device, usage)
        if rail is not None:
            place["inferred"] = sorted({*place["inferred"], "rail"})
        return {**place, **_nic(device), "rail": rail}

    return {
        "devices": [described(device) for device in devices],
        "levels": {one.name: {other.name: level_text(one, other) for other in devices} for one in devices},
        "inferredLevels": [
            [one.name, other.name] for one, other in combinations(devices, 2) if level_is_inferred(one, other)
        ],
        "numaNodes": [
            {
                "id": node.id,
                "socket": node.socket,
                "cpus": node.cpus or None,
                "distances": list(node.distances),
            }
            for node in machine.numa_nodes
        ],
        "nvlinkCliques": _cliques(machine),
    }


def _cliques(machine: Machine) -> list[list[str]]:
    if not any(gpu.nvlinks for gpu in machine.gpus):
        return []
    by_bus_id = {gpu.location.bus_id: gpu.name for gpu in machine.gpus}
    return [[by_bus_id[gpu] for gpu in sorted(clique)] for clique in nvlink_cliques(build(machine))]


def _place(device: Device, usage: MachineUsage) -> dict[str, Any]:
    location = device.location
    return {
        "name": device.name,
        "type": device.type,
        "busId": location.bus_id,
        "numaNode": location.numa,
        "socket": location.socket,
        "pcieRoot": location.root,
        "pcieSwitch": location.switch,
        "path": list(location.path),
        "offered": usage.is_offered(device),
        "holders": list(usage.holders_of(device)),
        "shares": [{"claim": part.claim, **part.amounts} for part in usage.parts.get(device.name, ())],
        "inferred": sorted(location.inferred),
    }


def _gpu(gpu: Gpu) -> dict[str, Any]:
    return {
        "uuid": gpu.uuid,
        "minor": gpu.minor,
        "productName": gpu.product_name,
        "memoryBytes": gpu.memory_bytes,
        "architecture": gpu.architecture,
        "mig": mig_summary(gpu) or None,
        "fabric": asdict(gpu.fabric) if gpu.fabric else None,
        "faults": list(gpu.faults),
    }


def _nic(nic: Nic) -> dict[str, Any]:
    port = nic.port
    return {
        "uuid": nic.guid,
        "ibDevice": nic.ib_device,
        "netdev": nic.netdev,
        "linkLayer": port.link_layer if port else None,
        "rateGbps": port.rate_gbps if port else None,
        "active": port.active if port else None,
        "parent": nic.parent,
    }
