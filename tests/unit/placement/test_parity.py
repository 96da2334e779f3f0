"""One policy, two ways to it: `plan()` and the controller choose the same node and the same devices.

Claims come and go on a few nodes of one machine, or of two: shares, whole GPUs, several with NVLink between
them, pairs of GPU and NIC, NICs alone. Each goes its own way: `plan()` reads allocations from claims, the
controller follows changes. The table is a learned one, under which best fit would often choose otherwise.
"""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import pytest

from koordra.allocator.request.classes import shipped_classes
from koordra.controller.allocation.placer import Placer
from koordra.controller.cache.cluster_cache import ClusterCache
from koordra.kubelet_plugin.publish.resource_slices import build_slices
from koordra.placement import engine_for, plan
from koordra.placement.free_amounts.state import Request
from koordra.placement.policy.learned_order import Learned
from koordra.placement.policy.learned_order import Learned as Known
from koordra.placement.policy.workload import Workload, expected
from koordra.placement.policy.workload_table import LearnedTable
from tests.fakes.cluster import Cluster
from tests.fakes.groups import groups_of
from tests.long import mostly_long
from tests.machines import catalogue

Object = dict[str, Any]
LEARNED = Workload(
    [
        (Request(4000, 8192, 1, 700), 5000),
        (Request(2000, 8192, 1, 300), 900),
        (Request(8000, 65536, 1, 1000, (), 1, 50), 3000),
        (Request(16000, 65536, 2, 1000, (), 1, 100), 500),
        (Request(32000, 65536, 4, 1000), 600),
    ]
)


class Asked(NamedTuple):
    """`percent`: of a GPU, in tens; 100 is a whole one."""

    gpus: int
    percent: int = 100
    nics: int = 0
    share: int = 100
    cpu: int = 4


SHARES = [Asked(1, percent, cpu=cpu) for percent in (10, 20, 30, 40, 50, 70) for cpu in (1, 6)]
PAIRS = [Asked(1, percent, 1, share) for percent in (30, 50, 100) for share in (25, 50, 100)]
SEVERAL = [Asked(2), Asked(3), Asked(4), Asked(5, cpu=20), Asked(8, cpu=20)]
JOINT = [
    Asked(2, nics=1),
    Asked(2, nics=2, share=50),
    Asked(4, nics=2),
    Asked(4, nics=4, share=25),
    Asked(0, 100, 1, 50),
]


