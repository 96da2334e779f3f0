"""PreferNoSchedule: of nodes that cost a claim the same, those are first whose taints its pods tolerate."""

from __future__ import annotations

import random
from typing import Any

import pytest

from koordra.allocator.explain.cost_terms import SOFT_TAINTS
from koordra.allocator.offer import Offer
from koordra.allocator.predicates import soft_taints
from koordra.allocator.score import POLICIES
from koordra.api import names
from koordra.api.claims import ResourceClaim
from koordra.placement.decide import Engine
from koordra.placement.free_amounts.state import Request
from koordra.placement.gang import GangPlaced, GangRequest, place_gang
from koordra.placement.manifests import Manifests
from koordra.placement.plan import engine_for
from koordra.placement.policy.learned_order import Learned
from koordra.placement.policy.workload import Workload, expected
from koordra.placement.request.claim_groups import ClaimGroup
from koordra.placement.why_here import why_here
from tests.fakes.gang_engine import gang_engine, member
from tests.unit.allocator.machines import allocated, claim, device_classes, joint, machine, pod, request

Dict = dict[str, Any]
CANDIDATE = {"key": "DeletionCandidateOfClusterAutoscaler", "value": "1", "effect": "PreferNoSchedule"}
DRAINED_LATER = {"key": "drained-later", "effect": "PreferNoSchedule"}


def node(name: str, *taints: Dict, gpus: int = 2, nics: int = 0) -> list[Dict]:
    found, published = machine(gpus, nics, name=name)
    return [{**found, "spec": {"taints": list(taints)}}, published]


def decided(engine: Engine, manifests: list[Dict], group: ClaimGroup) -> Offer | None:
    Manifests.of(manifests).fill(engine.index)
    found = engine.decide(group)
    return found if isinstance(found, Offer) else None


def taken(cluster: list[Dict], group: ClaimGroup, *, policy: str = names.DEFAULT_POLICY) -> str | None:
    found = decided(engine_for(policy=policy), [*device_classes(), *cluster], group)
    return None if found is None else found.node


def group_of(asked: Dict, *pods: Dict) -> ClaimGroup:
    return ClaimGroup((ResourceClaim.from_dict(asked),), pods)


ASKED = claim("c", request("gpu"))
WORKLOAD = (
    [Request(1000, 0, 1, 1000)] * 30 + [Request(1000, 0, 1, 500)] * 20 + [Request(4000, 0, 4, 1000)] * 10
)
"""Cores in thousandths, memory, GPUs, thousandths of each."""
TOLERANT = pod("p", "c", tolerations=[{"key": CANDIDATE["key"], "operator": "Exists"}])


@pytest.mark.parametrize("policy", POLICIES)
def test_a_node_that_may_be_removed_is_taken_last(policy: str) -> None:
    group = group_of(ASKED, pod("p", "c"))
    assert taken([*node("a", CANDIDATE), *node("b")], group, policy=policy) == "b"
    assert taken([*node("a", CANDIDATE), *node("b", gpus=0)], group, policy=policy) == "a"


def test_who_tolerates_it_is_free_to_go_there() -> None:
    cluster = [*node("a", CANDIDATE), *node("b")]
    assert taken(cluster, group_of(ASKED, TOLERANT)) == "a"
    assert taken(cluster, group_of(ASKED, TOLERANT, pod("q", "c"))) == "b", "one of the pods does not"
    assert taken(cluster, group_of(ASKED)) == "b", "nobody is known who does"


@pytest.mark.parametrize("tolerations", [[], TOLERANT["spec"]["tolerations"]])
def test_a_gang_avoids_them_where_nothing_else_is_worse(tolerations: list[Dict]) -> None:
    """It stays on one node rather than on two without taints."""

    def nodes(*others: list[Dict]) -> list[str]:
        engine = gang_engine(
            [*device_classes(), *node("a", CANDIDATE), *(one for own in others for one in own)]
        )
        members = [
            member(f"default/{key}", [pod(key, key, tolerations=tolerations)], [claim(key, request("gpu"))])
            for key in ("m0", "m1")
        ]
        found = place_gang(GangRequest("g", members, 2), engine)
        assert isinstance(found, GangPlaced)
        return [one.node for one in found.members]

    assert nodes(node("b")) == (["a", "a"] if tolerations else ["b", "b"])
    assert nodes(node("b", gpus=1), node("c", gpus=1)) == ["a", "a"]


def test_hard_taints_are_no_soft_ones() -> None:
    (found, _) = node(
        "a",
        CANDIDATE,
        {"key": "k", "effect": "NoSchedule"},
        {"key": "k", "effect": "NoExecute"},
        DRAINED_LATER,
    )
    assert (soft_taints(found, []), soft_taints(found, [TOLERANT]), soft_taints({}, [])) == (2, 1, 0)


def test_it_is_told_why_the_node_was_taken() -> None:
    engine, given = engine_for(), claim("c", request("gpu"))
    result = {"request": "gpu", "driver": "koordra.io", "pool": "b", "device": "gpu-0"}
    there = [*device_classes(), *node("a", CANDIDATE), *node("b")]
    Manifests.of([*there, allocated(given, {"devices": {"results": [result]}})]).fill(engine.index)
    engine.settle()
    (device,) = [one.id for one in engine.index.nodes["b"].pools[0].devices if one.id.device == "gpu-0"]
    found = why_here(engine, group_of(given), "b", {(0, "gpu"): [device]}, excluded={})
    assert found.decided_by == SOFT_TAINTS
    assert not found.other_is_better


@pytest.mark.parametrize("seed", range(60))
def test_the_best_node_is_the_least_of_what_each_says_alone(seed: int) -> None:
    """Through one engine, whose lists of candidates outlive the taints."""
    chance = random.Random(seed)
    policy = chance.choice((names.DEFAULT_POLICY, "Spread", "Binpack"))
    learned = Learned(expected(Workload.of(WORKLOAD), {})) if chance.random() < 0.5 else None
    engine = engine_for(policy=policy, learned=learned)
    nodes = {f"n{at}": (chance.randint(1, 4), chance.choice((0, 2))) for at in range(chance.randint(2, 6))}
    for _ in range(6):
        taints = {
            name: [one for one in (CANDIDATE, DRAINED_LATER) if chance.random() < 0.4] for name in nodes
        }
        there = {
            name: node(name, *taints[name], gpus=gpus, nics=nics) for name, (gpus, nics) in nodes.items()
        }
        asked = claim("c", request("gpu", count=chance.randint(1, 3)))
        if chance.random() < 0.5:
            preferred = [joint("PCIeSwitch", enforcement="Preferred")]
            asked = claim("c", request("gpu"), request("nic", "nic"), configs=preferred)
        group = group_of(asked, chance.choice((pod("p", "c"), TOLERANT)))
        known = [one for each in there.values() for one in each]
        found = decided(engine, [*device_classes(), *known], group)
        best = []
        for name, own in there.items():
            alone = engine_for(policy=policy, learned=learned)
            if one := decided(alone, [*device_classes(), *own], group):
                best.append((alone.value(alone.resolve(group), name, one.cost, one.placed), name))
        assert (found and found.node) == (min(best)[1] if best else None)
