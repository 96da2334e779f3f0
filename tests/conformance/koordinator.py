"""A Koordinator case (Device CR, pod request, annotations) in koordra's words: slices, classes and one claim.

The translation is a test's, not the product's. What stands for what:

    Device CR, type gpu            a card with memory and cores; pcie is its PCIe root
    Device CR, type rdma           a PF with `share`, which takes all `functions`, and its VFs, which take one
                                   each
    labels of devices, VF groups   attributes `koordinator.sh/<label>`
    nvidia.com/gpu n               n whole cards
    gpu.shared n with core, ratio  n cards with cores and memoryPercent each
    rdma q < 100                   a VF where the pod has a vfSelector, otherwise q percent of a PF
    rdma 100 n                     n whole PFs: whoever is charged all of a PF has it alone
    RequestsAsCount q              NICs or VFs of q different PFs
    ApplyForAll                    all PFs that match, each with q percent, outside of every joint rule
    joint gpu, rdma                JointAllocation in PCIeRoot, Preferred; Required with SamePCIe. Fewer NICs
                                   than GPUs is PerGroup with as many NICs as the GPUs have roots
                                   (firstAvailable: one, two, ...)
    requiredTopologyScope          JointAllocation Together over the GPUs alone
    MostAllocated, LeastAllocated  policies Binpack and Spread
    topo-8                         eight Hopper cards on a switched fabric, as its partition table says
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.unit.allocator import machines

Dict = dict[str, Any]

_SCOPES = {"PCIe": "PCIeRoot", "NUMANode": "NUMANode", "Node": "Node"}
_POLICIES = {"MostAllocated": "Binpack", "LeastAllocated": "Spread"}


def document(folder: Path) -> Dict:
    found: Dict = json.loads((folder / "koordinator" / "cases.json").read_text())
    return found


def policy(case: Dict) -> str:
    return _POLICIES[case["scorer"]["strategy"]] if case.get("scorer") else "koordra"


def objects(case: Dict, topology: Dict) -> list[Dict]:
    """Classes, the node with its slices, what is taken already, and the pod's claim `default/pod`."""
    node = machines.node(labels=case.get("node_labels", {}))
    return [
        *machines.device_classes(),
        node,
        *slices(topology, hopper=case.get("topology") == "topo-8"),
        *_held(case, topology),
        claim(case, topology),
    ]


def slices(topology: Dict, *, hopper: bool = False) -> list[Dict]:
    devices = [_card(entry, hopper=hopper) for entry in topology.get("gpus", [])]
    counters = []
    for entry in topology.get("rdma", []):
        functions = _functions(entry)
        devices.append(_pf(entry, len(functions)))
        devices += [_vf(entry, index, labels) for index, labels in sorted(functions.items())]
        if functions:
            most = {"functions": {"value": str(len(functions))}}
            counters.append({"name": f"nic-{entry['minor']}", "counters": most})
    found = [machines.slice_of(devices)]
    if counters:
        shared = machines.slice_of([])
        shared["metadata"]["name"] += "-counters"
        shared["spec"]["sharedCounters"] = counters
        found.append(shared)
    for entry in found:
        entry["spec"]["pool"]["resourceSliceCount"] = len(found)
    return found


def place(entry: Dict) -> Dict:
    root = entry["pcie"]
    return {
        "numaNode": entry["numa"],
        "socket": entry["socket"],
        "resource.kubernetes.io/pcieRoot": None if root is None else f"pci0000:{int(root):02x}",
    }


def within(topology: Dict, numa_nodes: list[int]) -> Dict:
    """What is left of the topology on these NUMA nodes."""
    return {
        kind: [entry for entry in topology[kind] if entry["numa"] in numa_nodes] for kind in ("gpus", "rdma")
    }


def plain_cards(minors: list[int], *, memory: int, unhealthy: tuple[int, ...] = ()) -> list[Dict]:
    """Cards without topology."""
    capacity = {"gpu-memory-bytes": memory}
    where = {"numa": None, "socket": None, "pcie": None}
    return [{"minor": n, "health": n not in unhealthy, "capacity": capacity, **where} for n in minors]


def plain_nics(labels: dict[int, Dict]) -> list[Dict]:
    """PFs without VFs and topology, with their labels by minor."""
    where = {"numa": None, "socket": None, "pcie": None}
    return [{"minor": n, "labels": own, "vf_groups": [], **where} for n, own in labels.items()]


def minors(allocation: Dict) -> Dict:
    """Sorted minors per type, as cases.json has them."""
    found: dict[str, set[int]] = {}
    for entry in allocation["devices"]["results"]:
        kind, minor = entry["device"].split("-")[:2]
        found.setdefault({"gpu": "gpu", "nic": "rdma"}[kind], set()).add(int(minor))
    return {kind: sorted(numbers) for kind, numbers in found.items()}


