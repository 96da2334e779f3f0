"""What shares a card or a NIC, and what excludes what: shares, slots, MIG slices, virtual functions,
exclusive NICs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordra.placement import Plan, plan
from tests.conformance import checker
from tests.unit.allocator.machines import (
    allocated,
    claim,
    config,
    device_classes,
    devices_of,
    gpu,
    machine,
    nic,
    node,
    place,
    pod,
    request,
    slice_of,
)

Dict = dict[str, Any]


def alone(name: str, *requests: Dict, configs: list[Dict] | None = None) -> list[Dict]:
    """A claim with a pod of its own, so that it is planned for itself."""
    return [claim(name, *requests, configs=configs or []), pod(f"pod-{name}", name)]


def planned(*objects: Dict, **options: Any) -> Plan:
    given_objects = [*device_classes(), *objects]
    found = plan(given_objects, **options)
    assert checker.violations(given_objects, found.allocations) == []
    return found


def consumes(device: Dict, counters: str, amount: int) -> Dict:
    slices = {"slices": {"value": str(amount)}}
    return {**device, "consumesCounters": [{"counterSet": counters, "counters": slices}]}


def partitioned(cards: int = 2) -> list[Dict]:
    """Cards that can be shared or cut into four MIG slices, as koordra's kubelet plugin publishes them."""
    devices, counters = [], []
    for number in range(cards):
        where = place(number)
        devices.append(consumes(gpu(number, place=where), f"gpu-{number}", 4))
        for start in range(4):
            plain = gpu(number, memory="20Gi", place=where)
            attributes = {
                **plain["attributes"],
                "type": {"string": "mig"},
                "parent": {"string": f"gpu-{number}"},
            }
            part = {**plain, "name": f"gpu-{number}-mig-{start}", "attributes": attributes}
            part.pop("allowMultipleAllocations")
            part["capacity"] = {"memory": {"value": "20Gi"}}
            devices.append(consumes(part, f"gpu-{number}", 1))
        counters.append({"name": f"gpu-{number}", "counters": {"slices": {"value": "4"}}})
    return split(devices, counters)


def virtual(functions: int = 2) -> list[Dict]:
    """A NIC with virtual functions: each takes one of its functions, the NIC itself (shared or not) all of
    them."""
    devices = [consumes(nic(0, place=place(0)), "nic-0", functions)]
    for number in range(functions):
        part = nic(0, place=place(0))
        attributes = {**part["attributes"], "type": {"string": "vf"}}
        part = {**part, "name": f"nic-0-vf-{number}", "attributes": attributes}
        del part["allowMultipleAllocations"], part["capacity"]
        devices.append(consumes(part, "nic-0", 1))
    return split(devices, [{"name": "nic-0", "counters": {"slices": {"value": str(functions)}}}])


def split(devices: list[Dict], counters: list[Dict]) -> list[Dict]:
    """Devices and counters in slices of their own, as the API demands."""
    first, second = slice_of(devices), slice_of([])
    second["metadata"]["name"] += "-counters"
    del second["spec"]["devices"]
    second["spec"]["sharedCounters"] = counters
    for entry in (first, second):
        entry["spec"]["pool"]["resourceSliceCount"] = 2
    return [node(), first, second]


def used(found: Plan, name: str) -> list[str]:
    return devices_of(found.allocations[f"default/{name}"])


PERCENT_30 = [config("GpuConfig", memoryPercent=30)]


@pytest.mark.parametrize("order", [("a", "b", "c"), ("c", "a", "b"), ("a", "c", "b")])
def test_two_shares_and_a_mig_slice_never_meet_on_one_card(order: tuple[str, ...]) -> None:
    wanted = {
        "a": claim("a", request("gpu"), configs=PERCENT_30),
        "b": claim("b", request("gpu"), configs=PERCENT_30),
        "c": claim("c", request("mig", "mig")),
    }
    pods = [
        pod(name, name) | {"metadata": {"name": name, "namespace": "default", "creationTimestamp": f"{n}"}}
        for n, name in enumerate(order)
    ]
    found = planned(*partitioned(2), *wanted.values(), *pods)
    assert used(found, "a") == used(found, "b")
    assert not used(found, "c")[0].startswith(used(found, "a")[0])
    single = planned(*partitioned(1), *wanted.values(), *pods)
    waiting = single.unsatisfiable
    assert set(waiting) == ({"default/c"} if order[0] == "a" else {"default/a", "default/b"})
    assert any(reason.reason == "CountersExhausted" for reasons in waiting.values() for reason in reasons)


