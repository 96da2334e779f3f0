"""What the gangs of one namespace can make a pass of the controller cost, and that neither their number, nor
what they ask, nor a defect that one of them meets keeps others waiting."""

from __future__ import annotations

from typing import Any

import pytest

from koordra import effort
from koordra.api import names
from koordra.api.kinds import PODS, RESOURCE_CLAIMS
from koordra.cel import selectors as cel
from koordra.controller.gangs.declared.annotations import GANG, GANG_MIN
from koordra.controller.gangs.planner import GangPlanner
from koordra.controller.reconcile import allocation_step
from koordra.controller.reconcile.allocation_step import SELECTORS
from koordra.controller.reconcile.turns import Turns
from koordra.errors import SelectorsCostTooMuch
from tests.fakes.joint_cluster import claim, pod
from tests.property.test_pass_cost import DEAR, INNOCENT, TENANT, Cluster, unlike_cards, with_others


def gang(
    cluster: Cluster,
    name: str,
    members: int = 2,
    *,
    place: str = TENANT,
    age: int = 0,
    selector: str = "",
    **asked: Any,
) -> None:
    for each in range(members):
        made = claim(f"{name}-{each}", namespace=place, **asked)
        if selector:
            exactly = made["spec"]["devices"]["requests"][0]["exactly"]
            exactly["selectors"] = [{"cel": {"expression": selector}}]
        cluster.api.create(RESOURCE_CLAIMS, made)
        created = f"2026-11-20T00:{age:02}:00Z"
        waits = pod(f"{name}-{each}", [f"{name}-{each}"], gates=[names.JOINT_GATE], created=created)
        waits["metadata"] |= {"namespace": place, "annotations": {GANG: name, GANG_MIN: str(members)}}
        cluster.api.create(PODS, waits)


def considered(patch: pytest.MonkeyPatch) -> list[str]:
    """The gangs that are considered from now on, by key."""
    found: list[str] = []
    consider = GangPlanner.consider

    def noted(self: GangPlanner, one: Any, *rest: Any) -> bool:
        found.append(one.key)
        return consider(self, one, *rest)

    patch.setattr(GangPlanner, "consider", noted)
    return found


def test_gangs_that_wait_cost_nothing_while_nothing_changes_for_them() -> None:
    def cost(number: int) -> tuple[int, int]:
        cluster = with_others(nodes=2)
        for each in range(number):
            gang(cluster, f"g{each}", count=9, selector=f"device.driver != 'x{each}'")
        for _ in range(4):
            cluster.settle()
            cluster.pass_time(100.0)
        cluster.heartbeat()
        quiet = cluster.calls()
        gang(cluster, "welcome", place=INNOCENT)
        placing = cluster.calls()
        assert cluster.has("welcome-0", INNOCENT)
        return quiet, placing

    (few, few_placing), (many, many_placing) = cost(4), cost(64)
    assert many <= few * 1.1, (few, many)
    assert many_placing <= few_placing * 1.5, (few_placing, many_placing)


