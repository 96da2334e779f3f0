"""Which devices of a node are exchangeable as a search begins, and that exchanging them never loses a
placement."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import pytest

from koordra.allocator.search.search import Search
from koordra.allocator.search.solution import Outcome, Position
from koordra.allocator.search.symmetry import Symmetry
from koordra.placement import Plan, plan
from tests.unit.allocator.machines import (
    allocated,
    claim,
    counters_of,
    cut_card,
    device_classes,
    devices_of,
    gpu,
    machine,
    nic,
    node,
    place,
    request,
    slice_of,
)

Dict = dict[str, Any]


def orbits(objects: Sequence[Dict], wanted: Dict, *, policy: str = "koordra") -> list[list[str]]:
    """The devices of each orbit, as the first search finds them before it has chosen anything."""
    found: list[list[str]] = []
    run = Search.run

    def noted(search: Search) -> Outcome:
        if not found:
            search._key(Position(0))
            assert search._orbits is not None
            together: dict[Hashable, list[str]] = {}
            for device, offered in enumerate(search.state.devices):
                together.setdefault(search._orbits.of(device), []).append(offered.id.device)
            found.extend(together.values())
        return run(search)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Search, "run", noted)
        plan([*device_classes(), *objects, wanted], policy=policy)
    return found


def numbered(kind: str, *numbers: int) -> list[str]:
    return [f"{kind}-{number}" for number in numbers]


GPU_AND_NIC = claim("a", request("g"), request("n", "nic"))


def test_devices_of_an_even_machine_are_exchangeable_kind_by_kind() -> None:
    even = machine(8, 8, per_switch=2, per_numa=4)
    assert orbits(even, GPU_AND_NIC) == [numbered("gpu", *range(8)), numbered("nic", *range(8))]


def test_a_card_in_use_tells_those_apart_that_are_not_equally_near_to_it() -> None:
    result = {
        "request": "r",
        "driver": "koordra.io",
        "pool": "node-1",
        "device": "gpu-0",
        "shareID": "s",
        "consumedCapacity": {"memory": "40Gi", "cores": "0", "slots": "1"},
    }
    held = allocated(claim("held"), {"devices": {"results": [result]}})
    even = machine(8, 8, per_switch=2, per_numa=4)
    assert orbits([*even, held], claim("a", request("g", capacity={"memory": "20Gi"}))) == [
        *(numbered("gpu", 0), numbered("gpu", 1), numbered("gpu", 2, 3), numbered("gpu", 4, 5, 6, 7)),
        *(numbered("nic", 0, 1), numbered("nic", 2, 3), numbered("nic", 4, 5, 6, 7)),
    ]


@pytest.mark.parametrize(("policy", "apart"), [("koordra", True), ("FirstFit", False)])
def test_cards_that_are_wired_unevenly_are_told_apart_where_a_score_looks_at_nvlink(
    policy: str, apart: bool
) -> None:
    found = orbits(machine(4, 0, links="mesh"), claim("a", request("g", count=2)), policy=policy)
    assert found == ([numbered("gpu", n) for n in range(4)] if apart else [numbered("gpu", *range(4))])


def test_switches_that_cross_numa_nodes_are_told_apart_by_name() -> None:
    """Half of each switch's GPUs are on each NUMA node: only the same half of another NUMA node is alike."""
    crossed = [gpu(n, place={"socket": 0, "numaNode": n // 2, "pcieSwitch": f"s{n % 2}"}) for n in range(4)]
    assert orbits([node(), slice_of(crossed)], claim("a", request("g"))) == [
        numbered("gpu", 0, 2),
        numbered("gpu", 1, 3),
    ]


@pytest.mark.parametrize(
    ("models", "expected"), [("aabb", [[0, 1], [2, 3]]), ("abcd", [[0, 1, 2, 3]]), ("aabc", [[0, 1], [2, 3]])]
)
def test_a_value_that_a_constraint_reads_matters_where_devices_share_it(
    models: str, expected: list[list[int]]
) -> None:
    cards = [gpu(n, place=place(0), model=model) for n, model in enumerate(models)]
    distinct = {"requests": ["g", "h"], "distinctAttribute": "koordra.io/model"}
    wanted = claim("a", request("g"), request("h"), constraints=[distinct])
    assert orbits([node(), slice_of(cards)], wanted) == [numbered("gpu", *each) for each in expected]


def test_a_constraint_matters_until_its_last_request_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Mapping[tuple[int, int], int]] = []
    last_use = Symmetry._last_use
    monkeypatch.setattr(
        Symmetry, "_last_use", lambda *given: found.append(last_use(*given)) or last_use(*given)
    )
    distinct = {"requests": ["g", "h"], "distinctAttribute": "koordra.io/uuid"}
    wanted = claim("a", *map(request, "ghi"), constraints=[distinct])
    orbits(machine(4, 0), wanted)
    assert found[0] == {(0, 0): 1}


def test_parts_of_equal_cards_are_exchangeable_slice_by_slice() -> None:
    cards = [
        cut_card(n, [("1g", 0, 1, 1), ("1g", 1, 1, 1)], slices=2, compute=2, place=place(n)) for n in (0, 1)
    ]
    published = [node(), slice_of([part for parts, _ in cards for part in parts])]
    published.append(counters_of([counters for _, counters in cards]))
    for entry in published[1:]:
        entry["spec"]["pool"]["resourceSliceCount"] = 2
    assert orbits(published, claim("a", request("part", "mig"))) == [
        [f"gpu-{card}-mig-1g-{start}" for card in (0, 1)] for start in (0, 1)
    ]


def parts(*devices: tuple[str, int, Mapping[str, str]]) -> list[Dict]:
    """Dedicated devices of a size, on a NUMA node, with what they take of counter sets that have 1 each."""
    driver = "parts.example.com"
    bodies: list[Dict] = [
        {
            "devices": [
                {
                    "name": name,
                    "attributes": {
                        "size": {"string": name.partition("-")[0]},
                        "koordra.io/numaNode": {"int": numa},
                    },
                    "consumesCounters": [
                        {"counterSet": of, "counters": {"slices": {"value": amount}}}
                        for of, amount in takes.items()
                    ],
                }
                for name, numa, takes in devices
            ]
        },
        {
            "sharedCounters": [
                {"name": of, "counters": {"slices": {"value": "1"}}}
                for of in sorted({of for _, _, takes in devices for of in takes})
            ]
        },
    ]
    spec = {
        "driver": driver,
        "nodeName": "node-1",
        "pool": {"name": "pool", "generation": 1, "resourceSliceCount": len(bodies)},
    }
    return [
        node(),
        {
            "kind": "DeviceClass",
            "metadata": {"name": "part"},
            "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{driver}"'}}]},
        },
        *(
            {"kind": "ResourceSlice", "metadata": {"name": f"slice-{n}"}, "spec": {**spec, **body}}
            for n, body in enumerate(bodies)
        ),
    ]


def placed(objects: Sequence[Dict], *sizes: str, policy: str = "koordra") -> Plan:
    expression = 'device.attributes["parts.example.com"].size == "{}"'
    asked = [
        {
            "name": f"r{n}",
            "exactly": {
                "deviceClassName": "part",
                "selectors": [{"cel": {"expression": expression.format(size)}}],
            },
        }
        for n, size in enumerate(sizes)
    ]
    return plan([*objects, claim("a", *asked)], policy=policy)


ONE = {"a": "1"}


@pytest.mark.parametrize("policy", ["koordra", "FirstFit"])
@pytest.mark.parametrize(
    "large",
    [("large", 0, {"a": "1", "b": "1"}), ("large", 1, ONE)],
    ids=["of two sets", "on another NUMA node"],
)
def test_parts_of_which_one_excludes_a_device_are_not_exchangeable(
    large: tuple[str, int, Mapping[str, str]], policy: str
) -> None:
    """The first small part and the large one take of the same set; with the second small part the large one
    fits."""
    objects = parts(("small-0", 0, ONE), ("small-1", 0, {"c": "1"}), large)
    found = placed(objects, "small", "large", policy=policy)
    assert devices_of(found.allocations["default/a"]) == ["small-1", "large"]


def test_functions_of_one_card_are_nearest_also_where_counters_pin_other_devices() -> None:
    """The second GPU shares its bus with the NIC; a counter set that crosses NUMA nodes leaves no tree."""
    at = {"socket": 0, "numaNode": 2, "resource.kubernetes.io/pcieRoot": "pci0000:00"}
    devices = [
        gpu(n, place={**at, "resource.kubernetes.io/pciBusID": f"0000:0{n + 1}:00.0"}) for n in range(2)
    ]
    devices.append(nic(0, place={**at, "resource.kubernetes.io/pciBusID": "0000:02:00.1"}))
    across = parts(("small", 0, ONE), ("large", 1, ONE))
    found = plan([*device_classes(), *across, slice_of(devices), GPU_AND_NIC])
    assert devices_of(found.allocations["default/a"]) == ["gpu-1", "nic-0"]
    assert found.levels == {"default/a": "PIX"}
