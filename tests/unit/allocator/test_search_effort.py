"""How much the search tries in the worst cases: counted, not timed, so that it holds on every machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from koordra.allocator import plan
from koordra.allocator.search import Search
from koordra.allocator.solution import Outcome
from tests.unit.allocator.machines import (
    allocated,
    claim,
    device_classes,
    devices_of,
    gpu,
    joint,
    machine,
    nic,
    node,
    place,
    request,
    slice_of,
)

Dict = dict[str, Any]


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Placements tried per search, in order."""
    counts: list[int] = []
    run = Search.run

    def counted(search: Search) -> Outcome:
        outcome = run(search)
        counts.append(search.tried)
        return outcome

    monkeypatch.setattr(Search, "run", counted)
    return counts


def pairs_as_requests(count: int = 8, *, grouped: bool = False) -> Dict:
    """Pairs the way upstream has to write them: 2n requests and n constraints."""
    requests = [request(f"{kind}{n}", {"g": "gpu", "n": "nic"}[kind]) for n in range(count) for kind in "gn"]
    if grouped:
        requests.sort(key=lambda entry: str(entry["name"])[0])
    constraints = [
        {"requests": [f"g{n}", f"n{n}"], "matchAttribute": "resource.kubernetes.io/pcieRoot"}
        for n in range(count)
    ]
    return claim("pairs", *requests, constraints=constraints)


def joint_claim(count: int = 8, **options: Any) -> Dict:
    return claim(
        "pairs",
        request("gpu", count=count),
        request("nic", "nic", count),
        configs=[joint("PCIeSwitch", **options)],
    )


def moved_nic() -> list[Dict]:
    """Eight GPUs and eight NICs, but the last NIC hangs beside another one's GPU."""
    devices = [gpu(n, place=place(n)) for n in range(8)] + [nic(n, place=place(min(n, 6))) for n in range(8)]
    return [node(), slice_of(devices)]


@pytest.mark.parametrize("policy", ["koordra", "FirstFit"])
@pytest.mark.parametrize("wanted", [joint_claim(), pairs_as_requests(), pairs_as_requests(grouped=True)])
def test_eight_pairs_are_found_directly(wanted: Dict, policy: str, tried: list[int]) -> None:
    found = plan([*device_classes(), *machine(), wanted], policy=policy)
    assert found.levels == {"default/pairs": "PIX"}
    assert sum(tried) < 600


@pytest.mark.parametrize("policy", ["koordra", "FirstFit"])
@pytest.mark.parametrize("wanted", [joint_claim(), pairs_as_requests(), pairs_as_requests(grouped=True)])
@pytest.mark.parametrize("objects", [machine(nics=7), moved_nic()], ids=["one missing", "one moved"])
def test_eight_pairs_with_one_nic_short_are_refused_directly(
    objects: Sequence[Dict], wanted: Dict, policy: str, tried: list[int]
) -> None:
    found = plan([*device_classes(), *objects, wanted], policy=policy)
    assert set(found.unsatisfiable) == {"default/pairs"}
    assert sum(tried) < 3000


def test_unequal_cards_do_not_make_it_explode(tried: list[int]) -> None:
    """Every card used differently: nothing is symmetric, and it is still decided."""
    results = [
        {
            "request": "r",
            "driver": "koordra.io",
            "pool": "node-1",
            "device": f"gpu-{n}",
            "shareID": f"s{n}",
            "consumedCapacity": {"memory": f"{n + 1}Gi", "cores": "0", "slots": "1"},
        }
        for n in range(8)
    ]
    held = allocated(claim("held"), {"devices": {"results": results}})
    wanted = claim(
        "a",
        request("gpu", count=4, capacity={"memory": "20Gi"}),
        request("nic", "nic", 4),
        configs=[joint("PCIeSwitch")],
    )
    found = plan([*device_classes(), *machine(), held, wanted])
    assert devices_of(found.allocations["default/a"])[:4] == ["gpu-4", "gpu-5", "gpu-6", "gpu-7"]
    assert sum(tried) < 35_000


def test_a_search_that_runs_out_says_undecided_and_never_no(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Search.run

    def short_of_breath(search: Search) -> Outcome:
        search.budget = 3
        return run(search)

    monkeypatch.setattr(Search, "run", short_of_breath)
    found = plan([*device_classes(), *machine(), joint_claim()])
    assert not found.unsatisfiable
    assert [reason.reason for reason in found.undecided["default/pairs"]] == ["SearchLimit"]


def test_nodes_of_one_form_are_searched_once(tried: list[int]) -> None:
    nodes = [entry for n in range(20) for entry in machine(name=f"node-{n:02}")]
    found = plan([*device_classes(), *nodes, joint_claim()])
    assert found.nodes == {"default/pairs": "node-00"}
    assert len(tried) == 1