class Clusters:
    """The same cluster, twice."""

    def __init__(self, machines: list[str], table: LearnedTable) -> None:
        self.nodes: list[Object] = []
        self.slices: list[Object] = []
        for number, machine in enumerate(machines):
            self.nodes.append(self.node_of(number))
            self.slices += self.slices_of(number, machine)
        for entry in self.slices:
            entry["metadata"].setdefault("uid", entry["metadata"]["name"])
        self.classes = [*shipped_classes()]
        for entry in self.classes:
            entry["metadata"].setdefault("uid", entry["metadata"]["name"])
        self.kept = engine_for(learned=Known(table, {"": LEARNED}))
        self.cache = ClusterCache()
        self.placer = Placer(learned=Learned(table, {"": LEARNED}))
        self.claims: dict[str, Object] = {}
        self.pods: dict[str, Object] = {}
        self.placed: set[str] = set()

    def node_of(self, number: int) -> Object:
        name = f"node-{number}"
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "uid": name, "labels": {"kubernetes.io/hostname": name}},
            "status": {"allocatable": {"cpu": "96", "memory": "900Gi", "pods": "200"}},
        }

    def slices_of(self, number: int, machine: str) -> list[Object]:
        name = f"node-{number}"
        return build_slices(
            catalogue.machine(machine), node_name=name, node_uid=name, mode="joint", generation=1
        )

    def add(self, name: str, asked: Asked) -> None:
        requests, config = [], []
        if asked.percent < 100:
            parameters = {
                "apiVersion": "koordra.io/v1alpha1",
                "kind": "GpuConfig",
                "memoryPercent": asked.percent,
            }
            config = [{"requests": ["gpu"], "opaque": {"driver": "koordra.io", "parameters": parameters}}]
        if asked.gpus:
            gpu: Object = {"deviceClassName": "gpu.koordra.io", "count": asked.gpus}
            requests.append({"name": "gpu", "exactly": gpu})
        if asked.nics:
            nic: Object = {"deviceClassName": "nic.koordra.io", "count": asked.nics}
            if asked.share < 100:
                nic["capacity"] = {"requests": {"share": str(asked.share)}}
            requests.append({"name": "nic", "exactly": nic})
        self.ask(name, requests, config, cpu=asked.cpu)

    def ask(self, name: str, requests: list[Object], config: list[Object], *, cpu: int) -> None:
        """A claim with these requests, and its pod."""
        self.claims[name] = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": "d", "uid": f"c-{name}"},
            "spec": {"devices": {"requests": requests, "config": config}},
        }
        resources = {"requests": {"cpu": str(cpu), "memory": "1Gi"}}
        self.pods[name] = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "d", "uid": f"p-{name}"},
            "spec": {
                "containers": [{"name": "c", "resources": resources}],
                "resourceClaims": [{"name": "x", "resourceClaimName": name}],
            },
        }

    def by_plan(self, name: str) -> tuple[set[tuple[str, str]], Object | None]:
        held = [one for key, one in self.claims.items() if key != name]
        running = [one for key, one in self.pods.items() if key != name]
        shown = [
            *self.slices,
            *self.nodes,
            *self.classes,
            *held,
            *running,
            self.claims[name],
            self.pods[name],
        ]
        found = plan(shown, engine=self.kept, report_errors=True)
        allocation = found.allocations.get(f"d/{name}")
        return _devices(allocation), allocation

    def by_controller(self, name: str) -> set[tuple[str, str]]:
        cluster = Cluster(
            nodes=self.nodes,
            slices=self.slices,
            classes=self.classes,
            claims=list(self.claims.values()),
            pods=list(self.pods.values()),
        )
        self.cache.adopt(cluster)
        self.placer.sync(self.cache)
        (group,) = groups_of(self.cache)
        return _devices(self.placer.place(group, {}).allocations.get(f"d/{name}"))

    def take(self, name: str, allocation: Object | None) -> None:
        if allocation is None:
            del self.claims[name], self.pods[name]
            return
        self.claims[name] = {**self.claims[name], "status": {"allocation": allocation}}
        node = allocation["nodeSelector"]["nodeSelectorTerms"][0]["matchFields"][0]["values"][0]
        spec = {**self.pods[name]["spec"], "nodeName": node}
        self.pods[name] = {**self.pods[name], "spec": spec}
        self.placed.add(name)

    def end(self, name: str) -> None:
        del self.claims[name], self.pods[name]
        self.placed.remove(name)


def _devices(allocation: Any) -> set[tuple[str, str]]:
    if allocation is None:
        return set()
    return {(one["pool"], one["device"]) for one in allocation["devices"]["results"]}


CASES = {
    "shares": SHARES,
    "pairs": PAIRS + SHARES[:4],
    "several": SEVERAL + SHARES[:6],
    "joint": JOINT + PAIRS[-3:],
    "everything": SHARES[::2] + PAIRS[::2] + SEVERAL + JOINT,
}
MACHINES = ("pcie-a100x8-2nic", "two-switches-one-root", "dgx-a100", "hgx-h100", "v100x8-sxm2")


@pytest.mark.parametrize("machine", mostly_long([*MACHINES, "dgx-a100+pcie-a100x8-2nic"], fast=2))
@pytest.mark.parametrize("case", CASES)
def test_the_plan_and_the_controller_take_the_same_devices(case: str, machine: str) -> None:
    named = machine.split("+") * 2
    clusters = Clusters(named, expected(LEARNED, {"A100": 16}))
    draw = random.Random(f"{case} {machine}")
    for number in range(20):
        name = f"c{number:02}"
        clusters.add(name, draw.choice(CASES[case]))
        planned, allocation = clusters.by_plan(name)
        assert planned == clusters.by_controller(name), (number, clusters.claims[name]["spec"])
        clusters.take(name, allocation)
        if clusters.placed and draw.random() < 0.3:
            clusters.end(draw.choice(sorted(clusters.placed)))
