"""What JointAllocation takes for one device: a card or a NIC, however many shares of it the claim has."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from koordra.api import names
from koordra.api.opaque.parameters import JointAllocation, Pairing, Scope
from koordra.kubelet_plugin.prepare.allocation_checks import unmet
from koordra.placement import Plan, plan
from tests.conformance import checker, objective
from tests.unit.allocator.machines import (
    claim,
    device_classes,
    devices_of,
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


def placed(cluster: list[Dict], *requests: Dict, scope: str = "PCIeRoot", policy: str = "koordra") -> Plan:
    objects = [*device_classes(), *cluster, claim("a", *requests, configs=[joint(scope)])]
    found = plan(objects, policy=policy)
    assert not checker.violations(objects, found.allocations)
    assert not found.undecided
    return found


@pytest.mark.parametrize("policy", ["koordra", "Binpack", "Spread", "FirstFit"])
def test_two_shares_of_one_card_need_one_nic(policy: str) -> None:
    shares = [request(name, capacity={"memory": "20Gi"}) for name in ("g1", "g2")]
    found = placed(machine(1, 1), *shares, request("n", "nic"), policy=policy)
    assert devices_of(found.allocations["default/a"]) == ["gpu-0", "gpu-0", "nic-0"]
    assert found.levels == {"default/a": "PIX"}


@pytest.mark.parametrize("policy", ["koordra", "Binpack", "Spread", "FirstFit"])
def test_two_shares_of_one_nic_are_no_nics_of_their_own(policy: str) -> None:
    cluster = [node(), slice_of([*(gpu(n, place=place(0)) for n in (0, 1)), nic(0, place=place(0))])]
    shares = [request(name, "nic", capacity={"share": "50"}) for name in ("n1", "n2")]
    found = placed(cluster, request("g", count=2), *shares, policy=policy)
    assert set(found.unsatisfiable) == {"default/a"}
    assert found.unsatisfiable["default/a"][0].reason == "TopologyScopeUnmet"


def test_shares_in_two_claims_of_a_pod_are_one_card_too() -> None:
    half = {"memory": "20Gi"}
    objects = [
        *device_classes(),
        *machine(1, 1),
        claim("a", request("g", capacity=half), configs=[joint("PCIeRoot")]),
        claim("b", request("g", capacity=half)),
        claim("c", request("n", "nic"), configs=[joint("PCIeRoot")]),
        pod("p", "a", "b", "c"),
    ]
    found = plan(objects)
    assert not checker.violations(objects, found.allocations)
    assert set(found.allocations) == {"default/a", "default/b", "default/c"}


def test_shares_are_spread_where_the_nics_allow_it_and_proved_impossible_where_not() -> None:
    """Sixteen shares of seven NICs cannot serve eight GPUs of one NUMA node; the proof stays short."""
    everyone = {"per_numa": 16, "per_switch": 16}
    shares = [request(f"n{number}", "nic", capacity={"share": "25"}) for number in range(16)]
    enough = placed(machine(8, 8, **everyone), request("g", count=8), *shares, scope="NUMANode")
    assert len(set(devices_of(enough.allocations["default/a"]))) == 16
    short = placed(machine(8, 7, **everyone), request("g", count=8), *shares, scope="NUMANode")
    assert short.unsatisfiable


@pytest.mark.parametrize("seed", range(12))
def test_a_claim_of_shares_gets_what_exhaustive_search_finds(seed: int) -> None:
    """Shares that may coincide, some of them outside the rule: feasibility and best score are the exhaustive
    ones."""
    for gpus, nics in itertools.product((1, 2, 3), repeat=2):
        parts = ("40Gi", "20Gi", "80Gi", "40Gi")
        asked = [request(f"g{n}", capacity={"memory": parts[(seed + n) % 4]}) for n in range(1 + seed % 3)]
        asked += [
            request(f"n{n}", "nic", capacity={"share": ("50", "100", "25")[(seed + n) % 3]})
            for n in range(1 + seed // 3 % 3)
        ]
        wanted = claim("a", *asked, configs=[joint("PCIeSwitch" if seed % 2 else "NUMANode")])
        cluster = machine(gpus, nics, per_switch=1 + seed % 2, per_numa=2)
        objects = [*device_classes(), *cluster, wanted]
        best = objective.best(objects)
        found = plan(objects)
        assert -found.scores["default/a"] == best if best is not None else found.unsatisfiable


def test_the_node_counts_alike() -> None:
    def device(name: str, kind: str) -> tuple[str, Dict]:
        return name, {names.ATTR_TYPE: kind, names.STANDARD_PCIE_ROOT: "pci0000:00"}

    per_device = JointAllocation(scope=Scope.PCIE_ROOT, pairing=Pairing.PER_DEVICE)
    card, nic_0 = device("gpu-0", "gpu"), device("nic-0", "nic")
    assert unmet([card, card, nic_0], per_device) is None
    assert "no NIC of its own" in str(unmet([card, device("gpu-1", "gpu"), nic_0, nic_0], per_device))
