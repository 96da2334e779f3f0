"""Nodes that are kept free for the starving, shared among namespaces."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from koordra.api import objects
from koordra.controller.allocation.reservations import REST, WINDOW, Reservations
from koordra.controller.cache.groups import Group
from koordra.controller.cache.pod_index import PodClaims

STARVES = 300.0


class Waiting:
    """Groups of one pod each, that fit on any node if it were empty."""

    def __init__(self, nodes: int) -> None:
        self.groups: dict[str, Group] = {}
        self.reservations = Reservations(starves_after=STARVES)
        named = {f"n{number:03}": _node(f"n{number:03}") for number in range(nodes)}
        self.placer: Any = SimpleNamespace(nodes=named, fits_when_empty=lambda *_: True)

    def add(self, namespace: str, *names: str, priority: int = 0, age: int = 0, now: float = 0.0) -> None:
        for name in names:
            metadata = {
                "name": name,
                "namespace": namespace,
                "uid": name,
                "creationTimestamp": f"2026-11-21T00:00:{50 - age:02}Z",
            }
            pod = {"metadata": metadata, "spec": {"priority": priority}}
            self.groups[name] = Group((PodClaims(pod, ()),))
            self.reservations.waits(name, now=now)

    def holding(self, now: float) -> list[str]:
        self.reservations.review(self.groups, self.placer, now=now)
        return sorted(name for name in self.groups if self.reservations.holds(name))


def _node(name: str) -> Any:
    return SimpleNamespace(name=name, holders=(object(),), pools=())


def test_a_namespace_has_half_of_the_nodes_at_most() -> None:
    waiting = Waiting(nodes=80)
    waiting.add("greedy", *(f"g{number}" for number in range(100)), age=40)
    assert len(waiting.holding(STARVES)) == 4
    waiting.add("other", "late", now=STARVES)
    assert "late" in waiting.holding(2 * STARVES)


def test_of_few_nodes_namespaces_have_them_in_turn() -> None:
    """One node of twelve is kept free at a time: the older pods of one namespace do not have it always."""
    waiting = Waiting(nodes=12)
    waiting.add("greedy", "g1", "g2", "g3", age=40)
    waiting.add("other", "late")
    had, now = [], STARVES
    for _ in range(4):
        had += waiting.holding(now)
        now += WINDOW
    assert [objects.namespace(waiting.groups[name].first) for name in had] == [
        "greedy",
        "other",
        "greedy",
        "other",
    ]


def test_a_more_urgent_pod_has_its_turn_first() -> None:
    waiting = Waiting(nodes=12)
    waiting.add("greedy", "g1", "g2", priority=5)
    waiting.add("other", "late", age=40)
    assert waiting.holding(STARVES) == ["g1"]
    assert waiting.holding(STARVES + WINDOW) == ["g2"]
    assert waiting.holding(STARVES + 2 * WINDOW) == ["g1"]
    assert REST < WINDOW


def test_a_namespace_alone_goes_on_by_age() -> None:
    waiting = Waiting(nodes=12)
    waiting.add("only", "young")
    waiting.add("only", "old", age=40)
    assert waiting.holding(STARVES) == ["old"]
    assert waiting.holding(STARVES + WINDOW) == ["young"]
