"""Nodes weighed by the operator (`--scoring-strategy`): what it does to a cluster, and what it costs.

300 nodes of eight Hopper GPUs, 192 cores and 2 TiB get shares of 4 to 40 GiB, each with a pod of 1 to 16
cores, one after the other through an engine that lives on, as the controller's does. The same claims are
placed without weights, by the default and by `--policy Spread`, and packed and spread by weights, in turns of
a batch each, in one process: the ratio of the processor's time to the one without weights is what weighing
costs. Who spreads asks a node that has changed every time, with or without weights. Where they end up: nodes
in use, and how unevenly their GPU memory and cores are given out (standard deviation over the nodes, in
percent of a node).
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from statistics import pstdev
from typing import Any, Final

from benchmarks._results import table, write
from benchmarks.scale_dra import cluster_of
from koordra.allocator.offer import Offer
from koordra.allocator.request.classes import shipped_classes
from koordra.api import objects
from koordra.api.claims import ResourceClaim
from koordra.placement import engine_for
from koordra.placement.candidates.node_scoring import written_strategy
from koordra.placement.decide import Engine
from koordra.placement.index import CLASS, NODE, SLICE, ClusterChange
from koordra.placement.request.claim_groups import ClaimGroup

Object = dict[str, Any]
NODES: Final = 300
CLAIMS: Final = 1800
BATCH: Final = 100
WEIGHTS: Final = "koordra.io/gpu-memory=3,cpu=1,memory=1"
WAYS: Final = {
    "default": ("koordra", ""),
    "packed by weights": ("koordra", f"MostAllocated:{WEIGHTS}"),
    "policy Spread": ("Spread", ""),
    "spread by weights": ("koordra", f"LeastAllocated:{WEIGHTS}"),
}
_WITHOUT: Final = {
    "default": "default",
    "packed by weights": "default",
    "policy Spread": "policy Spread",
    "spread by weights": "policy Spread",
}
CORES: Final = 192
CARD: Final = 80
"""GiB, of which each node has eight."""


@dataclass(slots=True)
class _Cluster:
    engine: Engine
    seconds: float = 0.0
    memory: dict[str, int] = field(default_factory=dict)
    cores: dict[str, int] = field(default_factory=dict)

    def place(self, number: int, memory: int, cores: int) -> None:
        manifest, pod = _claim(f"c{number}", memory), _pod(f"c{number}", cores)
        group = ClaimGroup((ResourceClaim.from_dict(manifest),), (pod,))
        began = time.thread_time()
        found = self.engine.decide(group)
        assert isinstance(found, Offer)
        (allocation,) = found.allocations(pin_to_node=True)
        self.engine.index.assume(manifest, allocation, key=objects.key(manifest), node=found.node, pods=[pod])
        self.seconds += time.thread_time() - began
        self.memory[found.node] = self.memory.get(found.node, 0) + memory
        self.cores[found.node] = self.cores.get(found.node, 0) + cores


def main() -> None:
    slices, nodes = cluster_of(NODES)
    clusters = {name: _Cluster(_engine(*way, slices, nodes)) for name, way in WAYS.items()}
    chance = random.Random(1)
    asked = [(chance.choice((4, 8, 10, 20, 40)), chance.randint(1, 16)) for _ in range(CLAIMS)]
    for start in range(0, CLAIMS, BATCH):
        for cluster in clusters.values():
            for number in range(start, start + BATCH):
                cluster.place(number, *asked[number])
    found = {
        name: {
            "nodes": len(one.memory),
            "memory_deviation": round(_deviation(one.memory, 8 * CARD), 1),
            "cores_deviation": round(_deviation(one.cores, CORES), 1),
            "ms_per_claim": round(1000 * one.seconds / CLAIMS, 2),
            "ratio": round(one.seconds / clusters[_WITHOUT[name]].seconds, 2),
        }
        for name, one in clusters.items()
    }
    header = (
        "",
        "nodes in use",
        "GPU memory, deviation",
        "cores, deviation",
        "ms a claim",
        "of the same without",
    )
    rows = [
        (
            name,
            one["nodes"],
            f"{one['memory_deviation']} %",
            f"{one['cores_deviation']} %",
            one["ms_per_claim"],
            one["ratio"],
        )
        for name, one in found.items()
    ]
    text = f"# Nodes weighed by the operator\n\n{(__doc__ or '').strip()}\n\nWeights: `{WEIGHTS}`.\n\n{table(header, rows)}"
    write("node-scoring", {"nodes": NODES, "claims": CLAIMS, "ways": found}, text)
    print(text)


def _engine(policy: str, text: str, slices: list[Object], nodes: list[Object]) -> Engine:
    engine = engine_for(policy=policy, scoring=written_strategy(text) if text else None)
    for kind, some in ((CLASS, shipped_classes()), (SLICE, slices), (NODE, nodes)):
        for one in some:
            engine.index.apply(ClusterChange(kind, objects.name(one), one))
    engine.settle()
    return engine


def _claim(name: str, memory: int) -> Object:
    exactly = {
        "deviceClassName": "gpu.koordra.io",
        "capacity": {"requests": {"memory": f"{memory}Gi", "cores": "5"}},
    }
    return {
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "d", "uid": name},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
    }


def _pod(name: str, cores: int) -> Object:
    requests = {"cpu": str(cores), "memory": f"{4 * cores}Gi"}
    return {
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "d", "uid": f"p-{name}"},
        "spec": {
            "containers": [{"name": "main", "resources": {"requests": requests}}],
            "resourceClaims": [{"name": "gpu", "resourceClaimName": name}],
        },
    }


def _deviation(of_node: dict[str, int], whole: int) -> float:
    return pstdev([100 * of_node.get(f"node-{number:05}", 0) / whole for number in range(NODES)])


if __name__ == "__main__":
    main()
