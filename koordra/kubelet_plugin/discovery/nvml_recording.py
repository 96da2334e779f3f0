"""NVML facts from a file, for captured and made-up machines.

``DIR/nvml.json``, schema ``koordra.io/nvml/v1``::

    {"schema": "koordra.io/nvml/v1", "driverVersion": "550.54.15", "cudaDriverVersion": 12040,
     "gpus": [{"busId": "00000000:0F:00.0", "uuid": "GPU-...", "minor": 0, "name": "NVIDIA H100 80GB HBM3",
               "memoryBytes": 85520809984, "architecture": "Hopper", "computeCapability": "9.0", "migEnabled": false,
               "nvlinks": [{"peer": "0000:1a:00.0", "links": 4, "toSwitch": true}],
               "peers": ["0000:2d:00.0"], "fabric": {"cluster": "<uuid>", "clique": 1}, "faults": ["Xid48"],
               "migProfiles": [{"id": 19, "name": "1g.10gb", "memoryBytes": 10468982784, "computeSlices": 1,
                                "most": 7, "placements": [[0, 1], [1, 1]], "copyEngines": 1, "decoders": 1,
                                "encoders": 0, "jpegEngines": 1, "ofaEngines": 0}],
               "migInstances": [{"gpuInstance": 7, "computeInstance": 0, "profileId": 19, "start": 0, "size": 1,
                                 "uuid": "MIG-..."}],
               "errors": {"memory": "GPU is lost"}}]}

An absent field is unknown. ``errors`` holds the calls that fail on this card, with NVML's text: their facts
are left out and reported, as with the real library. Garbled content becomes a problem, not a crash.
"""

from __future__ import annotations

import json
from typing import Any

from koordra.kubelet_plugin.discovery.machine_root import MachineRoot, Problem
from koordra.kubelet_plugin.discovery.nvml_query import UUID, NvmlFacts, normal_bus_id
from koordra.topology.machine import BUS_ID, Gpu, Location, NvLink
from koordra.topology.partitions import MIG_PROFILE, MIG_UUID, Fabric, MigInstance, MigProfile

FILE = "nvml.json"
SCHEMA = "koordra.io/nvml/v1"
_REMEDY = "write the file again in the documented format"
_LOST = {"GPU is lost": "GpuLost"}


def recorded_facts(root: MachineRoot) -> NvmlFacts:
    """What the file says; nothing where there is none."""
    if root.status(FILE) is None:
        return NvmlFacts()
    try:
        document = json.loads(root.data(FILE, most=4 << 20) or b"")
    except (ValueError, RecursionError):
        return _unusable("it is not JSON")
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        return _unusable(f"its schema is not {SCHEMA}")
    problems: list[Problem] = []
    return NvmlFacts(
        driver_version=_text(document.get("driverVersion")),
        cuda_version=_whole(document.get("cudaDriverVersion")),
        gpus=tuple(filter(None, [_gpu(entry, problems) for entry in _list(document.get("gpus"))])),
        problems=tuple(problems),
    )


