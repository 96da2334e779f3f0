"""NVLink and partitions: which GPUs are chosen, and what is refused where partitions are demanded."""

from __future__ import annotations

from typing import Any

import pytest

from koordra.allocator.devices.nvlink_fabric import honors_partitions
from koordra.placement import Plan, plan
from tests.conformance import checker
from tests.unit.allocator.machines import (
    allocated,
    claim,
    config,
    device_classes,
    devices_of,
    machine,
    pod,
    request,
)

Dict = dict[str, Any]

HONOR = {"koordra.io/gpu-partition-policy": "Honor"}


def planned(*objects: Dict, **options: Any) -> Plan:
    given = [*device_classes(), *objects]
    found = plan(given, **options)
    assert checker.violations(given, found.allocations) == []
    return found


def chosen(found: Plan, name: str = "a") -> list[str]:
    return devices_of(found.allocations[f"default/{name}"])


def held(*numbers: int) -> Dict:
    results = [
        {
            "request": "r",
            "driver": "koordra.io",
            "pool": "node-1",
            "device": f"gpu-{number}",
            "shareID": f"s{number}",
            "consumedCapacity": {"memory": "80Gi", "cores": "0", "slots": "1"},
        }
        for number in numbers
    ]
    return allocated(claim("held", namespace="elsewhere"), {"devices": {"results": results}})


def gpus(count: int, name: str = "a") -> Dict:
    return claim(name, request("gpu", count=count))


@pytest.mark.parametrize(
    ("links", "taken", "count", "expected"),
    [
        ("bridges", (0,), 2, ["gpu-2", "gpu-3"]),
        ("crossed", (), 2, ["gpu-0", "gpu-4"]),
        ("crossed", (0,), 2, ["gpu-1", "gpu-5"]),
        ("hopper", (0,), 2, ["gpu-2", "gpu-3"]),
        ("hopper", (4,), 1, ["gpu-5"]),
        ("hopper", (6,), 1, ["gpu-7"]),
        ("hopper", (4,), 2, ["gpu-6", "gpu-7"]),
        ("hopper", (4,), 4, ["gpu-0", "gpu-1", "gpu-2", "gpu-3"]),
    ],
)
def test_gpus_that_nvlink_joins_are_chosen(
    links: str, taken: tuple[int, ...], count: int, expected: list[str]
) -> None:
    found = planned(*machine(8, 0, links=links), held(*taken), gpus(count))
    assert chosen(found) == expected


def test_the_widest_links_of_a_mesh_win() -> None:
    """Of cards that are wired unevenly the two with two links between them, on one NUMA node."""
    assert chosen(planned(*machine(7, 0, links="mesh", per_numa=7), gpus(2))) == ["gpu-0", "gpu-3"]


def test_a_nic_beside_each_gpu_is_worth_more_than_nvlink() -> None:
    crossed = machine(4, 2, links="crossed", per_switch=1, per_numa=4)
    wanted = claim("a", request("gpu", count=2), request("nic", "nic", 2))
    assert chosen(planned(*crossed, wanted)) == ["gpu-0", "gpu-1", "nic-0", "nic-1"]


@pytest.mark.parametrize("count", [3, 5, 6, 7])
def test_where_partitions_are_demanded_other_numbers_are_refused(count: int) -> None:
    found = planned(*machine(8, 0, links="hopper", labels=HONOR), gpus(count))
    reasons = found.unsatisfiable["default/a"]
    assert [reason.reason for reason in reasons if reason.device is None] == ["PartitionMismatch"]
    assert f"requested {count} GPUs, the node gives out 1, 2, 4 or 8 together" in reasons[0].detail
    assert chosen(planned(*machine(8, 0, links="hopper"), gpus(count)))


@pytest.mark.parametrize("cards", [2, 4, 8])
def test_all_cards_of_a_node_are_a_partition(cards: int) -> None:
    every = {"name": "gpu", "exactly": {"deviceClassName": "gpu.koordra.io", "allocationMode": "All"}}
    found = planned(*machine(cards, 0, links="hopper", labels=HONOR), claim("a", every))
    assert chosen(found) == [f"gpu-{number}" for number in range(cards)]


def test_all_cards_that_are_no_partition_are_counted_as_they_are() -> None:
    selector = 'int(device.attributes["koordra.io"].minor) < 3'
    every = {
        "name": "gpu",
        "exactly": {
            "deviceClassName": "gpu.koordra.io",
            "allocationMode": "All",
            "selectors": [{"cel": {"expression": selector}}],
        },
    }
    found = planned(*machine(8, 0, links="hopper", labels=HONOR), claim("a", every))
    (told,) = [r for r in found.unsatisfiable["default/a"] if r.reason == "PartitionMismatch"]
    assert "requested all 3 GPUs" in told.detail


