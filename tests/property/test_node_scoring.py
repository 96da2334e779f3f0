"""Nodes by the operator's weights, against brute force: every node is searched by itself, by an engine that
knows of no weights, how full it would be is added up here from the objects, in fractions, and the least of
all is what one engine that prunes by bounds has to take.

Clusters fill up through one engine, so that bounds, kept results and lists of candidates are met in every
state. Cards of a node differ in memory, some are cut: what a group takes depends on the devices then.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import combinations
from typing import Any, Final

import pytest

from koordra.allocator.offer import Offer
from koordra.api import objects
from koordra.api.claims import ResourceClaim
from koordra.placement.candidates.node_scoring import ScoringStrategy, ScoringType
from koordra.placement.decide import Engine
from koordra.placement.free_amounts.state import Request
from koordra.placement.manifests import Manifests
from koordra.placement.plan import engine_for
from koordra.placement.policy.learned_order import Learned
from koordra.placement.policy.workload import Workload, expected
from koordra.placement.request.claim_groups import ClaimGroup
from koordra.quantity import parse
from tests.long import mostly_long
from tests.unit.allocator import machines
from tests.unit.allocator.machines import claim, device_classes, request

Dict = dict[str, Any]

GPU_MEMORY: Final = "koordra.io/gpu-memory"
GPU_CORES: Final = "koordra.io/gpu-cores"
RESOURCES: Final = ("cpu", "memory", "pods", "example.com/widget", "ephemeral-storage", GPU_MEMORY, GPU_CORES)
PARTS: Final = (("1g", 0, 1, 1), ("1g", 1, 1, 1), ("2g", 0, 2, 2), ("2g", 2, 2, 2), ("4g", 0, 4, 4))
"""Of a card of four slices, the last two of which only a 2g can have."""
WORKLOAD: Final = [Request(1000, 0, 1, 1000)] * 30 + [Request(1000, 0, 1, 500)] * 20
SOFT: Final = {"key": "drained-later", "effect": "PreferNoSchedule"}


def a_node(chance: random.Random, name: str) -> list[Dict]:
    allocatable: Dict = {"cpu": str(chance.randint(4, 32)), "memory": f"{chance.randint(16, 256)}Gi"}
    if chance.random() < 0.5:
        allocatable["example.com/widget"] = str(chance.randint(1, 6))
    spec = {"taints": [SOFT]} if chance.random() < 0.2 else {}
    found, devices, sets = machines.node(name, allocatable=allocatable, spec=spec), list[Dict](), list[Dict]()
    for number in range(chance.randint(1, 4)):
        place = machines.place(number, per_switch=2)
        if chance.random() < 0.2:
            parts, counters = machines.cut_card(number, PARTS, slices=4, compute=4, place=place)
            devices, sets = [*devices, *parts], [*sets, counters]
        else:
            devices.append(machines.gpu(number, memory=chance.choice(("40Gi", "80Gi")), place=place))
    slices = [
        machines.slice_of(devices, name=name),
        *([machines.counters_of(sets, name=name)] if sets else []),
    ]
    for one in slices:
        one["spec"]["pool"]["resourceSliceCount"] = len(slices)
    return [found, *slices]


def a_group(chance: random.Random, name: str) -> tuple[Dict, Dict]:
    kind = chance.choice(("whole", "whole", "share", "share", "share", "mig"))
    node = chance.choice((None, None, "Binpack", "Spread", "FragmentationAware"))
    parameters = {"apiVersion": "koordra.io/v1alpha1", "kind": "PlacementPolicy", "node": node}
    opaque = {"opaque": {"driver": "koordra.io", "parameters": parameters}}
    configs = [opaque] if node else []
    if kind == "whole":
        wanted = request("gpu", count=chance.randint(1, 3))
    elif kind == "mig":
        wanted = request("mig", "mig")
    else:
        wanted = request("gpu", capacity={"memory": f"{chance.randint(1, 7) * 10}Gi", "cores": "10"})
    amounts = {"cpu": f"{chance.randint(1, 8) * 500}m", "memory": f"{chance.randint(1, 16)}Gi"}
    if chance.random() < 0.3:
        amounts["example.com/widget"] = "1"
    pod = machines.pod(f"p-{name}", name)
    pod["spec"]["containers"][0]["resources"] = {"requests": amounts}
    return claim(name, wanted, configs=configs), pod


class Ledger:
    """What nodes have and what is taken of them, added up from the objects."""

    def __init__(self, nodes: Mapping[str, Sequence[Dict]]) -> None:
        self.there = {name: self._there(own) for name, own in nodes.items()}
        self.taken: dict[str, dict[str, Fraction]] = {name: {} for name in nodes}
        self.devices = {
            name: {device["name"]: device for one in own[1:] for device in one["spec"].get("devices", ())}
            for name, own in nodes.items()
        }

    def _there(self, own: Sequence[Dict]) -> dict[str, Fraction]:
        found = {name: Fraction(parse(amount)) for name, amount in own[0]["status"]["allocatable"].items()}
        devices = [device for one in own[1:] for device in one["spec"].get("devices", ())]
        cards = [one for one in devices if one["attributes"]["type"]["string"] == "gpu"]
        for word, capacity in ((GPU_MEMORY, "memory"), (GPU_CORES, "cores")):
            found[word] = sum((_capacity(one, capacity) for one in cards), Fraction(0))
            of_set: dict[str, list[Dict]] = {}
            for one in devices:
                for consumed in one.get("consumesCounters", ()):
                    of_set.setdefault(consumed["counterSet"], []).append(one)
            found[word] += sum(_most_at_once(parts, capacity) for parts in of_set.values())
        return found

    def asked(self, pod: Dict, offer: Offer) -> dict[str, Fraction]:
        found = {
            name: Fraction(parse(amount))
            for name, amount in pod["spec"]["containers"][0]["resources"]["requests"].items()
        }
        found["pods"] = Fraction(1)
        (allocation,) = offer.allocations(pin_to_node=True)
        for result in allocation.to_dict()["devices"]["results"]:
            device = self.devices[offer.node][result["device"]]
            for word, capacity in ((GPU_MEMORY, "memory"), (GPU_CORES, "cores")):
                consumed = result.get("consumedCapacity")
                amount = parse(consumed[capacity]) if consumed else _capacity(device, capacity)
                found[word] = found.get(word, Fraction(0)) + Fraction(amount)
        return found

    def take(self, node: str, asked: Mapping[str, Fraction]) -> None:
        own = self.taken[node]
        for name, amount in asked.items():
            own[name] = own.get(name, Fraction(0)) + amount

    def cost(self, node: str, strategy: ScoringStrategy, asked: Mapping[str, Fraction]) -> int:
        total = weights = 0
        for name, weight in strategy.resources:
            there = self.there[node].get(name, Fraction(0))
            if there:
                taken = self.taken[node].get(name, Fraction(0)) + asked.get(name, Fraction(0))
                total, weights = (
                    total + weight * int(1000 * min(Fraction(1), taken / there)),
                    weights + weight,
                )
        if not weights:
            return 1000
        return total // weights if strategy.type == "LeastAllocated" else 1000 - total // weights


def _capacity(device: Dict, name: str) -> Fraction:
    return Fraction(parse(device["capacity"][name]["value"]))


def _most_at_once(parts: Sequence[Dict], capacity: str) -> Fraction:
    """Of all sets of a card's parts that do not overlap."""
    slices = [
        {name for name in one["consumesCounters"][0]["counters"] if name.startswith("memory-slice")}
        for one in parts
    ]
    return max(
        sum((_capacity(parts[at], capacity) for at in chosen), Fraction(0))
        for size in range(len(parts) + 1)
        for chosen in combinations(range(len(parts)), size)
        if sum(len(slices[at]) for at in chosen) == len(set[str]().union(*(slices[at] for at in chosen)))
    )


