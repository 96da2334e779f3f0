"""Koordinator's own test cases (data/koordinator/cases.json) in koordra's words; see koordinator.py for the
translation."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from koordra.placement import plan
from tests.conformance import checker, koordinator

Dict = dict[str, Any]

GIB = 1024**3

CASES = [f"alloc-{number:02}" for number in range(1, 49)]
PROBES = [f"probe-{number:02}" for number in range(1, 13)]

BETTER: dict[str, tuple[Dict, str]] = {
    "alloc-26": (
        {"gpu": [4, 5, 6], "rdma": [3, 4]},
        "fixes GPUs before it looks at NICs and gives up; three GPUs with NICs in the same roots exist on NUMA node 1",
    ),
    "probe-01": ({"gpu": [2], "rdma": [2]}, "the same for one pair: the NIC beside GPU 0 is full, that beside GPU 2 is not"),
    "probe-02": ({"gpu": [2], "rdma": [2]}, "takes GPU 0 and a NIC of another root, although whole pairs are free"),
    "probe-03": ({"gpu": [6], "rdma": [4]}, "takes a NIC of the other NUMA node, although a whole pair is free"),
    "probe-04": ({"gpu": [6], "rdma": [4]}, "GPUs as the second type are never put near the NIC"),
    "probe-05": ({"gpu": [6], "rdma": [4]}, "the same with SamePCIe: fails although a pair is free"),
    "probe-06": ({"gpu": [1]}, "MostAllocated takes the emptier of two cards in use, since total and free are swapped"),
    "probe-07": ({"gpu": [2]}, "LeastAllocated packs: a card in use is taken although idle ones exist"),
    "probe-10": ({"gpu": [0, 2], "rdma": [1, 2]}, "two GPUs of one root, so that one of the two NICs is far from both"),
    "probe-11": ({"gpu": [0, 2], "rdma": [1, 2]}, "the same with SamePCIe: fails although two pairs are free"),
    "probe-12": ({"gpu": [4], "rdma": [3]}, "without the joint annotation the NIC is taken by number, on the other NUMA node"),
}  # fmt: skip
"""Cases where Koordinator's answer is a known defect: koordra's answer, and what the defect is."""

NOT_ALLOCATION = {
    "validate_cases": "which requests are accepted: the dialect's translation",
    "convert_cases": "names of resources: the dialect's translation",
    "per_gpu_split_cases": "a pod's amounts per card: the dialect's translation",
    "preferred_pcie_order_cases": "the order in which Koordinator tries NICs; koordra compares whole placements",
    "device_score_cases": "Koordinator's formula; koordra's is written in score.py and proven by brute force",
    "npu_template_cases": "vNPU templates of other vendors",
}
"""Parts of cases.json that are not about which devices a pod gets."""


@pytest.fixture(scope="module")
def document(shared_data: Path) -> Dict:
    return koordinator.document(shared_data)


def entry(document: Dict, part: str, name: str) -> Dict:
    found: Dict = next(case for case in document[part] if case["id"] == name)
    return found


def planned(case: Dict, topology: Dict) -> Dict | None:
    """The pod's allocation, legal by the checker; None where it does not fit."""
    objects = koordinator.objects(case, topology)
    found = plan(objects, policy=koordinator.policy(case))
    assert not found.undecided
    assert checker.violations(objects, found.allocations) == []
    return found.allocations.get("default/pod")


@pytest.mark.parametrize("name", CASES)
def test_allocation_cases(document: Dict, name: str) -> None:
    """All 48: the minors and VFs that Koordinator's tests pin, or the better answer."""
    case = entry(document, "allocation_cases", name)
    allocation = planned(case, document["topologies"][case["topology"]])
    if name in BETTER:
        assert allocation is not None
        assert koordinator.minors(allocation) == BETTER[name][0]
    elif case["expect"]["result"] == "fail":
        assert allocation is None
    else:
        assert allocation is not None
        assert koordinator.minors(allocation) == case["expect"]["minors"]
        virtual = {
            entry["minor"]: entry["vf"]
            for entry in case["expect"]["allocation"].get("rdma", [])
            if "vf" in entry and entry["resources"]["rdma"] < 100
        }
        assert koordinator.functions(allocation) == virtual


@pytest.mark.parametrize("name", PROBES)
def test_probes(document: Dict, name: str) -> None:
    """What Koordinator's algorithm makes of inputs its tests do not pin: mostly defects, so koordra's answer
    is named."""
    case = entry(document, "derived_probes", name)
    allocation = planned(case, document["topologies"][case["topology"]])
    assert allocation is not None
    expected = BETTER[name][0] if name in BETTER else case["koordinator_result"]["minors"]
    assert koordinator.minors(allocation) == expected


def test_same_pcie_holds_where_koordinator_gives_up(document: Dict) -> None:
    """alloc-26 and probes 01, 05, 11: the roots of the NICs are those of the GPUs."""
    for part, name in [
        ("allocation_cases", "alloc-26"),
        *(("derived_probes", f"probe-{n}") for n in ("01", "05", "11")),
    ]:
        case = entry(document, part, name)
        topology = document["topologies"][case["topology"]]
        allocation = planned(case, topology)
        assert allocation is not None
        got = koordinator.minors(allocation)
        roots = [
            {entry["pcie"] for entry in topology[kind] if entry["minor"] in got[minors]}
            for kind, minors in (("gpus", "gpu"), ("rdma", "rdma"))
        ]
        assert roots[0] == roots[1]


