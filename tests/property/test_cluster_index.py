"""An index that is told of every change is what an index of the same objects is, and an engine that stands on
it decides the same."""

from __future__ import annotations

import random
from typing import Any

import pytest

from koordra.allocator.features import Features
from koordra.allocator.offer import Offer
from koordra.allocator.score import policy_of
from koordra.api import objects
from koordra.api.claims import ResourceClaim
from koordra.placement.decide import Engine
from koordra.placement.index import CLAIM, CLASS, NODE, POD, RULE, SLICE, ClusterChange, ClusterIndex
from koordra.placement.policy.learned_order import Learned, LearnedOrder
from koordra.placement.request.claim_groups import ClaimGroup
from tests.unit.allocator.machines import claim, device_classes, gpu, node, place, pod, request, slice_of
from tests.unit.allocator.test_inventory import network, rule, unreadable

Dict = dict[str, Any]
NODES = 4


def allocated(draw: random.Random, number: int) -> Dict:
    """A claim with one or two devices, whole or shared, that may not be published (any more)."""
    results = []
    at = f"node-{draw.randrange(NODES)}"
    for device in draw.sample(range(3), draw.choice([1, 1, 2])):
        result: Dict = {"request": "gpu", "driver": "koordra.io", "pool": at, "device": f"gpu-{device}"}
        if draw.random() < 0.5:
            result |= {"shareID": f"{number}-{device}", "consumedCapacity": {"memory": "10Gi"}}
        results.append(result)
    if draw.random() < 0.1:
        results.append(
            {"request": "link", "driver": "net.example.com", "pool": "fabric", "device": "link-0-0"}
        )
    pinned = {"key": "metadata.name", "operator": "In", "values": [at]}
    found = claim(f"c{number}", request("gpu"), namespace=draw.choice(["default", "default", "other"]))
    selector = {"nodeSelectorTerms": [{"matchFields": [pinned]}]}
    found["status"] = {"allocation": {"devices": {"results": results}, "nodeSelector": selector}}
    return found


def guest(draw: random.Random, number: int) -> Dict:
    found = pod(f"p{number}", f"c{draw.randrange(6)}")
    resources = {"requests": {"cpu": str(draw.randrange(1, 4))}}
    found["spec"]["containers"] = [{"name": "c", "resources": resources}]
    if draw.random() < 0.3:
        found["spec"]["nodeName"] = f"node-{draw.randrange(NODES)}"
    if draw.random() < 0.2:
        found["status"] = {"phase": "Succeeded"}
    return found


def changed(draw: random.Random) -> tuple[str, Dict]:
    number, at = draw.randrange(6), f"node-{draw.randrange(NODES)}"
    kind = draw.choice([NODE, SLICE, SLICE, RULE, CLAIM, CLAIM, CLAIM, POD, POD])
    if kind == NODE:
        found = node(at)
        found["status"] = {"allocatable": {"cpu": str(draw.choice([8, 16])), "pods": "10"}}
        if draw.random() < 0.3:
            found["spec"] = {"unschedulable": True}
        found["metadata"]["labels"] = {"zone": draw.choice("ab")}
        return kind, found
    if kind == SLICE:
        kept = draw.choice([{}, {"isolationNone": False, "isolationMps": True}])
        devices = [gpu(card, place=place(card), **kept) for card in range(draw.randrange(1, 4))]
        return kind, draw.choice(
            [slice_of(devices, name=at), slice_of(devices, name=at), unreadable(at), *network(1, devices=2)]
        )
    if kind == RULE:
        return kind, draw.choice([rule("rule", pool=at), rule("rule", device="gpu-0")])
    return kind, allocated(draw, number) if kind == CLAIM else guest(draw, number)


def key_of(kind: str, obj: Dict) -> str:
    return objects.key(obj) if kind in {CLAIM, POD} else objects.name(obj)


def said(index: ClusterIndex) -> Dict:
    """Everything that can be asked of an index; which nodes are alike, without what states are called."""
    index.settle()
    alike: dict[object, list[str]] = {}
    devices: dict[object, list[str]] = {}
    for name in sorted(index.nodes):
        info = index.nodes[name]
        alike.setdefault(info.state, []).append(name)
        devices.setdefault(info.devices, []).append(name)
    for state, found in alike.items():
        assert state.nodes == found  # type: ignore[attr-defined]
    return {
        "nodes": {
            name: (
                [pool.id for pool in info.pools],
                [[device.taints for device in pool.devices] for pool in info.pools],
                {objects.key(one) for one in info.holders},
                {key for key, one in index.pods.placed.items() if one.node == name},
                info.load,
            )
            for name, info in index.nodes.items()
        },
        "alike": sorted(alike.values()),
        "devices": sorted(devices.values()),
        "taken": {
            one: (bool(use.holder), use.shares, use.consumed)
            for of_pool in index.taken.of_pool.values()
            for one, use in of_pool.items()
        },
        "allocated": {key: held.allocation for key, held in index.allocated.items()},
        "classes": set(index.classes),
    }


