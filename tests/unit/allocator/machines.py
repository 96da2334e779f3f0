"""Made-up clusters for the allocator's tests: nodes as koordra's kubelet plugin publishes them, as plain
dicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from koordra.allocator.allocation_state import AllocationState
from koordra.allocator.devices.inventory import Usage
from koordra.allocator.features import Features
from koordra.api import objects
from koordra.api.allocation import Allocation
from koordra.placement.manifests import read_inventory

Dict = dict[str, Any]

GPU_CLASS = 'device.driver == "koordra.io" && device.attributes["koordra.io"].type == "{}"'
GUARD = ' && device.attributes["koordra.io"].allocator == "scheduler"'


def device_classes() -> list[Dict]:
    return [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": {"name": f"{kind}.koordra.io"},
            "spec": {"selectors": [{"cel": {"expression": GPU_CLASS.format(kind) + GUARD}}]},
        }
        for kind in ("gpu", "mig", "nic", "vf")
    ]


def node(name: str = "node-1", **changes: Any) -> Dict:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **changes.pop("labels", {})}},
        "spec": changes.pop("spec", {}),
        "status": {
            "allocatable": {"cpu": "64", "memory": "512Gi", "pods": "110", **changes.pop("allocatable", {})},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def _device(name: str, attributes: Mapping[str, Any], capacity: Dict, taints: Sequence[Dict]) -> Dict:
    kinds = {bool: "bool", int: "int", str: "string"}
    return {
        "name": name,
        "attributes": {
            key: {kinds[type(value)]: value} for key, value in attributes.items() if value is not None
        },
        "capacity": capacity,
        "allowMultipleAllocations": True,
        "taints": [{"key": "koordra.io/joint", "effect": "NoSchedule"}, *taints],
    }


def gpu(
    number: int, *, memory: str = "80Gi", place: Mapping[str, Any], taints: Sequence[Dict] = (), **extra: Any
) -> Dict:
    capacity = {
        "memory": {
            "value": memory,
            "requestPolicy": {"default": memory, "validRange": {"min": "1Mi", "step": "1Mi"}},
        },
        "cores": {
            "value": "100",
            "requestPolicy": {"default": "0", "validRange": {"min": "0", "max": "100", "step": "1"}},
        },
        "slots": {"value": "16", "requestPolicy": {"default": "1", "validRange": {"min": "1", "step": "1"}}},
    }
    attributes = {
        "type": "gpu",
        "allocator": "controller",
        "uuid": f"GPU-{number}",
        "model": "H100",
        **place,
        **extra,
    }
    return _device(f"gpu-{number}", attributes, capacity, taints)


def nic(number: int, *, place: Mapping[str, Any], taints: Sequence[Dict] = (), **extra: Any) -> Dict:
    capacity = {
        "share": {
            "value": "100",
            "requestPolicy": {"default": "100", "validRange": {"min": "1", "max": "100", "step": "1"}},
        },
        "bandwidth": {"value": "400G", "requestPolicy": {"default": "0", "validRange": {"min": "0"}}},
    }
    attributes = {"type": "nic", "allocator": "controller", "ibDevice": f"mlx5_{number}", **place, **extra}
    return _device(f"nic-{number}", attributes, capacity, taints)


def cut_card(
    number: int,
    parts: Sequence[tuple[str, int, int, int]],
    *,
    slices: int,
    compute: int,
    place: Mapping[str, Any],
) -> tuple[list[Dict], Dict]:
    """A card in MIG mode: its possible parts (profile, first memory slice, memory slices, compute slices),
    and its counters."""
    name = f"gpu-{number}"
    devices = []
    for profile, start, size, cores in parts:
        attributes = {
            "type": "mig",
            "allocator": "controller",
            "uuid": f"MIG-{number}-{profile}-{start}",
            "model": "H100",
            "profile": profile,
            "placementStart": start,
            **place,
        }
        capacity = {"memory": {"value": f"{10 * size}Gi"}, "cores": {"value": str(100 * cores // compute)}}
        counters = {f"memory-slice-{at}": {"value": "1"} for at in range(start, start + size)}
        device = _device(f"{name}-mig-{profile}-{start}", attributes, capacity, ())
        del device["allowMultipleAllocations"]
        device["consumesCounters"] = [
            {"counterSet": name, "counters": {**counters, "compute-slices": {"value": str(cores)}}}
        ]
        devices.append(device)
    counters = {f"memory-slice-{at}": {"value": "1"} for at in range(slices)}
    return devices, {"name": name, "counters": {**counters, "compute-slices": {"value": str(compute)}}}


def counters_of(sets: Sequence[Dict], *, name: str = "node-1") -> Dict:
    """The slice of a pool that has its counters; the pool then has two."""
    entry = slice_of([], name=name)
    entry["metadata"]["name"] = f"00000-koordra.io-{name}"
    entry["spec"] = {**entry["spec"], "sharedCounters": list(sets)}
    del entry["spec"]["devices"]
    return entry


def place(number: int, *, per_switch: int = 1, per_numa: int = 4) -> Dict:
    """Position of the number-th GPU or NIC: switches of `per_switch`, NUMA nodes of `per_numa`."""
    switch = number // per_switch
    numa = number // per_numa
    return {
        "numaNode": numa,
        "socket": numa,
        "pcieSwitch": f"0000:{switch:02x}:00.0",
        "resource.kubernetes.io/pcieRoot": f"pci0000:{switch:02x}",
        "resource.kubernetes.io/pciBusID": None,
    }


def slice_of(devices: Sequence[Dict], *, name: str = "node-1") -> Dict:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"00001-koordra.io-{name}"},
        "spec": {
            "driver": "koordra.io",
            "nodeName": name,
            "pool": {"name": name, "generation": 1, "resourceSliceCount": 1},
            "devices": list(devices),
        },
    }


MESH = ("0112200", "1012020", "1101002", "2110020", "2200011", "0202101", "0020110")
"""NVLinks between seven cards that are wired to each other unevenly."""


def nvlink(kind: str, number: int, count: int) -> Dict:
    """Attributes of the number-th of `count` cards: on a switch (Hopper: with partitions), bridged in pairs,
    or a mesh."""
    minor = {"minor": number}
    match kind:
        case "switch":
            return {**minor, "nvlinkDomain": "all", "nvlinks": 18}
        case "hopper":
            return {**minor, "nvlinkDomain": "all", "nvlinks": 18, "architecture": "Hopper"}
        case "bridges":
            return {**minor, "nvlinkDomain": f"pair-{number // 2}", "nvlinks": 4}
        case "crossed":
            return {**minor, "nvlinkDomain": f"pair-{number % max(1, count // 2)}", "nvlinks": 4}
        case "mesh":
            row = MESH[number % 7]
            return {**minor, "nvlinkDomain": "all", "nvlinks": 6, "nvlinkPeers": ",".join(row[:count])}
        case _:
            return {}


def machine(
    gpus: int = 8,
    nics: int = 8,
    *,
    name: str = "node-1",
    per_switch: int = 1,
    per_numa: int = 4,
    links: str = "none",
    labels: Mapping[str, str] | None = None,
) -> list[Dict]:
    """A node with its slice: HGX-like, one NIC beside each GPU for per_switch=1, pairs for 2. `links`: see
    nvlink()."""
    devices = [
        gpu(
            number,
            place=place(number, per_switch=per_switch, per_numa=per_numa),
            **nvlink(links, number, gpus),
        )
        for number in range(gpus)
    ]
    devices += [
        nic(number, place=place(number, per_switch=per_switch, per_numa=per_numa)) for number in range(nics)
    ]
    return [node(name, labels=dict(labels or {})), slice_of(devices, name=name)]


def request(name: str, kind: str = "gpu", count: int = 1, **exactly: Any) -> Dict:
    amounts = exactly.pop("capacity", None)
    body = {"deviceClassName": f"{kind}.koordra.io", "count": count, **exactly}
    if amounts:
        body["capacity"] = {"requests": amounts}
    return {"name": name, "exactly": body}


def joint(
    scope: str, *, enforcement: str = "Required", pairing: str = "PerDevice", requests: Sequence[str] = ()
) -> Dict:
    return config("JointAllocation", requests=requests, scope=scope, enforcement=enforcement, pairing=pairing)


def config(kind: str, *, requests: Sequence[str] = (), **fields: Any) -> Dict:
    entry: Dict = {
        "opaque": {
            "driver": "koordra.io",
            "parameters": {"apiVersion": "koordra.io/v1alpha1", "kind": kind, **fields},
        }
    }
    return {**entry, "requests": list(requests)} if requests else entry


def claim(
    name: str,
    *requests: Dict,
    namespace: str = "default",
    configs: Sequence[Dict] = (),
    constraints: Sequence[Dict] = (),
) -> Dict:
    devices: Dict = {"requests": list(requests)}
    if configs:
        devices["config"] = list(configs)
    if constraints:
        devices["constraints"] = list(constraints)
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": namespace, "uid": f"uid-{namespace}-{name}"},
        "spec": {"devices": devices},
    }


def pod(
    name: str,
    *claims: str,
    namespace: str = "default",
    requests: Mapping[str, str] | None = None,
    **spec: Any,
) -> Dict:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "containers": [{"name": "main", "resources": {"requests": dict(requests or {})}}],
            "resourceClaims": [{"name": entry, "resourceClaimName": entry} for entry in claims],
            **spec,
        },
    }


def allocated(obj: Dict, allocation: Mapping[str, Any]) -> Dict:
    """The claim with its allocation written."""
    return {**obj, "status": {"allocation": dict(allocation)}}


def devices_of(allocation: Mapping[str, Any]) -> list[str]:
    return [entry["device"] for entry in allocation["devices"]["results"]]


def state_of(published: Sequence[Dict]) -> AllocationState:
    """The node that comes first, with what the claims among the objects hold of it."""
    taken = Usage()
    for one in published:
        allocation = Allocation.of_claim(one) if one["kind"] == "ResourceClaim" else None
        if allocation is not None:
            taken.add(allocation.results, holder=objects.key(one), namespace=objects.namespace(one))
    pools = read_inventory(published).pools(published[0])
    return AllocationState(pools, taken, Features.of(None), namespace="default")