def under(written: ScoringStrategy | None, asked: Dict) -> ScoringStrategy | None:
    """Without the operator's weights claims that ask for packed or spread nodes go by the cards' memory."""
    (node,) = [one["opaque"]["parameters"]["node"] for one in asked["spec"]["devices"].get("config", ())] or (
        None,
    )
    if node == "FragmentationAware":
        return None
    word = {"Binpack": "MostAllocated", "Spread": "LeastAllocated"}.get(node)
    if word is None:
        return written
    return ScoringStrategy(ScoringType(word), written.resources if written else ((GPU_MEMORY, 1),))


@pytest.mark.parametrize("seed", mostly_long(list(range(80)), fast=10))
def test_the_node_is_the_one_that_brute_force_takes(seed: int) -> None:
    chance = random.Random(seed)
    names = chance.sample(RESOURCES, chance.randint(1, 4))
    resources = tuple((name, chance.choice((1, 1, 2, 7))) for name in names)
    written = ScoringStrategy(chance.choice(list(ScoringType)), resources)
    strategy = None if chance.random() < 0.25 else written
    learned = Learned(expected(Workload.of(WORKLOAD), {})) if chance.random() < 0.4 else None
    policy = chance.choice(("koordra", "koordra", "Spread", "TopologyAware"))
    nodes = {f"n{at}": a_node(chance, f"n{at}") for at in range(chance.randint(2, 6))}
    engine, ledger = engine_for(policy=policy, learned=learned, scoring=strategy), Ledger(nodes)
    Manifests.of([*device_classes(), *(one for own in nodes.values() for one in own)]).fill(engine.index)
    alone = {name: engine_for(policy=policy, learned=learned) for name in nodes}
    for name, one in alone.items():
        Manifests.of([*device_classes(), *nodes[name]]).fill(one.index)
    for number in range(14):
        manifest, pod = a_group(chance, f"c{number}")
        group = ClaimGroup((ResourceClaim.from_dict(manifest),), (pod,))
        wanted, best = under(strategy, manifest), list[tuple[Any, ...]]()
        for name, one in alone.items():
            offer = one.decide(group)
            if isinstance(offer, Offer):
                cost = 0 if wanted is None else ledger.cost(name, wanted, ledger.asked(pod, offer))
                value = one.value(one.resolve(group), name, offer.cost, offer.placed)
                best.append(((value.claim, value.soft_taints, cost, value.cluster), name, offer))
        found = engine.decide(group)
        if not isinstance(found, Offer):
            assert not best, (seed, number)
            continue
        value, name, offer = min(best, key=lambda entry: entry[:2])
        assert (found.node, found.allocations(pin_to_node=True)) == (
            name,
            offer.allocations(pin_to_node=True),
        )
        ledger.take(name, ledger.asked(pod, found))
        for one in (engine, alone[name]):
            assume(one, manifest, pod, found)


def assume(engine: Engine, manifest: Dict, pod: Dict, offer: Offer) -> None:
    (allocation,) = offer.allocations(pin_to_node=True)
    engine.index.assume(manifest, allocation, key=objects.key(manifest), node=offer.node, pods=[pod])