def functions(allocation: Dict) -> dict[int, int]:
    """The VF that is given out of each PF."""
    parts = [entry["device"].split("-") for entry in allocation["devices"]["results"]]
    return {int(part[1]): int(part[3]) for part in parts if len(part) == 4}


# --- devices ------------------------------------------------------------------------------------------------


def _card(entry: Dict, *, hopper: bool) -> Dict:
    memory = f"{entry['capacity']['gpu-memory-bytes'] // 1024}Ki"
    fabric = {"architecture": "Hopper", "nvlinkDomain": "switch", "nvlinks": 18} if hopper else {}
    device = machines.gpu(entry["minor"], memory=memory, place=place(entry), minor=entry["minor"], **fabric)
    if not entry["health"]:
        device["taints"].append({"key": "koordra.io/unhealthy", "effect": "NoSchedule"})
    return device


def _functions(entry: Dict) -> dict[int, Dict]:
    return {
        index: group["labels"] for group in entry["vf_groups"] for index in group.get("vfs", group.get("vf"))
    }


def _labels(labels: Dict) -> Dict:
    return {f"koordinator.sh/{name}": value for name, value in labels.items()}


def _pf(entry: Dict, functions: int) -> Dict:
    kinds = {labels["type"] for labels in _functions(entry).values()}
    offered = {f"koordinator.sh/has-{kind}": True for kind in kinds}
    device = machines.nic(entry["minor"], place=place(entry), **_labels(entry["labels"]), **offered)
    return _consumes(device, entry, functions) if functions else device


def _vf(entry: Dict, index: int, labels: Dict) -> Dict:
    attributes = {
        "type": "vf",
        "allocator": "controller",
        "parent": f"nic-{entry['minor']}",
        **{f"{name}-of-parent": value for name, value in _labels(entry["labels"]).items()},
        **_labels(labels),
        **place(entry),
    }
    device = machines.nic(entry["minor"], place={}, **{"ibDevice": None, **attributes})
    name = f"nic-{entry['minor']}-vf-{index}"
    plain = {
        key: value for key, value in device.items() if key not in ("allowMultipleAllocations", "capacity")
    }
    return _consumes({**plain, "name": name}, entry, 1)


def _consumes(device: Dict, entry: Dict, functions: int) -> Dict:
    amounts = {"functions": {"value": str(functions)}}
    return {**device, "consumesCounters": [{"counterSet": f"nic-{entry['minor']}", "counters": amounts}]}


# --- what is taken ------------------------------------------------------------------------------------------


