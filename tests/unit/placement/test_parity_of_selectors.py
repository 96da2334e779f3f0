"""Model constraints, node selectors, affinities and taints: `plan()` and the controller still choose alike.

As in `test_parity`, on a cluster of several models, zones and a pool that is set aside. The claims are made
up, or drawn from the OpenB list in which a third of the pods say which models they may run on; the machines'
cards are given that list's models then.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from koordra.placement.free_amounts.state import Request
from koordra.placement.policy.workload import Workload, expected
from koordra.placement.policy.workload_table import LearnedTable
from koordra.simulation.openb import read_pods
from tests.long import mostly_long
from tests.unit.placement import mixed
from tests.unit.placement.test_parity import Asked, Clusters

Object = dict[str, Any]
MACHINES = ["dgx-a100", "hgx-h100", "v100x8-sxm2", "t4x4-1nic"]


class MixedClusters(Clusters):
    """Every third node is in one zone; the last one of each machine is set aside. `models` rename the cards,
    machine by machine."""

    def __init__(self, machines: list[str], table: LearnedTable, *, models: tuple[str, ...] = ()) -> None:
        self.renamed, self.count = models, len(machines)
        super().__init__(machines, table)

    def node_of(self, number: int) -> Object:
        node = super().node_of(number)
        node["metadata"]["labels"]["zone"] = mixed.ZONES[number % len(mixed.ZONES)]
        if number >= self.count - len(MACHINES):
            node["spec"] = {"taints": [mixed.SET_ASIDE]}
        return node

    def slices_of(self, number: int, machine: str) -> list[Object]:
        found = super().slices_of(number, machine)
        if self.renamed:
            model = self.renamed[number % len(self.renamed)]
            for device in (device for entry in found for device in entry["spec"]["devices"]):
                if "koordra.io/model" in device["attributes"]:
                    device["attributes"]["koordra.io/model"] = {"string": model}
        return found

    def add_restricted(
        self,
        name: str,
        asked: Asked,
        *,
        models: tuple[str, ...] = (),
        pod: Object | None = None,
        tolerated: bool = False,
    ) -> None:
        self.add(name, asked)
        for request in self.claims[name]["spec"]["devices"]["requests"]:
            if request["name"] == "gpu" and models:
                request["exactly"]["selectors"] = [{"cel": {"expression": mixed.of_model(*models)}}]
        spec = {**self.pods[name]["spec"], **(pod or {})}
        if tolerated:
            spec["tolerations"] = mixed.TOLERATED
        self.pods[name] = {**self.pods[name], "spec": spec}

    def decide(self, name: str) -> None:
        """Both, which must agree; taken then."""
        planned, allocation = self.by_plan(name)
        assert planned == self.by_controller(name), (self.claims[name]["spec"], self.pods[name]["spec"])
        self.take(name, allocation)


POD_WORDS: list[Object] = [
    {},
    {},
    {"nodeSelector": {"zone": "north"}},
    mixed.affinity([{"key": "zone", "operator": "In", "values": ["east", "west"]}]),
    mixed.affinity(
        [{"key": "zone", "operator": "DoesNotExist"}], [{"key": "zone", "operator": "In", "values": ["west"]}]
    ),
]
LEARNED = Workload(
    [
        (Request(4000, 1024, 1, 700), 3000),
        (Request(2000, 1024, 1, 300, ("T4",)), 900),
        (Request(8000, 1024, 1, 1000, ("T4", "V100")), 2000),
        (Request(16000, 1024, 2, 1000, ("A100",)), 500),
        (Request(32000, 1024, 4, 1000), 600),
    ]
)
CAPACITY = {"A100": 16, "H100": 16, "V100": 16, "T4": 8}


@pytest.mark.parametrize("seed", mostly_long(range(6)))
def test_constrained_claims_go_the_same_way(seed: int) -> None:
    draw = random.Random(seed)
    table = expected(LEARNED, CAPACITY)
    assert set(table.reserved) == {"A100", "T4", "V100"}
    clusters = MixedClusters(MACHINES * 2, table)
    asked = [Asked(1, 30), Asked(1, 50, cpu=2), Asked(1), Asked(2), Asked(4), Asked(1, 100, 1, 50), Asked(8)]
    choices = [(), (), ("T4",), ("V100", "T4"), ("A100",), ("H100", "V100")]
    placed = 0
    for number in range(30):
        name = f"c{number:02}"
        clusters.add_restricted(
            name,
            draw.choice(asked),
            models=draw.choice(choices),
            pod=draw.choice(POD_WORDS),
            tolerated=draw.random() < 0.3,
        )
        clusters.decide(name)
        placed += name in clusters.placed
        if clusters.placed and draw.random() < 0.2:
            clusters.end(draw.choice(sorted(clusters.placed)))
    assert placed > 15


@pytest.mark.parametrize("seed", mostly_long(range(3), fast=0))
def test_a_constrained_list_of_openb_goes_the_same_way(seed: int, shared_data: Path) -> None:
    """gpuspec33: shares in steps of ten (what a percentage can say), and the models of the list."""
    lines = (shared_data / "openb" / "openb_pod_list_gpuspec33.csv").read_text().splitlines()
    pods = [pod.request for pod in read_pods(lines) if 0 < pod.request.gpus <= 8]
    models = ("G2", "T4", "P100", "V100M32", "V100M16", "G3")
    workload = Workload.of(pods)
    machines = ["dgx-a100", "t4x4-1nic", "t4x4-1nic", "v100x8-sxm2", "v100x8-sxm2", "hgx-h100"] * 2
    sizes = {"G2": 16, "T4": 8, "P100": 8, "V100M32": 16, "V100M16": 16, "G3": 16}
    table = expected(workload, sizes)
    assert table.reserved
    clusters = MixedClusters(machines, table, models=models)
    draw = random.Random(seed)
    constrained = [pod for pod in pods if pod.models]
    for number in range(40):
        request, name = draw.choice(constrained if number % 2 else pods), f"c{number:02}"
        share = Asked(
            request.gpus, max(10, round(request.milli / 100) * 10), cpu=min(90, max(1, request.cpu // 1000))
        )
        clusters.add_restricted(name, share, models=request.models, tolerated=draw.random() < 0.5)
        clusters.decide(name)
    assert len(clusters.placed) > 15
