"""Nodes that are kept free for the starving, shared among namespaces; by turns among gangs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from koordra.api import objects
from koordra.controller.allocation.reservations import (
    LONGEST_REST,
    REST,
    WINDOW,
    GangReservation,
    Reservations,
)
from koordra.controller.cache.groups import Group
from koordra.controller.cache.pod_index import PodClaims
from koordra.placement.request.claim_groups import Urgency

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


class Gangs:
    """Gangs that wait, each of which would fit if all nodes were kept free for it, and may never start."""

    def __init__(self, **ages: int) -> None:
        self.reservation = GangReservation(starves_after=STARVES)
        self.waiting: dict[str, Urgency] = {}
        self.now = 0.0
        for name, age in ages.items():
            self.add(name.replace("_", "/"), age=age)

    def add(self, key: str, *, age: int, priority: int = 0) -> None:
        self.waiting[key] = (-priority, f"2026-11-21T00:00:{50 - age:02}Z", key)
        self.reservation.waits(key, now=self.now)

    def look(self) -> str | None:
        """One pass: whose turn it is has the nodes from now on."""
        self.reservation.retain(self.waiting, self.waiting.__getitem__, now=self.now)
        if (key := self.reservation.in_turn(self.now)) is not None:
            self.reservation.keep_free(key, self.waiting[key], ["n0", "n1"], now=self.now)
        return next((key for key in self.waiting if self.reservation.holds(key)), None)

    def over(self, seconds: float, *, step: float = 60.0) -> list[str | None]:
        """Who had the nodes, minute by minute."""
        had = []
        for _ in range(int(seconds / step)):
            self.now += step
            had.append(self.look())
        return had


def test_gangs_of_one_namespace_do_not_keep_anothers_waiting_for_ever() -> None:
    """Two old gangs that never start, each with its turn while the other rests, and a young one."""
    gangs = Gangs(greedy_a=40, greedy_b=39, other_late=0)
    had = gangs.over(STARVES + 2 * WINDOW + REST + 60)
    assert had[4] == "greedy/a"
    assert "other/late" in had
    assert "greedy/b" not in had


def test_a_namespace_whose_gangs_never_start_keeps_nodes_free_for_ever_less() -> None:
    gangs = Gangs(greedy_a=40, greedy_b=39, greedy_c=38)
    gangs.over(6 * 3600)
    day = gangs.over(24 * 3600)
    assert None in day
    assert sum(one is not None for one in day) * 60.0 <= 24 * 3600 * WINDOW / LONGEST_REST


def test_between_two_that_wait_in_vain_the_nodes_are_everybodys_for_a_while() -> None:
    gangs = Gangs(a_x=40, b_x=39, c_x=38, d_x=37, e_x=36)
    had = gangs.over(24 * 3600)
    free = sum(one is None for one in had) * 60.0
    assert free >= 24 * 3600 * REST / (WINDOW + REST) - WINDOW
    assert {one for one in had if one} == set(gangs.waiting)


def test_a_gang_that_is_taken_away_before_its_time_is_over_was_in_vain_too() -> None:
    gangs = Gangs(greedy_a=40, greedy_b=39)
    assert gangs.over(STARVES)[-1] == "greedy/a"
    gangs.over(WINDOW - 120)
    del gangs.waiting["greedy/a"]
    assert gangs.over(WINDOW - 240) == [None] * int((WINDOW - 240) / 60)


def test_after_a_gang_was_placed_its_namespace_rests_as_long_as_it_had_nodes() -> None:
    gangs = Gangs(one_a=40, one_b=39)
    assert gangs.over(STARVES)[-1] == "one/a"
    gangs.over(WINDOW / 2)
    gangs.reservation.placed("one/a", now=gangs.now)
    del gangs.waiting["one/a"]
    had = gangs.over(WINDOW)
    assert had[: int(WINDOW / 120) - 1] == [None] * (int(WINDOW / 120) - 1)
    assert had[-1] == "one/b"


def test_a_more_urgent_gang_has_its_turn_first() -> None:
    gangs = Gangs(old_a=40)
    gangs.add("urgent/a", age=0, priority=5)
    assert gangs.over(STARVES)[-1] == "urgent/a"


def test_a_gang_that_no_nodes_would_help_gives_its_turn_away() -> None:
    """It is looked at once, and the next one a second later."""
    gangs = Gangs(greedy_a=40, other_b=39)
    gangs.now = STARVES
    gangs.reservation.retain(gangs.waiting, gangs.waiting.__getitem__, now=gangs.now)
    assert gangs.reservation.in_turn(gangs.now) == "greedy/a"
    gangs.reservation.rest("greedy/a", now=gangs.now)
    assert gangs.reservation.next(gangs.now) == gangs.now + 1.0
    assert gangs.look() == "other/b"
