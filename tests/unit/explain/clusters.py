"""The clusters that the manifests of this folder are asked of, by the name in their first lines."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from koordra.api.opaque.isolation import node_policy
from tests.unit.allocator.machines import (
    allocated,
    claim,
    counters_of,
    cut_card,
    device_classes,
    gpu,
    nic,
    node,
    place,
    pod,
    slice_of,
)

Dict = dict[str, Any]

MEMORY: Final = "81559Mi"
"""Of an H100, as NVML has it: 79.6Gi."""
ZONES: Final = {"gpu-1": "a", "gpu-2": "b"}


def _machine(name: str, *, taints: Mapping[str, Sequence[Dict]] | None = None, **gpus: Any) -> list[Dict]:
    """Four H100 with a NIC beside each."""
    at = dict(taints or {})
    devices = [
        gpu(each, memory=MEMORY, place=place(each), taints=at.get(f"gpu-{each}", ()), **gpus)
        for each in range(4)
    ]
    devices += [
        nic(each, place=place(each), linkLayer="ethernet", taints=at.get(f"nic-{each}", ()))
        for each in range(4)
    ]
    return [node(name, labels={"zone": ZONES.get(name, "c")}), slice_of(devices, name=name)]


def _result(node: str, device: str, **consumed: str) -> Dict:
    found = {"request": "r", "driver": "koordra.io", "pool": node, "device": device}
    return {**found, "shareID": f"{node}-{device}", "consumedCapacity": consumed} if consumed else found


def _holder(name: str, results: Sequence[Dict]) -> Dict:
    node = results[0]["pool"]
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    made = allocated(
        claim(name, namespace="team-b"),
        {"devices": {"results": list(results)}, "nodeSelector": {"nodeSelectorTerms": [term]}},
    )
    made["status"]["reservedFor"] = [{"resource": "pods", "name": name, "uid": f"pod-{name}"}]
    return made


def plain() -> list[Dict]:
    """Two machines, and a node without devices for everything else."""
    tainted = {"taints": [{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}]}
    return [*_machine("gpu-1"), *_machine("gpu-2"), node("cpu-1", spec=tainted)]


def busy() -> list[Dict]:
    """All cards have tenants; on gpu-2 one has 20Gi left."""
    whole = [_result("gpu-1", f"gpu-{each}", memory=MEMORY, cores="100", slots="1") for each in range(4)]
    shares = [_result("gpu-2", f"gpu-{each}", memory="60Gi", cores="80", slots="1") for each in range(3)]
    fuller = [_result("gpu-2", "gpu-3", memory="75Gi", cores="10", slots="1")]
    return [*plain(), _holder("train", whole), _holder("notebooks", shares), _holder("batch", fuller)]


def full_nics() -> list[Dict]:
    used = [_result(name, f"nic-{each}", share="60", bandwidth="300G") for name in ZONES for each in range(4)]
    return [*plain(), *(_holder(f"sender-{at}", [one]) for at, one in enumerate(used))]


def tainted() -> list[Dict]:
    found = plain()
    for one in found:
        if one["kind"] == "Node" and one["metadata"]["name"] in ZONES:
            one["spec"] = {"taints": [{"key": "maintenance", "value": "rack-7", "effect": "NoSchedule"}]}
    return found


def cordoned() -> list[Dict]:
    """gpu-1 is cordoned, gpu-2 does not answer."""
    found = plain()
    for one in found:
        if one["kind"] == "Node" and one["metadata"]["name"] == "gpu-1":
            one["spec"] = {"unschedulable": True}
        elif one["kind"] == "Node" and one["metadata"]["name"] == "gpu-2":
            one["status"]["conditions"] = [{"type": "Ready", "status": "Unknown"}]
    return found


def unhealthy() -> list[Dict]:
    def bad(value: str) -> list[Dict]:
        return [{"key": "koordra.io/unhealthy", "value": value, "effect": "NoSchedule"}]

    lost = {f"gpu-{each}": bad("Xid79") for each in range(3)} | {"gpu-3": bad("NeedsReboot")}
    return _machine("gpu-1", taints=lost)


def held() -> list[Dict]:
    still = [{"key": "koordra.io/held", "value": "4711-uid", "effect": "NoSchedule"}]
    return _machine("gpu-1", taints={f"gpu-{each}": still for each in range(4)})


def apart() -> list[Dict]:
    """No NIC shares a root with a GPU."""
    devices = [gpu(each, memory=MEMORY, place=place(each)) for each in range(2)]
    devices += [nic(each, place=place(each + 2)) for each in range(2)]
    return [node("gpu-1"), slice_of(devices, name="gpu-1")]


def pairs_taken() -> list[Dict]:
    """Beside each free GPU the NIC is in use, and beside each free NIC the GPU."""
    taken = [
        _result("gpu-1", "gpu-0", memory=MEMORY, slots="1"),
        _result("gpu-1", "gpu-1", memory=MEMORY, slots="1"),
    ]
    nics = [_result("gpu-1", "nic-2", share="100"), _result("gpu-1", "nic-3", share="100")]
    return [*_machine("gpu-1"), _holder("train", taken), _holder("sender", nics)]


def mig() -> list[Dict]:
    """A card in MIG mode, of which one slice of 40Gi is in use."""
    parts = [
        ("1g.10gb", 0, 1, 1),
        ("1g.10gb", 4, 1, 1),
        ("3g.40gb", 0, 4, 3),
        ("3g.40gb", 4, 4, 3),
        ("7g.80gb", 0, 8, 7),
    ]
    devices, counters = cut_card(0, parts, slices=8, compute=7, place=place(0))
    published = slice_of(devices, name="gpu-1")
    published["spec"]["pool"]["resourceSliceCount"] = 2
    sets = counters_of([counters], name="gpu-1")
    sets["spec"]["pool"]["resourceSliceCount"] = 2
    return [node("gpu-1"), published, sets, _holder("tenant", [_result("gpu-1", "gpu-0-mig-3g.40gb-0")])]


def native() -> list[Dict]:
    """Both machines leave their devices to kube-scheduler."""
    found = plain()
    for one in found:
        if one["kind"] == "Node" and one["metadata"]["name"] in ZONES:
            one["metadata"]["labels"]["koordra.io/allocation-mode"] = "native"
        for device in one["spec"].get("devices", ()):
            device["attributes"]["allocator"] = {"string": "scheduler"}
            device["taints"] = []
    return found


def incomplete() -> list[Dict]:
    found = _machine("gpu-1")
    found[1]["spec"]["pool"]["resourceSliceCount"] = 2
    return found


def unreadable() -> list[Dict]:
    found = _machine("gpu-1")
    found[1]["spec"]["devices"][0]["capacity"]["memory"]["value"] = "80 GB"
    return found


def without_limits() -> list[Dict]:
    """The node isolates no shares."""
    return _machine("gpu-1", **node_policy(["none"]).attributes())


def partitions() -> list[Dict]:
    """Eight Hopper cards on an NVSwitch, given out in partitions, of which two are in use."""
    devices = [
        gpu(
            each,
            memory=MEMORY,
            place=place(each),
            minor=each,
            nvlinkDomain="all",
            nvlinks=18,
            architecture="Hopper",
        )
        for each in range(8)
    ]
    used = [_result("gpu-1", f"gpu-{each}", memory=MEMORY, slots="1") for each in (0, 4)]
    labels = {"koordra.io/gpu-partition-policy": "Honor"}
    return [node("gpu-1", labels=labels), slice_of(devices, name="gpu-1"), _holder("train", used)]


def many() -> list[Dict]:
    """1,000 machines of which no two have the same in use, and 10 without devices."""
    found: list[Dict] = []
    template = _machine("NODE")
    for number in range(1_000):
        name = f"node-{number:04}"
        machine = copy.deepcopy(template)
        machine[0]["metadata"] = {"name": name, "labels": {"kubernetes.io/hostname": name}}
        machine[1]["metadata"]["name"] = name
        machine[1]["spec"] |= {"nodeName": name, "pool": {**machine[1]["spec"]["pool"], "name": name}}
        shares = [
            _result(
                name,
                f"gpu-{each}",
                memory=f"{20 + (number * 7 + each) % 50}Gi",
                cores=f"{1 + number % 90}",
                slots="1",
            )
            for each in range(4)
        ]
        found += [*machine, _holder(f"tenant-{number:04}", shares)]
    return [*found, *(node(f"cpu-{number}") for number in range(10))]


def crowded() -> list[Dict]:
    """A claim that as many pods use as can have it."""
    shared = _holder("shared", [_result("gpu-1", "gpu-0", memory=MEMORY, cores="100", slots="1")])
    shared["metadata"]["namespace"] = "default"
    users = [f"user-{number:03}" for number in range(256)]
    shared["status"]["reservedFor"] = [{"resource": "pods", "name": name, "uid": name} for name in users]
    pods = [pod(name, "shared") for name in users]
    for one in pods:
        one["metadata"] |= {"uid": one["metadata"]["name"], "creationTimestamp": "2026-11-21T00:00:00Z"}
        one["spec"] |= {"nodeName": "gpu-1"}
        one["status"] = {"phase": "Running"}
    return [*plain(), shared, *pods]


CLUSTERS: Final[Mapping[str, Callable[[], list[Dict]]]] = {
    made.__name__.replace("_", "-"): made
    for made in (
        plain,
        busy,
        full_nics,
        tainted,
        cordoned,
        unhealthy,
        held,
        apart,
        pairs_taken,
        mig,
        native,
        incomplete,
        unreadable,
        without_limits,
        partitions,
        many,
        crowded,
    )
}


def cluster(name: str) -> list[Dict]:
    return [*device_classes(), *CLUSTERS[name]()]