def test_a_partition_that_is_not_whole_is_no_partition() -> None:
    found = planned(*machine(8, 0, links="hopper", labels=HONOR), held(0, 2, 4, 7), gpus(2))
    (told,) = [r for r in found.unsatisfiable["default/a"] if r.reason == "PartitionMismatch"]
    assert "single cards only" in told.detail
    assert chosen(planned(*machine(8, 0, links="hopper", labels=HONOR), held(0, 2, 4), gpus(2))) == [
        "gpu-6",
        "gpu-7",
    ]


def test_the_claims_of_a_pod_have_a_partition_each() -> None:
    node = machine(8, 0, links="hopper", labels=HONOR)
    found = planned(*node, gpus(2, "a"), gpus(2, "b"), pod("p", "a", "b"))
    assert chosen(found, "a") + chosen(found, "b") == ["gpu-0", "gpu-1", "gpu-2", "gpu-3"]


def test_the_requests_of_a_claim_have_one_together() -> None:
    several = claim("a", *(request(f"r{n}") for n in range(4)))
    found = planned(*machine(8, 0, links="hopper", labels=HONOR), held(1), several)
    assert sorted(chosen(found)) == ["gpu-4", "gpu-5", "gpu-6", "gpu-7"]


def test_shares_are_not_partitioned() -> None:
    parts = claim("a", request("gpu", count=3, capacity={"memory": "10Gi"}))
    assert len(chosen(planned(*machine(8, 0, links="hopper", labels=HONOR), parts))) == 3


@pytest.mark.parametrize("policy", ["koordra", "FirstFit"])
def test_shares_beside_whole_cards_are_not_partitioned(policy: str) -> None:
    """Neither those of another request, before it or after, nor those for which one card is just large
    enough."""
    node = machine(8, 0, links="hopper", labels=HONOR)
    cards, part = request("cards", count=2), request("part", capacity={"memory": "10Gi"})
    for asked in ([cards, part], [part, cards]):
        assert len(chosen(planned(*node, claim("a", *asked), policy=policy))) == 3
    small = node[1]["spec"]["devices"][0]["capacity"]["memory"]
    small["value"] = small["requestPolicy"]["default"] = "40Gi"
    halves = claim("a", request("halves", count=3, capacity={"memory": "40Gi"}))
    found = planned(*node, held(3, 4, 5, 6, 7), halves, policy=policy)
    assert chosen(found) == ["gpu-0", "gpu-1", "gpu-2"]


def test_a_node_without_a_table_demands_nothing() -> None:
    assert len(chosen(planned(*machine(8, 0, links="switch", labels=HONOR), gpus(3)))) == 3
    assert len(chosen(planned(*machine(4, 0, links="hopper", labels=HONOR), gpus(3)))) == 3


def partitioned(count: int, said: str, name: str = "a") -> Dict:
    return claim(name, request("gpu", count=count), configs=[config("GpuConfig", partition=said)])


def test_a_claim_can_demand_a_partition() -> None:
    """Of a node that only prefers partitions; a neighbour in the same pod may have any set."""
    node = machine(8, 0, links="hopper")
    assert chosen(planned(*node, held(0, 2), partitioned(2, "Honor"))) == ["gpu-4", "gpu-5"]
    found = planned(*node, held(0, 2, 4, 6), partitioned(2, "Honor"))
    told = [r for r in found.unsatisfiable["default/a"] if r.device is None]
    assert [r.reason for r in told] == ["PartitionMismatch"]
    assert told[0].detail.endswith("it would fit without GpuConfig partition: Honor")
    beside = planned(*node, held(0, 2), partitioned(2, "Honor"), gpus(3, "b"), pod("p", "a", "b"))
    assert len(chosen(beside, "b")) == 3


def test_a_claim_that_prefers_does_not_lift_what_the_node_demands() -> None:
    found = planned(*machine(8, 0, links="hopper", labels=HONOR), partitioned(3, "Prefer"))
    (told,) = [r for r in found.unsatisfiable["default/a"] if r.reason == "PartitionMismatch"]
    assert told.detail.endswith("it would fit without koordra.io/gpu-partition-policy: Honor")


@pytest.mark.parametrize("links", ["none", "switch", "bridges"])
def test_where_there_are_no_partitions_a_demanding_claim_gets_single_cards(links: str) -> None:
    node = machine(8, 0, links=links, labels=HONOR)
    assert len(chosen(planned(*node, partitioned(1, "Honor")))) == 1
    told = planned(*node, partitioned(2, "Honor")).unsatisfiable["default/a"][0]
    assert (told.reason, "the node gives out 1 together; free are single cards only" in told.detail) == (
        "PartitionMismatch",
        True,
    )
    assert told.detail.endswith("it would fit without GpuConfig partition: Honor")


@pytest.mark.parametrize(
    ("labels", "honored"),
    [
        ({}, False),
        ({"node.koordinator.sh/gpu-partition-policy": "Honor"}, True),
        ({"node.koordinator.sh/gpu-partition-policy": "Honor", **dict.fromkeys(HONOR, "Prefer")}, False),
    ],
)
def test_whose_word_counts(labels: dict[str, str], honored: bool) -> None:
    assert honors_partitions(labels) is honored
