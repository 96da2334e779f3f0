"""A real value for every name of the table (`koordra.compat.keys`), in a manifest as a user of the peer
writes it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from koordra.compat.keys import Key, Place
from tests.unit.compat.pods import Dict, asking, container, pod

N, K, V = "nvidia.com/", "koordinator.sh/", "volcano.sh/"
S = "scheduling.koordinator.sh/"
TKE, QGPU, EGPU = "tencent.com/vcuda-", "tke.cloud.tencent.com/qgpu-", "elasticgpu."

ASKED: Final[Mapping[str, Dict]] = {
    "hami": {N + "gpu": 1, N + "gpumem": 1024},
    "koordinator": {K + "gpu": 50},
    "volcano-vgpu": {V + "vgpu-number": 1, V + "vgpu-memory": 1024},
    "volcano-gpu": {V + "gpu-memory": 1024},
    "aliyun": {"aliyun.com/gpu-mem": 4},
    "alnair": {"alnair/vgpu-memory": 4},
    "elastic-gpu": {EGPU + "io/gpu-core": 30, EGPU + "io/gpu-memory": 256},
    "tke": {TKE + "core": 30, TKE + "memory": 4},
    "plain": {N + "gpu": 1},
    "rdma": {N + "gpu": 1},
    "sriov": {N + "gpu": 1},
}
"""What a pod of the dialect asks for, where a name is tried beside it."""

RESOURCES: Final[Mapping[tuple[str, str], tuple[Dict, Dict]]] = {
    ("koordinator", N + "gpu"): ({K + "rdma": 1}, {N + "gpu": 2}),
    ("koordinator", K + "gpu"): ({K + "rdma": 1}, {K + "gpu": 50}),
    ("koordinator", K + "gpu-core"): ({K + "gpu-memory": "8Gi"}, {K + "gpu-core": 50}),
    ("koordinator", K + "gpu-memory"): ({K + "rdma": 1}, {K + "gpu-memory": "8Gi"}),
    ("koordinator", K + "gpu-memory-ratio"): ({K + "rdma": 1}, {K + "gpu-memory-ratio": 50}),
    ("koordinator", K + "gpu.shared"): ({K + "gpu-memory": "8Gi"}, {K + "gpu.shared": 2}),
    ("hami", N + "gpumem-percentage"): ({N + "gpu": 1}, {N + "gpumem-percentage": 50}),
    ("volcano-gpu", V + "gpu-number"): ({}, {V + "gpu-number": 2}),
    ("elastic-gpu", EGPU + "com/gpu-core"): ({EGPU + "com/gpu-memory": 256}, {EGPU + "com/gpu-core": 30}),
    ("elastic-gpu", EGPU + "com/gpu-memory"): ({EGPU + "com/gpu-core": 30}, {EGPU + "com/gpu-memory": 256}),
    ("elastic-gpu", QGPU + "core"): ({QGPU + "memory": 4}, {QGPU + "core": 30}),
    ("elastic-gpu", QGPU + "core-greedy"): ({QGPU + "memory": 4}, {QGPU + "core-greedy": 30}),
    ("elastic-gpu", QGPU + "memory"): ({QGPU + "core": 30}, {QGPU + "memory": 4}),
    ("elastic-gpu", EGPU + "io/gpu-tflops"): ({EGPU + "io/gpu-memory": 256}, {EGPU + "io/gpu-tflops": 20}),
    ("elastic-gpu", EGPU + "com/gpu-tflops"): ({EGPU + "com/gpu-memory": 256}, {EGPU + "com/gpu-tflops": 20}),
    ("tke", TKE + "core"): ({}, {TKE + "core": 200}),
    ("tke", TKE + "memory"): ({TKE + "core": 30}, {TKE + "memory": 4}),
}
"""(what is asked beside it, the name with its amount), where the dialect's own would not do."""
AMOUNTS: Final[Mapping[str, Any]] = {
    N + "gpu": 2,
    N + "gpumem": 3000,
    N + "gpucores": 30,
    N + "priority": 1,
    N + "gpu.shared": 1,
    K + "rdma": 100,
    K + "fpga": 100,
    V + "vgpu-number": 2,
    V + "vgpu-memory": 3000,
    V + "vgpu-memory-percentage": 50,
    V + "vgpu-cores": 30,
    V + "gpu-memory": 3000,
    "aliyun.com/gpu-mem": 8,
    "aliyun.com/gpu-core.percentage": 30,
    "alnair/vgpu-memory": 8,
    "alnair/vgpu-compute": 30,
    EGPU + "io/gpu-core": 60,
    EGPU + "io/gpu-memory": 512,
    "kubernetes.io/batch-memory": "1Gi",
    "kubernetes.io/mid-memory": "1Gi",
}
ANNOTATIONS: Final[Mapping[str, str]] = {
    N + "use-gputype": "A100,H100",
    N + "nouse-gputype": "V100",
    N + "use-gpuuuid": "GPU-1",
    N + "nouse-gpuuuid": "GPU-1",
    N + "numa-bind": "true",
    N + "vgpu-mode": "mig",
    "hami.io/node-scheduler-policy": "binpack",
    "hami.io/gpu-scheduler-policy": "topology-aware",
    "hami.io/device-scoring-weights": "slot=1,core=1,memory=3",
    S + "device-joint-allocate": '{"deviceTypes": ["gpu", "rdma"], "requiredScope": "SamePCIe"}',
    S + "device-allocate-hint": '{"gpu": {"exclusivePolicy": "DeviceLevel"}}',
    S + "gpu-partition-spec": '{"allocatePolicy": "Restricted"}',
    S + "numa-topology-spec": '{"numaTopologyPolicy": "SingleNUMANode"}',
    S + "resource-spec": '{"preferredCPUBindPolicy": "FullPCPUs"}',
    S + "resource-status": '{"cpuset": "0-3"}',
    S + "reservation-affinity": '{"reservationSelector": {"reservation-type": "reservation-demo"}}',
    S + "exact-match-reservation": '{"resourceNames": ["cpu", "memory"]}',
    S + "device-allocated": '{"gpu": [{"minor": 0, "resources": {"koordinator.sh/gpu-core": "50"}}]}',
    S + "reservation-allocated": '{"name": "r", "uid": "1"}',
    S + "reservation-owners": '[{"labelSelector": {"matchLabels": {"app": "a"}}}]',
    "egpuc.elasticgpu.io/a": "claim-1",
    V + "vgpu-mode": "mig",
    V + "vgpu-use-gpuuuid": "GPU-1",
    V + "vgpu-nouse-gpuuuid": "GPU-1",
    V + "vgpu-podgroup-policy": "spread",
    V + "numa-topology-policy": "single-numa-node",
    TKE + "core-limit": "60",
    "elasticgpu.io/container-a": "0",
}
LABELS: Final[Mapping[str, str]] = {
    K + "gpu-isolation-provider": "HAMi-core",
    K + "qosClass": "LS",
    K + "priority": "5500",
    S + "operating-mode": "Reservation",
    "quota.scheduling.koordinator.sh/name": "team-a",
    "aliyun.com/gpu-count": "2",
    "hami.io/webhook": "ignore",
}
BESIDE: Final[Mapping[str, Dict]] = {
    S + "device-joint-allocate": {N + "gpu": 2, K + "rdma": 100},
    S + "gpu-partition-spec": {N + "gpu": 2},
    S + "numa-topology-spec": {N + "gpu": 2},
    N + "numa-bind": {N + "gpu": 2, N + "gpumem": 1024},
}
"""What the pod asks for, where the dialect's example is too little for the name to mean something."""
MOST_OF_A_QUOTA: Final = {"cpu": "10", N + "gpu": 8}
FIELDS: Final[Mapping[str, Any]] = {
    "schedulerName": "volcano",
    "minResources": MOST_OF_A_QUOTA,
    "resourceGroups": [{"coveredResources": ["cpu", N + "gpu"], "flavors": []}],
}
OBJECTS: Final[Mapping[str, Dict]] = {
    "Reservation.scheduling.koordinator.sh": {
        "template": {"spec": {"containers": [{"name": "a", "resources": {"requests": {K + "gpu": 50}}}]}},
        "owners": [{"object": {"name": "a", "namespace": "team"}}],
    },
}
VERSIONS: Final[Mapping[str, str]] = {
    "scheduling.volcano.sh": "v1beta1",
    "bus.volcano.sh": "v1alpha1",
    "elasticgpu.io": "v1alpha1",
}
SETTINGS: Final[Mapping[str, Any]] = {
    "resourceCountName": "nvidia.com/gpu",
    "resourceMemoryName": "nvidia.com/gpumem",
    "resourceMemoryPercentageName": "nvidia.com/gpumem-percentage",
    "resourceCoreName": "nvidia.com/gpucores",
    "resourcePriorityName": "nvidia.com/priority",
    "memoryFactor": 1,
    "gpuMemoryFactor": 1,
    "defaultMemory": 1000,
    "defaultMem": 1000,
    "defaultCores": 10,
    "defaultGPUNum": 1,
    "gpuCorePolicy": "force",
    "deviceMemoryScaling": 1,
    "deviceCoreScaling": 1,
    "deviceSplitCount": 10,
    "migProfileAllowlist": [{"models": ["A30"], "profiles": ["1g.6gb", "2g.12gb"]}],
    "knownMigGeometries": [
        {
            "models": ["A30"],
            "allowedGeometries": [
                {"group": "group1", "geometries": [{"name": "1g.6gb", "memory": 6144, "count": 4}]}
            ],
        }
    ],
    "filterdevices": {"uuid": ["GPU-1"], "index": [0]},
    "operatingmode": "mig",
    "migstrategy": "none",
    "runtimeClassName": "nvidia",
    "rdmaHcaMax": 1000,
    "devices": ["ens1f0"],
    "selectors": {"ifNames": ["ens1f0"]},
    "excludeTopology": True,
    "sharing.timeSlicing": {"resources": [{"name": "nvidia.com/gpu", "replicas": 4}]},
    "sharing.mps": {"resources": [{"name": "nvidia.com/gpu", "replicas": 4}]},
    "flags.migStrategy": "single",
    "resources.gpus": [{"pattern": "*A100*", "name": "gpu.a100"}],
    "resources.mig": [{"pattern": "1g.5gb", "name": "mig-small"}],
    "imex": {"channelIDs": [0], "required": True},
}


