"""Capacity that is kept by the nodes that changed is what a count of everything is: of an index made anew,
and of the manifests themselves, by rules that are written down here once more."""

from __future__ import annotations

import random
from collections import ChainMap, Counter
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import combinations
from typing import Any

import pytest

from koordra.allocator.features import Features
from koordra.controller.reporting.capacity import ClusterCapacity
from koordra.placement.index import CLAIM, NODE, SLICE, ClusterChange, ClusterIndex

Dict = dict[str, Any]
GI = 1 << 30
SCOPES = ("PCIeSwitch", "PCIeRoot", "NUMANode", "Socket", "Node")
PLACES = {
    "PCIeSwitch": "koordra.io/pcieSwitch",
    "PCIeRoot": "resource.kubernetes.io/pcieRoot",
    "NUMANode": "koordra.io/numaNode",
    "Socket": "koordra.io/socket",
}


@dataclass
class Card:
    name: str
    type: str
    model: str
    place: dict[str, str | int]
    amounts: dict[str, int] = field(default_factory=dict)
    parent: str = ""
    takes: dict[str, int] = field(default_factory=dict)
    tainted: bool = False
    profile: str = ""

    @property
    def shared(self) -> bool:
        return self.type in ("gpu", "nic")

    def manifest(self) -> Dict:
        attributes: Dict = {"type": {"string": self.type}, "model": {"string": self.model}}
        attributes |= {
            PLACES[scope]: {"int" if isinstance(value, int) else "string": value}
            for scope, value in self.place.items()
        }
        if self.parent:
            attributes["parent"] = {"string": self.parent}
        if self.profile:
            attributes["profile"] = {"string": self.profile}
        taint = {"key": "koordra.io/unhealthy", "effect": "NoSchedule", "value": "x"}
        return {
            "name": self.name,
            "attributes": attributes,
            "capacity": {name: {"value": str(amount)} for name, amount in self.amounts.items()},
            **({"allowMultipleAllocations": True} if self.shared else {}),
            **({"taints": [taint]} if self.tainted else {}),
            **(
                {
                    "consumesCounters": [
                        {
                            "counterSet": self.parent or self.name,
                            "counters": {name: {"value": str(number)} for name, number in self.takes.items()},
                        }
                    ]
                }
                if self.takes
                else {}
            ),
        }


TOTALS = {
    "mig": {f"memory-slice-{place}": 1 for place in range(3)},
    "nic": {"functions": 2},
    "vf": {"functions": 2},
}
"""Of the counters of a card, by the type of what takes them."""


