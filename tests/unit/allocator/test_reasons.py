"""Why a claim waits, word by word: every clause names itself and both figures."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from koordra.allocator.explain.grouping import grouped
from koordra.allocator.reasons import Cause, Reason, figure
from koordra.placement import plan
from tests.unit.allocator.machines import (
    allocated,
    claim,
    config,
    device_classes,
    gpu,
    joint,
    machine,
    nic,
    node,
    place,
    pod,
    request,
    slice_of,
)

Dict = dict[str, Any]


def held(device: str, **consumed: str) -> Dict:
    return {
        "request": "r",
        "driver": "koordra.io",
        "pool": "node-1",
        "device": device,
        "shareID": f"s-{device}",
        "consumedCapacity": consumed,
    }


def holder(*results: Dict) -> Dict:
    return allocated(claim("holder", namespace="team-b"), {"devices": {"results": list(results)}})


def cel(expression: str) -> list[Dict]:
    return [{"cel": {"expression": expression}}]


def partition_node() -> list[Dict]:
    """A card whose shares take all of its counters, and a slice of it."""
    card = gpu(0, place=place(0))
    card["consumesCounters"] = [{"counterSet": "card-0", "counters": {"memory-slices": {"value": "8"}}}]
    mig = gpu(1, place=place(0), type="mig")
    mig["consumesCounters"] = [{"counterSet": "card-0", "counters": {"memory-slices": {"value": "1"}}}]
    devices = slice_of([card, mig])
    counters = slice_of([])
    counters["metadata"]["name"] = "00002"
    counters["spec"]["sharedCounters"] = [{"name": "card-0", "counters": {"memory-slices": {"value": "8"}}}]
    for entry in (devices, counters):
        entry["spec"]["pool"]["resourceSliceCount"] = 2
    return [node(), devices, counters]


def incomplete() -> list[Dict]:
    objects = machine(1, 0)
    objects[1]["spec"]["pool"]["resourceSliceCount"] = 2
    return objects


CASES: dict[str, list[Dict]] = {
    "too much memory": [
        *machine(2, 0),
        holder(held("gpu-0", memory="30Gi")),
        claim("a", request("gpu", capacity={"memory": "90Gi"})),
    ],
    "no memory left": [
        *machine(1, 0),
        holder(held("gpu-0", memory="30Gi")),
        claim("a", request("gpu", capacity={"memory": "60Gi"})),
    ],
    "no cores left": [
        *machine(1, 0),
        holder(held("gpu-0", memory="1Gi", cores="80")),
        claim("a", request("gpu", capacity={"memory": "1Gi", "cores": "30"})),
    ],
    "shared by many": [
        *machine(1, 1),
        *(
            allocated(
                claim(f"user-{n}", namespace="team-b"),
                {"devices": {"results": [held("gpu-0", memory="14Gi"), held("nic-0", share="20")]}},
            )
            for n in range(5)
        ),
        claim("a", request("gpu", capacity={"memory": "20Gi"}), request("nic", "nic")),
    ],
    "held by who takes none of it": [
        *machine(1, 0),
        holder(held("gpu-0", memory="70Gi")),
        allocated(claim("frugal"), {"devices": {"results": [held("gpu-0", memory="0", cores="10")]}}),
        claim("a", request("gpu", capacity={"memory": "20Gi"})),
    ],
    "above the maximum": [*machine(0, 1), claim("a", request("nic", "nic", capacity={"share": "150"}))],
    "unknown capacity": [*machine(0, 1), claim("a", request("nic", "nic", capacity={"memory": "1Gi"}))],
    "another model": [
        *machine(1, 1),
        claim("a", request("gpu", selectors=cel('device.attributes["koordra.io"].model == "H200"'))),
    ],
    "too few devices": [*machine(2, 2), claim("a", request("gpu", count=3))],
    "in use as a whole": [
        *machine(1, 0),
        holder({"request": "r", "driver": "koordra.io", "pool": "node-1", "device": "gpu-0"}),
        claim("a", request("gpu")),
    ],
    "held by a gone claim": [
        node(),
        slice_of(
            [
                gpu(
                    0,
                    place=place(0),
                    taints=[{"key": "koordra.io/held", "value": "uid-9", "effect": "NoSchedule"}],
                )
            ]
        ),
        claim("a", request("gpu")),
    ],
    "link down": [
        node(),
        slice_of(
            [
                nic(
                    0,
                    place=place(0),
                    taints=[{"key": "koordra.io/unhealthy", "value": "LinkDown", "effect": "NoSchedule"}],
                )
            ]
        ),
        claim("a", request("nic", "nic")),
    ],
    "partitioned": [*partition_node(), holder(held("gpu-1", memory="10Gi")), claim("a", request("gpu"))],
    "pool incomplete": [*incomplete(), claim("a", request("gpu"))],
    "scope unmet": [
        node(),
        slice_of([gpu(0, place=place(0)), nic(1, place=place(1))]),
        claim("a", request("gpu"), request("nic", "nic"), configs=[joint("PCIeRoot")]),
    ],
    "constraint": [
        *machine(2, 0),
        claim(
            "a", request("gpu", count=2), constraints=[{"matchAttribute": "resource.kubernetes.io/pcieRoot"}]
        ),
    ],
    "together too much": [
        *machine(1, 0),
        claim("a", request("x", capacity={"memory": "50Gi"}), request("y", capacity={"memory": "50Gi"})),
    ],
    "no devices at all": [node(), claim("a", request("gpu"))],
    "no node": [claim("a", request("gpu"))],
    "node refuses": [
        *machine(1, 0),
        claim("a", request("gpu")),
        pod("p", "a", requests={"cpu": "100", "memory": "1Ti"}, nodeSelector={"zone": "z1"}),
    ],
    "not its kind": [*machine(1, 0), claim("a", request("nic", "nic"))],
    "policy says nothing new": [
        *machine(1, 0),
        claim("a", request("gpu", count=2), configs=[config("PlacementPolicy", node="Spread")]),
    ],
}


def test_the_words(golden: Callable[[str, str], None]) -> None:
    told = {}
    for name, objects in CASES.items():
        found = plan([*device_classes(), *objects], report_errors=True)
        told[name] = [reason.to_dict() for reason in found.unsatisfiable["default/a"]]
    golden("allocator/reasons.json", json.dumps(told, indent=1) + "\n")


@pytest.mark.parametrize("name", CASES)
def test_every_reason_is_of_the_vocabulary_and_says_something(name: str) -> None:
    found = plan([*device_classes(), *CASES[name]], report_errors=True)
    reasons = found.unsatisfiable["default/a"]
    assert reasons
    assert {reason.reason for reason in reasons} <= {cause.value for cause in Cause}
    assert all(reason.detail.strip() for reason in reasons)


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0, "0"),
        (85899345920, "80Gi"),
        (85520809984, "79.6Gi"),
        (100, "100"),
        (Decimal("0.5"), "500m"),
        (19968, "19.5Ki"),
    ],
)
def test_figures_are_short(amount: Decimal | int, text: str) -> None:
    assert figure(amount) == text


def test_reasons_are_told_once_and_in_order() -> None:
    of_device = Reason("node-1", "gpu-0", "gpu", "Tainted", "t")
    of_node = Reason("node-1", None, None, "NodeUnsuitable", "n")
    everywhere = Reason(None, None, None, "SelectorError", "s")
    told = grouped([of_device, of_node, everywhere, of_device])
    assert [reason.reason for reason in told] == ["SelectorError", "Tainted", "NodeUnsuitable"]
    assert told == (everywhere, of_device, of_node)
    assert str(of_device) == "node-1/gpu-0 (request gpu): Tainted: t"


def test_what_is_only_preferred_is_never_at_fault() -> None:
    """The NIC is under another root: without the constraint the JointAllocation would simply be relaxed."""
    devices = [gpu(0, place=place(0)), nic(0, place=place(1))]
    wanted = claim(
        "a",
        request("gpu"),
        request("nic", "nic"),
        configs=[joint("PCIeSwitch", enforcement="Preferred")],
        constraints=[{"matchAttribute": "resource.kubernetes.io/pcieRoot"}],
    )
    found = plan([*device_classes(), node(), slice_of(devices), wanted])
    (told,) = [reason for reason in found.unsatisfiable["default/a"] if reason.device is None]
    assert told.reason == "ConstraintViolated"
    assert told.detail.endswith("it would fit without it")


def test_two_clauses_that_are_both_at_fault_are_told_together() -> None:
    devices = [gpu(0, place=place(0)), nic(0, place=place(4))]
    wanted = claim(
        "a",
        request("gpu"),
        request("nic", "nic"),
        configs=[joint("NUMANode")],
        constraints=[{"matchAttribute": "resource.kubernetes.io/pcieRoot"}],
    )
    found = plan([*device_classes(), node(), slice_of(devices), wanted])
    told = [reason for reason in found.unsatisfiable["default/a"] if reason.device is None]
    assert {reason.reason for reason in told} == {"TopologyScopeUnmet", "ConstraintViolated"}
    assert {reason.detail.rpartition("; ")[2] for reason in told} == {
        "it would fit without the JointAllocation and the constraints"
    }