def name_of(key: Key) -> str:
    """The name itself, or one that the pattern means."""
    if key.name == "nvidia.com/mig-*":
        return "nvidia.com/mig-1g.5gb"
    if key.name == "nvidia.com/mig-*.shared":
        return "nvidia.com/mig-1g.5gb.shared"
    return key.name.replace("*", "a")


def without(key: Key) -> Dict:
    """A pod as `example`, without the name."""
    beside = ASKED[key.peer]
    if key.place is Place.RESOURCE:
        known = {"nvidia.com/gpu"} if key.name == "nvidia.com/gpu.shared" else {key.name}
        default = {name: amount for name, amount in beside.items() if name not in known}
        beside = RESOURCES.get((key.peer, key.name), (default or dict(beside), {}))[0]
    elif key.name in BESIDE:
        beside = BESIDE[key.name]
    return asking(beside) if beside else pod(container())


def example(key: Key) -> Dict:
    """A pod that says it."""
    made, name = without(key), name_of(key)
    main = made["spec"]["containers"][0]
    if key.place is Place.RESOURCE:
        amounts = RESOURCES.get((key.peer, key.name), ({}, {name: AMOUNTS.get(name, 1)}))[1]
        main.setdefault("resources", {}).setdefault("limits", {}).update(amounts)
    elif key.place is Place.ANNOTATION:
        made["metadata"]["annotations"] = {name: ANNOTATIONS.get(name, "1")}
    elif key.place is Place.LABEL:
        made["metadata"]["labels"] = {name: LABELS.get(name, "true")}
    elif key.place is Place.ENVIRONMENT:
        main["env"] = [{"name": name, "value": "force" if name.startswith("GPU_CORE") else "1"}]
    elif key.place is Place.SCHEDULER:
        made["spec"]["schedulerName"] = name
    return made


