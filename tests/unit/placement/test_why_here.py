"""Why devices are where they are: what is told is what the plan paid, and what the plan would have paid
elsewhere."""

from __future__ import annotations

import random
from typing import Any

import pytest

from koordra.allocator.explain.cost_terms import NAME, SCORING_STRATEGY, TERMS
from koordra.allocator.reasons import Reason
from koordra.api import objects
from koordra.api.allocation import Allocation
from koordra.api.claims import ResourceClaim
from koordra.placement import plan
from koordra.placement.manifests import Manifests
from koordra.placement.plan import engine_for
from koordra.placement.request.claim_groups import ClaimGroup
from koordra.placement.why_here import WhyHere, why_here
from tests.unit.allocator.machines import allocated, claim, config, device_classes, joint, machine, request

Dict = dict[str, Any]


def judged(manifests: list[Dict], key: str, node: str, *, excluded: Any = None) -> WhyHere:
    cluster, engine = Manifests.of(manifests), engine_for()
    cluster.fill(engine.index)
    engine.settle()
    (found,) = (obj for obj in manifests if obj["kind"] == "ResourceClaim" and objects.key(obj) == key)
    chosen: dict[tuple[int, str], Any] = {}
    allocation = Allocation.of_claim(found)
    assert allocation is not None
    for result in allocation.results:
        chosen.setdefault((0, result.request), []).append(result.device)
    before = dict(engine.index.taken.of_pool)
    why = why_here(
        engine, ClaimGroup((ResourceClaim.from_dict(found),)), node, chosen, excluded=excluded or {}
    )
    assert engine.index.taken.of_pool == before, "the index is as it was"
    return why


def cluster(chance: random.Random) -> list[Dict]:
    manifests = device_classes()
    for number in range(chance.randint(2, 4)):
        name, links = f"node-{number}", chance.choice(["none", "switch", "bridges"])
        size = chance.choice([2, 4, 8])
        manifests += machine(
            size, chance.choice([1, size]), name=name, per_switch=chance.choice([1, 2]), links=links
        )
    return manifests


def asked(chance: random.Random, name: str) -> Dict:
    gpus = request(
        "gpu", count=chance.choice([1, 1, 2, 4]), capacity=chance.choice([None, {"memory": "30Gi"}])
    )
    nics = [request("nic", "nic")] if chance.random() < 0.5 else []
    configs = [joint("PCIeSwitch", enforcement="Preferred")] if nics and chance.random() < 0.5 else []
    if chance.random() < 0.4:
        configs.append(
            config(
                "PlacementPolicy",
                node=chance.choice(["Spread", "Binpack"]),
                device=chance.choice(["Spread", "Binpack"]),
            )
        )
    return claim(name, gpus, *nics, configs=configs)


@pytest.mark.parametrize("seed", range(40))
def test_the_terms_are_what_the_plan_paid_here_and_what_it_would_have_paid_elsewhere(seed: int) -> None:
    chance = random.Random(seed)
    manifests = cluster(chance)
    for number in range(chance.randint(0, 3)):
        earlier = asked(chance, f"earlier-{number}")
        found = plan([*manifests, earlier], report_errors=True)
        if found.allocations:
            manifests.append(allocated(earlier, found.allocations[objects.key(earlier)]))
    mine = asked(chance, "mine")
    found = plan([*manifests, mine], report_errors=True)
    if not found.allocations:
        return
    key, node = "default/mine", found.nodes["default/mine"]
    why = judged([*manifests, allocated(mine, found.allocations[key])], key, node)
    assert why.here is not None
    assert sum(why.here.terms.values()) == -found.scores[key]
    assert set(why.here.terms) == set(TERMS)
    assert not why.other_is_better, "nothing has changed since"
    rest = [obj for obj in manifests if objects.name(obj) != node or obj["kind"] != "Node"]
    elsewhere = plan([*rest, mine], report_errors=True)
    if why.other is None:
        assert not elsewhere.allocations
        assert why.reasons
        return
    assert elsewhere.nodes[key] == why.other.node
    assert sum(why.other.terms.values()) == -elsewhere.scores[key]
    assert why.decided_by in (*TERMS, SCORING_STRATEGY, NAME)
    if why.decided_by == NAME:
        assert why.here.cost == why.other.cost
    elif why.decided_by == SCORING_STRATEGY:
        assert why.here.cost.claim == why.other.cost.claim
        assert why.here.cost.scoring < why.other.cost.scoring
    else:
        assert why.here.terms[why.decided_by] < why.other.terms[why.decided_by]


def test_a_node_that_was_freed_since_is_said_to_be_better() -> None:
    manifests = [*device_classes(), *machine(2, 0, name="node-1"), *machine(2, 2, name="node-2")]
    crowd = claim("crowd", request("gpu", count=2), request("nic", "nic", count=2))
    found = plan([*manifests, crowd])
    alone = claim("alone", request("gpu", capacity={"memory": "10Gi"}))
    taken = [*manifests, allocated(crowd, found.allocations["default/crowd"])]
    placed = plan([*taken, alone])
    assert placed.nodes["default/alone"] == "node-1"
    half = claim("half", request("gpu", capacity={"memory": "40Gi"}))
    without_first = [obj for obj in manifests if objects.name(obj) != "node-1" or obj["kind"] != "Node"]
    there = plan([*without_first, half])
    now = [
        *manifests,
        allocated(half, there.allocations["default/half"]),
        allocated(alone, placed.allocations["default/alone"]),
    ]
    why = judged(now, "default/alone", "node-1")
    assert why.other is not None
    assert (why.other.node, why.other_is_better, why.decided_by) == ("node-2", True, "brokenGroups")


def test_devices_that_could_not_be_given_any_more_are_not_judged() -> None:
    manifests = [*device_classes(), *machine(2, 0, name="node-1"), *machine(2, 0, name="node-2")]
    mine = claim("mine", request("gpu", count=2))
    found = plan([*manifests, mine])
    node = found.nodes["default/mine"]
    for obj in manifests:
        if obj["kind"] == "ResourceSlice" and obj["spec"]["nodeName"] == node:
            obj["spec"]["devices"].pop()
    why = judged([*manifests, allocated(mine, found.allocations["default/mine"])], "default/mine", node)
    assert why.here is None
    assert why.other is not None
    assert not why.other_is_better


def test_nodes_that_it_is_kept_off_are_not_the_next_best() -> None:
    manifests = [*device_classes(), *machine(2, 0, name="node-1"), *machine(2, 0, name="node-2")]
    mine = claim("mine", request("gpu"))
    found = plan([*manifests, mine])
    off = {"node-2": Reason("node-2", None, None, "NodeUnsuitable", "kept free")}
    why = judged(
        [*manifests, allocated(mine, found.allocations["default/mine"])],
        "default/mine",
        "node-1",
        excluded=off,
    )
    assert why.other is None
    assert [one.detail for one in why.reasons] == ["kept free"]
