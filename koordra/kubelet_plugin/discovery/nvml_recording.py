"""NVML facts from a file, for captured and made-up machines.

``DIR/nvml.json``, schema ``koordra.io/nvml/v1``::

    {"schema": "koordra.io/nvml/v1", "driverVersion": "550.54.15", "cudaDriverVersion": 12040,
     "gpus": [{"busId": "00000000:0F:00.0", "uuid": "GPU-...", "minor": 0, "name": "NVIDIA H100 80GB HBM3",
               "memoryBytes": 85520809984, "architecture": "Hopper", "computeCapability": "9.0",
               "multiprocessors": 132, "migEnabled": false,
               "nvlinks": [{"peer": "0000:1a:00.0", "links": 4, "toSwitch": true}],
               "fabric": {"cluster": "<uuid>", "clique": 1}, "faults": ["Xid48"],
               "migProfiles": [{"id": 19, "name": "1g.10gb", "memoryBytes": 10468982784, "computeSlices": 1,
                                "most": 7, "placements": [[0, 1], [1, 1]], "multiprocessors": 16,
                                "copyEngines": 1, "decoders": 1, "encoders": 0, "jpegEngines": 1,
                                "ofaEngines": 0}],
               "migInstances": [{"gpuInstance": 7, "computeInstance": 0, "profileId": 19, "start": 0,
                                 "size": 1, "uuid": "MIG-..."}],
               "errors": {"memory": "GPU is lost"}}]}

An absent field is unknown. ``errors`` holds the calls that fail on this card, with NVML's text: their facts
are left out and reported, as with the real library. Garbled content becomes a problem, not a crash.
"""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

from koordra.api.reader import camel_case
from koordra.kubelet_plugin.discovery.machine_root import MachineRoot
from koordra.kubelet_plugin.discovery.nvml_query import UUID, NvmlFacts, matching, normal_bus_id
from koordra.topology.location import BUS_ID, Location
from koordra.topology.machine import Gpu, NvLink
from koordra.topology.partitions import MIG_PROFILE, MIG_UUID, FabricInfo, MigInstance, MigProfile
from koordra.topology.problems import Problem

FILE = "nvml.json"
SCHEMA = "koordra.io/nvml/v1"
_REMEDY = "write the file again in the documented format"
_LOST = {"GPU is lost": "GpuLost"}
_CALLS = {
    "name": "productName",
    "memoryBytes": "memory",
    "computeCapability": "cudaComputeCapability",
    "migEnabled": "migMode",
}
"""Fields whose call has another name."""


def recorded_facts(root: MachineRoot) -> NvmlFacts:
    """What the file says; nothing where there is none."""
    if root.status(FILE) is None:
        return NvmlFacts()
    try:
        document = json.loads(root.data(FILE, most=4 << 20) or b"")
    except (ValueError, RecursionError):
        return NvmlFacts(problems=(Problem(FILE, "document", "it is not JSON", _REMEDY),))
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        return NvmlFacts(problems=(Problem(FILE, "document", f"its schema is not {SCHEMA}", _REMEDY),))
    problems: list[Problem] = []
    return NvmlFacts(
        driver_version=_text(document.get("driverVersion")),
        cuda_version=_whole(document.get("cudaDriverVersion")),
        gpus=tuple(filter(None, [_gpu(entry, problems) for entry in _list(document.get("gpus"))])),
        problems=tuple(problems),
    )


def _gpu(entry: Any, problems: list[Problem]) -> Gpu | None:
    bus_id = normal_bus_id(str(entry.get("busId"))) if isinstance(entry, dict) else None
    if bus_id is None:
        problems.append(Problem(FILE, "gpus[].busId", "an entry has no PCI address", _REMEDY))
        return None
    errors = entry.get("errors")
    failing = {str(call): str(text) for call, text in errors.items()} if isinstance(errors, dict) else {}
    for call, text in sorted(failing.items()):
        remedy = "check dmesg for Xid errors and nvidia-smi -q"
        problems.append(Problem(f"GPU {bus_id}", call, f"NVML answers {text}", remedy))
    known = {field: value for field, value in entry.items() if _CALLS.get(field, field) not in failing}
    mig = known.get("migEnabled")
    faults = {*map(_text, _list(entry.get("faults"))), *map(_LOST.get, failing.values())}
    return Gpu(
        location=Location(bus_id),
        uuid=matching(UUID, _text(known.get("uuid"))),
        minor=_whole(known.get("minor")),
        product_name=_text(known.get("name")),
        memory_bytes=_whole(known.get("memoryBytes")) or None,
        architecture=_text(known.get("architecture")),
        compute_capability=_text(known.get("computeCapability")),
        multiprocessors=_whole(known.get("multiprocessors")) or None,
        mig_enabled=mig if isinstance(mig, bool) else None,
        nvlinks=_each(_nvlink, known.get("nvlinks")),
        mig_profiles=_each(_profile, known.get("migProfiles")),
        mig_instances=_each(_instance, known.get("migInstances")),
        fabric=_fabric(known.get("fabric")),
        faults=tuple(sorted(filter(None, faults))),
        disputed=("migMode",) if "migMode" in failing else (),
    )


def _nvlink(entry: dict[str, Any]) -> NvLink | None:
    peer, links, to_switch = entry.get("peer"), _whole(entry.get("links")), entry.get("toSwitch")
    if not isinstance(peer, str) or not links or not isinstance(to_switch, bool):
        return None
    return NvLink(peer, links, to_switch) if to_switch or BUS_ID.fullmatch(peer) else None


def _numbers(kind: type[MigProfile | MigInstance], entry: dict[str, Any]) -> dict[str, Any]:
    """The whole numbers among the fields; None for one that is missing or garbled."""
    numbers = [field for field in fields(kind) if field.type == "int"]
    return {field.name: _whole(entry.get(camel_case(field.name), field.default)) for field in numbers}


def _profile(entry: dict[str, Any]) -> MigProfile | None:
    numbers, name = _numbers(MigProfile, entry), matching(MIG_PROFILE, _text(entry.get("name")))
    places: list[Any] = [tuple(map(_whole, _list(place))) for place in _list(entry.get("placements"))]
    garbled = any(len(place) != 2 or None in place for place in places)
    if None in numbers.values() or name is None or garbled:
        return None
    return MigProfile(name=name, placements=tuple(sorted(places)), **numbers)


def _instance(entry: dict[str, Any]) -> MigInstance | None:
    numbers = _numbers(MigInstance, entry)
    if None in numbers.values():
        return None
    return MigInstance(uuid=matching(MIG_UUID, _text(entry.get("uuid"))), **numbers)


def _fabric(entry: Any) -> FabricInfo | None:
    if not isinstance(entry, dict):
        return None
    cluster, clique = _text(entry.get("cluster")), _whole(entry.get("clique"))
    return FabricInfo(cluster=cluster, clique=clique) if cluster and clique is not None else None


def _each(read: Any, entries: Any) -> tuple[Any, ...]:
    return tuple(filter(None, (read(entry) for entry in _list(entries) if isinstance(entry, dict))))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: Any) -> str | None:
    return value.strip() or None if isinstance(value, str) else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