def object_of(kind: str, **spec: Any) -> Dict:
    named, _, group = kind.partition(".")
    version = VERSIONS.get(group, "v1alpha1")
    return {"apiVersion": f"{group}/{version}", "kind": named, "metadata": {"name": "o"}, "spec": spec}


def object_with(path: str, kind: str) -> Dict:
    """An object of the kind whose field says something of devices, or names a scheduler."""
    names = path.split(".")
    value: Any = FIELDS.get(names[-1], MOST_OF_A_QUOTA)
    for name in reversed(names[1:]):
        value = {name: value}
    return object_of(kind, **value)


def config_of(key: Key) -> tuple[str, str]:
    """The name of an entry of a ConfigMap, and its text: a file that says the field."""
    section, _, field = key.name.rpartition(".")
    if key.peer in ("rdma", "sriov"):
        listed = {"rdma": "configList", "sriov": "resourceList"}[key.peer]
        return "config.json", json.dumps({listed: [{field: SETTINGS.get(key.name, "a")}]})
    value = SETTINGS.get(key.name, True)
    if key.peer == "plain":
        inner = {field: value} if section else value
        return "config.yaml", json.dumps({"version": "v1", section or key.name: inner})
    if field == "nodeconfig":
        return "config.json", json.dumps({"nodeconfig": [{"name": "n", "devicesplitcount": 10}]})
    if field[:1].islower() and field == field.lower() and field != "nodeconfig":
        return "config.json", json.dumps({"nodeconfig": [{"name": "n", field: value}]})
    counted = "volcano.sh/vgpu-number" if key.peer.startswith("volcano") else "nvidia.com/gpu"
    return "device-config.yaml", json.dumps({"nvidia": {"resourceCountName": counted, field: value}})
