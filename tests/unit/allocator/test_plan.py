"""koordra's device model through `plan()`: shares, pairs, several claims, pods, several nodes, modes, held
devices."""

from __future__ import annotations

from typing import Any

import pytest

from koordra.placement import Plan, PlanError, plan
from koordra_devcluster.demo.report import worst_level
from tests.unit.allocator.machines import (
    allocated,
    claim,
    config,
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


def planned(*objects: Dict | list[Dict], **options: Any) -> Plan:
    flat = [entry for one in objects for entry in (one if isinstance(one, list) else [one])]
    return plan([*device_classes(), *flat], **options)


def reasons(found: Plan, name: str) -> list[tuple[str, str]]:
    return [(reason.reason, reason.detail) for reason in found.unsatisfiable[f"default/{name}"]]


def test_four_memory_only_shares_fit_on_one_card() -> None:
    shares = [claim(f"share-{n}", request("gpu", capacity={"memory": "20Gi"})) for n in range(4)]
    found = planned(machine(1, 0), shares)
    assert [devices_of(found.allocations[f"default/share-{n}"]) for n in range(4)] == [["gpu-0"]] * 4
    result = found.allocations["default/share-0"]["devices"]["results"][0]
    assert result["consumedCapacity"] == {"cores": "0", "memory": "20Gi", "slots": "1"}


def test_a_share_without_amounts_is_the_whole_card() -> None:
    found = planned(
        machine(1, 0),
        pod("p", "whole"),
        claim("whole", request("gpu")),
        pod("q", "more"),
        claim("more", request("gpu")),
    )
    result = found.allocations["default/whole"]["devices"]["results"][0]
    assert result["consumedCapacity"] == {"cores": "0", "memory": "80Gi", "slots": "1"}
    assert (
        "InsufficientCapacity",
        "memory: requested 80Gi, free 0 of 80Gi, in use by ResourceClaim default/whole",
    ) in reasons(found, "more")


def test_share_ids_are_the_same_whenever_it_is_planned() -> None:
    wanted = claim("two", request("gpu", count=2, capacity={"memory": "10Gi"}))
    first, second = (planned(machine(), wanted).allocations["default/two"] for _ in range(2))
    ids = [result["shareID"] for result in first["devices"]["results"]]
    assert first == second
    assert len(set(ids)) == 2
    assert all(len(share) == 36 for share in ids)


def test_the_node_is_named_and_the_configuration_copied() -> None:
    wanted = claim("one", request("gpu"), configs=[config("GpuConfig", requests=["gpu"], isolation="none")])
    allocation = planned(machine(), wanted).allocations["default/one"]
    assert allocation["nodeSelector"] == {
        "nodeSelectorTerms": [
            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-1"]}]}
        ]
    }
    assert [entry["source"] for entry in allocation["devices"]["config"]] == ["FromClaim"]
    assert "requests" not in allocation["devices"]["config"][0]
    assert "allocationTimestamp" not in allocation


def test_each_gpu_gets_a_nic_under_its_own_switch() -> None:
    wanted = claim("pairs", request("gpu", count=2), request("nic", "nic", 2), configs=[joint("PCIeSwitch")])
    busy = allocated(claim("busy"), {"devices": {"results": [whole("nic-0", "share")]}})
    found = planned(machine(), wanted, busy)
    assert devices_of(found.allocations["default/pairs"]) == ["gpu-1", "gpu-2", "nic-1", "nic-2"]
    assert found.levels["default/pairs"] == "PIX"


def whole(device: str, capacity: str) -> Dict:
    """All of one capacity of a device, as an allocation result."""
    amounts = {
        "share": {"share": "100", "bandwidth": "0"},
        "memory": {"memory": "80Gi", "cores": "0", "slots": "1"},
    }
    return {
        "request": "r",
        "driver": "koordra.io",
        "pool": "node-1",
        "device": device,
        "shareID": f"share-of-{device}",
        "consumedCapacity": amounts[capacity],
    }


@pytest.mark.parametrize(
    ("enforcement", "outcome"),
    [("Required", None), ("Preferred", ["gpu-0", "nic-1"])],
)
def test_preferred_climbs_and_required_waits(enforcement: str, outcome: list[str] | None) -> None:
    wanted = claim(
        "pair", request("gpu"), request("nic", "nic"), configs=[joint("PCIeSwitch", enforcement=enforcement)]
    )
    devices = [gpu(0, place=place(0)), nic(1, place=place(1)), nic(4, place=place(4))]
    found = planned(node(), slice_of(devices), wanted)
    if outcome is None:
        assert reasons(found, "pair") == [
            (
                "TopologyScopeUnmet",
                (
                    "JointAllocation scope PCIeSwitch, pairing PerDevice: requested 1 GPU and 1 NIC; free per PCIeSwitch: "
                    "2 x (0 GPUs and 1 NIC), 1 x (1 GPU and 0 NICs); the node has no such place, whatever is in use; "
                    "it would fit with scope NUMANode"
                ),
            )
        ]
    else:
        assert devices_of(found.allocations["default/pair"]) == outcome
        assert found.levels["default/pair"] == "NODE"


def test_without_a_joint_allocation_the_nearest_nic_is_taken_anyway() -> None:
    devices = [gpu(0, place=place(0)), nic(4, place=place(4)), nic(1, place=place(1)), nic(0, place=place(0))]
    found = planned(node(), slice_of(devices), claim("pair", request("gpu"), request("nic", "nic")))
    assert devices_of(found.allocations["default/pair"]) == ["gpu-0", "nic-0"]


def test_per_group_needs_a_nic_in_every_scope_of_the_gpus() -> None:
    wanted = [request("gpu", count=4), request("nic", "nic", 2)]
    devices = [gpu(n, place=place(n, per_switch=2)) for n in range(4)] + [
        nic(n, place=place(n)) for n in (0, 1)
    ]
    group = claim("g", *wanted, configs=[joint("PCIeSwitch", pairing="PerGroup")])
    device = claim("d", *wanted, configs=[joint("PCIeSwitch", pairing="PerDevice")])
    assert "default/g" in planned(node(), slice_of(devices), group).allocations
    assert "default/d" in planned(node(), slice_of(devices), device).unsatisfiable


def test_a_pods_gpu_claim_pairs_with_its_nic_claim() -> None:
    """A JointAllocation in a claim that has only GPUs reaches the pod's other claims."""
    devices = [gpu(0, place=place(0)), gpu(1, place=place(1)), nic(9, place=place(0)), nic(1, place=place(1))]
    taken = allocated(claim("held"), {"devices": {"results": [whole("gpu-0", "memory")]}})
    objects = [
        node(),
        slice_of(devices),
        taken,
        claim("a-gpu", request("gpu"), configs=[joint("PCIeSwitch")]),
        claim("b-nic", request("nic", "nic")),
        pod("p", "a-gpu", "b-nic"),
    ]
    found = planned(objects, policy="FirstFit")
    assert devices_of(found.allocations["default/b-nic"]) == ["nic-1"]


def test_claims_of_one_pod_share_a_node() -> None:
    objects = [*machine(1, 1, name="node-a"), *machine(2, 1, name="node-b")]
    found = planned(objects, claim("a", request("gpu")), claim("b", request("gpu")), pod("p", "a", "b"))
    assert {found.nodes["default/a"], found.nodes["default/b"]} == {"node-b"}


def test_pods_are_planned_by_priority_then_age() -> None:
    early, late = pod("early", "a"), pod("late", "b", priority=10)
    found = planned(machine(1, 0), claim("a", request("gpu")), claim("b", request("gpu")), early, late)
    assert set(found.allocations) == {"default/b"}
    assert set(found.unsatisfiable) == {"default/a"}


def test_claims_of_pods_that_ended_are_left_alone() -> None:
    over = {**pod("over", "a"), "status": {"phase": "Succeeded"}}
    found = planned(machine(), claim("a", request("gpu")), over)
    assert found == Plan()


def test_consumers_of_a_shared_claim_are_planned_together() -> None:
    """Both pods have to fit beside the shared card, so the larger node is taken."""
    small = [node("node-a", allocatable={"cpu": "4"}), slice_of([gpu(0, place=place(0))], name="node-a")]
    large = [node("node-b", allocatable={"cpu": "64"}), slice_of([gpu(0, place=place(0))], name="node-b")]
    pods = [pod(name, "shared", requests={"cpu": "3"}) for name in ("p", "q")]
    found = planned(small, large, claim("shared", request("gpu")), pods)
    assert found.nodes["default/shared"] == "node-b"


def test_a_consumer_that_no_longer_fits_is_told_that_the_claim_is_pinned() -> None:
    first, second = (
        pod("p", "shared", requests={"cpu": "3"}),
        pod("q", "shared", "own", requests={"cpu": "40"}),
    )
    objects = [node(allocatable={"cpu": "4"}), slice_of([gpu(n, place=place(n)) for n in range(2)])]
    other = machine(2, 0, name="node-2")
    shared = planned(objects, claim("shared", request("gpu")), first).allocations["default/shared"]
    found = planned(
        objects,
        other,
        allocated(claim("shared", request("gpu")), shared),
        claim("own", request("gpu")),
        first,
        second,
    )
    assert (
        "SharedClaimPinned",
        "the pod has to run on node-1 (ResourceClaim default/shared of the pod is allocated there)",
    ) in reasons(found, "own")


def consumed_by(number: int, allocation: dict[str, Any]) -> dict[str, Any]:
    """The shared claim with that many consumers, the last of which is the pod `p`."""
    found = allocated(claim("shared", request("gpu")), allocation)
    users = [{"resource": "pods", "name": f"x{n}", "uid": f"x{n}"} for n in range(number - 1)]
    found["status"]["reservedFor"] = [*users, {"resource": "pods", "name": "p", "uid": "uid-p"}]
    return found


def test_a_claim_has_at_most_256_consumers() -> None:
    """Whoever is one of them already still is; others, of whom a second claim is waiting, are told."""
    objects = machine(2, 0)
    shared = planned(objects, claim("shared", request("gpu"))).allocations["default/shared"]
    inside, outside = pod("p", "shared", "own"), pod("q", "shared", "other")
    inside["metadata"]["uid"] = "uid-p"
    for users, fits in ((255, {"default/own"}), (256, {"default/own"})):
        found = planned(objects, consumed_by(users, shared), claim("own", request("gpu")), inside)
        assert set(found.allocations) == fits
    more = [claim("other", request("gpu", capacity={"memory": "1Gi"})), outside]
    assert set(planned(objects, consumed_by(255, shared), more).allocations) == {"default/other"}
    found = planned(objects, consumed_by(256, shared), more)
    assert reasons(found, "other") == [
        (
            "ReservedForFull",
            "pod default/q: ResourceClaim default/shared has 256 consumers, which is the most that it can have",
        )
    ]


def test_consumers_that_are_planned_now_count_too() -> None:
    """Two pods, one place left: the first by name gets it. Of 300 pods of one claim 256 may use it."""
    objects = machine(3, 0)
    shared = planned(objects, claim("shared", request("gpu"))).allocations["default/shared"]
    pods = [pod(name, "shared", f"own-{name}") for name in "rq"]
    found = planned(
        objects, consumed_by(255, shared), [claim(f"own-{n}", request("gpu")) for n in "rq"], pods
    )
    assert set(found.allocations) == {"default/own-q"}
    assert reasons(found, "own-r")[0][0] == "ReservedForFull"
    crowd = [pod(f"p{n:03}", "shared", *(["late"] if n == 299 else [])) for n in range(300)]
    claims = [claim("shared", request("gpu")), claim("late", request("gpu"))]
    roomy = [node(allocatable={"pods": "1000"}), slice_of([gpu(n, place=place(n)) for n in range(3)])]
    found = planned(roomy, claims, crowd)
    assert set(found.allocations) == {"default/shared"}
    assert reasons(found, "late")[0][0] == "ReservedForFull"


def test_two_pods_of_one_claim_that_fit_nowhere_together_are_served_one_by_one() -> None:
    pods = [pod("p", "shared", "a", requests={"cpu": "3"}), pod("q", "shared", "b", requests={"cpu": "3"})]
    claims = [
        claim("shared", request("gpu")),
        claim("a", request("nic", "nic")),
        claim("b", request("nic", "nic")),
    ]
    found = planned(
        [
            node(allocatable={"cpu": "4"}),
            slice_of([gpu(0, place=place(0)), *(nic(n, place=place(n)) for n in range(2))]),
        ],
        claims,
        pods,
    )
    assert set(found.allocations) == {"default/shared", "default/a"}
    assert ("NodeUnsuitable", "cpu: requested 3, free 1 of 4") in reasons(found, "b")


@pytest.mark.parametrize(
    ("taint", "reason"),
    [
        ({"key": "koordra.io/held", "value": "uid-1", "effect": "NoSchedule"}, "Tainted"),
        ({"key": "koordra.io/driver-release", "value": "Evicting", "effect": "NoSchedule"}, "Tainted"),
        ({"key": "koordra.io/unhealthy", "value": "Xid79", "effect": "NoSchedule"}, "DeviceUnhealthy"),
        ({"key": "example.com/maintenance", "effect": "NoExecute"}, "Tainted"),
    ],
)
def test_taints_other_than_the_joint_one_are_honoured(taint: Dict, reason: str) -> None:
    devices = [gpu(0, place=place(0), taints=[taint])]
    found = planned(node(), slice_of(devices), claim("a", request("gpu")))
    assert [entry.reason for entry in found.unsatisfiable["default/a"]] == [reason, reason]
    assert taint["key"] in reasons(found, "a")[1][1]
    tolerating = claim("a", request("gpu", tolerations=[{"key": taint["key"], "operator": "Exists"}]))
    # What the node still uses is not free for anybody.
    free = taint["key"] not in ("koordra.io/held", "koordra.io/driver-release")
    assert ("default/a" in planned(node(), slice_of(devices), tolerating).allocations) is free


@pytest.mark.parametrize("policy", ["koordra", "FirstFit"])
def test_a_tainted_device_serves_no_alternative_either(policy: str) -> None:
    taint = {"key": "example.com/x", "effect": "NoSchedule"}
    devices = [gpu(0, place=place(0), taints=[taint]), gpu(1, place=place(1))]
    either = [{"name": kind, "deviceClassName": f"{kind}.koordra.io"} for kind in ("gpu", "mig")]
    wanted = claim("a", {"name": "either", "firstAvailable": either})
    found = plan([*device_classes(), node(), slice_of(devices), wanted], policy=policy)
    assert devices_of(found.allocations["default/a"]) == ["gpu-1"]


def test_a_selector_that_fails_on_one_device_leaves_the_others_to_a_scored_policy() -> None:
    devices = [gpu(0, place=place(0)), gpu(1, place=place(1), tier="fast")]
    fast = [{"cel": {"expression": 'device.attributes["koordra.io"].tier == "fast"'}}]
    found = plan([*device_classes(), node(), slice_of(devices), claim("a", request("gpu", selectors=fast))])
    assert devices_of(found.allocations["default/a"]) == ["gpu-1"]


def test_a_taint_rule_keeps_a_device_away() -> None:
    rule = {
        "kind": "DeviceTaintRule",
        "metadata": {"name": "broken"},
        "spec": {
            "deviceSelector": {"driver": "koordra.io", "device": "gpu-0"},
            "taint": {"key": "example.com/broken", "effect": "NoSchedule"},
        },
    }
    found = planned(machine(2, 0), claim("a", request("gpu")), rule)
    assert devices_of(found.allocations["default/a"]) == ["gpu-1"]


def test_an_excluded_node_is_not_used_and_says_why() -> None:
    objects = [machine(name="node-a"), machine(name="node-b"), claim("a", request("gpu")), pod("p", "a")]
    found = planned(*objects, exclude={"default/p": {"node-a": "scheduler said no at 10:00"}})
    assert found.nodes["default/a"] == "node-b"
    nowhere = planned(*objects, exclude={"default/p": {"node-a": "no", "node-b": "no"}})
    assert ("NodeUnsuitable", "excluded for pod default/p: no") in reasons(nowhere, "a")


def test_the_pods_other_drivers_claim_pins_the_node() -> None:
    other = allocated(
        claim("other"),
        {
            "devices": {"results": [{"request": "r", "driver": "other.io", "pool": "x", "device": "y"}]},
            "nodeSelector": {
                "nodeSelectorTerms": [
                    {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-b"]}]}
                ]
            },
        },
    )
    found = planned(
        machine(name="node-a"),
        machine(name="node-b"),
        other,
        claim("a", request("gpu")),
        pod("p", "other", "a"),
    )
    assert found.nodes["default/a"] == "node-b"


def test_a_claim_that_mixes_drivers_is_refused() -> None:
    foreign = {
        "kind": "DeviceClass",
        "metadata": {"name": "other"},
        "spec": {"selectors": [{"cel": {"expression": 'device.driver == "other.io"'}}]},
    }
    mixed = claim("mixed", request("gpu"), {"name": "x", "exactly": {"deviceClassName": "other"}})
    found = planned(machine(), foreign, mixed, report_errors=True)
    assert [entry.reason for entry in found.unsatisfiable["default/mixed"]] == ["ForeignDriver"]


def test_memory_percent_is_resolved_on_the_card() -> None:
    wanted = claim("half", request("gpu"), configs=[config("GpuConfig", memoryPercent=50)])
    result = planned(machine(1, 0), wanted).allocations["default/half"]["devices"]["results"][0]
    assert result["consumedCapacity"]["memory"] == "40Gi"


def test_an_exclusive_nic_takes_the_whole_function() -> None:
    wanted = claim(
        "all",
        request("nic", "nic", capacity={"share": "10"}),
        configs=[config("RdmaConfig", mode="Exclusive")],
    )
    result = planned(machine(0, 1), wanted).allocations["default/all"]["devices"]["results"][0]
    assert result["consumedCapacity"]["share"] == "100"


@pytest.mark.parametrize(
    ("policy", "expected"),
    [("koordra", "gpu-1"), ("Binpack", "gpu-1"), ("Spread", "gpu-0"), ("FirstFit", "gpu-0")],
)
def test_policies_choose_the_card(policy: str, expected: str) -> None:
    part = {**whole("gpu-1", "memory"), "consumedCapacity": {"memory": "40Gi", "cores": "0", "slots": "1"}}
    held = allocated(claim("held"), {"devices": {"results": [part]}})
    found = planned(
        machine(2, 0), held, claim("a", request("gpu", capacity={"memory": "20Gi"})), policy=policy
    )
    assert devices_of(found.allocations["default/a"]) == [expected]


@pytest.mark.parametrize(
    ("policy", "expected"), [("koordra", "node-b"), ("Binpack", "node-b"), ("Spread", "node-a")]
)
def test_policies_choose_the_node(policy: str, expected: str) -> None:
    held = allocated(
        claim("held"), {"devices": {"results": [{**whole("gpu-0", "memory"), "pool": "node-b"}]}}
    )
    found = planned(
        machine(2, 0, name="node-a"),
        machine(2, 0, name="node-b"),
        held,
        claim("a", request("gpu")),
        policy=policy,
    )
    assert found.nodes["default/a"] == expected


@pytest.mark.parametrize(("policy", "cards"), [("Spread", 4), ("Binpack", 1)])
def test_shares_that_are_planned_together_spread_or_pack_too(policy: str, cards: int) -> None:
    claims = [claim(f"c{number}", request("gpu", capacity={"memory": "10Gi"})) for number in range(4)]
    for pods in ([], [pod("p", *(f"c{number}" for number in range(4)))]):
        found = plan([*device_classes(), *machine(4, 0), *claims, *pods], policy=policy)
        used = {name for allocation in found.allocations.values() for name in devices_of(allocation)}
        assert (len(found.allocations), len(used)) == (4, cards)


def test_shares_of_one_claim_spread_over_cards_in_use() -> None:
    held = claim("held", request("gpu", capacity={"memory": "8Gi"}))
    before = [*device_classes(), *machine(2, 0)]
    taken = allocated(held, plan([*before, held]).allocations["default/held"])
    two = claim("two", *(request(name, capacity={"memory": "10Gi"}) for name in ("a", "b")))
    found = plan([*before, taken, two], policy="Spread")
    assert devices_of(found.allocations["default/two"]) == ["gpu-0", "gpu-1"]


def test_a_claims_own_placement_policy_wins() -> None:
    held = allocated(
        claim("held"), {"devices": {"results": [{**whole("gpu-0", "memory"), "pool": "node-b"}]}}
    )
    spread = claim("a", request("gpu"), configs=[config("PlacementPolicy", node="Spread")])
    found = planned(machine(2, 0, name="node-a"), machine(2, 0, name="node-b"), held, spread)
    assert found.nodes["default/a"] == "node-a"


def test_whole_switch_groups_stay_intact() -> None:
    """One GPU completes the broken pair; two GPUs take an intact one."""
    held = allocated(claim("held"), {"devices": {"results": [whole("gpu-4", "memory")]}})
    objects = [machine(8, 0, per_switch=2), held]
    assert devices_of(planned(*objects, claim("a", request("gpu"))).allocations["default/a"]) == ["gpu-5"]
    assert devices_of(planned(*objects, claim("a", request("gpu", count=2))).allocations["default/a"]) == [
        "gpu-6",
        "gpu-7",
    ]


def test_worst_level_of_a_written_allocation() -> None:
    objects = machine(4, 4)
    wanted = claim("a", request("gpu", count=2), request("nic", "nic", 2))
    written = allocated(wanted, planned(objects, wanted).allocations["default/a"])
    assert worst_level(written, [objects[1]]) == "PIX"
    assert worst_level(wanted, [objects[1]]) is None
    only_gpu = allocated(claim("g"), {"devices": {"results": [whole("gpu-0", "memory")]}})
    assert worst_level(only_gpu, [objects[1]]) is None


def test_template_claims_that_are_not_made_yet_hold_the_pod_back() -> None:
    waiting = pod("p", "a")
    waiting["spec"]["resourceClaims"].append({"name": "late", "resourceClaimTemplateName": "t"})
    found = planned(machine(), claim("a", request("gpu")), waiting)
    assert reasons(found, "a") == [
        ("ConstraintViolated", "pod default/p: entry late has no ResourceClaim yet")
    ]


def test_claims_marked_immediate_are_planned_by_themselves() -> None:
    immediate = claim("now", request("gpu"))
    immediate["metadata"]["annotations"] = {"koordra.io/allocation-mode": "Immediate"}
    too_much = claim("too-much", request("gpu", count=9))
    found = planned(machine(), immediate, too_much)
    assert set(found.allocations) == {"default/now"}


def test_nodes_are_taken_from_slices_where_no_node_is_given() -> None:
    _, slices = machine(name="bare")
    assert planned(slices, claim("a", request("gpu"))).nodes == {"default/a": "bare"}


@pytest.mark.parametrize(
    "options",
    [
        {"policy": "Best"},
        {"features": "not a gate"},
        {"features": "NoSuchGate"},
        {"features": ["DRAPrioritizedList+DRAConsumableCapcity"]},
    ],
)
def test_unknown_policies_and_gates_are_errors(options: Dict) -> None:
    with pytest.raises(PlanError):
        planned(machine(), **options)


def test_gates_of_dra_that_concern_others_change_nothing() -> None:
    wanted = claim("a", request("gpu", capacity={"memory": "20Gi"}))
    gates = "DRAConsumableCapacity+DRAExtendedResource + DynamicResourceAllocation"
    assert planned(machine(), wanted, features=gates).allocations


def test_shares_wait_where_the_gate_is_off() -> None:
    wanted = claim("a", request("gpu", capacity={"memory": "20Gi"}))
    found = planned(machine(), wanted, features="DRAPrioritizedList", report_errors=True)
    reason = found.unsatisfiable["default/a"][0]
    assert (reason.reason, "DRAConsumableCapacity" in reason.detail) == ("FeatureDisabled", True)


EVERY_GPU = {"deviceClassName": "gpu.koordra.io", "allocationMode": "All"}


@pytest.mark.parametrize("policy", ["koordra", "Binpack", "Spread", "FirstFit"])
def test_all_against_a_constraint_is_upstreams_error_under_every_policy(policy: str) -> None:
    alike = [{"matchAttribute": "koordra.io/uuid"}]
    wanted = claim("a", {"name": "gpu", "exactly": EVERY_GPU}, constraints=alike)
    with pytest.raises(PlanError, match="a claim constraint would not be satisfied"):
        plan([*device_classes(), *machine(3, 0), wanted], policy=policy)
    good = claim("good", request("gpu"))
    found = plan(
        [*device_classes(), *machine(3, 0), wanted, good, pod("p", "a"), pod("q", "good")], policy=policy
    )
    assert set(found.allocations) == {"default/good"}
    assert found.unsatisfiable["default/a"][0].reason == "ConstraintViolated"


def test_all_that_only_finds_its_devices_in_use_does_not_fit() -> None:
    wanted = claim("a", {"name": "gpu", "exactly": EVERY_GPU})
    first = claim("b", request("gpu"))
    cluster = [*device_classes(), *machine(2, 0), first]
    held = allocated(first, plan(cluster).allocations["default/b"])
    found = plan([*cluster[:-1], held, wanted])
    assert found.unsatisfiable["default/a"][0].reason == "InsufficientCapacity"