def _gpu(entry: Any, problems: list[Problem]) -> Gpu | None:
    bus_id = (
        normal_bus_id(entry["busId"])
        if isinstance(entry, dict) and isinstance(entry.get("busId"), str)
        else None
    )
    if bus_id is None:
        problems.append(Problem(FILE, "gpus[].busId", "an entry has no PCI address", _REMEDY))
        return None
    errors = entry.get("errors")
    failing = {str(call): str(text) for call, text in errors.items()} if isinstance(errors, dict) else {}
    for call, text in sorted(failing.items()):
        problems.append(
            Problem(
                f"GPU {bus_id}", call, f"NVML answers {text}", "check dmesg for Xid errors and nvidia-smi -q"
            )
        )

    def known(field: str, value: Any) -> Any:
        return None if field in failing else value

    uuid = _text(entry.get("uuid")) or ""
    mig = entry.get("migEnabled")
    faults = {*map(_text, _list(entry.get("faults"))), *map(_LOST.get, failing.values())}
    return Gpu(
        location=Location(bus_id, ()),
        uuid=known("uuid", uuid if UUID.fullmatch(uuid) else None),
        minor=known("minor", _whole(entry.get("minor"))),
        product_name=known("productName", _text(entry.get("name"))),
        memory_bytes=known("memory", _whole(entry.get("memoryBytes")) or None),
        architecture=known("architecture", _text(entry.get("architecture"))),
        compute_capability=known("cudaComputeCapability", _text(entry.get("computeCapability"))),
        mig_enabled=known("migMode", mig if isinstance(mig, bool) else None),
        nvlinks=known("nvlinks", _each(_nvlink, entry.get("nvlinks"))) or (),
        mig_profiles=_each(_profile, entry.get("migProfiles")),
        mig_instances=_each(_instance, entry.get("migInstances")),
        fabric=known("fabric", _fabric(entry.get("fabric"))),
        peers=known("p2p", _peers(entry.get("peers"))),
        faults=tuple(sorted(filter(None, faults))),
        disputed=("migMode",) if "migMode" in failing else (),
    )


def _nvlink(entry: dict[str, Any]) -> NvLink | None:
    peer, links, to_switch = entry.get("peer"), _whole(entry.get("links")), entry.get("toSwitch")
    if not isinstance(peer, str) or not links or not isinstance(to_switch, bool):
        return None
    return NvLink(peer, links, to_switch) if to_switch or BUS_ID.fullmatch(peer) else None


_PROFILE = {"id": "id", "memoryBytes": "memory_bytes", "computeSlices": "compute_slices", "most": "most"}
_ENGINES = {
    "copyEngines": "copy_engines",
    "decoders": "decoders",
    "encoders": "encoders",
    "jpegEngines": "jpeg_engines",
    "ofaEngines": "ofa_engines",
}
_INSTANCE = {
    "gpuInstance": "gpu_instance",
    "computeInstance": "compute_instance",
    "profileId": "profile_id",
    "start": "start",
    "size": "size",
}


def _numbers(entry: dict[str, Any], fields: dict[str, str]) -> dict[str, Any]:
    return {field: _whole(entry.get(key)) for key, field in fields.items()}


def _profile(entry: dict[str, Any]) -> MigProfile | None:
    numbers, name = _numbers(entry, _PROFILE), _text(entry.get("name")) or ""
    places: list[Any] = [tuple(map(_whole, _list(place))) for place in _list(entry.get("placements"))]
    garbled = any(len(place) != 2 or None in place for place in places)
    if None in numbers.values() or not MIG_PROFILE.fullmatch(name) or garbled:
        return None
    engines = {field: count or 0 for field, count in _numbers(entry, _ENGINES).items()}
    return MigProfile(name=name, placements=tuple(sorted(places)), **numbers, **engines)


def _instance(entry: dict[str, Any]) -> MigInstance | None:
    numbers, uuid = _numbers(entry, _INSTANCE), _text(entry.get("uuid")) or ""
    if None in numbers.values():
        return None
    return MigInstance(uuid=uuid if MIG_UUID.fullmatch(uuid) else None, **numbers)


def _fabric(entry: Any) -> Fabric | None:
    if not isinstance(entry, dict):
        return None
    cluster, clique = _text(entry.get("cluster")), _whole(entry.get("clique"))
    return Fabric(cluster=cluster, clique=clique) if cluster and clique is not None else None


def _peers(entry: Any) -> tuple[str, ...] | None:
    return tuple(peer for peer in entry if isinstance(peer, str)) if isinstance(entry, list) else None


def _each(read: Any, entries: Any) -> tuple[Any, ...]:
    return tuple(filter(None, (read(entry) for entry in _list(entries) if isinstance(entry, dict))))


def _unusable(problem: str) -> NvmlFacts:
    return NvmlFacts(problems=(Problem(FILE, "document", problem, _REMEDY),))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: Any) -> str | None:
    return value.strip() or None if isinstance(value, str) else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