def machine(draw: random.Random) -> list[Card]:
    model = draw.choice(["H100", "L40S"])
    found = []
    for at in range(draw.randrange(1, 5)):
        place: dict[str, str | int] = {"NUMANode": at // 2, "Socket": 0, "PCIeRoot": f"pci0000:{at // 2}0"}
        if draw.random() < 0.8:
            place["PCIeSwitch"] = f"0000:0{at}:00.0"
        if draw.random() < 0.3:
            for part in range(4):
                start, size = draw.choice([(0, 1), (1, 1), (2, 1), (0, 2), (1, 2), (0, 3)])
                slices = {f"memory-slice-{place}": 1 for place in range(start, start + size)}
                amounts = {"memory": 10 * size * GI, "cores": draw.choice([14, 28])}
                found.append(
                    Card(
                        f"mig-{at}-{part}",
                        "mig",
                        model,
                        place,
                        amounts,
                        parent=f"gpu-{at}",
                        takes=slices,
                        profile=draw.choice(["1g.10gb", "2g.20gb"]),
                    )
                )
        else:
            amounts = {"memory": 80 * GI, "cores": 100, "slots": draw.choice([2, 8])}
            found.append(Card(f"gpu-{at}", "gpu", model, place, amounts, tainted=draw.random() < 0.15))
        if draw.random() < 0.7:
            nic = Card(
                f"nic-{at}",
                "nic",
                "CX7",
                place,
                {"share": 100, "bandwidth": 400 * 10**9},
                takes={"functions": 2},
            )
            found.append(nic)
            if draw.random() < 0.5:
                found += [
                    Card(f"vf-{at}-{part}", "vf", "CX7", place, parent=nic.name, takes={"functions": 1})
                    for part in range(2)
                ]
    return found


def slice_of(name: str, cards: list[Card]) -> list[Dict]:
    pool = {"name": name, "generation": 1, "resourceSliceCount": 2}
    sets = {(card.parent or card.name): TOTALS[card.type] for card in cards if card.takes}
    spec = {"driver": "koordra.io", "pool": pool, "nodeName": name}
    counters = [
        {"name": of, "counters": {what: {"value": str(number)} for what, number in totals.items()}}
        for of, totals in sorted(sets.items())
    ]
    return [
        {"metadata": {"name": f"{name}-0"}, "spec": {**spec, "devices": [card.manifest() for card in cards]}},
        {"metadata": {"name": f"{name}-1"}, "spec": {**spec, "sharedCounters": counters}},
    ]


@dataclass
class World:
    nodes: dict[str, tuple[bool, bool]] = field(default_factory=dict)
    """Cordoned, Ready."""
    cards: dict[str, list[Card]] = field(default_factory=dict)
    claims: dict[str, tuple[str, list[Dict], list[Dict]]] = field(default_factory=dict)
    """Node, results, config."""

    def node(self, name: str) -> Dict:
        cordoned, ready = self.nodes[name]
        return {
            "metadata": {"name": name},
            "spec": {"unschedulable": True} if cordoned else {},
            "status": {"conditions": [{"type": "Ready", "status": str(ready)}]},
        }

    def claim(self, name: str) -> Dict:
        node, results, config = self.claims[name]
        pinned = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
        allocation = {
            "devices": {"results": results, "config": config},
            "nodeSelector": {"nodeSelectorTerms": [pinned]},
        }
        return {
            "metadata": {"name": name, "namespace": "a", "uid": name},
            "spec": {"devices": {"requests": []}},
            "status": {"allocation": allocation},
        }

    def draw_claim(self, draw: random.Random, name: str) -> None:
        node = draw.choice(sorted(self.cards))
        cards = [each for each in self.cards[node] if draw.random() < 0.5] or self.cards[node][:1]
        results = []
        for card in cards:
            result: Dict = {"request": card.type, "driver": "koordra.io", "pool": node, "device": card.name}
            if card.shared:
                part = draw.choice([Fraction(1, 4), Fraction(1, 2), Fraction(1)])
                takes = {"memory": int(80 * GI * part), "cores": draw.choice([0, 25]), "slots": 1}
                if card.type == "nic":
                    takes = {"share": int(100 * part), "bandwidth": draw.choice([0, 10**9])}
                result |= {
                    "shareID": f"{name}-{card.name}",
                    "consumedCapacity": {each: str(amount) for each, amount in takes.items()},
                }
            results.append(result)
        config = []
        for _ in range(draw.choice([0, 1, 1, 2])):
            parameters = {
                "apiVersion": "koordra.io/v1alpha1",
                "kind": "JointAllocation",
                "scope": draw.choice(SCOPES),
                "enforcement": "Preferred",
                "pairing": draw.choice(["PerDevice", "PerGroup", "Together"]),
            }
            opaque = {"driver": "koordra.io", "parameters": parameters}
            config.append({"source": "FromClaim", "opaque": opaque})
        self.claims[name] = node, results, config


def counted(world: World) -> Dict:
    """Everything, by the rules of docs/metrics.md."""
    sums, most, aligned, ready = Counter[Any](), Counter[Any](), Counter[Any](), Counter[str]()
    for name in world.nodes.keys() & world.cards.keys():
        cordoned, is_ready = world.nodes[name]
        usable = is_ready and not cordoned
        ready["ready" if usable else "not_ready"] += 1
        cards = {card.name: card for card in world.cards[name]}
        uses: dict[str, list[dict[str, int]]] = {}
        for node, results, config in world.claims.values():
            for result in results if node == name else ():
                consumed = {key: int(value) for key, value in result.get("consumedCapacity", {}).items()}
                if result["device"] in cards:
                    uses.setdefault(result["device"], []).append(consumed)
            if node == name:
                known = [cards.get(result["device"]) for result in results]
                if (found := alignment(known, config)) is not None:
                    aligned[found] += 1
        left = {
            (card.parent or card.name, what): number
            for card in cards.values()
            for what, number in (TOTALS[card.type] if card.takes else {}).items()
        }
        for used in uses:
            for what, number in cards[used].takes.items():
                left[cards[used].parent or used, what] -= number
        free = []
        for card in cards.values():
            of_card = uses.get(card.name, [])
            part = max(
                (
                    Fraction(sum(use.get(what, 0) for use in of_card), amount)
                    for what, amount in card.amounts.items()
                    if what != "slots"
                ),
                default=Fraction(0),
            )
            full = not card.shared or part >= 1 or len(of_card) >= card.amounts.get("slots", 99)
            of = card.parent or card.name
            short = any(left[of, what] < number for what, number in card.takes.items())
            if of_card:
                state = "allocated" if full else "shared"
            else:
                state = "unavailable" if card.tainted else "blocked" if short else "free"
            if state == "free":
                free.append(card)
            shown = "unavailable" if state == "free" and not usable else state
            for each in ("free", "shared", "allocated", "blocked", "unavailable"):
                sums["devices", card.type, card.model, each] += each == shown
                if card.profile:
                    sums["mig", card.model, card.profile, each] += each == shown
            if card.shared:
                sums["shares", card.type, card.model] += len(of_card)
            gpu = ("memory", card.type, card.model), ("cores", card.type, card.model)
            for key in (
                gpu if card.type in ("gpu", "mig") else (("bandwidth", card.model),) * (card.type == "nic")
            ):
                has = card.amounts[key[0]]
                used = min(has, sum(use.get(key[0], 0) for use in of_card))
                if key[0] == "bandwidth" and of_card:
                    used = min(has, int(has * part))
                used = has if state == "allocated" else used
                rest = "unavailable" if card.tainted or state == "blocked" or not usable else "free"
                for each in ("free", "allocated", "unavailable"):
                    sums[(*key, each)] += 0
                sums[(*key, "allocated")] += used * 10**9
                if card.type != "mig":
                    sums[(*key, rest)] += (has - used) * 10**9
            if card.type == "gpu":
                room = usable and not card.tainted and state in ("free", "shared")
                taken = sum(use.get("memory", 0) for use in of_card)
                for what, amount in (
                    ("share", int((1 - part) * 10**9)),
                    ("memory", (80 * GI - taken) * 10**9),
                ):
                    most[what, card.model] = max(most[what, card.model], amount if room else 0)
        for parent in {card.parent for card in cards.values() if card.type == "mig"}:
            parts = [card for card in free if card.type == "mig" and card.parent == parent]
            sets = [some for size in range(len(parts) + 1) for some in combinations(parts, size)]
            apart = [
                some
                for some in sets
                if len(ChainMap(*[one.takes for one in some])) == sum(len(one.takes) for one in some)
            ]
            for what in ("memory", "cores") if parts else ():
                room = max(sum(one.amounts[what] for one in some) for some in apart) * 10**9
                sums[what, "mig", parts[0].model, "free" if usable else "unavailable"] += room
        for model in {card.model for card in cards.values() if card.type == "gpu"}:
            whole = [card for card in free if card.type == "gpu" and card.model == model]
            for scope in SCOPES:
                for beside, number in together(whole, free, scope).items():
                    key = "cards", model, scope, beside
                    most[key] = max(most[key], number if usable else 0)
    return {
        "sums": dict(sums),
        "most": dict(most),
        "aligned": dict(aligned),
        "ready": {"ready": 0, "not_ready": 0} | dict(ready),
    }


def key_of(card: Card, scope: str) -> object:
    """None: nobody knows, so it is with nobody."""
    return "node" if scope == "Node" else card.place.get(scope)


def together(whole: list[Card], free: list[Card], scope: str) -> dict[str, int]:
    best = Counter({"none": 0, "one": 0, "each": 0})
    for place in {key_of(card, scope) for card in whole}:
        gpus = 1 if place is None else sum(key_of(card, scope) == place for card in whole)
        nics = [card for card in free if card.type in ("nic", "vf") and key_of(card, scope) == place]
        ports = {card.parent or card.name for card in nics}
        number = sum(
            max(1, sum(card.type == "vf" for card in nics if card.parent == port)) for port in ports
        ) * (place is not None)
        best |= Counter({"none": gpus, "one": gpus if number else 0, "each": min(gpus, number)})
    return {beside: best[beside] for beside in ("none", "one", "each")}


def alignment(cards: list[Card | None], config: list[Dict]) -> tuple[str, str] | None:
    known = [card for card in cards if card is not None]
    if len(known) < len(cards):
        return None
    gpus = [card for card in known if card.type in ("gpu", "mig")]
    nics = [card for card in known if card.type in ("nic", "vf")]
    if not gpus or not nics:
        return None
    said = [each["opaque"]["parameters"] for each in config]
    asked = min(said, key=lambda each: SCOPES.index(each["scope"]), default={})
    for scope in SCOPES:
        gpus_at, nics_at = (Counter(key_of(card, scope) for card in of) for of in (gpus, nics))
        if None in gpus_at:
            continue
        match asked.get("pairing"):
            case "Together":
                holds = len(gpus_at | nics_at) == 1
            case "PerDevice":
                holds = gpus_at <= nics_at
            case "PerGroup":
                holds = gpus_at.keys() <= nics_at.keys()
            case _:
                holds = all(
                    number <= -(-len(gpus) // len(nics)) * nics_at[at] for at, number in gpus_at.items()
                )
        if holds or scope == "Node":
            return asked.get("scope", "none"), scope
    raise AssertionError


def told(capacity: ClusterCapacity) -> Dict:
    capacity.update()
    return {
        "sums": capacity.sums(),
        "most": capacity.most(),
        "aligned": capacity.aligned(),
        "ready": capacity.ready(),
    }


@pytest.mark.parametrize("seed", range(12))
def test_what_is_kept_is_what_is_counted(seed: int) -> None:
    draw, world = random.Random(seed), World()
    index = ClusterIndex(Features.of(None))
    capacity = ClusterCapacity(index)
    known: dict[str, Dict] = {NODE: {}, SLICE: {}, CLAIM: {}}

    def apply(kind: str, key: str, new: Dict | None) -> None:
        known[kind].pop(key, None)
        if new is not None:
            known[kind][key] = new
        index.apply(ClusterChange(kind, key, new))

    for turn in range(60):
        name = f"n{draw.randrange(4)}"
        match draw.choice(["node", "slice", "claim", "claim", "claim", "gone"]):
            case "node":
                world.nodes[name] = draw.random() < 0.2, draw.random() < 0.9
                apply(NODE, name, world.node(name))
            case "slice":
                world.cards[name] = machine(draw)
                for part in slice_of(name, world.cards[name]):
                    apply(SLICE, part["metadata"]["name"], part)
            case "claim" if world.cards:
                claim = f"c{draw.randrange(6)}"
                world.draw_claim(draw, claim)
                apply(CLAIM, f"a/{claim}", world.claim(claim))
            case "gone" if world.claims or world.nodes:
                if world.claims and draw.random() < 0.6:
                    claim = draw.choice(sorted(world.claims))
                    del world.claims[claim]
                    apply(CLAIM, f"a/{claim}", None)
                elif name in world.nodes:
                    del world.nodes[name]
                    apply(NODE, name, None)
        index.settle()
        if draw.random() < 0.5:
            continue
        kept = told(capacity)
        fresh = ClusterIndex(Features.of(None))
        fresh.sync(known)
        fresh.settle()
        assert kept == told(ClusterCapacity(fresh)), (seed, turn)
        by_hand = counted(world)
        for what, figures in by_hand.items():
            assert kept[what] == figures, (seed, turn, what)


def test_a_change_of_one_node_costs_one_node() -> None:
    draw, world = random.Random(1), World()
    index = ClusterIndex(Features.of(None))
    capacity = ClusterCapacity(index)
    for number in range(50):
        name = f"n{number}"
        world.nodes[name], world.cards[name] = (False, True), machine(draw)
        index.apply(ClusterChange(NODE, name, world.node(name)))
        for part in slice_of(name, world.cards[name]):
            index.apply(ClusterChange(SLICE, part["metadata"]["name"], part))
    index.settle()
    assert not capacity.update(most=20), "a leader that begins works out some after each pass"
    assert len(capacity.changed) == 20
    assert not capacity.update(most=20)
    assert capacity.update(most=20)
    assert len(capacity.changed) == 50
    capacity.changed.clear()
    world.claims["c"] = (
        "n7",
        [{"request": "g", "driver": "koordra.io", "pool": "n7", "device": world.cards["n7"][0].name}],
        [],
    )
    index.apply(ClusterChange(CLAIM, "a/c", world.claim("c")))
    index.settle()
    before = dict(capacity.nodes)
    capacity.update()
    assert capacity.changed == {"n7"}
    assert [name for name, figures in capacity.nodes.items() if figures is not before[name]] == ["n7"]
