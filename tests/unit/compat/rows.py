"""Every name of every vocabulary in a pod, and the claim that it becomes. The left side is the peers'
documentation in YAML's words; the right side is what reference tables of their schedulers say, in the words
of pods.py."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from koordra.api.opaque.precision import Precision
from koordra.compat.dialect.vgpu import VgpuSettings
from koordra.compat.settings import NicName, Settings
from tests.unit.compat.pods import Dict, asking, container, pod


@dataclass(frozen=True)
class Row:
    name: str
    pod: Dict
    claim: list[str]
    settings: Settings = field(default_factory=Settings)
    warned: tuple[str, ...] = ()
    """A part of each warning that there has to be, and no other."""


N = "nvidia.com/"
K = "koordinator.sh/"
V = "volcano.sh/"
HINT = "scheduling.koordinator.sh/device-allocate-hint"
JOINT = "scheduling.koordinator.sh/device-joint-allocate"
PARTITION = "scheduling.koordinator.sh/gpu-partition-spec"
NUMA = "scheduling.koordinator.sh/numa-topology-spec"
KEEP = "a: GpuConfig isolation=limiter"
DISTINCT = "distinct koordra.io/uuid: a"
NAME = '("NVIDIA-" + device.attributes["koordra.io"].productName).lowerAscii()'
TOLD = '"productName" in device.attributes["koordra.io"]'
UUID = 'device.attributes["koordra.io"]'
MIG_ALLOWED = (
    f'a: 1 mig memory 8000Mi if ({TOLD} && ({NAME}.contains("a30")) && ({UUID}.profile in ["1g.6gb", "2g.12gb"]))'
    f' || ({TOLD} && ({NAME}.contains("h20")) && ({UUID}.profile.startsWith("7g.")))'
)
VOLCANO_STAYS = "volcano stays"
COUNTED = "compute is counted, not limited, by isolation limiter; mps and hami-core limit it"
IN_PLACE = "vgpu-mode]: isolation limiter keeps the share, in place of HAMi's library"


def hami(**more: Any) -> Settings:
    return Settings(options={"hami": {"vgpu": VgpuSettings(**more)}})


def with_hint(ask: Dict, hint: Dict, joint: Dict | None = None) -> Dict:
    annotations = {HINT: json.dumps(hint)}
    if joint:
        annotations[JOINT] = json.dumps(joint)
    return asking(ask, annotations=annotations)


PLAIN = [
    Row("plain-gpu", asking({N + "gpu": 2}), ["a: 2 gpu"]),
    Row("plain-gpu-text", asking({N + "gpu": "1"}), ["a: 1 gpu"]),
    Row("plain-mig", asking({N + "mig-1g.5gb": 2}), [f'a-mig-1g-5gb: 2 mig if {UUID}.profile == "1g.5gb"']),
    Row(
        "plain-mig-me",
        asking({N + "mig-1g.10gb.me": 1}),
        [f'a-mig-1g-10gb-me: 1 mig if {UUID}.profile == "1g.10gb+me"'],
    ),
    Row(
        "plain-gpu-and-mig",
        asking({N + "gpu": 1, N + "mig-3g.20gb": 1}),
        ["a: 1 gpu", f'a-mig-3g-20gb: 1 mig if {UUID}.profile == "3g.20gb"'],
    ),
    Row(
        "plain-shared",
        asking({N + "gpu.shared": 1}),
        ["a: 1 gpu", "a: GpuConfig memoryPercent=25"],
        Settings(options={"plain": {"replicas": 4}}),
    ),
    Row(
        "plain-shared-two",
        asking({N + "gpu.shared": 2}),
        ["a: 2 gpu", DISTINCT, "a: GpuConfig memoryPercent=33"],
        Settings(options={"plain": {"replicas": 3}}),
    ),
    Row("plain-in-requests", pod(container(ask={N + "gpu": 1}, sides=("limits", "requests"))), ["a: 1 gpu"]),
]

HAMI = [
    Row(
        "hami-all",
        asking({N + "gpu": 1, N + "gpumem": 3000, N + "gpucores": 30}),
        ["a: 1 gpu memory 3000Mi cores 30", KEEP],
        warned=(f"{N}gpucores: {COUNTED}",),
    ),
    Row(
        "hami-cores-by-mps",
        asking({N + "gpumem": 3000, N + "gpucores": 30}, annotations={N + "vgpu-mode": "mps"}),
        ["a: 1 gpu memory 3000Mi cores 30", "a: GpuConfig isolation=mps"],
    ),
    Row(
        "hami-cores-by-the-library",
        asking({N + "gpumem": 3000, N + "gpucores": 30}, annotations={N + "vgpu-mode": "hami-core"}),
        ["a: 1 gpu memory 3000Mi cores 30", "a: GpuConfig isolation=hami-core"],
        Settings(isolation={"hami": "hami-core"}),
    ),
    Row(
        "hami-cores-by-nobody",
        asking({N + "gpumem": 3000, N + "gpucores": 30}),
        ["a: 1 gpu memory 3000Mi cores 30", "a: GpuConfig isolation=none"],
        Settings(isolation={"hami": "none"}),
        ("compute is counted, not limited, by isolation none",),
    ),
    Row("hami-two", asking({N + "gpu": 2, N + "gpumem": 1024}), ["a: 2 gpu memory 1Gi", DISTINCT, KEEP]),
    Row(
        "hami-percent",
        asking({N + "gpu": 1, N + "gpumem-percentage": 50}),
        ["a: 1 gpu", KEEP + " memoryPercent=50"],
    ),
    Row("hami-percent-100", asking({N + "gpu": 1, N + "gpumem-percentage": 100}), ["a: 1 gpu cores 100"]),
    Row(
        "hami-percent-100-cores",
        asking({N + "gpu": 1, N + "gpumem-percentage": 100, N + "gpucores": 40}),
        ["a: 1 gpu cores 40", KEEP],
        warned=(f"{N}gpucores: {COUNTED}",),
    ),
    Row("hami-percent-0", asking({N + "gpu": 1, N + "gpumem-percentage": 0}), ["a: 1 gpu"]),
    Row(
        "hami-memory-wins",
        asking({N + "gpu": 1, N + "gpumem": 2000, N + "gpumem-percentage": 50}),
        ["a: 1 gpu memory 2000Mi", KEEP],
    ),
    Row(
        "hami-memory-0",
        asking({N + "gpu": 1, N + "gpumem": 0, N + "gpumem-percentage": 20}),
        ["a: 1 gpu", KEEP + " memoryPercent=20"],
    ),
    Row(
        "hami-memory-and-percent-100",
        asking({N + "gpu": 1, N + "gpumem": 2000, N + "gpumem-percentage": 100}),
        ["a: 1 gpu memory 2000Mi cores 100", KEEP + " exclusive=True"],
    ),
    Row("hami-memory-alone", asking({N + "gpumem": 500}), ["a: 1 gpu memory 500Mi", KEEP]),
    Row(
        "hami-cores-alone",
        asking({N + "gpucores": 20}),
        ["a: 1 gpu cores 20", KEEP],
        warned=(f"{N}gpucores: {COUNTED}",),
    ),
    Row(
        "hami-cores-100",
        asking({N + "gpu": 1, N + "gpumem": 500, N + "gpucores": 100}),
        ["a: 1 gpu memory 500Mi cores 100", KEEP + " exclusive=True"],
    ),
    Row(
        "hami-cores-over",
        asking({N + "gpu": 1, N + "gpucores": 150}),
        ["a: 1 gpu cores 100"],
        warned=("150 counts as 100",),
    ),
    Row("hami-cores-0", asking({N + "gpu": 1, N + "gpucores": 0}), ["a: 1 gpu"]),
    Row(
        "hami-priority",
        asking({N + "gpu": 1, N + "gpumem": 500, N + "priority": 0}),
        ["a: 1 gpu memory 500Mi", KEEP + " priority=0"],
        warned=("priority has no effect",),
    ),
    Row(
        "hami-gpu-by-default",
        asking({N + "gpu": 1}),
        ["a: 1 gpu cores 100"],
        Settings(default_dialect="hami"),
    ),
    Row(
        "hami-factor",
        asking({N + "gpu": 1, N + "gpumem": 3}),
        ["a: 1 gpu memory 3Gi", KEEP],
        hami(memory_factor=1024),
    ),
    Row(
        "hami-default-memory",
        asking({N + "gpu": 1, N + "gpucores": 10}),
        ["a: 1 gpu memory 5000Mi cores 10", KEEP],
        hami(default_memory=5000),
        warned=(f"{N}gpucores: {COUNTED}",),
    ),
    Row(
        "hami-default-cores",
        asking({N + "gpu": 1, N + "gpumem": 100}),
        ["a: 1 gpu memory 100Mi cores 25", KEEP],
        hami(default_cores=25),
        warned=(f"{N}gpucores: {COUNTED}",),
    ),
    Row(
        "hami-default-count",
        asking({N + "gpumem": 100}),
        ["a: 3 gpu memory 100Mi", DISTINCT, KEEP],
        hami(default_count=3),
    ),
    Row(
        "hami-core-scaling",
        asking({N + "gpumem": 100}),
        ["a: 1 gpu memory 100Mi", KEEP],
        hami(core_scaling=2.0),
        ("deviceCoreScaling",),
    ),
    Row(
        "hami-mig-profiles",
        asking({N + "gpumem": 8000}, annotations={N + "vgpu-mode": "mig"}),
        [
            MIG_ALLOWED,
        ],
        hami(mig_profiles=((("A30",), ("1g.6gb", "2g.12gb")), (("H20",), ("7g.96gb",)))),
    ),
    Row(
        "hami-mig-beside",
        asking({N + "mig-1g.5gb": 1, N + "gpumem": 100}),
        ["a: 1 gpu memory 100Mi", f'a-mig-1g-5gb: 1 mig if {UUID}.profile == "1g.5gb"', KEEP],
    ),
    Row(
        "hami-use-type",
        asking({N + "gpumem": 100}, annotations={N + "use-gputype": "A100, v100,"}),
        [f'a: 1 gpu memory 100Mi if {TOLD} && ({NAME}.contains("a100") || {NAME}.contains("v100"))', KEEP],
    ),
    Row(
        "hami-no-type",
        asking({N + "gpu": 1}, annotations={N + "nouse-gputype": "1080"}),
        [f'a: 1 gpu cores 100 if !({TOLD}) || !({NAME}.contains("1080"))'],
    ),
    Row(
        "hami-both-types",
        asking({N + "gpumem": 100}, annotations={N + "use-gputype": "a100", N + "nouse-gputype": "pcie"}),
        [
            f'a: 1 gpu memory 100Mi if {TOLD} && ({NAME}.contains("a100")) if !({TOLD}) || !({NAME}.contains("pcie"))',
            KEEP,
        ],
    ),
    Row(
        "hami-type-blank",
        asking({N + "gpumem": 100}, annotations={N + "use-gputype": " "}),
        ["a: 1 gpu memory 100Mi", KEEP],
    ),
    Row(
        "hami-use-uuid",
        asking({N + "gpumem": 100}, annotations={N + "use-gpuuuid": "GPU-1, GPU-2"}),
        [f'a: 1 gpu memory 100Mi if "uuid" in {UUID} && {UUID}.uuid in ["GPU-1", "GPU-2"]', KEEP],
    ),
    Row(
        "hami-no-uuid",
        asking({N + "gpumem": 100}, annotations={N + "nouse-gpuuuid": "GPU-1"}),
        [f'a: 1 gpu memory 100Mi if !("uuid" in {UUID}) || !({UUID}.uuid in ["GPU-1"])', KEEP],
    ),
    Row(
        "hami-numa-bind",
        asking({N + "gpu": 2, N + "gpumem": 100}, annotations={N + "numa-bind": "true"}),
        [
            "a: 2 gpu memory 100Mi",
            DISTINCT,
            KEEP,
            "a: JointAllocation scope=NUMANode enforcement=Required pairing=Together",
        ],
    ),
    Row(
        "hami-numa-bind-one",
        asking({N + "gpumem": 100}, annotations={N + "numa-bind": "T"}),
        ["a: 1 gpu memory 100Mi", KEEP],
    ),
    Row(
        "hami-mode",
        asking({N + "gpumem": 100}, annotations={N + "vgpu-mode": "hami-core"}),
        ["a: 1 gpu memory 100Mi", KEEP],
        warned=(IN_PLACE,),
    ),
    Row(
        "hami-mode-mps",
        asking({N + "gpumem": 100}, annotations={N + "vgpu-mode": "mps"}),
        ["a: 1 gpu memory 100Mi", "a: GpuConfig isolation=mps"],
    ),
    Row(
        "hami-mode-of-none",
        asking({N + "gpumem": 100}),
        ["a: 1 gpu memory 100Mi", KEEP],
    ),
    Row(
        "hami-mode-mps-of-whole-cards",
        asking({N + "gpu": 2, N + "gpumem-percentage": 100}, annotations={N + "vgpu-mode": "mps"}),
        ["a: 2 gpu cores 100"],
    ),
    Row(
        "hami-mode-mig",
        asking({N + "gpu": 2, N + "gpumem": 8000}, annotations={N + "vgpu-mode": "mig"}),
        ["a: 2 mig memory 8000Mi"],
    ),
    Row(
        "hami-modes",
        asking({N + "gpumem": 100}, annotations={N + "vgpu-mode": "hami-core,mig"}),
        ["a: first of 1 gpu memory 100Mi, 1 mig memory 100Mi", "a/card: GpuConfig isolation=limiter"],
        warned=(IN_PLACE,),
    ),
    Row(
        "hami-modes-of-one-kind",
        asking({N + "gpumem": 100}, annotations={N + "vgpu-mode": "hami-core,mps"}),
        ["a: 1 gpu memory 100Mi", KEEP],
        warned=(
            IN_PLACE,
            "allows hami-core and mps",
        ),
    ),
    Row(
        "hami-node-policy",
        asking({N + "gpumem": 100}, annotations={"hami.io/node-scheduler-policy": "spread"}),
        ["a: 1 gpu memory 100Mi", KEEP, "PlacementPolicy node=Spread"],
    ),
    Row(
        "hami-node-binpack",
        asking({N + "gpumem": 100}, annotations={"hami.io/node-scheduler-policy": "binpack"}),
        ["a: 1 gpu memory 100Mi", KEEP, "PlacementPolicy node=Binpack"],
    ),
    *(
        Row(
            f"hami-card-{word}",
            asking({N + "gpumem": 100}, annotations={"hami.io/gpu-scheduler-policy": word}),
            ["a: 1 gpu memory 100Mi", KEEP, f"PlacementPolicy device={policy}"],
        )
        for word, policy in (
            ("binpack", "Binpack"),
            ("spread", "Spread"),
            ("topology-aware", "TopologyAware"),
        )
    ),
    Row(
        "hami-card-mutex",
        asking({N + "gpumem": 100}, annotations={"hami.io/gpu-scheduler-policy": "mutex"}),
        ["a: 1 gpu memory 100Mi", KEEP + " exclusive=True"],
        warned=("mutex: the card is kept alone",),
    ),
    Row(
        "hami-card-chain",
        asking(
            {N + "gpu": 2, N + "gpumem": 100},
            annotations={"hami.io/gpu-scheduler-policy": "numa,spread,binpack"},
        ),
        [
            "a: 2 gpu memory 100Mi",
            DISTINCT,
            KEEP,
            "a: JointAllocation scope=NUMANode enforcement=Preferred pairing=Together",
            "PlacementPolicy device=Spread",
        ],
        warned=("'binpack' comes after another policy",),
    ),
    Row(
        "hami-weights",
        asking({N + "gpumem": 100}, annotations={"hami.io/device-scoring-weights": "slot=1,core=1,memory=3"}),
        ["a: 1 gpu memory 100Mi", KEEP],
        warned=("a score of its own",),
    ),
    Row(
        "hami-other",
        asking({N + "gpu": 1}, annotations={"hami.io/dra": "x"}),
        ["a: 1 gpu cores 100"],
        warned=("hami.io/dra",),
    ),
    Row(
        "hami-force",
        pod(
            container(
                ask={N + "gpumem": 100, N + "gpucores": 10},
                env=[{"name": "GPU_CORE_UTILIZATION_POLICY", "value": "force"}],
            )
        ),
        ["a: 1 gpu memory 100Mi cores 10", KEEP + " coresPolicy=Hard"],
        warned=("coresPolicy has no effect",),
    ),
    Row(
        "hami-disable",
        asking({N + "gpumem": 100, N + "gpucores": 10}),
        ["a: 1 gpu memory 100Mi cores 10", KEEP + " coresPolicy=Elastic"],
        hami(core_policy="disable"),
        ("coresPolicy has no effect but by isolation hami-core, and on nodes with --limiter-cores",),
    ),
    Row(
        "hami-scheduler",
        asking({N + "gpumem": 100}, schedulerName="hami-scheduler"),
        ["a: 1 gpu memory 100Mi", KEEP],
        warned=("hami-scheduler is taken out",),
    ),
    Row(
        "hami-results",
        asking(
            {N + "gpumem": 100},
            annotations={
                "hami.io/vgpu-devices-allocated": "GPU-1,NVIDIA,100,0:;",
                "hami.io/bind-phase": "success",
            },
        ),
        ["a: 1 gpu memory 100Mi", KEEP],
        warned=("hami.io/bind-phase]: is taken out", "hami.io/vgpu-devices-allocated]: is taken out"),
    ),
]

POD_SHARED = "gpu: GpuConfig "
KOORDINATOR = [
    Row(
        "koordinator-nvidia",
        asking({N + "gpu": 2}),
        ["gpu: 2 gpu cores 100"],
        Settings(default_dialect="koordinator"),
    ),
    Row(
        "koordinator-by-label",
        asking({N + "gpu": 1}, labels={K + "qosClass": "LS"}),
        ["gpu: 1 gpu cores 100"],
    ),
    Row(
        "koordinator-by-annotation",
        asking({N + "gpu": 1}, annotations={"gang.scheduling.koordinator.sh/name": "g"}),
        ["gpu: 1 gpu cores 100"],
    ),
    Row("koordinator-gpu", asking({K + "gpu": 50}), ["gpu: 1 gpu cores 50", POD_SHARED + "memoryPercent=50"]),
    Row("koordinator-gpu-200", asking({K + "gpu": 200}), ["gpu: 2 gpu cores 100"]),
    Row("koordinator-memory", asking({K + "gpu-memory": "8Gi"}), ["gpu: 1 gpu memory 8Gi"]),
    Row(
        "koordinator-ratio",
        asking({K + "gpu-memory-ratio": 30}),
        ["gpu: 1 gpu", POD_SHARED + "memoryPercent=30"],
    ),
    Row(
        "koordinator-core-memory",
        asking({K + "gpu-core": 30, K + "gpu-memory": "8Gi"}),
        ["gpu: 1 gpu memory 8Gi cores 30"],
    ),
    Row(
        "koordinator-core-ratio",
        asking({K + "gpu-core": 30, K + "gpu-memory-ratio": 100}),
        ["gpu: 1 gpu cores 30"],
    ),
    Row(
        "koordinator-two-cards-of-bytes",
        asking({K + "gpu-core": 200, K + "gpu-memory": "64Gi"}),
        ["gpu: 2 gpu memory 32Gi cores 100", "distinct koordra.io/uuid: gpu"],
    ),
    Row(
        "koordinator-shared",
        asking({K + "gpu.shared": 4, K + "gpu-core": 200, K + "gpu-memory-ratio": 100}),
        ["gpu: 4 gpu cores 50", "distinct koordra.io/uuid: gpu", POD_SHARED + "memoryPercent=25"],
    ),
    Row(
        "koordinator-odd-bytes",
        asking({K + "gpu.shared": 3, K + "gpu-memory": 1000}),
        ["gpu: 3 gpu memory 333", "distinct koordra.io/uuid: gpu"],
    ),
    Row(
        "koordinator-isolation",
        asking({K + "gpu": 50}, labels={K + "gpu-isolation-provider": "HAMi-core"}),
        ["gpu: 1 gpu cores 50", POD_SHARED + "isolation=limiter memoryPercent=50"],
        warned=(f"spec: {K}gpu-core: {COUNTED}",),
    ),
    Row(
        "koordinator-isolation-as-documented",
        asking({K + "gpu": 50}, labels={K + "gpu-isolation-provider": "hami-core"}),
        ["gpu: 1 gpu cores 50", POD_SHARED + "isolation=limiter memoryPercent=50"],
        warned=(
            f"spec: {K}gpu-core: {COUNTED}",
            "letter by letter",
        ),
    ),
    Row("koordinator-rdma", asking({K + "rdma": 50}), ["rdma: 1 nic share 50"]),
    Row("koordinator-rdma-200", asking({K + "rdma": 200}), ["rdma: 2 nic share 100"]),
    Row(
        "koordinator-both-apart",
        asking({N + "gpu": 1, K + "rdma": 100}),
        ["gpu: 1 gpu cores 100", "rdma: 1 nic share 100"],
    ),
    Row(
        "koordinator-joint-one",
        asking(
            {N + "gpu": 1, K + "rdma": 100},
            annotations={JOINT: '{"deviceTypes": ["gpu", "rdma"], "requiredScope": "SamePCIe"}'},
        ),
        [
            "gpu: 1 gpu cores 100",
            "rdma: 1 nic share 100",
            "gpu rdma: JointAllocation scope=PCIeRoot enforcement=Required pairing=PerDevice",
        ],
    ),
    Row(
        "koordinator-joint-preferred",
        asking({K + "gpu": 200, K + "rdma": 1}, annotations={JOINT: '{"deviceTypes": ["gpu", "rdma"]}'}),
        [
            "gpu: 2 gpu cores 100",
            "rdma: first of 1 nic share 1, 2 nic share 1",
            "gpu rdma: JointAllocation scope=PCIeRoot enforcement=Preferred pairing=PerGroup",
        ],
    ),
    Row(
        "koordinator-joint-per-device",
        asking(
            {N + "gpu": 4, K + "rdma": 400},
            annotations={JOINT: '{"deviceTypes": ["gpu", "rdma"], "requiredScope": "SamePCIe"}'},
        ),
        [
            "gpu: 4 gpu cores 100",
            "rdma: 4 nic share 100",
            "gpu rdma: JointAllocation scope=PCIeRoot enforcement=Required pairing=PerDevice",
        ],
    ),
    Row(
        "koordinator-vf",
        with_hint(
            {N + "gpu": 2, K + "rdma": 1}, {"rdma": {"vfSelector": {}}}, {"deviceTypes": ["gpu", "rdma"]}
        ),
        [
            "gpu: 2 gpu cores 100",
            "rdma: first of 1 vf, 2 vf",
            "distinct koordra.io/parent: rdma",
            "gpu rdma: JointAllocation scope=PCIeRoot enforcement=Preferred pairing=PerGroup",
        ],
    ),
    Row(
        "koordinator-vf-labels",
        with_hint(
            {K + "rdma": 1},
            {
                "rdma": {
                    "selector": {"matchLabels": {"type": "w"}},
                    "vfSelector": {
                        "matchExpressions": [{"key": "kind", "operator": "In", "values": ["x", "y"]}]
                    },
                }
            },
        ),
        [
            (
                'rdma: 1 vf if ("parent_type" in device.attributes["koordinator.sh"] && device.attributes["koordinator.sh"]["parent_type"] in ["w"])'
                ' if ("kind" in device.attributes["koordinator.sh"] && device.attributes["koordinator.sh"]["kind"] in ["x", "y"])'
            ),
        ],
        warned=("koordinator.sh/parent_type", "koordinator.sh/kind"),
    ),
    Row(
        "koordinator-selector-of-cards",
        with_hint(
            {K + "gpu": 50},
            {
                "gpu": {
                    "selector": {
                        "matchExpressions": [
                            {"key": "bad", "operator": "DoesNotExist"},
                            {"key": "m", "operator": "NotIn", "values": ["z"]},
                        ]
                    }
                }
            },
        ),
        [
            (
                'gpu: 1 gpu cores 50 if !("bad" in device.attributes["koordinator.sh"]) && '
                '(!("m" in device.attributes["koordinator.sh"]) || !(device.attributes["koordinator.sh"]["m"] in ["z"]))'
            ),
            POD_SHARED + "memoryPercent=50",
        ],
        warned=("koordinator.sh/bad, koordinator.sh/m",),
    ),
    Row(
        "koordinator-all",
        with_hint({K + "rdma": 5}, {"rdma": {"allocateStrategy": "ApplyForAll"}}),
        ["rdma: All nic share 5"],
    ),
    Row(
        "koordinator-as-count",
        with_hint({K + "rdma": 3}, {"rdma": {"allocateStrategy": "RequestsAsCount"}}),
        ["rdma: 3 nic share 1"],
    ),
    Row(
        "koordinator-as-count-exclusive",
        with_hint(
            {K + "rdma": 3},
            {"rdma": {"allocateStrategy": "RequestsAsCount", "exclusivePolicy": "DeviceLevel"}},
        ),
        ["rdma: 3 nic share 100"],
    ),
    Row(
        "koordinator-exclusive-nic",
        with_hint({K + "rdma": 3}, {"rdma": {"exclusivePolicy": "DeviceLevel"}}),
        ["rdma: 1 nic share 100"],
    ),
    Row(
        "koordinator-exclusive-pcie",
        with_hint({K + "rdma": 3}, {"rdma": {"exclusivePolicy": "PCIeLevel"}}),
        ["rdma: 1 nic share 100"],
        warned=("same PCIe root",),
    ),
    Row(
        "koordinator-exclusive-card",
        with_hint({K + "gpu": 50}, {"gpu": {"exclusivePolicy": "DeviceLevel"}}),
        ["gpu: 1 gpu cores 50", POD_SHARED + "memoryPercent=50 exclusive=True"],
    ),
    Row(
        "koordinator-scope-pcie",
        with_hint({N + "gpu": 2}, {"gpu": {"requiredTopologyScope": "PCIe"}}),
        ["gpu: 2 gpu cores 100", "gpu: JointAllocation scope=PCIeRoot enforcement=Required pairing=Together"],
    ),
    Row(
        "koordinator-scope-numa",
        with_hint({N + "gpu": 4}, {"gpu": {"requiredTopologyScope": "NUMANode"}}),
        ["gpu: 4 gpu cores 100", "gpu: JointAllocation scope=NUMANode enforcement=Required pairing=Together"],
    ),
    Row(
        "koordinator-scope-node",
        with_hint({N + "gpu": 4}, {"gpu": {"requiredTopologyScope": "Node"}}),
        ["gpu: 4 gpu cores 100"],
    ),
    Row(
        "koordinator-scope-device",
        with_hint({N + "gpu": 1}, {"gpu": {"requiredTopologyScope": "Device"}}),
        ["gpu: 1 gpu cores 100"],
    ),
    Row(
        "koordinator-partition",
        asking({N + "gpu": 2}, annotations={PARTITION: '{"allocatePolicy": "Restricted"}'}),
        ["gpu: 2 gpu cores 100", POD_SHARED + "partition=Honor"],
    ),
    Row(
        "koordinator-partition-bandwidth",
        asking({N + "gpu": 2}, annotations={PARTITION: '{"ringBusBandwidth": "200Gi"}'}),
        ["gpu: 2 gpu cores 100", POD_SHARED + "partition=Honor"],
        warned=("ringBusBandwidth 200Gi",),
    ),
    Row(
        "koordinator-results",
        asking(
            {K + "gpu": 50},
            annotations={"scheduling.koordinator.sh/device-allocated": "{}"},
            schedulerName="koord-scheduler",
        ),
        ["gpu: 1 gpu cores 50", POD_SHARED + "memoryPercent=50"],
        warned=("device-allocated]: is taken out", "koord-scheduler stays"),
    ),
    Row(
        "koordinator-numa-single",
        asking(
            {N + "gpu": 2, K + "rdma": 100}, annotations={NUMA: '{"numaTopologyPolicy": "SingleNUMANode"}'}
        ),
        [
            "gpu: 2 gpu cores 100",
            "rdma: 1 nic share 100",
            "gpu: GpuConfig numaAffinity=True",
            "gpu rdma: JointAllocation scope=NUMANode enforcement=Required pairing=Together",
        ],
    ),
    Row(
        "koordinator-numa-one-card",
        asking({K + "gpu": 50}, annotations={NUMA: '{"numaTopologyPolicy": "BestEffort"}'}),
        ["gpu: 1 gpu cores 50", "gpu: GpuConfig memoryPercent=50 numaAffinity=True"],
    ),
    Row(
        "koordinator-numa-restricted",
        asking(
            {N + "gpu": 2},
            annotations={NUMA: '{"numaTopologyPolicy": "Restricted", "singleNUMANodeExclusive": "Required"}'},
        ),
        [
            "gpu: 2 gpu cores 100",
            "gpu: GpuConfig numaAffinity=True",
            "gpu: JointAllocation scope=NUMANode enforcement=Preferred pairing=Together",
        ],
        Settings(default_dialect="koordinator"),
        warned=("singleNUMANodeExclusive: is not kept", "Restricted is preferred here"),
    ),
    Row(
        "koordinator-numa-none",
        asking({K + "gpu": 50}, annotations={NUMA: '{"numaTopologyPolicy": "None"}'}),
        ["gpu: 1 gpu cores 50", "gpu: GpuConfig memoryPercent=50"],
    ),
]

VOLCANO = [
    Row(
        "volcano-all",
        asking({V + "vgpu-number": 2, V + "vgpu-memory": 3000, V + "vgpu-cores": 50}),
        ["a: 2 gpu memory 3000Mi cores 50", DISTINCT, KEEP],
        warned=(f"spec.containers[0]: {V}vgpu-cores: {COUNTED} (isolation: {{volcano-vgpu: hami-core}}",),
    ),
    Row(
        "volcano-cores-that-were-no-limit",
        asking({V + "vgpu-number": 1, V + "vgpu-memory": 3000, V + "vgpu-cores": 50}),
        ["a: 1 gpu memory 3000Mi cores 50", KEEP],
        Settings(options={"volcano-vgpu": {"vgpu": VgpuSettings(core_limit=False)}}),
    ),
    Row(
        "volcano-mode",
        asking({V + "vgpu-memory": 100}, annotations={V + "vgpu-mode": "hami-core"}),
        ["a: 1 gpu memory 100Mi", KEEP],
        warned=(IN_PLACE,),
    ),
    Row("volcano-number", asking({V + "vgpu-number": 1}), ["a: 1 gpu"]),
    Row("volcano-memory", asking({V + "vgpu-memory": 1024}), ["a: 1 gpu memory 1Gi", KEEP]),
    Row(
        "volcano-percent-wins",
        asking({V + "vgpu-number": 1, V + "vgpu-memory": 1024, V + "vgpu-memory-percentage": 40}),
        ["a: 1 gpu", KEEP + " memoryPercent=40"],
        warned=("wins in Volcano",),
    ),
    Row(
        "volcano-percent-100", asking({V + "vgpu-number": 1, V + "vgpu-memory-percentage": 100}), ["a: 1 gpu"]
    ),
    Row(
        "volcano-cores-100",
        asking({V + "vgpu-memory": 1024, V + "vgpu-cores": 100}),
        ["a: 1 gpu memory 1Gi cores 100", KEEP + " exclusive=True"],
    ),
    Row(
        "volcano-factor",
        asking({V + "vgpu-memory": 3}),
        ["a: 1 gpu memory 30Mi", KEEP],
        Settings(options={"volcano-vgpu": {"vgpu": VgpuSettings(memory_factor=10)}}),
    ),
    Row(
        "volcano-uuids",
        asking(
            {V + "vgpu-memory": 1},
            annotations={V + "vgpu-use-gpuuuid": "GPU-1,", V + "vgpu-nouse-gpuuuid": "GPU-2"},
        ),
        [
            f'a: 1 gpu memory 1Mi if "uuid" in {UUID} && {UUID}.uuid in ["GPU-1"] if !("uuid" in {UUID}) || !({UUID}.uuid in ["GPU-2"])',
            KEEP,
        ],
    ),
    Row(
        "volcano-types",
        asking({V + "vgpu-memory": 1}, annotations={N + "use-gputype": "A100", N + "nouse-gputype": "SXM"}),
        [f'a: 1 gpu memory 1Mi if {TOLD} && ({NAME}.contains("a100"))', KEEP],
        warned=("does not look at it",),
    ),
    Row(
        "volcano-mode-mig",
        asking({V + "vgpu-memory": 8000, V + "vgpu-number": 2}, annotations={V + "vgpu-mode": "mig"}),
        ["a: 2 mig memory 8000Mi"],
    ),
    Row(
        "volcano-mode-mps",
        asking({V + "vgpu-memory": 8000}, annotations={V + "vgpu-mode": "mps"}),
        ["a: 1 gpu memory 8000Mi", "a: GpuConfig isolation=mps"],
    ),
    Row(
        "volcano-group",
        asking(
            {V + "vgpu-memory": 8000},
            annotations={V + "vgpu-podgroup-policy": "spread"},
            schedulerName="volcano",
        ),
        ["a: 1 gpu memory 8000Mi", KEEP, "PlacementPolicy device=Spread"],
        warned=("it is not demanded", VOLCANO_STAYS),
    ),
    Row("volcano-old-memory", asking({V + "gpu-memory": 1024}), ["a: 1 gpu memory 1Gi"]),
    Row(
        "volcano-old-memory-of-two",
        pod(container("a", ask={V + "gpu-memory": 1024}), container("b", ask={V + "gpu-memory": 512})),
        ["a: 1 gpu memory 1Gi", "b: 1 gpu memory 512Mi", "match koordra.io/uuid: a b"],
    ),
    Row(
        "volcano-old-factor",
        asking({V + "gpu-memory": 5}),
        ["a: 1 gpu memory 50Mi"],
        Settings(options={"volcanoGpu": {"gpuMemoryFactor": 10}}),
    ),
    Row("volcano-old-number", asking({V + "gpu-number": 2}), ["a: 2 gpu"]),
]

OTHERS = [
    Row(
        "alnair",
        asking({"alnair/vgpu-memory": 8, "alnair/vgpu-compute": 50}),
        ["a: 1 gpu memory 8Gi cores 50", KEEP],
        warned=(f"alnair/vgpu-compute: {COUNTED}",),
    ),
    Row(
        "alnair-compute-100",
        asking({"alnair/vgpu-memory": 8, "alnair/vgpu-compute": 100}),
        ["a: 1 gpu memory 8Gi", KEEP],
    ),
    Row(
        "alnair-compute-alone",
        asking({"alnair/vgpu-compute": 30}),
        ["a: 1 gpu cores 30", KEEP],
        warned=(
            f"alnair/vgpu-compute: {COUNTED}",
            "comes without memory",
        ),
    ),
    Row(
        "alnair-saving",
        asking({"alnair/vgpu-memory": 6}, schedulerName="alnair-cost-saving"),
        ["a: 1 gpu memory 6Gi", KEEP, "PlacementPolicy node=Binpack"],
        warned=("alnair-cost-saving is taken out",),
    ),
    Row(
        "alnair-fast",
        asking({"alnair/vgpu-memory": 6}, schedulerName="alnair-high-performance"),
        ["a: 1 gpu memory 6Gi", KEEP, "PlacementPolicy node=Spread"],
        warned=("alnair-high-performance is taken out",),
    ),
    Row(
        "alnair-other",
        asking(
            {"alnair/vgpu-memory": 6},
            annotations={"ai.centaurus.io/alnair-gpu-id": "1", "ai.centaurus.io/note": "x"},
        ),
        ["a: 1 gpu memory 6Gi", KEEP],
        warned=("ai.centaurus.io/note]: is no name", "alnair-gpu-id]: is taken out"),
    ),
    Row(
        "elastic",
        asking({"elasticgpu.io/gpu-core": 30, "elasticgpu.io/gpu-memory": 256}),
        ["a: 1 gpu memory 256Mi cores 30"],
    ),
    Row("elastic-memory", asking({"elasticgpu.io/gpu-memory": 256}), ["a: 1 gpu memory 256Mi"]),
    Row(
        "elastic-core",
        asking({"elasticgpu.io/gpu-core": 30}),
        ["a: 1 gpu memory 1Mi cores 30", "a: GpuConfig isolation=none"],
        warned=("the least there is, 1Mi",),
    ),
    Row("elastic-whole", asking({"elasticgpu.io/gpu-core": 200}), ["a: 2 gpu cores 100"]),
    Row(
        "elastic-whole-and-rest",
        asking({"elasticgpu.io/gpu-core": 250, "elasticgpu.io/gpu-memory": 5}),
        ["a: 2 gpu cores 100"],
        warned=("a whole card comes with all its memory", "250 is 2 whole cards"),
    ),
    Row(
        "elastic-com",
        asking({"elasticgpu.com/gpu-core": 10, "elasticgpu.com/gpu-memory": 100}),
        ["a: 1 gpu memory 100Mi cores 10"],
    ),
    Row(
        "elastic-unit",
        asking({"elasticgpu.io/gpu-memory": 4}),
        ["a: 1 gpu memory 4Gi"],
        Settings(options={"elastic": {"memoryUnit": 1 << 30}}),
    ),
    Row(
        "qgpu",
        asking({"tke.cloud.tencent.com/qgpu-core": 10, "tke.cloud.tencent.com/qgpu-memory": 5}),
        ["a: 1 gpu memory 5Gi cores 10"],
        warned=("qgpu-core: compute is counted, not limited, by what most nodes keep shares by",),
    ),
    Row(
        "qgpu-greedy",
        asking({"tke.cloud.tencent.com/qgpu-core-greedy": 10, "tke.cloud.tencent.com/qgpu-memory": 5}),
        ["a: 1 gpu memory 5Gi cores 10", "a: GpuConfig coresPolicy=Elastic"],
        warned=("coresPolicy has no effect",),
    ),
    Row(
        "elastic-tflops",
        asking({"elasticgpu.io/gpu-tflops": 20, "elasticgpu.io/gpu-memory": 256}),
        ["a: 1 gpu memory 256Mi", "a: GpuConfig tflops=20 tflopsPrecision=FP32"],
    ),
    Row(
        "elastic-tflops-alone",
        asking({"elasticgpu.com/gpu-tflops": 20}),
        ["a: 1 gpu memory 1Mi", "a: GpuConfig isolation=none tflops=20 tflopsPrecision=FP16"],
        Settings(options={"elastic": {"tflopsPrecision": Precision.FP16}}),
        warned=("comes without memory",),
    ),
    Row(
        "elastic-results",
        asking(
            {"elasticgpu.io/gpu-memory": 1},
            annotations={"elasticgpu.io/container-a": "0"},
            labels={"elasticgpu.io/assumed": "true"},
        ),
        ["a: 1 gpu memory 1Mi", "a: GpuConfig isolation=none"],
        warned=("container-a]: is taken out", "labels[elasticgpu.io/assumed]: is written by"),
    ),
    Row("aliyun", asking({"aliyun.com/gpu-mem": 3}), ["a: 1 gpu memory 3Gi"]),
    Row(
        "aliyun-unit",
        asking({"aliyun.com/gpu-mem": 3000}),
        ["a: 1 gpu memory 3000Mi"],
        Settings(options={"aliyun": {"memoryUnit": 1 << 20}}),
    ),
    Row(
        "aliyun-isolated",
        asking({"aliyun.com/gpu-mem": 3}),
        ["a: 1 gpu memory 3Gi", KEEP],
        Settings(isolation=MappingProxyType({"aliyun": "limiter"})),
    ),
    Row(
        "aliyun-large",
        asking({"aliyun.com/gpu-mem": 16276}),
        ["a: 1 gpu memory 16276Gi"],
        warned=("is the unit MiB?",),
    ),
    Row(
        "aliyun-two",
        pod(container("a", ask={"aliyun.com/gpu-mem": 2}), container("b", ask={"aliyun.com/gpu-mem": 1})),
        ["a: 1 gpu memory 2Gi", "b: 1 gpu memory 1Gi", "match koordra.io/uuid: a b"],
    ),
    Row(
        "nics-beside-gpus",
        asking({N + "gpu": 2, "rdma/hca_shared_devices_a": 1, "rdma/hca_shared_devices_b": 1}),
        [
            "a: 2 gpu",
            "rdma: 2 nic share 1",
            "distinct resource.kubernetes.io/pciBusID: rdma",
            "a rdma: JointAllocation scope=PCIeRoot enforcement=Preferred pairing=PerDevice",
        ],
        warned=("devices_a]: takes any NIC", "devices_b]: takes any NIC"),
    ),
    Row(
        "nics-alone",
        asking({N + "mlnxnics": 1}),
        ["rdma: 1 nic share 1"],
        warned=("mlnxnics]: takes any NIC",),
    ),
    Row(
        "nics-of-hami",
        asking({N + "gpumem": 100, "rdma/rdma_shared_device_eth": 1}),
        [
            "a: 1 gpu memory 100Mi",
            "rdma: 1 nic share 1",
            KEEP,
            "a rdma: JointAllocation scope=PCIeRoot enforcement=Preferred pairing=PerDevice",
        ],
        warned=("takes any NIC",),
    ),
    Row(
        "vfs-by-the-settings",
        asking({N + "gpu": 4, "openshift.io/vfs": 2}),
        [
            "a: 4 gpu",
            f'rdma: 2 vf if "netdev" in {UUID} && {UUID}.netdev in ["ens1f0", "ens1f1"]',
            "distinct koordra.io/parent: rdma",
            "a rdma: JointAllocation scope=PCIeRoot enforcement=Required pairing=PerGroup",
        ],
        Settings(
            nics={"openshift.io/vfs": NicName(virtual=True, interfaces=("ens1f0", "ens1f1"), required=True)}
        ),
    ),
    Row(
        "nics-of-init-containers",
        pod(
            container("a", ask={"rdma/a": 1}),
            container("b", ask={"rdma/a": 1}),
            init=(container("i", ask={"rdma/a": 3}),),
        ),
        [
            f'rdma: 3 nic share 10 if "netdev" in {UUID} && {UUID}.netdev in ["x", "y", "z"]',
            "distinct resource.kubernetes.io/pciBusID: rdma",
        ],
        Settings(nics={"rdma/a": NicName(virtual=False, share=10, interfaces=("x", "y", "z"))}),
    ),
    Row(
        "ack-two-cards",
        asking({"aliyun.com/gpu-mem": 8}, labels={"aliyun.com/gpu-count": "2"}),
        ["a: 2 gpu memory 4Gi", DISTINCT],
    ),
    Row(
        "ack-cores",
        asking({"aliyun.com/gpu-mem": 8, "aliyun.com/gpu-core.percentage": 30}),
        ["a: 1 gpu memory 8Gi cores 30"],
        warned=("percentage: compute is counted, not limited, by what most nodes keep shares by",),
    ),
    Row(
        "aliyun-results",
        asking(
            {"aliyun.com/gpu-mem": 1}, annotations={"ALIYUN_COM_GPU_MEM_IDX": "0", "aliyun.com/gpu-note": "x"}
        ),
        ["a: 1 gpu memory 1Gi"],
        warned=("aliyun.com/gpu-note]: is no name", "ALIYUN_COM_GPU_MEM_IDX]: is taken out"),
    ),
    Row(
        "tke",
        asking({"tencent.com/vcuda-core": 50, "tencent.com/vcuda-memory": 30}),
        ["a: 1 gpu memory 7680Mi cores 50", KEEP],
        warned=(f"vcuda-core: {COUNTED}",),
    ),
    Row(
        "tke-whole",
        asking({"tencent.com/vcuda-core": 200, "tencent.com/vcuda-memory": 60}),
        ["a: 2 gpu cores 100"],
        warned=("a whole card comes with all its memory",),
    ),
    Row(
        "tke-limit",
        asking(
            {"tencent.com/vcuda-core": 30, "tencent.com/vcuda-memory": 4},
            annotations={"tencent.com/vcuda-core-limit": "50"},
        ),
        ["a: 1 gpu memory 1Gi cores 30", KEEP + " coresPolicy=Elastic"],
        warned=("coresPolicy has no effect", "also beyond 50%"),
    ),
    Row(
        "tke-limit-same",
        asking(
            {"tencent.com/vcuda-core": 50, "tencent.com/vcuda-memory": 4},
            annotations={"tencent.com/vcuda-core-limit": "50"},
        ),
        ["a: 1 gpu memory 1Gi cores 50", KEEP],
        warned=(
            f"vcuda-core: {COUNTED}",
            "vcuda-core-limit]: `GpuConfig.coresPolicy",
        ),
    ),
]

ROWS = [*PLAIN, *HAMI, *KOORDINATOR, *VOLCANO, *OTHERS]

# A pod that is refused, and a part of what it is told.
REFUSED: list[tuple[str, Dict, str, Settings]] = [
    ("replicas-unknown", asking({N + "gpu.shared": 1}), "plain: {replicas: 4}", Settings()),
    ("mig-compute-instance", asking({N + "mig-1c.2g.10gb": 1}), "no MIG profile", Settings()),
    ("a-part-of-a-card", asking({N + "gpu": "500m"}), "not a whole number", Settings()),
    ("a-negative-number", asking({N + "gpu": -1}), "is negative", Settings()),
    ("no-quantity", asking({N + "gpu": "two"}), "not a quantity", Settings()),
    (
        "hami-percent",
        asking({N + "gpu": 1, N + "gpumem-percentage": 101}),
        "101 is no percentage",
        Settings(),
    ),
    (
        "hami-memory-large",
        asking({N + "gpu": 1, N + "gpumem": "3Gi"}),
        "more MiB than HAMi can hold",
        Settings(),
    ),
    (
        "hami-memory-factor",
        asking({N + "gpu": 1, N + "gpumem": 3000000}),
        "more MiB than HAMi can hold",
        hami(memory_factor=1024),
    ),
    ("hami-priority", asking({N + "gpumem": 1, N + "priority": 2}), "0 (high) or 1 (low)", Settings()),
    (
        "hami-requests-only",
        pod(container(ask={N + "gpumem": 10}, sides=("requests",))),
        "which HAMi does not read",
        Settings(),
    ),
    ("hami-no-default", asking({N + "gpumem": 10}), "defaultGPUNum is 0", hami(default_count=0)),
    ("hami-scaling", asking({N + "gpumem": 10}), "deviceMemoryScaling: 1.5", hami(memory_scaling=1.5)),
    (
        "hami-mode",
        asking({N + "gpumem": 10}, annotations={N + "vgpu-mode": "cuda"}),
        "is the mode of no node",
        Settings(),
    ),
    (
        "hami-several-by-mps",
        asking({N + "gpu": 2, N + "gpumem": 10}, annotations={N + "vgpu-mode": "mps"}),
        "asks for 2 cards by isolation mps, and a process is the client of one MPS daemon",
        Settings(),
    ),
    (
        "volcano-several-by-mps",
        asking({V + "vgpu-number": 2, V + "vgpu-memory": 10}, annotations={V + "vgpu-mode": "mps"}),
        "asks for 2 cards by isolation mps, and a process is the client of one MPS daemon",
        Settings(),
    ),
    (
        "hami-mig-percent",
        asking({N + "gpumem-percentage": 10}, annotations={N + "vgpu-mode": "mig"}),
        "an instance cannot be chosen by 10% of memory",
        Settings(),
    ),
    (
        "hami-weights",
        asking({N + "gpumem": 10}, annotations={"hami.io/device-scoring-weights": "slot=1"}),
        "would keep HAMi from placing",
        Settings(),
    ),
    (
        "hami-weights-zero",
        asking({N + "gpumem": 10}, annotations={"hami.io/device-scoring-weights": "slot=0,core=0,memory=0"}),
        "would keep HAMi from placing",
        Settings(),
    ),
    (
        "hami-list",
        asking({N + "gpumem": 10}, annotations={N + "use-gputype": ","}),
        "names nothing",
        Settings(),
    ),
    ("hami-too-many", asking({N + "gpu": 33, N + "gpumem": 10}), "a claim holds 32", Settings()),
    (
        "koordinator-core",
        asking({K + "gpu-core": 50}),
        "koordinator.sh/gpu-core alone is turned down",
        Settings(),
    ),
    ("koordinator-101", asking({K + "gpu": 150}), "cannot be split over 1 card", Settings()),
    (
        "koordinator-shared",
        asking({K + "gpu.shared": 3, K + "gpu-memory-ratio": 100}),
        "cannot be split over 3 cards",
        Settings(),
    ),
    (
        "koordinator-shared-0",
        asking({K + "gpu.shared": 0, K + "gpu-memory-ratio": 100}),
        "0 cards cannot be shared",
        Settings(),
    ),
    (
        "koordinator-shared-gpu",
        asking({K + "gpu.shared": 1, K + "gpu": 100}),
        "stands beside koordinator.sh/gpu",
        Settings(),
    ),
    (
        "koordinator-two-memories",
        asking({K + "gpu-memory": "1Gi", K + "gpu-memory-ratio": 100}),
        "do not stand together",
        Settings(),
    ),
    ("koordinator-rdma", asking({K + "rdma": 150}), "no multiple", Settings()),
    ("koordinator-fpga", asking({K + "fpga": 50}), "koordra serves GPUs and NICs", Settings()),
    ("koordinator-json", asking({K + "gpu": 50}, annotations={HINT: "{"}), "is not JSON", Settings()),
    (
        "koordinator-hint-field",
        with_hint({K + "rdma": 1}, {"rdma": {"strategy": "x"}}),
        "is no field that Koordinator reads",
        Settings(),
    ),
    ("koordinator-hint-type", with_hint({K + "rdma": 1}, {"nic": {}}), "is no type of device", Settings()),
    (
        "koordinator-hint-word",
        with_hint({K + "rdma": 1}, {"rdma": {"allocateStrategy": "Some"}}),
        "none that Koordinator has",
        Settings(),
    ),
    (
        "koordinator-all-vf",
        with_hint({K + "rdma": 1}, {"rdma": {"allocateStrategy": "ApplyForAll", "vfSelector": {}}}),
        "which a claim cannot say",
        Settings(),
    ),
    (
        "koordinator-card-vf",
        with_hint({K + "gpu": 50}, {"gpu": {"vfSelector": {}}}),
        "GPUs have no virtual functions",
        Settings(),
    ),
    *(
        (
            f"koordinator-selector-{number}",
            with_hint({K + "rdma": 1}, {"rdma": {"selector": selector}}),
            told,
            Settings(),
        )
        for number, (selector, told) in enumerate(
            (
                ("type=w", "device-allocate-hint].rdma.selector: is not an object"),
                (
                    {"labels": {}},
                    "rdma.selector.labels: is no field of a label selector; fields are matchLabels",
                ),
                ({"matchLabels": ["w"]}, "rdma.selector.matchLabels: is not an object"),
                ({"matchExpressions": {"key": "type"}}, "rdma.selector.matchExpressions: is not a list"),
                ({"matchExpressions": ["type"]}, "rdma.selector.matchExpressions[0]: is not an object"),
                ({"matchExpressions": [{"key": "type"}]}, "matchExpressions[0].operator: '' is no operator"),
                (
                    {"matchExpressions": [{"key": "type", "operator": "Like", "values": ["w"]}]},
                    "'Like' is no operator of a label selector; operators are In, NotIn, Exists, DoesNotExist",
                ),
                ({"matchExpressions": [{"key": "type", "operator": "In"}]}, "[0].values: In wants values"),
                (
                    {"matchExpressions": [{"key": "type", "operator": "Exists", "values": ["w"]}]},
                    "[0].values: Exists wants no values",
                ),
                ({"matchExpressions": [{"operator": "Exists"}]}, "matchExpressions[0].key: is missing"),
            )
        )
    ),
    (
        "koordinator-device",
        with_hint({N + "gpu": 2}, {"gpu": {"requiredTopologyScope": "Device"}}),
        "2 cards are not one device",
        Settings(),
    ),
    (
        "koordinator-scope",
        asking(
            {N + "gpu": 1, K + "rdma": 1},
            annotations={JOINT: '{"deviceTypes": ["gpu"], "requiredScope": "SameNUMA"}'},
        ),
        "none that Koordinator has",
        Settings(),
    ),
    (
        "koordinator-provider",
        asking({K + "gpu": 50}, labels={K + "gpu-isolation-provider": "magic"}),
        "is no provider",
        Settings(),
    ),
    (
        "koordinator-bandwidth",
        asking({N + "gpu": 1}, annotations={PARTITION: '{"ringBusBandwidth": "much"}'}),
        "ringBusBandwidth",
        Settings(),
    ),
    ("volcano-cores-alone", asking({V + "vgpu-cores": 10}), "gives nothing then", Settings()),
    ("volcano-percent-alone", asking({V + "vgpu-memory-percentage": 10}), "gives nothing then", Settings()),
    (
        "volcano-percent-0",
        asking({V + "vgpu-number": 1, V + "vgpu-memory-percentage": 0}),
        "no part of a card",
        Settings(),
    ),
    (
        "volcano-cores-over",
        asking({V + "vgpu-number": 1, V + "vgpu-cores": 101}),
        "fits on no card",
        Settings(),
    ),
    (
        "volcano-requests",
        pod(container(ask={V + "vgpu-number": 1}, sides=("requests",))),
        "in limits",
        Settings(),
    ),
    (
        "volcano-scaling",
        asking({V + "vgpu-number": 1}),
        "deviceMemoryScaling",
        Settings(options={"volcano-vgpu": {"vgpu": VgpuSettings(memory_scaling=2.0)}}),
    ),
    (
        "volcano-both",
        pod(container("a", ask={V + "gpu-memory": 1}), container("b", ask={V + "gpu-number": 1})),
        "a node offers one of the two",
        Settings(),
    ),
    (
        "nics-two-kinds",
        asking({"rdma/a": 1, "openshift.io/vfs": 1}),
        "is another kind of NIC",
        Settings(nics={"rdma/a": NicName(virtual=False), "openshift.io/vfs": NicName(virtual=True)}),
    ),
    (
        "nics-beside-koordinators",
        asking({K + "rdma": 1, "rdma/a": 1}),
        "stands beside NICs of koordinator",
        Settings(),
    ),
    (
        "nics-of-interfaces",
        asking({"rdma/a": 1, "rdma/b": 1}),
        "other names are on different interfaces",
        Settings(
            nics={
                "rdma/a": NicName(virtual=False, interfaces=("x", "y")),
                "rdma/b": NicName(virtual=False, interfaces=("z",)),
            }
        ),
    ),
    (
        "ack-seven-by-two",
        asking({"aliyun.com/gpu-mem": 7}, labels={"aliyun.com/gpu-count": "2"}),
        "7 is not divisible by 2 cards",
        Settings(),
    ),
    (
        "ack-no-number",
        asking({"aliyun.com/gpu-mem": 7}, labels={"aliyun.com/gpu-count": "two"}),
        "is no number of cards",
        Settings(),
    ),
    (
        "ack-two-containers",
        pod(
            container("a", ask={"aliyun.com/gpu-mem": 2}),
            container("b", ask={"aliyun.com/gpu-mem": 2}),
            labels={"aliyun.com/gpu-count": "2"},
        ),
        "splits one container over cards, and a and b ask",
        Settings(),
    ),
    ("ack-cores-alone", asking({"aliyun.com/gpu-core.percentage": 7}), "comes without memory", Settings()),
    (
        "ack-more-cores",
        asking({"aliyun.com/gpu-mem": 7, "aliyun.com/gpu-core.percentage": 101}),
        "101 is more than 1 cards have",
        Settings(),
    ),
    ("mig-replica", asking({N + "mig-1g.5gb.shared": 1}), "a replica of an instance", Settings()),
    (
        "koordinator-old-name",
        asking({"kubernetes.io/gpu-memory": 1}),
        "write koordinator.sh/gpu-memory",
        Settings(),
    ),
    (
        "koordinator-numa-word",
        asking({K + "gpu": 50}, annotations={NUMA: '{"numaTopologyPolicy": "Best"}'}),
        "none that Koordinator has",
        Settings(),
    ),
    (
        "koordinator-reservation",
        asking({K + "gpu": 50}, annotations={"scheduling.koordinator.sh/reservation-affinity": "{}"}),
        "are in no Reservation of Koordinator",
        Settings(),
    ),
    ("aliyun-count", asking({"aliyun.com/gpu-count": 1}), "cannot be asked for", Settings()),
    (
        "aliyun-requests",
        pod(container(ask={"aliyun.com/gpu-mem": 1}, sides=("requests",))),
        "does not read",
        Settings(),
    ),
    (
        "elastic-readme",
        asking({"gpushare.provisioner.elasticgpu.io/gpu-core": 10}),
        "is a name for ElasticGPUClaims",
        Settings(),
    ),
    (
        "elastic-readme-memory",
        asking({"gpushare.provisioner.elasticgpu.io/gpu-memory": 10}),
        "is a name for ElasticGPUClaims",
        Settings(),
    ),
    (
        "elastic-tflops-and-cores",
        asking({"elasticgpu.io/gpu-tflops": 20, "elasticgpu.io/gpu-core": 20}),
        "gpu-tflops]: stands beside elasticgpu.io/gpu-core; use one of the two",
        Settings(),
    ),
    (
        "elastic-claim",
        pod(container(), annotations={"egpuc.elasticgpu.io/a": "c1"}),
        "ElasticGPUClaim",
        Settings(),
    ),
    (
        "elastic-families",
        asking({"elasticgpu.io/gpu-core": 10, "elasticgpu.com/gpu-core": 10}),
        "use one family of names",
        Settings(),
    ),
    (
        "qgpu-both",
        asking({"tke.cloud.tencent.com/qgpu-core": 1, "tke.cloud.tencent.com/qgpu-core-greedy": 1}),
        "use one of the two",
        Settings(),
    ),
    ("tke-memory-alone", asking({"tencent.com/vcuda-memory": 4}), "comes without compute", Settings()),
    ("tke-core-alone", asking({"tencent.com/vcuda-core": 4}), "comes without memory", Settings()),
    (
        "tke-150",
        asking({"tencent.com/vcuda-core": 150, "tencent.com/vcuda-memory": 4}),
        "neither below 100 nor a multiple",
        Settings(),
    ),
    (
        "tke-limit",
        asking(
            {"tencent.com/vcuda-core": 50, "tencent.com/vcuda-memory": 4},
            annotations={"tencent.com/vcuda-core-limit": "much"},
        ),
        "no percentage",
        Settings(),
    ),
    (
        "tke-limit-of-5000-digits",
        asking(
            {"tencent.com/vcuda-core": 50, "tencent.com/vcuda-memory": 4},
            annotations={"tencent.com/vcuda-core-limit": "9" * 5_000},
        ),
        "no percentage",
        Settings(),
    ),
    *(
        (f"vendor-{name}", asking({name: 1}), "another vendor", Settings())
        for name in (
            "cambricon.com/vmlu",
            "cambricon.com/mlu.smlu.vmemory",
            "hygon.com/dcunum",
            "hygon.com/dcumem",
            "hygon.com/dcucores",
            "huawei.com/Ascend910A",
            "huawei.com/Ascend310P-memory",
            "metax-tech.com/gpu",
            "metax-tech.com/sgpu",
            "metax-tech.com/vcore",
            "metax-tech.com/vmemory",
            "mthreads.com/vgpu",
            "mthreads.com/sgpu-memory",
            "mthreads.com/sgpu-core",
            "iluvatar.ai/MR-V100-vgpu",
            "iluvatar.ai/BI-V150.vCore",
            "iluvatar.ai/BI-V150.vMem",
            "kunlunxin.com/xpu",
            "kunlunxin.com/vxpu",
            "kunlunxin.com/vxpu-memory",
            "enflame.com/gcu",
            "enflame.com/gcu-core",
            "enflame.com/gcu-memory",
            "enflame.com/drs-gcu",
            "amd.com/gpu",
            "amd.com/gpucores",
            "amd.com/gpumem",
            "aws.amazon.com/neuron",
            "aws.amazon.com/neuroncore",
            "vastaitech.com/va",
            "birentech.com/gpu",
            "dcu.com/gpu",
            "huawei.com/npu-core",
            "huawei.com/npu-cpu",
            "huawei.com/npu-dvpp",
        )
    ),
]