@given(st.lists(st.sampled_from(["share", "mig", "card"]), min_size=1, max_size=8))
def test_a_card_is_either_shared_or_cut(kinds: list[str]) -> None:
    objects: list[Dict] = []
    for number, kind in enumerate(kinds):
        asked = request("r", "mig" if kind == "mig" else "gpu")
        objects += alone(f"c{number}", asked, configs=PERCENT_30 if kind == "share" else [])
    found = planned(*partitioned(2), *objects)
    on_card: dict[str, set[bool]] = {}
    for allocation in found.allocations.values():
        for name in devices_of(allocation):
            on_card.setdefault(name[:5], set()).add("mig" in name)
    assert all(len(kinds_there) == 1 for kinds_there in on_card.values())


@pytest.mark.parametrize("memory", ["80Gi", "83201216Ki", "81559Mi", "1000000007"])
def test_percents_of_a_hundred_fit_on_one_card_of_any_size(memory: str) -> None:
    """83201216Ki is no whole number of MiB, so neither half may be rounded up."""
    parts = {"a": 50, "b": 33, "c": 17}
    objects = [
        entry
        for name, percent in parts.items()
        for entry in alone(name, request("gpu"), configs=[config("GpuConfig", memoryPercent=percent)])
    ]
    found = planned(node(), slice_of([gpu(0, memory=memory, place=place(0))]), *objects)
    assert set(found.allocations) == {"default/a", "default/b", "default/c"}


def test_percent_is_of_the_card_that_is_chosen() -> None:
    cards = [gpu(0, memory="80Gi", place=place(0)), gpu(1, memory="40Gi", place=place(1), model="A100")]
    a100 = [{"cel": {"expression": 'device.attributes["koordra.io"].model == "A100"'}}]
    half = [config("GpuConfig", memoryPercent=50)]
    found = planned(
        node(),
        slice_of(cards),
        *alone("any", request("gpu", selectors=a100), configs=half),
    )
    result = found.allocations["default/any"]["devices"]["results"][0]
    assert (result["device"], result["consumedCapacity"]["memory"]) == ("gpu-1", "20Gi")


@pytest.mark.parametrize(("most", "device"), [("60Gi", "gpu-0"), ("40Gi", "gpu-0"), ("39Gi", "gpu-1")])
def test_bytes_beside_a_percentage_are_the_most_that_it_may_come_to(most: str, device: str) -> None:
    """What was charged for it (docs/quota.md) is never exceeded, and the percentage is what it gets."""
    cards = [gpu(0, memory="80Gi", place=place(0)), gpu(1, memory="40Gi", place=place(1), model="A100")]
    half = [config("GpuConfig", memoryPercent=50)]
    larger = [{"cel": {"expression": 'device.attributes["koordra.io"].model != "A100"'}}]
    asked = request("gpu", capacity={"memory": most}, selectors=larger if device == "gpu-0" else [])
    found = planned(node(), slice_of(cards), *alone("any", asked, configs=half))
    result = found.allocations["default/any"]["devices"]["results"][0]
    halves = {"gpu-0": "40Gi", "gpu-1": "20Gi"}
    assert (result["device"], result["consumedCapacity"]["memory"]) == (device, halves[device])


def test_claims_that_exclude_each_other_are_told_by_which_counter() -> None:
    """A share and a slice asked for together, each of which would fit by itself on the one card there is."""
    share = claim("share", request("gpu", capacity={"memory": "10Gi"}))
    found = planned(*partitioned(1), share, claim("slice", request("mig", "mig")))
    for name in ("share", "slice"):
        (told,) = found.unsatisfiable[f"default/{name}"]
        assert told.reason == "CountersExhausted"
        assert "gpu: gpu-0 takes 4 of gpu-0/slices, of which 4 are free" in told.detail
        assert "mig: gpu-0-mig-0 takes 1 of gpu-0/slices" in told.detail