@pytest.mark.parametrize("seed", range(25))
def test_what_is_told_bit_by_bit_is_what_is_told_at_once(seed: int) -> None:
    draw = random.Random(seed)
    engine = Engine(policy_of("koordra"), Features.of(None))
    known: dict[str, dict[str, Dict]] = {kind: {} for kind in (CLASS, NODE, SLICE, RULE, CLAIM, POD)}
    for one in device_classes():
        known[CLASS][objects.name(one)] = one
        engine.index.apply(ClusterChange(CLASS, objects.name(one), one))
    share = request("gpu", capacity={"memory": "20Gi"})
    groups = [
        ClaimGroup((ResourceClaim.from_dict(claim("asked", share, namespace=name)),))
        for name in ("default", "other")
    ]
    for turn in range(40):
        kind, obj = changed(draw)
        key = key_of(kind, obj)
        if draw.random() < 0.25:
            known[kind].pop(key, None)
            engine.index.apply(ClusterChange(kind, key, None))
        else:
            known[kind][key] = obj
            engine.index.apply(ClusterChange(kind, key, obj))
        fresh = Engine(policy_of("koordra"), Features.of(None))
        fresh.index.sync(known)
        assert said(engine.index) == said(fresh.index), (seed, turn)
        for group in groups:
            one, other = engine.decide(group), fresh.decide(group)
            assert type(one) is type(other), (seed, turn)
            if isinstance(one, Offer) and isinstance(other, Offer):
                assert (one.node, one.cost, one.allocations(pin_to_node=True)) == (
                    other.node,
                    other.cost,
                    other.allocations(pin_to_node=True),
                )


@pytest.mark.parametrize("seed", range(10))
def test_what_was_tried_leaves_nothing_behind(seed: int) -> None:
    draw = random.Random(seed)
    engine = Engine(policy_of("koordra"), Features.of(None))
    for one in device_classes():
        engine.index.apply(ClusterChange(CLASS, objects.name(one), one))
    for number in range(NODES):
        name = f"node-{number}"
        engine.index.apply(ClusterChange(NODE, name, node(name)))
        engine.index.apply(
            ClusterChange(
                SLICE, name, slice_of([gpu(card, place=place(card)) for card in range(3)], name=name)
            )
        )
    for number in range(4):
        one = allocated(draw, number)
        engine.index.apply(ClusterChange(CLAIM, objects.key(one), one))
        other = guest(draw, number)
        engine.index.apply(ClusterChange(POD, objects.key(other), other))
    before = said(engine.index)
    gone = frozenset(f"default/{name}" for name in ("c0", "c1", "p0", "p2"))
    with engine.index.overlay(gone):
        manifest = claim("tried", request("gpu"))
        found = engine.decide(ClaimGroup((ResourceClaim.from_dict(manifest),)))
        assert isinstance(found, Offer)
        (allocation,) = found.allocations(pin_to_node=True)
        engine.index.assume(manifest, allocation, key="default/tried", node=found.node)
        assert "default/tried" in said(engine.index)["allocated"]
    assert said(engine.index) == before


def ranked(order: LearnedOrder) -> Dict:
    """What the order of nodes knows of each node: what it is, and what is free of it."""
    order.index.settle()
    order.follow()
    found = {}
    for name, info in order.index.nodes.items():
        free = order.free(info)
        assert free is not None
        found[name] = (free[0].kind, free[1])
    return {"nodes": found, "memory": order._memory, "gpus": order.online.capacity}


@pytest.mark.parametrize("seed", range(15))
def test_the_order_of_nodes_follows_the_index(seed: int) -> None:
    draw = random.Random(seed)
    index = ClusterIndex(Features.of(None))
    order = LearnedOrder(index, Learned())
    known: dict[str, dict[str, Dict]] = {kind: {} for kind in (NODE, SLICE, CLAIM, POD, RULE)}
    for turn in range(40):
        kind, obj = changed(draw)
        known[kind][key_of(kind, obj)] = obj
        index.apply(ClusterChange(kind, key_of(kind, obj), obj))
        fresh = ClusterIndex(Features.of(None))
        fresh.sync(known)
        assert ranked(order) == ranked(LearnedOrder(fresh, Learned())), (seed, turn)
