"""MIG slices, two ways: `plan()` and the controller choose the same node and the very same place.

As for whole cards (`test_parity`), on nodes with cards in MIG mode beside whole ones: slices by profile, by
amount of memory, any of several profiles, several of one claim, slices with a NIC, whole GPUs between them;
claims come and go.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from koordra.kubelet_plugin.publish.offering import WITHOUT_POLICY
from koordra.kubelet_plugin.publish.resource_slices import build_slices
from koordra.placement.free_amounts.state import Request
from koordra.placement.mig.layout import Slice
from koordra.placement.policy.workload import Workload, expected
from koordra.placement.policy.workload_table import LearnedTable
from koordra.topology.machine import Machine
from koordra.topology.presets.mig import mig_profiles
from tests.long import mostly_long
from tests.machines import catalogue
from tests.unit.placement.test_parity import Clusters

Object = dict[str, Any]

SIZES = {"1g.5gb": 132, "1g.10gb": 195, "2g.10gb": 265, "3g.20gb": 460, "4g.20gb": 535, "7g.40gb": 1000}
LEARNED = Workload(
    [
        (Request(2000, 8192, 0, 0, slices=(Slice((profile,), milli),)), count)
        for (profile, milli), count in zip(SIZES.items(), (400, 100, 250, 150, 60, 40), strict=True)
    ]
    + [(Request(4000, 8192, 1, 700), 300), (Request(8000, 65536, 1, 1000, (), 1, 50), 200)]
)


def cut(machine: Machine, cards: tuple[int, ...]) -> Machine:
    """The machine with these cards in MIG mode and nothing made on them yet."""
    profiles = mig_profiles({"mig_profiles": "A100-SXM4-40GB"})
    gpus = tuple(
        replace(gpu, mig_enabled=True, mig_profiles=profiles, mig_instances=()) if at in cards else gpu
        for at, gpu in enumerate(machine.gpus)
    )
    return replace(machine, gpus=gpus)


MACHINES = {
    "all cut": lambda: cut(catalogue.machine("dgx-a100"), tuple(range(8))),
    "half cut": lambda: cut(catalogue.machine("dgx-a100"), (0, 1, 4, 7)),
    "two NICs": lambda: cut(catalogue.machine("pcie-a100x8-2nic"), (1, 2, 3, 6)),
    "fixed instances": lambda: catalogue.machine("mig-a100"),
}


class Asked(NamedTuple):
    """`where`: what is said of the slice in CEL; `memory`: an amount of it; `nic`: percent of a NIC beside
    it."""

    where: str = ""
    memory: str = ""
    count: int = 1
    nic: int = 0
    whole: int = 0


def _named(*profiles: str) -> str:
    return " || ".join(f'device.attributes["koordra.io"].profile == "{one}"' for one in profiles)


SINGLE = [Asked(_named(one)) for one in ("1g.5gb", "1g.5gb", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb")]
LOOSE = [
    Asked(memory="9Gi"),
    Asked(memory="4Gi"),
    Asked(_named("1g.10gb", "2g.10gb")),
    Asked('device.capacity["koordra.io"].cores.compareTo(quantity("40")) >= 0'),
    Asked(),
]
SEVERAL = [
    Asked(_named("1g.5gb"), count=2),
    Asked(_named("2g.10gb"), count=3),
    Asked(_named("3g.20gb"), count=2),
]
JOINT = [Asked(_named(one), nic=share) for one in ("1g.5gb", "2g.10gb", "3g.20gb") for share in (25, 50)]
CASES = {
    "single": SINGLE,
    "loose": LOOSE + SINGLE[:3],
    "several": SEVERAL + SINGLE[:4],
    "joint": JOINT + SINGLE[:2],
    "everything": SINGLE + LOOSE + SEVERAL + JOINT + [Asked(whole=1), Asked(whole=2), Asked(whole=1, nic=50)],
}


class MigClusters(Clusters):
    def slices_of(self, number: int, machine: str) -> list[Object]:
        return build_slices(
            MACHINES[machine](),
            node_name=f"node-{number}",
            node_uid=f"node-{number}",
            mode="joint",
            generation=1,
            offering=replace(WITHOUT_POLICY, mig=True, mig_on_demand=True),
        )

    def add_slices(self, name: str, asked: Asked) -> None:
        body: Object = {"deviceClassName": "mig.koordra.io", "count": asked.count}
        if asked.whole:
            body = {"deviceClassName": "gpu.koordra.io", "count": asked.whole}
        if asked.where:
            body["selectors"] = [{"cel": {"expression": asked.where}}]
        if asked.memory:
            body["capacity"] = {"requests": {"memory": asked.memory}}
        requests: list[Object] = [{"name": "part", "exactly": body}]
        if asked.nic:
            nic = {
                "deviceClassName": "nic.koordra.io",
                "count": 1,
                "capacity": {"requests": {"share": str(asked.nic)}},
            }
            requests.append({"name": "nic", "exactly": nic})
        self.ask(name, requests, [], cpu=1)


@pytest.mark.parametrize(
    "machine", mostly_long(sorted(MACHINES, key=lambda machine: machine != "fixed instances"))
)
@pytest.mark.parametrize("case", CASES)
def test_the_plan_and_the_controller_take_the_same_place(case: str, machine: str) -> None:
    clusters = MigClusters([machine, machine], expected(LEARNED, {"A100": 16}))
    draw = random.Random(f"{case} {machine}")
    slices = 0
    for number in range(24):
        name = f"c{number:02}"
        clusters.add_slices(name, draw.choice(CASES[case]))
        planned, allocation = clusters.by_plan(name)
        assert planned == clusters.by_controller(name), (number, clusters.claims[name]["spec"])
        slices += sum("mig" in device for _, device in planned)
        clusters.take(name, allocation)
        if clusters.placed and draw.random() < 0.3:
            clusters.end(draw.choice(sorted(clusters.placed)))
    assert slices > 3


def test_the_mix_that_was_learned_decides_the_place() -> None:
    """Where nothing is known a small slice goes to the end of the card; where that end is what everybody
    wants, it does not."""
    wide = Workload([(Request(1, 1, 0, 0, slices=(Slice(("1g.10gb",), 195),)), 100)])
    chosen = []
    for table in (LearnedTable(), expected(wide, {"A100": 8})):
        clusters = MigClusters(["all cut"], table)
        clusters.add_slices("c", Asked(_named("1g.5gb")))
        planned, _ = clusters.by_plan("c")
        if table.pods:
            assert planned == clusters.by_controller("c")
        chosen += [int(device.rpartition("-")[2]) for _, device in planned]
    assert chosen[0] == 6
    assert chosen[1] != 6