def test_slots_limit_how_many_share_a_card() -> None:
    small = {"memory": "1Gi"}
    objects = [entry for n in range(18) for entry in alone(f"c{n:02}", request("gpu", capacity=small))]
    found = planned(*machine(1, 0), *objects)
    assert len(found.allocations) == 16
    reason = next(reason for reason in found.unsatisfiable["default/c16"] if reason.device)
    assert (reason.reason, reason.detail) == (
        "InsufficientCapacity",
        "slots: requested 1, free 0 of 16, in use by ResourceClaims default/c00, default/c01, default/c02 and 13 more",
    )


def test_a_share_may_take_several_slots() -> None:
    big = {"memory": "1Gi", "slots": "9"}
    found = planned(
        *machine(1, 0), *alone("a", request("gpu", capacity=big)), *alone("b", request("gpu", capacity=big))
    )
    assert set(found.allocations) == {"default/a"}


EXCLUSIVE = [config("RdmaConfig", mode="Exclusive")]


def test_an_exclusive_nic_is_nobody_elses() -> None:
    found = planned(
        *machine(0, 2),
        *alone("a", request("nic", "nic", capacity={"share": "10"})),
        *alone("b", request("nic", "nic"), configs=EXCLUSIVE),
        *alone("c", request("nic", "nic", capacity={"share": "10"})),
        *alone("d", request("nic", "nic"), configs=EXCLUSIVE),
    )
    assert used(found, "a") == used(found, "c") == ["nic-0"]
    assert used(found, "b") == ["nic-1"]
    assert set(found.unsatisfiable) == {"default/d"}


def test_virtual_functions_and_their_nic_exclude_each_other() -> None:
    vf = alone("vf", request("r", "vf"))
    pf = alone("pf", request("r", "nic", capacity={"share": "10"}))
    found = planned(*virtual(), *vf)
    taken = allocated(vf[0], found.allocations["default/vf"])
    refused = planned(*virtual(), taken, *pf)
    assert "CountersExhausted" in {reason.reason for reason in refused.unsatisfiable["default/pf"]}
    shared = planned(*virtual(), *pf)
    both = planned(*virtual(), allocated(pf[0], shared.allocations["default/pf"]), *vf)
    assert set(both.unsatisfiable) == {"default/vf"}


def test_functions_are_counted_exactly() -> None:
    objects = [entry for n in range(4) for entry in alone(f"c{n}", request("r", "vf"))]
    found = planned(*virtual(3), *objects)
    assert [used(found, f"c{n}") for n in range(3)] == [[f"nic-0-vf-{n}"] for n in range(3)]
    assert set(found.unsatisfiable) == {"default/c3"}


@pytest.mark.parametrize("policy", ["koordra", "FirstFit"])
def test_a_share_that_was_taken_back_pays_again(policy: str) -> None:
    """Each of two cards takes all of one counter: not both, whichever comes first."""
    cards = [consumes(gpu(n, place=place(n)), "both", 4) for n in range(2)]
    published = split(cards, [{"name": "both", "counters": {"slices": {"value": "4"}}}])
    found = planned(*published, *alone("a", request("gpu", count=2), configs=PERCENT_30), policy=policy)
    assert set(found.unsatisfiable) == {"default/a"}


def test_admin_access_is_to_busy_cards_too() -> None:
    """Looking at a card takes nothing of it, so it neither waits for room nor takes any (upstream, KEP
    5018)."""
    look = request("all")
    look["exactly"] |= {"allocationMode": "All", "adminAccess": True}
    found = planned(
        *machine(1, 0), *alone("a-look", look), *alone("b", request("gpu")), *alone("c-look", look)
    )
    assert used(found, "a-look") == used(found, "b") == used(found, "c-look") == ["gpu-0"]
    assert "default/d" in planned(*machine(1, 0), *alone("d", request("gpu"))).allocations