def test_a_partition_that_is_demanded_is_told(document: Dict) -> None:
    case = entry(document, "allocation_cases", "alloc-33")
    found = plan(koordinator.objects(case, document["topologies"]["topo-8"]))
    reasons = found.unsatisfiable["default/pod"]
    told = next(reason.detail for reason in reasons if reason.reason == "PartitionMismatch")
    assert "requested 3 GPUs, the node gives out 1, 2, 4 or 8 together" in told


@pytest.mark.parametrize("number", range(1, 7))
def test_how_many_nics(document: Dict, number: int) -> None:
    case = entry(document, "rdma_count_cases", f"rdma-count-{number}")
    labels = {minor: {"type": "fakeW"} for minor in range(4)} | {4: {"type": "fakeS"}}
    asked = {
        "request": case["request"],
        "device_allocate_hint": {"rdma": case["hint"]},
        "already_assigned": {},
    }
    allocation = planned(asked, {"rdma": koordinator.plain_nics(labels)})
    if case["expect"] == "unschedulable":
        assert allocation is None
        return
    assert allocation is not None
    shares = [result["consumedCapacity"]["share"] for result in allocation["devices"]["results"]]
    assert shares == [str(case["expect"]["per_device"])] * case["expect"]["count"]


@pytest.mark.parametrize("name", ["numa-1", "numa-2", "numa-3", "numa-5", "numa-6", "numa-7"])
def test_numa_masks(document: Dict, name: str) -> None:
    """A mask of NUMA nodes is feasible exactly where a placement on those nodes' devices exists (numa-4 is
    about FPGAs)."""
    case = entry(document, "numa_hint_cases", name)
    topology = document["topologies"][case["topology"]]
    feasible = [
        list(mask)
        for size in (1, 2)
        for mask in itertools.combinations([0, 1], size)
        if _fits(case["request"], case.get("assigned_gpu_minors", []), koordinator.within(topology, [*mask]))
    ]
    expected = [] if case["expect"] == "fail" else [hint["mask"] for hint in case["expect"]]
    assert feasible == expected


def _fits(request: Dict, taken: list[int], topology: Dict) -> bool:
    hint: Dict = {"vfSelector": {}} if request.get("vf") else {}
    if "rdma_as_count" in request:
        hint["allocateStrategy"] = "RequestsAsCount"
    amounts = {"nvidia.com/gpu": request.get("gpu"), "koordinator.sh/rdma": request.get("rdma_as_count")}
    amounts["koordinator.sh/rdma"] = amounts["koordinator.sh/rdma"] or request.get("rdma")
    here = {entry["minor"] for entry in topology["gpus"]}
    whole = {"gpu-core": 100, "gpu-memory-ratio": 100}
    case = {
        "request": {name: amount for name, amount in amounts.items() if amount},
        "device_allocate_hint": {"rdma": hint} if hint else {},
        "already_assigned": {"gpu": [{"minor": n, "resources": whole} for n in taken if n in here]},
        **({"device_joint_allocate": {"deviceTypes": request["joint"]}} if "joint" in request else {}),
    }
    return planned(case, topology) is not None


HALF = {"koordinator.sh/gpu-core": 50, "koordinator.sh/gpu-memory-ratio": 50}
FLAT: dict[str, tuple[Dict, Dict, Dict, str | None]] = {
    # name: (topology, taken, request, scorer). What is preemptible is not taken.
    "flat-1": ({"gpus": koordinator.plain_cards([1, 2], memory=8 * GIB)}, {}, HALF, None),
    "flat-2": (
        {"gpus": koordinator.plain_cards([1, 2, 3, 4], memory=8 * GIB)},
        {"gpu": [(1, 50), (2, 50)]},
        HALF,
        "LeastAllocated",
    ),
    "flat-3": (
        {"gpus": koordinator.plain_cards([1, 2, 3, 4], memory=8 * GIB)},
        {"gpu": [(3, 50), (4, 50)]},
        HALF,
        "MostAllocated",
    ),
    "flat-4": (
        {"gpus": koordinator.plain_cards([1, 2], memory=8 * GIB)},
        {"gpu": [(1, 100), (2, 100)]},
        HALF,
        None,
    ),
    "flat-5": ({"gpus": koordinator.plain_cards([1, 2], memory=8 * GIB, unhealthy=(1,))}, {}, HALF, None),
    "flat-6": ({"rdma": koordinator.plain_nics({1: {}, 2: {}})}, {}, {"koordinator.sh/rdma": 50}, None),
}


@pytest.mark.parametrize("name", FLAT)
def test_cards_without_topology(document: Dict, name: str) -> None:
    topology, taken, request, scorer = FLAT[name]
    case = {
        "request": request,
        "scorer": {"strategy": scorer} if scorer else None,
        "already_assigned": {
            kind: [
                {"minor": minor, "resources": {"gpu-core": part, "gpu-memory-ratio": part}}
                for minor, part in parts
            ]
            for kind, parts in taken.items()
        },
    }
    allocation = planned(case, topology)
    expected = entry(document, "flat_cases", name)["expect"]
    assert (allocation and koordinator.minors(allocation)) == (
        None if isinstance(expected, str) else expected
    )


def test_every_part_of_the_file_is_accounted_for(document: Dict) -> None:
    tested = {"allocation_cases", "derived_probes", "rdma_count_cases", "numa_hint_cases", "flat_cases"}
    assert set(document) == tested | set(NOT_ALLOCATION) | {"meta", "topologies"}
    assert [case["id"] for case in document["allocation_cases"]] == CASES
    assert [case["id"] for case in document["derived_probes"]] == PROBES
    assert {case["id"] for case in document["numa_hint_cases"]} == {f"numa-{n}" for n in range(1, 8)}
    assert {case["id"] for case in document["flat_cases"]} == set(FLAT)
