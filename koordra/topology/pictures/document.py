"""The machine as one plain document, for ``koordra topology -o json`` and for programs.

    {"devices": [{"name", "type", "busId", "numaNode", "socket", "pcieRoot", "pcieSwitch", ..., "inferred", "holders"}],
     "levels": {"<device>": {"<device>": "PIX"}},
     "inferredLevels": [["<device>", "<device>"]],
     "numaNodes": [{"id", "socket", "cpus", "distances"}],
     "nvlinkCliques": [["<device>", "<device>"]]}

What is not known is null. ``inferred`` names the fields that were inferred or laid over rather than read, and
``inferredLevels`` the pairs whose level rests on such a field. ``distances`` is the node's SLIT row, in
the order of ``numaNodes``.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

from koordra.api import names
from koordra.topology.fabrics import nvlink_domains, rails
from koordra.topology.graph import build, nvlink_cliques
from koordra.topology.machine import Device, Gpu, Machine, Nic
from koordra.topology.pictures.text import level_rests_on_guess, level_text
from koordra.topology.pictures.usage import NOBODY, Usage, mig_summary


def document(machine: Machine, usage: Usage = NOBODY) -> dict[str, Any]:
    """Every GPU and NIC with its place, and the level of every pair."""
    domains, rail_numbers = nvlink_domains(machine), rails(machine)
    gpus = [_gpu(gpu, nvlink_domain=domains.get(gpu.location.bus_id), usage=usage) for gpu in machine.gpus]
    nics = [
        _nic(nic, rail=rail_numbers.get(nic.parent or nic.location.bus_id), usage=usage)
        for nic in (*machine.nics, *machine.vfs)
    ]
    devices = list(machine.devices())
    return {
        "devices": gpus + nics,
        "levels": {one.name: {other.name: level_text(one, other) for other in devices} for one in devices},
        "inferredLevels": [
            [one.name, other.name]
            for one, other in combinations(devices, 2)
            if level_rests_on_guess(one, other)
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


def _place(device: Device, *, type_: str, inferred: set[str], usage: Usage) -> dict[str, Any]:
    location = device.location
    return {
        "name": device.name,
        "type": type_,
        "busId": location.bus_id,
        "numaNode": location.numa,
        "socket": location.socket,
        "pcieRoot": location.root,
        "pcieSwitch": location.switches[0] if location.switches else None,
        "path": list(location.path),
        "offered": usage.is_offered(device),
        "holders": list(usage.holders_of(device)),
        "inferred": sorted(device.inferred | inferred),
    }


def _gpu(gpu: Gpu, *, nvlink_domain: str | None, usage: Usage) -> dict[str, Any]:
    return {
        **_place(gpu, type_=names.TYPE_GPU, inferred=set(), usage=usage),
        "uuid": gpu.uuid,
        "minor": gpu.minor,
        "productName": gpu.product_name,
        "memoryBytes": gpu.memory_bytes,
        "architecture": gpu.architecture,
        "nvlinkDomain": nvlink_domain,
        "mig": mig_summary(gpu) or None,
        "fabric": {"cluster": gpu.fabric.cluster, "clique": gpu.fabric.clique} if gpu.fabric else None,
        "faults": list(gpu.faults),
    }


def _nic(nic: Nic, *, rail: int | None, usage: Usage) -> dict[str, Any]:
    port = nic.port
    return {
        **_place(
            nic,
            type_=names.TYPE_VF if nic.parent else names.TYPE_NIC,
            inferred=set() if rail is None else {"rail"},
            usage=usage,
        ),
        "uuid": nic.guid,
        "ibDevice": nic.ib_device,
        "netdev": nic.netdev,
        "linkLayer": port.link_layer if port else None,
        "rateGbps": port.rate_gbps if port else None,
        "active": port.active if port else None,
        "rail": rail,
        "parent": nic.parent,
    }
