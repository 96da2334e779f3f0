"""What the search of one node costs a pass at most, for claims that are made so that it finds nothing and
cannot see that beforehand: counted in steps, on the devices of a real machine."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from koordra.allocator.group_search import GroupSearch
from koordra.allocator.joint_allocation import MOST_RELAXATIONS, MOST_SCOPES, relaxations_of
from koordra.allocator.search.search import BUDGET
from koordra.api import names
from koordra.api.kinds import NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from koordra.api.objects import Object
from koordra.controller.reconcile.allocation_step import UNDECIDED_PAUSE
from koordra.controller.reconcile.turns import SHARE, Turn, Turns
from koordra.kubelet_plugin.discovery.reading import discover
from koordra.kubelet_plugin.publish.offering import Offering
from koordra.kubelet_plugin.publish.resource_slices import build_slices
from koordra.placement import decide, plan
from koordra.placement.decide import Engine
from koordra.placement.request.request_class import ResolvedGroup
from koordra.topology import presets
from tests.fakes.joint_cluster import claim, node, pod
from tests.property.test_pass_cost import INNOCENT, TENANT, Cluster, with_others
from tests.unit.allocator.machines import device_classes

MOST = 5 * BUDGET


def nics(*counts: int) -> list[Object]:
    return [
        {"name": f"r{number}", "exactly": {"deviceClassName": names.CLASS_NIC, "count": count}}
        for number, count in enumerate(counts)
    ]


def apart_and_together() -> Object:
    """Eight NICs that are told apart by their switch, of which some are on one socket: found by chance."""
    some = [f"r{number}" for number in range(9)]
    return {
        "requests": nics(2, 1, 2, 1, 1, 2, 2, 1, 1),
        "constraints": [
            {
                "distinctAttribute": "koordra.io/pcieSwitch",
                "requests": [some[at] for at in (4, 1, 8, 7, 0, 5, 3, 2)],
            },
            {"matchAttribute": "koordra.io/socket", "requests": [some[at] for at in (8, 0, 5)]},
            {"distinctAttribute": "koordra.io/rail", "requests": [some[at] for at in (1, 4, 3)]},
            {
                "distinctAttribute": "koordra.io/rail",
                "requests": [some[at] for at in (2, 6, 0, 8, 4, 1, 3, 7)],
            },
        ],
    }


def alternatives_on_one_socket() -> Object:
    def either(number: int, *counts: int) -> Object:
        choices = [
            {"name": f"a{at}", "deviceClassName": names.CLASS_NIC, "count": count}
            for at, count in enumerate(counts)
        ]
        return {"name": f"r{number}", "firstAvailable": choices}

    requests = [
        *nics(1, 2, 1),
        either(3, 2, 1, 2),
        either(4, 1, 2),
        either(5, 2, 1, 1, 1),
        either(6, 1, 1),
        either(7, 2, 1, 1, 1),
    ]
    return {
        "requests": requests,
        "constraints": [
            {"matchAttribute": "koordra.io/model", "requests": ["r3", "r6"]},
            {"matchAttribute": "koordra.io/socket", "requests": [f"r{number}" for number in range(8)]},
        ],
    }


def scopes(number: int) -> Object:
    """Pairs of a GPU and a NIC, each of which would rather be on one switch: more than there are switches."""
    requests, config = list[Object](), list[Object]()
    for each in range(number):
        gpu = {"deviceClassName": names.CLASS_GPU, "count": 1, "capacity": {"requests": {"memory": "1Gi"}}}
        nic = {"deviceClassName": names.CLASS_NIC, "count": 1}
        requests += [{"name": f"g{each}", "exactly": gpu}, {"name": f"n{each}", "exactly": nic}]
        said = {"apiVersion": "koordra.io/v1alpha1", "kind": "JointAllocation", "scope": "PCIeSwitch"}
        said["enforcement"] = "Preferred"
        opaque = {"driver": names.DRIVER, "parameters": said}
        config.append({"requests": [f"g{each}", f"n{each}"], "opaque": opaque})
    return {"requests": requests, "config": config}


def apart_and_wider() -> Object:
    """Each way to widen the scopes is as hard as the others."""
    said = {"apiVersion": "koordra.io/v1alpha1", "kind": "JointAllocation", "scope": "NUMANode"}
    opaque = {"driver": names.DRIVER, "parameters": {**said, "enforcement": "Preferred"}}
    pairs = (("r0", "r5"), ("r1", "r4"), ("r2", "r6"), ("r3", "r7"))
    return {**apart_and_together(), "config": [{"requests": [*pair], "opaque": opaque} for pair in pairs]}


def found_late() -> Object:
    """The first alternative has no place, which takes more than BUDGET to exclude."""
    either = [{"name": name, "deviceClassName": names.CLASS_NIC, "count": 1} for name in "ab"]
    others = [{**one, "name": f"r{at}"} for at, one in enumerate(nics(*[1] * 5), start=1)]
    return {
        "requests": [{"name": "r0", "firstAvailable": either}, *others],
        "constraints": [
            {"distinctAttribute": "koordra.io/numaNode", "requests": ["r0/a", "r4", "r2"]},
            {"distinctAttribute": "koordra.io/pcieSwitch", "requests": ["r5", "r0", "r1", "r3"]},
            {"distinctAttribute": "koordra.io/rail", "requests": ["r1", "r4", "r3", "r5"]},
        ],
    }


HARD: dict[str, tuple[Object, bool | None]] = {
    "apart and together": (apart_and_together(), None),
    "alternatives on one socket": (alternatives_on_one_socket(), None),
    "apart and wider": (apart_and_wider(), None),
    "nine scopes": (scopes(9), True),
    "sixteen scopes": (scopes(16), True),
}
"""What is asked, and whether it has to be placed."""


@pytest.fixture(scope="module")
def slices(tmp_path_factory: pytest.TempPathFactory) -> list[Object]:
    root: Path = tmp_path_factory.mktemp("machine")
    presets.write_machine(presets.load("hgx-h100"), root, serial="n0")
    machine = discover(root).machine
    return build_slices(
        machine, node_name="n0", node_uid="n0", mode=names.MODE_JOINT, generation=1, offering=Offering()
    )


def cluster_of(slices: list[Object]) -> Cluster:
    cluster = with_others(nodes=0)
    cluster.api.create(NODES, node("n0"))
    for each in slices:
        cluster.api.create(RESOURCE_SLICES, each)
    return cluster


@pytest.mark.long
@pytest.mark.parametrize("how", HARD)
def test_one_claim_costs_a_pass_so_many_steps_and_no_more(
    how: str, slices: list[Object], monkeypatch: pytest.MonkeyPatch
) -> None:
    spent: dict[str, int] = {}
    charge = Turns.charge

    def noted(self: Turns, turn: Turn, steps: int) -> None:
        spent[turn.namespace] = max(steps, spent.get(turn.namespace, 0))
        charge(self, turn, steps)

    monkeypatch.setattr(Turns, "charge", noted)
    devices, placed = HARD[how]
    cluster = cluster_of(slices)
    cluster.ask("welcome", INNOCENT, memory="1Gi", age=59)
    made = claim("hard", namespace=TENANT)
    made["spec"]["devices"] = devices
    cluster.api.create(RESOURCE_CLAIMS, made)
    waits = pod("hard", ["hard"], created="2026-11-20T00:00:00Z")
    waits["metadata"]["namespace"] = TENANT
    cluster.api.create(PODS, waits)
    cluster.one_pass()
    assert spent[TENANT] <= MOST
    assert cluster.has("welcome", INNOCENT)
    assert placed is None or cluster.has("hard") == placed
    if not cluster.has("hard"):
        assert any(one.reason in ("SearchLimit", "ConstraintViolated") for one in cluster.told)
    spent.clear()
    cluster.heartbeat()
    cluster.one_pass()
    assert TENANT not in spent, "nothing has changed for it"


def hard_claim(slices: list[Object], devices: Object) -> Cluster:
    cluster = cluster_of(slices)
    made = claim("hard", namespace=TENANT)
    made["spec"]["devices"] = devices
    cluster.api.create(RESOURCE_CLAIMS, made)
    waits = pod("hard", ["hard"], created="2026-11-20T00:00:00Z")
    waits["metadata"]["namespace"] = TENANT
    cluster.api.create(PODS, waits)
    return cluster


@pytest.mark.long
def test_what_more_placements_decide_is_placed_once_it_is_asked_again(slices: list[Object]) -> None:
    cluster = hard_claim(slices, found_late())
    cluster.one_pass()
    assert not cluster.has("hard")
    assert "it is repeated with more" in next(
        one.message for one in cluster.told if one.reason == "SearchLimit"
    )
    cluster.pass_time(UNDECIDED_PAUSE)
    cluster.one_pass()
    assert cluster.has("hard")


@pytest.mark.long
def test_a_plan_tries_as_much_as_the_controller_does_in_the_end(slices: list[Object]) -> None:
    made = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", **claim("hard")}
    made["spec"]["devices"] = found_late()
    there = {"apiVersion": "v1", "kind": "Node", **node("n0")}
    found = plan([*device_classes(), there, *slices, made])
    assert list(found.allocations) == ["default/hard"]


@pytest.mark.long
def test_what_is_never_decided_is_asked_with_so_much_at_most_and_owed_by_its_namespace(
    slices: list[Object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decide, "MOST_BUDGET", 2 * BUDGET)
    spent: list[int] = []
    charge = Turns.charge

    def noted(self: Turns, turn: Turn, steps: int) -> None:
        spent.append(steps)
        charge(self, turn, steps)

    monkeypatch.setattr(Turns, "charge", noted)
    cluster = hard_claim(slices, apart_and_together())
    for _ in range(5):
        cluster.one_pass()
        cluster.pass_time(UNDECIDED_PAUSE)
    assert [round(steps / BUDGET) for steps in spent[:2]] == [1, 2]
    assert max(spent[2:], default=0) < SHARE / 10, "nothing has changed since"
    cluster.ask("welcome", INNOCENT, memory="1Gi", age=59)
    cluster.one_pass()
    assert cluster.has("welcome", INNOCENT)


@pytest.mark.long
def test_a_claim_beside_one_that_is_allocated_has_as_much_and_more_the_next_time(
    slices: list[Object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its node is given by the other claim of its pod, and asked by another way."""
    asked: list[int] = []
    placement_for = Engine.placement_for

    def noted(self: Engine, resolved: ResolvedGroup, budget: int = BUDGET) -> GroupSearch:
        asked.append(budget)
        return placement_for(self, resolved, budget)

    monkeypatch.setattr(Engine, "placement_for", noted)
    cluster = hard_claim(slices, found_late())
    cluster.api.delete(PODS, "hard", namespace=TENANT)
    cluster.ask("has", TENANT, memory="1Gi", age=59)
    cluster.one_pass()
    assert cluster.has("has")
    both = pod("hard", ["has", "hard"], created="2026-11-20T00:00:00Z")
    both["metadata"]["namespace"] = TENANT
    cluster.api.create(PODS, both)
    asked.clear()
    cluster.one_pass()
    assert not cluster.has("hard")
    assert set(asked) == {BUDGET}
    cluster.pass_time(UNDECIDED_PAUSE)
    cluster.one_pass()
    assert cluster.has("hard")
    assert set(asked) == {BUDGET, 2 * BUDGET}


LEVELS: list[list[int]] = [[], [1], [6], [6, 6], [6, 3, 1], [2, 2, 2, 2], [6, 6, 6]]


@pytest.mark.parametrize("levels", LEVELS, ids=str)
def test_few_scopes_are_widened_in_every_way_the_narrowest_first(levels: list[int]) -> None:
    every = itertools.product(*(range(number) for number in levels))
    assert relaxations_of(levels) == sorted(every, key=lambda steps: (sum(steps), steps))


@pytest.mark.parametrize("number", [4, 9, 32, MOST_SCOPES, MOST_SCOPES + 1, 8192])
def test_of_many_scopes_so_many_ways_are_tried_and_at_last_none_is_asked_for(number: int) -> None:
    found = relaxations_of([6] * number)
    assert found[0] == (0,) * number
    assert found[-1] == (5,) * number
    assert len(found) <= MOST_RELAXATIONS + 6
    assert found == sorted(set(found), key=lambda steps: (sum(steps), steps))
    assert number > MOST_SCOPES or len(found) > MOST_RELAXATIONS


def test_scopes_of_which_some_have_one_level_are_few() -> None:
    assert len(relaxations_of([1] * 200)) == 1
