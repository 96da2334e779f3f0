"""Predicates between pods, asked of the index, against the same rules read off all pods; and what an answer
costs."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from koordra.allocator.features import Features
from koordra.allocator.predicates import requirement_matches
from koordra.api import objects
from koordra.api.kinds import NAMESPACES, PODS
from koordra.api.objects import Object
from koordra.controller.allocation.guest_index import MOST_FOREIGN, concerns_of
from koordra.controller.allocation.interpod_predicates import InterPodPredicates
from koordra.controller.allocation.label_selectors import LONGEST_TERM, MOST_TERMS, Term
from koordra.controller.cache.changes import Change
from koordra.controller.cache.cluster_cache import ClusterCache
from koordra.controller.cache.groups import Group
from koordra.controller.cache.pod_index import PodClaims, is_living
from koordra.placement.index import ClusterChange, ClusterIndex
from tests.fakes.joint_cluster import claim, node, pod

HOST, ZONE = "kubernetes.io/hostname", "zone"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
TEAMS = ("a", "b", "c")


class World:
    """Nodes, namespaces, and pods that come, go and move."""

    def __init__(self, seed: int, *, nodes: int = 4) -> None:
        self.random = random.Random(seed)
        self.index, self.cache = ClusterIndex(Features.of(None)), ClusterCache()
        self.pods: dict[str, Object] = {}
        for number in range(nodes):
            made = node(f"n{number}")
            made["metadata"]["labels"][ZONE] = "xy"[number % 2]
            self.index.apply(ClusterChange("Node", f"n{number}", made))
        self.label_namespaces()
        self.predicates = InterPodPredicates(self.cache, self.index)

    def label_namespaces(self) -> None:
        for team in TEAMS:
            labels = {"tier": self.random.choice("12")}
            self.cache.apply([Change(NAMESPACES, team, {"metadata": {"name": team, "labels": labels}})])

    def put(self, made: Object) -> None:
        key = objects.key(made)
        self.pods[key] = made
        self.index.apply(ClusterChange("Pod", key, made))
        self.cache.apply([Change(PODS, key, made)])

    def remove(self, key: str) -> None:
        del self.pods[key]
        self.index.apply(ClusterChange("Pod", key, None))
        self.cache.apply([Change(PODS, key, None)])

    def excluded(self, waits: Object) -> set[str]:
        waiting = Group((PodClaims(waits, (claim("c", uid="c"),)),))
        return set(self.predicates.of(waiting))

    def expected(self, waits: Object) -> set[str]:
        """By going through every pod on every node."""
        guests = [
            (one.node, one.pod)
            for one in self.index.pods.placed.values()
            if objects.uid(one.pod) != objects.uid(waits)
        ]
        labels: Any = {name: info.labels for name, info in self.index.nodes.items()}
        found = set[str]()
        for name, own in labels.items():
            for at, other in guests:
                for term in terms(other, "podAntiAffinity"):
                    key = term["topologyKey"]
                    near = key in labels[at] and labels[at][key] == own.get(key)
                    if near and self.means(other, term, waits):
                        found.add(name)
                for term in terms(waits, "podAntiAffinity"):
                    key = term["topologyKey"]
                    if labels[at].get(key) == own.get(key) and self.means(waits, term, other):
                        found.add(name)
                found |= {at for port in ports(waits) if port in ports(other)}
            near = [
                at
                for at, other in guests
                if all(self.means(waits, term, other) for term in terms(waits, "podAffinity"))
            ]
            first = not near and all(self.means(waits, term, waits) for term in terms(waits, "podAffinity"))
            for term in terms(waits, "podAffinity"):
                domains = {labels[at][term["topologyKey"]] for at in near}
                if own[term["topologyKey"]] not in domains and not first:
                    found.add(name)
            for constraint in objects.spec_of(waits).get("topologySpreadConstraints") or ():
                counts = dict.fromkeys((each[ZONE] for each in labels.values()), 0)
                for at, other in guests:
                    here = objects.namespace(other) == objects.namespace(waits) and is_living(other)
                    counts[labels[at][ZONE]] += here and selects(constraint["labelSelector"], other)
                itself = selects(constraint["labelSelector"], waits)
                if counts[own[ZONE]] + itself - min(counts.values()) > constraint["maxSkew"]:
                    found.add(name)
        return found

    def means(self, owner: Object, term: Any, other: Object) -> bool:
        place = self.cache.namespaces[objects.namespace(other)]
        named, by_label = term.get("namespaces") or [], term.get("namespaceSelector")
        here = objects.namespace(other) in (named or ([] if by_label else [objects.namespace(owner)]))
        return selects(term["labelSelector"], other) and (here or bool(by_label and selects(by_label, place)))

    def draw(self, name: str, *, at: str = "") -> Object:
        draw = self.random
        spec: dict[str, Any] = {"nodeName": at} if at else {}
        for kind in ("podAffinity", "podAntiAffinity"):
            if draw.random() < (0.3 if kind == "podAffinity" and not at else 0.4):
                own = [self.draw_term() for _ in range(draw.choice([1, 1, 2]))]
                spec.setdefault("affinity", {})[kind] = {REQUIRED: own}
        if draw.random() < 0.3:
            selector = self.draw_selector()
            spread = {"topologyKey": ZONE, "maxSkew": draw.choice([1, 2]), "labelSelector": selector}
            spec["topologySpreadConstraints"] = [spread]
        if draw.random() < 0.3:
            spec["containers"] = [{"name": "m", "ports": [{"hostPort": draw.choice([80, 81])}]}]
        made = pod(name, [], **spec)
        labels = {key: draw.choice("12") for key in "pq" if draw.random() < 0.7}
        made["metadata"] |= {"labels": labels, "uid": name, "namespace": draw.choice(TEAMS)}
        return made

    def draw_selector(self) -> Any:
        draw = self.random
        operator = draw.choice(["In", "NotIn", "Exists", "DoesNotExist"])
        entry: Any = {"key": draw.choice("pq"), "operator": operator}
        if operator in ("In", "NotIn"):
            entry["values"] = draw.sample("123", draw.choice([1, 2]))
        return draw.choice([{"matchLabels": {draw.choice("pq"): "1"}}, {"matchExpressions": [entry]}, {}])

    def draw_term(self) -> Any:
        draw = self.random
        term: Any = {"topologyKey": draw.choice([HOST, ZONE]), "labelSelector": self.draw_selector()}
        if draw.random() < 0.3:
            term["namespaces"] = draw.sample(TEAMS, 2)
        if draw.random() < 0.3:
            term["namespaceSelector"] = {"matchLabels": {"tier": "1"}}
        return term


def _ending(of: Object) -> Object:
    return {**objects.metadata(of), "deletionTimestamp": "2026-11-21T01:00:00Z"}


def terms(of: Object, kind: str) -> list[Any]:
    return list((objects.spec_of(of).get("affinity") or {}).get(kind, {}).get(REQUIRED, ()))


def ports(of: Object) -> list[Any]:
    return [port["hostPort"] for one in objects.spec_of(of)["containers"] for port in one.get("ports", ())]


def selects(selector: Any, other: Object) -> bool:
    labels = objects.labels_of(other)
    named = all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items())
    return named and all(requirement_matches(one, labels) for one in selector.get("matchExpressions", ()))


@pytest.mark.parametrize("seed", range(60))
def test_the_index_says_what_all_pods_say_and_who_reads_what_changed_is_told(seed: int) -> None:
    world = World(seed)
    waiting = [world.draw(f"w{number}") for number in range(6)]
    for number in range(24):
        before = [world.excluded(one) for one in waiting]
        world.predicates.touched.clear()
        version = world.predicates.version
        how = world.random.random() if world.pods else 1.0
        one_of_them = world.random.choice(sorted(world.pods) or [""])
        if how < 0.2:
            world.remove(one_of_them)
        elif how < 0.3:
            world.put({**world.pods[one_of_them], "metadata": _ending(world.pods[one_of_them])})
        elif how < 0.4:
            placed = world.index.pods.placed[one_of_them]
            at = world.random.choice(sorted(world.index.nodes))
            world.index.pods.put(one_of_them, placed._replace(node=at))
        elif number % 8 == 7:
            world.label_namespaces()
        else:
            moved = world.random.choice([f"g{number}", *world.pods]).rpartition("/")[2]
            for key in [key for key in world.pods if key.endswith(f"/{moved}")]:
                world.remove(key)
            world.put(world.draw(moved, at=world.random.choice(sorted(world.index.nodes))))
        for one, said in zip(waiting, before, strict=True):
            now = world.excluded(one)
            assert now == world.expected(one), (number, one)
            told = world.predicates.version > version
            assert now == said or told or not world.predicates.touched.isdisjoint(concerns_of(one))


def repelling(name: str, place: str, **selector: Any) -> Object:
    own = {REQUIRED: [{"topologyKey": HOST, "labelSelector": {"matchLabels": {"app": place}}, **selector}]}
    made = pod(name, [], nodeName="n0", affinity={"podAntiAffinity": own})
    made["metadata"] |= {"labels": {"app": place}, "uid": name, "namespace": place}
    return made


@pytest.fixture
def cost(monkeypatch: pytest.MonkeyPatch) -> Callable[[World, Object], int]:
    """How many pods are held against terms for an answer."""
    means, asked = Term.means, list[Object]()

    def counted(self: Term, one: Object, namespaces: Any) -> bool:
        asked.append(one)
        return means(self, one, namespaces)

    def of(world: World, waits: Object) -> int:
        asked.clear()
        world.excluded(waits)
        return len(asked)

    monkeypatch.setattr(Term, "means", counted)
    return of


Cost = Callable[[World, Object], int]


@pytest.mark.parametrize(
    "more", [{}, {"namespaceSelector": {}}, {"namespaceSelector": {}, "labelSelector": {}}]
)
def test_pods_of_another_tenant_cost_a_bounded_number_of_looks(more: Any, cost: Cost) -> None:
    world = World(0, nodes=2)
    world.put(repelling("own", "b"))
    waits = repelling("waits", "b")
    del waits["spec"]["nodeName"]
    alone = cost(world, waits)
    for number in range(1500):
        own = repelling(f"g{number}", "a", **more)
        own["metadata"]["labels"]["number"] = str(number)
        if more.get("labelSelector") is not None:
            own["spec"]["affinity"]["podAntiAffinity"][REQUIRED][0]["mismatchLabelKeys"] = ["number"]
        world.put(own)
    assert cost(world, waits) <= alone + MOST_FOREIGN
    assert alone <= 4


def test_replicas_that_keep_apart_are_one_term(cost: Cost) -> None:
    world = World(0, nodes=2)
    for number in range(500):
        world.put(repelling(f"g{number}", "a"))
    waits = repelling("waits", "a")
    del waits["spec"]["affinity"], waits["spec"]["nodeName"]
    assert cost(world, waits) == 1
    assert world.excluded(waits) == {"n0"}


def test_what_is_too_long_is_left_to_the_scheduler(cost: Cost) -> None:
    world = World(0, nodes=2)
    values = [f"value-{number}" for number in range(LONGEST_TERM // 8)]
    long = {"matchExpressions": [{"key": "app", "operator": "In", "values": ["b", *values]}]}
    world.put(repelling("long", "b", labelSelector=long))
    waits = repelling("waits", "b")
    waits["spec"]["affinity"]["podAntiAffinity"][REQUIRED] *= 100 * MOST_TERMS
    assert world.excluded(waits) == {"n0"}
    assert cost(world, waits) <= 2 * MOST_TERMS
    waits["spec"] = {"containers": []}
    assert world.excluded(waits) == set()


def test_a_heartbeat_of_a_guest_touches_nothing() -> None:
    world = World(0)
    for number in range(20):
        world.put(world.draw(f"g{number}", at="n1"))
    world.predicates.touched.clear()
    for made in list(world.pods.values()):
        world.put({**made, "status": {"phase": "Running", "message": "alive"}})
    assert world.predicates.touched == set()