def _held(case: Dict, topology: Dict) -> list[Dict]:
    cards = {entry["minor"]: entry for entry in topology.get("gpus", [])}
    results = []
    for entry in case["already_assigned"].get("gpu", []):
        amounts = entry["resources"]
        total = cards[entry["minor"]]["capacity"]["gpu-memory-bytes"]
        memory = amounts.get("gpu-memory-bytes", total * amounts["gpu-memory-ratio"] // 100)
        consumed = {"memory": str(memory), "cores": str(amounts["gpu-core"]), "slots": "1"}
        results.append(_result(f"gpu-{entry['minor']}", consumed))
    for entry in case["already_assigned"].get("rdma", []):
        share = entry["resources"]["rdma"]
        if "vf" in entry and share < 100:
            results.append(_result(f"nic-{entry['minor']}-vf-{entry['vf']}", None))
        else:
            results.append(_result(f"nic-{entry['minor']}", {"share": str(share), "bandwidth": "0"}))
    if not results:
        return []
    before = machines.claim("held", namespace="elsewhere")
    return [machines.allocated(before, {"devices": {"results": results}})]


def _result(device: str, consumed: Dict | None) -> Dict:
    shared = {} if consumed is None else {"shareID": f"share-of-{device}", "consumedCapacity": consumed}
    return {"request": "r", "driver": "koordra.io", "pool": "node-1", "device": device, **shared}


# --- the pod ------------------------------------------------------------------------------------------------


def claim(case: Dict, topology: Dict) -> Dict:
    request, hints = case["request"], case.get("device_allocate_hint", {})
    wanted, configs = [], []
    cards, percent = _cards(request)
    if cards:
        amounts = {"cores": str(percent["cores"])} if percent else {}
        wanted.append(machines.request("gpu", "gpu", cards, capacity=amounts))
        if percent:
            configs.append(machines.config("GpuConfig", requests=["gpu"], memoryPercent=percent["memory"]))
    scope = hints.get("gpu", {}).get("requiredTopologyScope")
    if scope and scope != "Device":
        configs.append(machines.joint(_SCOPES[scope], pairing="Together", requests=["gpu"]))
    left_out = case.get("phase") == "not-Reserve" and "true" in case.get("device_labels", {}).values()
    nics = request.get("koordinator.sh/rdma", 0)
    if nics and not left_out:
        strategy = hints.get("rdma", {}).get("allocateStrategy")
        joint = case.get("device_joint_allocate") if cards and strategy != "ApplyForAll" else None
        most = _most_nics(cards, topology) if joint else 1
        wanted.append(_nics(nics, hints.get("rdma", {}), most=most))
        if joint:
            required = joint.get("requiredScope") == "SamePCIe"
            configs.append(
                machines.joint(
                    "PCIeRoot",
                    enforcement="Required" if required else "Preferred",
                    pairing="PerDevice" if nics // 100 >= cards else "PerGroup",
                )
            )
    apart = {"distinctAttribute": "koordra.io/parent", "requests": ["rdma"]}
    counted = hints.get("rdma", {}).get("allocateStrategy") == "RequestsAsCount"
    constraints = [apart] if counted and "vfSelector" in hints["rdma"] else []
    return machines.claim("pod", *wanted, configs=configs, constraints=constraints)


def _cards(request: Dict) -> tuple[int, Dict]:
    """How many cards, and what of each; nothing where they are whole."""
    if "nvidia.com/gpu" in request:
        return int(request["nvidia.com/gpu"]), {}
    ratio = request.get("koordinator.sh/gpu-memory-ratio", 0)
    if not ratio:
        return 0, {}
    count = request.get("koordinator.sh/gpu.shared") or (ratio // 100 if ratio > 100 else 1)
    share = {"memory": ratio // count, "cores": request.get("koordinator.sh/gpu-core", 0) // count}
    return count, ({} if share["memory"] >= 100 else share)


def _most_nics(cards: int, topology: Dict) -> int:
    """GPUs lie in at most so many roots."""
    return max(1, min(cards, len({entry["pcie"] for entry in topology["gpus"]})))


def _nics(amount: int, hint: Dict, *, most: int) -> Dict:
    virtual = "vfSelector" in hint and amount < 100
    selectors = [_selector(hint["selector"], virtual=virtual)] if "selector" in hint else []
    if hint.get("allocateStrategy") == "ApplyForAll":
        selected = {"selectors": selectors} if selectors else {}
        return {
            "name": "rdma",
            "exactly": {
                "deviceClassName": "nic.koordra.io",
                "allocationMode": "All",
                "capacity": {"requests": {"share": str(amount)}},
                **selected,
            },
        }
    count, kind, share = (amount // 100, "nic", "100") if amount >= 100 else (1, "nic", str(amount))
    if hint.get("allocateStrategy") == "RequestsAsCount":
        count, share = amount, "100" if hint.get("exclusivePolicy") == "DeviceLevel" else "1"
    if "vfSelector" in hint:
        labels = [
            value for term in hint["vfSelector"].get("matchExpressions", []) for value in term["values"]
        ]
        if not labels:
            kind = "vf"
        elif amount >= 100:
            found = " || ".join(f'"has-{value}" in {_LABELS}' for value in labels)
            selectors.append({"cel": {"expression": found}})
        else:
            kind = "vf"
            listed = ", ".join(f'"{value}"' for value in labels)
            selectors.append({"cel": {"expression": f"{_LABELS}.type in [{listed}]"}})
    capacity = {"capacity": {"requests": {"share": share}}} if kind == "nic" else {}
    body = {"deviceClassName": f"{kind}.koordra.io", **capacity}
    if selectors:
        body["selectors"] = selectors
    counts = range(count, max(count, most) + 1)
    if len(counts) == 1:
        return {"name": "rdma", "exactly": {**body, "count": count}}
    return {
        "name": "rdma",
        "firstAvailable": [{"name": f"take-{number}", **body, "count": number} for number in counts],
    }


_LABELS = 'device.attributes["koordinator.sh"]'


def _selector(selector: Dict, *, virtual: bool) -> Dict:
    """A selector on labels of the PF; a VF carries those of its PF under another name."""
    suffix = "-of-parent" if virtual else ""
    terms = [
        f'{_LABELS}["{name}{suffix}"] == "{value}"' for name, value in selector.get("matchLabels", {}).items()
    ]
    for term in selector.get("matchExpressions", []):
        assert term["operator"] == "Exists"
        terms.append(f'"{term["key"]}{suffix}" in {_LABELS}')
    return {"cel": {"expression": " && ".join(terms)}}
