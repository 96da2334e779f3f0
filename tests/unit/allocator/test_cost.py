"""What a choice costs, to the last unit: every weight of koordra/allocator/score.py stands in one of these
sums.

`claim` names the devices that it gets, so nothing is chosen; the costs are worked out by hand from the table
in that file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from koordra.placement import plan
from tests.unit.allocator.machines import (
    allocated,
    claim,
    config,
    counters_of,
    cut_card,
    device_classes,
    gpu,
    joint,
    machine,
    nic,
    node,
    request,
    slice_of,
)

Dict = dict[str, Any]

MILLION, STEP = 10**6, 10**4
"""A step of nearness, and one of compactness."""


def named(kind: str, numbers: Sequence[int], **fields: Any) -> Dict:
    """A request for exactly these devices."""
    attribute, prefix = ("uuid", "GPU-") if kind == "gpu" else ("ibDevice", "mlx5_")
    words = ", ".join(f'"{prefix}{number}"' for number in numbers)
    expression = f'device.attributes["koordra.io"].{attribute} in [{words}]'
    return request(kind, kind, len(numbers), selectors=[{"cel": {"expression": expression}}], **fields)


def cost(
    objects: Sequence[Dict], *requests: Dict, configs: Sequence[Dict] = (), policy: str = "koordra"
) -> int:
    found = plan([*device_classes(), *objects, claim("a", *requests, configs=configs)], policy=policy)
    return -found.scores["default/a"]


HGX = machine(8, 8)
"""Each GPU and NIC with a switch and a root of its own, four on a NUMA node; no NVLink."""


@pytest.mark.parametrize(
    ("gpu_", "nic_", "steps"), [(0, 0, 1), (0, 1, 4), (0, 4, 5)], ids=["PIX", "NODE", "SYS"]
)
def test_nearness_costs_a_million_a_step(gpu_: int, nic_: int, steps: int) -> None:
    # 3 free GPUs are left on a NUMA node that was whole; 7 of 8 GPUs of the node are left.
    assert cost(HGX, named("gpu", [gpu_]), named("nic", [nic_])) == steps * MILLION + 10 * 3 + 875


def place(switch: str | None, root: str, numa: int) -> dict[str, Any]:
    return {"pcieSwitch": switch, "resource.kubernetes.io/pcieRoot": root, "numaNode": numa, "socket": 0}


@pytest.mark.parametrize(
    ("first", "second", "steps"),
    [
        (place("a", "r", 0), place("a", "r", 0), 0),
        (place("a", "r", 0), place("b", "r", 0), 1),
        (place(None, "r", 0), place(None, "s", 0), 1),
        (place("a", "r", 0), place("b", "s", 0), 2),
        (place("a", "r", 0), place("a", "r", 1), 2),
        (place("a", "r", 0), place("b", "s", 1), 4),
    ],
    ids=[
        "together",
        "two switches",
        "two roots",
        "switches and roots",
        "two NUMA nodes",
        "nothing in common",
    ],
)
def test_compactness_counts_switches_roots_and_numa_nodes_twice(
    first: Mapping[str, Any], second: Mapping[str, Any], steps: int
) -> None:
    pair = [node(), slice_of([gpu(0, place=first), gpu(1, place=second)])]
    assert cost(pair, named("gpu", [0, 1])) == steps * STEP


def test_a_broken_group_counts_four_times_for_a_switch_and_once_for_a_numa_node() -> None:
    assert cost(HGX, named("gpu", [0, 4])) == 4 * STEP + 10 * (3 + 3) + 750
    by_twos = machine(8, 8, per_switch=2)
    assert cost(by_twos, named("gpu", [0])) == 10 * (4 * 1 + 3) + 875
    assert cost(by_twos, named("gpu", [0, 1])) == 10 * 2 + 750


def test_gpus_without_a_switch_are_grouped_by_their_root() -> None:
    places = (place(None, "r", 0), place(None, "r", 0), place("a", "r", 0))
    three = [node(), slice_of([gpu(number, place=one) for number, one in enumerate(places)])]
    assert cost(three, named("gpu", [0])) == 10 * (4 * 1 + 2) + 666
    assert cost(three, named("gpu", [2])) == 10 * 2 + 666


@pytest.mark.parametrize(
    ("first", "second"),
    [(place(None, "r", 0), place(None, "s", 0)), (place("a", "r", 0), place("b", "r", 0))],
)
def test_gpus_are_grouped_by_the_nearest_that_they_have(
    first: Mapping[str, Any], second: Mapping[str, Any]
) -> None:
    pair = [node(), slice_of([gpu(0, place=first), gpu(1, place=second)])]
    assert cost(pair, named("gpu", [0])) == 10 * 1 + 500


HOPPER = machine(8, 8, links="hopper")
"""Partitions: pairs, fours, all."""


def test_a_broken_partition_counts_four_times_for_a_pair_and_once_for_a_four() -> None:
    assert cost(HOPPER, named("gpu", [0])) == 10 * (4 * 1 + 3 + 3) + 875
    assert cost(HOPPER, named("gpu", [0, 1, 2])) == 4 * STEP + 10 * (4 * 1 + 1 + 1) + 625


def test_gpus_that_are_no_partition_cost_as_much_as_a_pair_without_nvlink() -> None:
    assert cost(HOPPER, named("gpu", [0, 1])) == 2 * STEP + 10 * (2 + 2) + 750
    assert cost(HOPPER, named("gpu", [0, 2])) == 500_000 + 2 * STEP + 10 * (4 * 2 + 2 + 2) + 750


def test_each_pair_without_nvlink_costs_five_and_each_link_less_a_half() -> None:
    bridges = machine(4, 4, links="bridges")
    assert cost(bridges, named("gpu", [0, 1])) == 2 * STEP + 10 * 2 + 500
    assert cost(bridges, named("gpu", [0, 2])) == 500_000 + 2 * STEP + 10 * 2 + 500
    mesh = machine(4, 4, links="mesh")
    # Of the mesh: two links between 0 and 3, which is the most there are, one between 0 and 1.
    assert cost(mesh, named("gpu", [0, 3])) == 2 * STEP + 10 * 2 + 500
    assert cost(mesh, named("gpu", [0, 1])) == 50_000 + 2 * STEP + 10 * 2 + 500


def test_the_second_of_first_available_costs_a_thousand_million() -> None:
    absent = {
        "deviceClassName": "gpu.koordra.io",
        "selectors": [{"cel": {"expression": "false"}}],
        "count": 1,
    }
    second = named("gpu", [0])["exactly"]
    wanted = {"name": "gpu", "firstAvailable": [{"name": "first", **absent}, {"name": "second", **second}]}
    assert cost(HGX, wanted) == 10**9 + 10 * 3 + 875


def test_a_scope_that_had_to_be_relaxed_costs_a_hundred_thousand_million() -> None:
    wish = [joint("PCIeSwitch", enforcement="Preferred")]
    assert cost(HGX, named("gpu", [0]), named("nic", [0]), configs=wish) == MILLION + 10 * 3 + 875
    relaxed = 2 * 10**11  # from the switch over the root to the NUMA node
    assert (
        cost(HGX, named("gpu", [0]), named("nic", [1]), configs=wish) == relaxed + 4 * MILLION + 10 * 3 + 875
    )


def test_destroyed_places_are_thousandths_of_the_card_by_the_square_of_their_size() -> None:
    parts = [("1g.10gb", 0, 1, 1), ("1g.10gb", 1, 1, 1), ("2g.20gb", 0, 2, 2)]
    devices, counters = cut_card(0, parts, slices=2, compute=2, place=place("a", "r", 0))
    card = [node(), slice_of(devices), counters_of([counters])]
    for entry in card[1:]:
        entry["spec"]["pool"]["resourceSliceCount"] = 2

    def part(uuid: str) -> Dict:
        wanted = {"cel": {"expression": f'device.attributes["koordra.io"].uuid == "{uuid}"'}}
        return request("part", "mig", selectors=[wanted])

    # A small one goes itself, and so does the large one over both: 1 + 4 of 1 + 1 + 4. Of three devices two
    # are left.
    assert cost(card, part("MIG-0-1g.10gb-1")) == 833 + 666
    assert cost(card, part("MIG-0-2g.20gb-0")) == 1000 + 666


def test_a_card_in_parts_is_found_behind_the_devices_of_another_pool() -> None:
    parts = [("1g.10gb", 0, 1, 1), ("2g.20gb", 0, 2, 2)]
    devices, counters = cut_card(0, parts, slices=2, compute=2, place=place("a", "r", 0))
    card = [slice_of(devices), counters_of([counters])]
    for entry in card:
        entry["spec"]["pool"]["resourceSliceCount"] = 2
    before = slice_of([gpu(1, place=place("b", "s", 0)), gpu(2, place=place("c", "t", 0))])
    before["metadata"]["name"], before["spec"]["pool"]["name"] = "00002-koordra.io-node-1", "a pool"
    # Of 1 + 4 nothing is left on the card; of four devices three are.
    assert cost([node(), before, *card], request("part", "mig", capacity={"memory": "20Gi"})) == 1000 + 750


def test_of_a_node_that_gave_out_more_than_it_has_less_than_nothing_is_left() -> None:
    result = {
        "request": "r",
        "driver": "koordra.io",
        "pool": "node-1",
        "device": "gpu-0",
        "shareID": "s",
        "consumedCapacity": {"memory": "40Gi", "slots": "1"},
    }
    held = allocated(claim("held"), {"devices": {"results": [result]}})
    smaller = [gpu(0, memory="30Gi", place=place("a", "r", 0)), nic(0, place=place("a", "r", 0))]
    # A third, rounded towards zero.
    assert cost([node(), slice_of(smaller), held], named("nic", [0])) == -333


def test_of_a_node_without_gpus_everything_is_left() -> None:
    assert cost(machine(0, 2), named("nic", [0])) == 1000


def test_what_is_left_of_a_card_counts_in_thousandths() -> None:
    quarter = {"memory": "20Gi"}
    assert cost(HGX, named("gpu", [0], capacity=quarter)) == 10 * 3 + 750 + (1000 - 31 - 1)


def test_the_other_policies_of_devices_count_distance_as_a_tie_break() -> None:
    def asked(device: str, **numbers: Sequence[int]) -> int:
        wish = [config("PlacementPolicy", device=device)]
        return cost(HOPPER, *(named(kind, which) for kind, which in numbers.items()), configs=wish)

    assert asked("Binpack", gpu=[0], nic=[1]) == 4 + 10 * (4 + 3 + 3) + 875
    assert asked("Binpack", gpu=[0, 2]) == 10 + 2 + 10 * (4 * 2 + 2 + 2) + 750
    # Spread: thousandths of what each share finds used, its own included, and nothing for groups.
    assert asked("Spread", gpu=[0], nic=[1]) == 4 + 2 * 1000 + 875


@pytest.mark.parametrize(("policy", "expected"), [("Binpack", 875), ("Spread", 125)])
def test_the_policies_of_nodes_count_what_is_left_or_what_is_used(policy: str, expected: int) -> None:
    device = [config("PlacementPolicy", device="TopologyAware")]
    assert cost(HGX, named("gpu", [0]), configs=device, policy=policy) == 10 * 3 + expected
