"""What fits on one node: how many members of each class at the same time, and on which devices.

    kinds       nodes that give the same answers: one of them is asked (node_kinds.py)
    counts      asked for from small to large
    answers     kept with the engine's request classes, else from device tables (table_fit.py), else searched for (node_search.py)

What does not fit is not asked for with more on top, for taking a member away never makes a placement impossible.

`unknown` says that some answer is not the last word: a search ran out of budget, or there were too many counts.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from koordra.placement.decide import Engine
from koordra.placement.gang.member_assignment import BARE, Alike, Fit, Rails, by_class
from koordra.placement.gang.member_classes import MemberClass
from koordra.placement.gang.node_kinds import NodeKind, NodeKinds
from koordra.placement.gang.node_search import NodeSearch
from koordra.placement.gang.score import Count, NodeCounts
from koordra.placement.gang.table_fit import TableFit
from koordra.placement.request.request_class import RequestClass, ResolvedGroup

_MOST_COUNTS: Final = 3_000
"""Counts that are tried on one kind of node (many classes that ask differently)."""

_MOST_KEPT: Final = 1 << 14
_KEPT: Final = "fits"


@dataclass(slots=True)
class NodeFit:
    """Asks nodes for one gang. Not thread-safe. Nothing is asked before `kinds.find`."""

    classes: Sequence[MemberClass]
    engine: Engine
    budget: int = 1
    unknown: bool = False
    asked: int = 0
    """Questions to nodes that were not answered before."""
    kinds: NodeKinds = field(init=False)
    searching: NodeSearch = field(init=False)
    tabled: TableFit = field(init=False)

    def __post_init__(self) -> None:
        self.kinds = NodeKinds(self.classes, self.engine)
        self.searching = NodeSearch(self.engine, self.budget)
        self.tabled = TableFit(self.engine, self.searching)

    def takes(self, kind: NodeKind, rails: Rails | None = None) -> NodeCounts:
        """All counts that fit on a node of the kind."""
        found: dict[Count, tuple[int, int]] = {}
        zero = (0,) * len(self.classes)
        reached, frontier = {zero}, [zero]
        while frontier:
            following: list[Count] = []
            for base in frontier:
                for at, one in enumerate(self.classes):
                    count = (*base[:at], base[at] + 1, *base[at + 1 :])
                    if count in reached or count[at] > len(one.members) or not kind.suits[at]:
                        continue
                    reached.add(count)
                    if len(reached) > _MOST_COUNTS * self.budget:
                        self.unknown = True
                        continue
                    if not self.kinds.has_room(kind, count) or not _all_smaller(count, found, zero):
                        continue
                    numbers = self.numbers(kind, count, rails)
                    if numbers is not None:
                        found[count] = numbers
                        following.append(count)
            frontier = following
        return NodeCounts(found, kind.fixed, max(map(sum, found), default=0))

    def numbers(self, kind: NodeKind, count: Count, rails: Rails | None = None) -> tuple[int, int] | None:
        """How good the node's answer to a count is (apart, spare); None where the count does not fit."""
        alike = self._alike(count)
        if not alike:
            return 0, 0
        if len(alike) == 1:
            ((asks, own),) = alike
            known = self.tabled.numbers(self.kinds.example[kind], kind.where, asks, own, rails)
            if known is not None and len(own) <= len(known[0]):
                return known[0][len(own) - 1]
            if known is not None and known[1]:
                return None
        fit = self.fit(kind, count, rails)
        return None if fit is None else (fit.apart, fit.spare)

    def fit(self, kind: NodeKind, count: Count, rails: Rails | None = None) -> Fit | None:
        """The answer of nodes of the kind to a count, by the rails allowed."""
        alike = self._alike(count)
        if not alike:
            return Fit(tuple((BARE,) * number for number in count), 0, 0, frozenset())
        fit = self._answer(kind, alike, rails)
        return None if fit is None else by_class(fit, self.classes, count)

    def placed(self, node: str, count: Count, rails: Rails | None) -> Fit:
        """The answer to a count that is known to fit on the node."""
        fit = self.fit(self.kinds.of[node], count, rails)
        assert fit is not None
        return fit

    def class_of(self, kind: NodeKind) -> Hashable:
        """What nodes of the kind publish; themselves where that is like no other's."""
        info = self.engine.index.nodes[self.kinds.example[kind]]
        return info.devices.node_class or info

    def _alike(self, count: Count) -> Alike:
        """How many members ask the same of devices. Classes may differ in nothing but CPU or in the nodes that are excluded."""
        found: dict[RequestClass, list[ResolvedGroup]] = {}
        for one, number in zip(self.classes, count, strict=True):
            if one.claims and number:
                found.setdefault(one.devices, []).extend(one.resolved_groups[:number])
        return list(found.items())

    def _answer(self, kind: NodeKind, alike: Alike, rails: Rails | None) -> Fit | None:
        """The answer that is kept with the first request class; one that was sought in vain is sought again with a larger budget."""
        kept: dict[Hashable, tuple[Fit | None, int]] = alike[0][0].kept.setdefault(_KEPT, {})
        key = (kind.where, tuple((asks, len(own)) for asks, own in alike), rails)
        known = kept.get(key)
        if known is None or 0 < known[1] < self.budget:
            if len(kept) >= _MOST_KEPT:
                kept.clear()
            self.asked += 1
            fit, unknown = self._searched(kind, alike, rails)
            known = kept[key] = fit, self.budget if unknown else 0
        self.unknown = self.unknown or known[1] > 0
        return known[0]

    def _searched(self, kind: NodeKind, alike: Alike, rails: Rails | None) -> tuple[Fit | None, bool]:
        name = self.kinds.example[kind]
        if len(alike) == 1:
            ((asks, own),) = alike
            fit = self.tabled.fit(name, kind.where, asks, own, rails)
            if fit is not None:
                return fit, False
        return self.searching.search(name, alike, rails)


def _all_smaller(count: Count, found: Mapping[Count, object], zero: Count) -> bool:
    """Whether the count with one member less, of any class, fits."""
    for at, number in enumerate(count):
        less = (*count[:at], number - 1, *count[at + 1 :])
        if number and less != zero and less not in found:
            return False
    return True