def test_a_namespace_has_its_share_of_a_pass_with_its_gangs_too(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = with_others(nodes=3)
    cluster.reconciler.allocation._turns = Turns(300)
    seen = considered(monkeypatch)
    for each in range(60):
        gang(cluster, f"g{each}", age=each % 50, count=9, selector=f"device.driver != 'x{each}'")
    gang(cluster, "welcome", place=INNOCENT, age=59)
    cluster.one_pass()
    assert cluster.has("welcome-0", INNOCENT)
    assert sum(key.startswith(TENANT) for key in seen) < 15
    for _ in range(60):
        cluster.one_pass()
    assert len({key for key in seen if key.startswith(TENANT)}) == 60
    assert cluster.reconciler.reconcile() != 0.0


def test_a_gang_that_is_left_over_is_served_although_all_are_judged_anew_in_every_pass() -> None:
    cluster = with_others(nodes=2, gpus=2)
    cluster.reconciler.allocation._turns = Turns(20)
    for each in range(20):
        gang(cluster, f"g{each:02}", count=9, age=each)
    gang(cluster, "small", age=59)
    passes = 0
    while not cluster.has("small-0"):
        cluster.make_room()
        cluster.one_pass()
        passes += 1
        assert passes <= 200
    assert passes > 3


def test_one_gang_that_costs_too_much_is_undecided_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """It fits; what was found out is known the next time."""
    monkeypatch.setattr(allocation_step, "MOST_STEPS", 160)
    cluster = with_others(nodes=4, gpus=4)
    for each in range(6):
        made = claim(f"g-{each}", namespace=TENANT)
        exactly = made["spec"]["devices"]["requests"][0]["exactly"]
        exactly["selectors"] = [{"cel": {"expression": f"device.driver != 'x{each}'"}}]
        cluster.api.create(RESOURCE_CLAIMS, made)
        waits = pod(f"g-{each}", [f"g-{each}"], gates=[names.JOINT_GATE])
        waits["metadata"] |= {"namespace": TENANT, "annotations": {GANG: "g", GANG_MIN: "6"}}
        cluster.api.create(PODS, waits)
    cluster.one_pass()
    assert not cluster.has("g-0")
    assert any("search limit" in one.message for one in cluster.told)
    for _ in range(40):
        cluster.pass_time(10.0)
        cluster.one_pass()
    assert cluster.has("g-0")


def test_a_gangs_selectors_cost_a_pass_so_much_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluated: list[int] = []
    evaluate = cel._evaluated

    def counted(program: Any, values: Any) -> Any:
        evaluated.append(program.cost)
        return evaluate(program, values)

    monkeypatch.setattr(cel, "_evaluated", counted)
    cluster = with_others(nodes=0)
    unlike_cards(cluster, 6)
    uuid = "device.attributes['koordra.io'].uuid"
    gang(cluster, "dear", selector=f"{DEAR} && {uuid} in ['GPU-5-7', 'GPU-5-6']")
    cluster.ask("welcome", INNOCENT, memory="1Gi", age=59)
    cluster.one_pass()
    assert cluster.has("welcome", INNOCENT)
    assert SELECTORS < sum(evaluated) <= SELECTORS + max(evaluated)
    passes = 0
    while not cluster.has("dear-0"):
        evaluated.clear()
        cluster.pass_time(10.0)
        cluster.one_pass()
        assert sum(evaluated) <= SELECTORS + max(evaluated, default=0)
        passes += 1
        assert passes < 60


def test_a_defect_met_with_one_gang_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither its own namespace nor another's; it is tried again after a minute."""
    broken, consider = [f"{TENANT}/bad"], GangPlanner.consider

    def consider_but(self: GangPlanner, one: Any, *rest: Any) -> bool:
        if one.key in broken:
            raise ZeroDivisionError(one.key)
        return consider(self, one, *rest)

    monkeypatch.setattr(GangPlanner, "consider", consider_but)
    cluster = with_others(nodes=2, gpus=4)
    gang(cluster, "bad")
    gang(cluster, "good", age=10)
    cluster.ask("alone", age=20)
    gang(cluster, "welcome", place=INNOCENT, age=30)
    cluster.one_pass()
    assert cluster.has("good-0")
    assert cluster.has("alone")
    assert cluster.has("welcome-0", INNOCENT)
    assert not cluster.has("bad-0")
    broken.clear()
    cluster.pass_time(61.0)
    cluster.one_pass()
    assert cluster.has("bad-0")


def test_who_counts_says_when_it_is_enough() -> None:
    assert not effort.is_spent()
    with effort.counted(selectors=10, steps=3):
        effort.spend(2)
        assert not effort.is_spent()
        effort.spend(1)
        assert effort.is_spent()
        effort.spend_on_selector(11)
        with pytest.raises(SelectorsCostTooMuch):
            effort.spend_on_selector(1)
    with effort.counted(selectors=10):
        effort.spend(1 << 40)
        assert not effort.is_spent()


def test_a_gang_considers_no_other_gangs_members() -> None:
    """Each of many gangs that wait is planned without going through all the others."""

    def cost(number: int) -> float:
        cluster = with_others(nodes=1)
        for each in range(number):
            gang(cluster, f"g{each}", 8, count=9)
        cluster.one_pass()
        cluster.make_room()
        return cluster.calls() / number

    assert cost(64) <= 1.3 * cost(16)


def test_members_that_name_their_cards_are_placed_on_nodes_that_are_alike_else() -> None:
    """By an attribute that is another on every node."""
    cluster = with_others(nodes=0)
    unlike_cards(cluster, 3)
    gang(cluster, "named", selector="device.attributes['koordra.io'].uuid.startsWith('GPU-2-')")
    gang(cluster, "anywhere")
    cluster.settle()
    for name in ("named-0", "named-1"):
        found = cluster.api.get(RESOURCE_CLAIMS, name, namespace=TENANT)["status"]["allocation"]
        assert found["devices"]["results"][0]["pool"] == "m2"
    assert cluster.has("anywhere-0")
