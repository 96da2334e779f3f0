"""Preferred JointAllocations are relaxed one scope after the other; Required ones hold at exactly the scopes
they name."""

from __future__ import annotations

from typing import Any

import pytest

from koordra.allocator.score import RELAXATION
from koordra.placement import plan
from tests.unit.allocator.machines import (
    claim,
    device_classes,
    devices_of,
    gpu,
    joint,
    nic,
    node,
    request,
    slice_of,
)

Dict = dict[str, Any]

SCOPES = ["PCIeSwitch", "PCIeRoot", "NUMANode", "Socket", "Node"]
HERE = {
    "socket": 0,
    "numaNode": 0,
    "resource.kubernetes.io/pcieRoot": "pci0000:00",
    "pcieSwitch": "0000:01:00.0",
}
PLACES = {
    "PCIeSwitch": HERE,
    "PCIeRoot": {**HERE, "pcieSwitch": "0000:02:00.0"},
    "NUMANode": {**HERE, "pcieSwitch": "0000:03:00.0", "resource.kubernetes.io/pcieRoot": "pci0000:03"},
    "Socket": {
        "socket": 0,
        "numaNode": 1,
        "resource.kubernetes.io/pcieRoot": "pci0000:04",
        "pcieSwitch": "0000:04:00.0",
    },
    "Node": {
        "socket": 1,
        "numaNode": 2,
        "resource.kubernetes.io/pcieRoot": "pci0000:05",
        "pcieSwitch": "0000:05:00.0",
    },
}
"""Where a NIC is, by the narrowest scope that it shares with the GPU."""

LEVELS = dict(zip(SCOPES, ["PIX", "PHB", "NODE", "SYS", "SYS"], strict=True))


def machine(*nics: str) -> list[Dict]:
    """One GPU, and a NIC at each of these distances, the farthest first in order."""
    devices = [gpu(0, place=HERE)]
    devices += [nic(number, place=PLACES[scope]) for number, scope in enumerate(reversed(nics))]
    return [*device_classes(), node(), slice_of(devices)]


def pair(scope: str, enforcement: str = "Required") -> Dict:
    configs = [joint(scope, enforcement=enforcement)]
    return claim("a", request("gpu"), request("nic", "nic"), configs=configs)


@pytest.mark.parametrize("asked", SCOPES)
@pytest.mark.parametrize("there", SCOPES)
def test_required_holds_exactly_where_the_scope_does(asked: str, there: str) -> None:
    found = plan([*machine(there), pair(asked)])
    holds = SCOPES.index(there) <= SCOPES.index(asked)
    assert bool(found.allocations) == holds
    if not holds:
        (told,) = [r for r in found.unsatisfiable["default/a"] if r.reason == "TopologyScopeUnmet"]
        assert f"it would fit with scope {there}" in told.detail


@pytest.mark.parametrize("asked", SCOPES)
@pytest.mark.parametrize("nearest", range(len(SCOPES)))
def test_preferred_takes_the_nearest_there_is(asked: str, nearest: int) -> None:
    """Each scope that had to be given up costs a level; the NIC is of the nearest level all the same."""
    there = SCOPES[nearest:]
    found = plan([*machine(*there), pair(asked, "Preferred")])
    relaxed = max(0, nearest - SCOPES.index(asked))
    assert found.levels["default/a"] == LEVELS[there[0]]
    as_near = [scope for scope in there if LEVELS[scope] == LEVELS[there[0]]]
    widest = SCOPES[max(nearest, SCOPES.index(asked))]
    allowed = [scope for scope in as_near if SCOPES.index(scope) <= SCOPES.index(widest)]
    numbers = {f"nic-{len(there) - 1 - there.index(scope)}" for scope in allowed}
    assert devices_of(found.allocations["default/a"])[1] in numbers
    assert -found.scores["default/a"] // RELAXATION == relaxed


def test_past_the_last_scope_nothing_is_asked_any_more() -> None:
    """More GPUs than NICs can never be paired one to one, at no level."""
    two = [gpu(0, place=HERE), gpu(1, place=HERE), nic(0, place=HERE)]
    wanted = claim(
        "a",
        request("gpu", count=2),
        request("nic", "nic"),
        configs=[joint("PCIeRoot", enforcement="Preferred")],
    )
    found = plan([*device_classes(), node(), slice_of(two), wanted])
    assert -found.scores["default/a"] // RELAXATION == 5 - SCOPES.index("PCIeRoot")


def test_two_wishes_are_relaxed_as_little_as_possible_together() -> None:
    """GPU and NIC wish for one switch, which there is; the two GPUs for one root, which there is not."""
    far = [
        gpu(0, place=HERE),
        gpu(1, place=PLACES["NUMANode"]),
        nic(0, place=HERE),
        nic(1, place=PLACES["NUMANode"]),
    ]
    wanted = claim(
        "a",
        request("gpu", count=2),
        request("nic", "nic", 2),
        configs=[
            joint("PCIeSwitch", enforcement="Preferred"),
            joint("PCIeRoot", enforcement="Preferred", pairing="Together", requests=["gpu"]),
        ],
    )
    found = plan([*device_classes(), node(), slice_of(far), wanted])
    assert -found.scores["default/a"] // RELAXATION == 1
    assert found.levels["default/a"] == "PIX"


TWO = [gpu(0, place=HERE), gpu(1, place=HERE), gpu(2, place=HERE), nic(0, place=HERE), nic(1, place=HERE)]


@pytest.mark.parametrize("policy", ["FirstFit", "koordra", "Spread"])
def test_a_nic_of_another_rule_pairs_with_nobody(policy: str) -> None:
    """Two GPUs and one NIC cannot be paired, whatever NICs another JointAllocation still brings."""
    short, served = [request("gpu", count=2), request("nic", "nic")], [request("g"), request("n", "nic")]
    one = claim(
        "one",
        *short,
        *served,
        configs=[joint("Node", requests=["gpu", "nic"]), joint("Node", requests=["g", "n"])],
    )
    two = [claim("a", *short, configs=[joint("Node")]), claim("b", *served, configs=[joint("Node")])]
    for claims in ([one], two):
        found = plan([*device_classes(), node(), slice_of(TWO), *claims], policy=policy)
        assert not found.allocations
        assert not found.undecided


@pytest.mark.parametrize("policy", ["FirstFit", "koordra"])
@pytest.mark.parametrize("pairing", ["PerDevice", "PerGroup"])
def test_all_nics_pair_with_the_gpus(pairing: str, policy: str) -> None:
    apart = [gpu(0, place=HERE), gpu(1, place=PLACES["NUMANode"])]
    apart += [nic(0, place=HERE), nic(1, place=PLACES["NUMANode"]), nic(2, place=PLACES["Node"])]
    every = {"name": "nic", "exactly": {"deviceClassName": "nic.koordra.io", "allocationMode": "All"}}
    for requests in ([request("gpu", count=2), every], [every, request("gpu", count=2)]):
        wanted = claim("a", *requests, configs=[joint("PCIeRoot", pairing=pairing)])
        found = plan([*device_classes(), node(), slice_of(apart), wanted], policy=policy)
        assert sorted(devices_of(found.allocations["default/a"])) == [
            "gpu-0",
            "gpu-1",
            "nic-0",
            "nic-1",
            "nic-2",
        ]
