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
from koordra.placement.gang.table_fit import fit_by_table, kept_with, numbers_by_table
from koordra.placement.gang.topology.packing import Count, NodeCounts
from koordra.placement.request.request_class import RequestClass, ResolvedGroup

_MOST_COUNTS: Final = 3_000
"""Counts that are tried on one kind of node (many classes that ask differently)."""


@dataclass(slots=True)
class NodeFit:
    """Asks nodes for one gang. Not thread-safe. `asked`: questions to nodes that were not answered before."""

    classes: Sequence[MemberClass]
    engine: Engine
    kinds: NodeKinds
    searching: NodeSearch
    budget: int = 1
    unknown: bool = False
    asked: int = 0
    _alike: dict[Count, Alike] = field(default_factory=dict)

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
        alike = self._alike_of(count)
        if not alike:
            return 0, 0
        if len(alike) == 1:
            ((asks, own),) = alike
            known = numbers_by_table(self.engine, kind, asks, own[0], rails)
            if known is not None and len(own) <= len(known.numbers):
                return known.numbers[len(own) - 1]
            if known is not None and known.complete:
                return None
        fit = self.fit(kind, count, rails)
        return None if fit is None else (fit.apart, fit.spare)

    def fit(self, kind: NodeKind, count: Count, rails: Rails | None = None) -> Fit | None:
        """The answer of nodes of the kind to a count, by the rails allowed."""
        alike = self._alike_of(count)
        if not alike:
            return Fit(tuple((BARE,) * number for number in count), 0, 0, frozenset())
        fit = self._answer(kind, alike, rails)
        return None if fit is None else by_class(fit, self.classes, count)

    def placed(self, node: str, count: Count, rails: Rails | None) -> Fit:
        """The answer to a count that is known to fit on the node."""
        fit = self.fit(self.kinds.of[node], count, rails)
        assert fit is not None
        return fit

    def _alike_of(self, count: Count) -> Alike:
        """How many members ask the same of devices. Classes may differ in nothing but CPU or in the nodes that are excluded."""
        if count not in self._alike:
            found: dict[RequestClass, list[ResolvedGroup]] = {}
            for one, number in zip(self.classes, count, strict=True):
                if one.claims and number:
                    found.setdefault(one.devices, []).extend(one.resolved_groups[:number])
            self._alike[count] = list(found.items())
        return self._alike[count]

    def _answer(self, kind: NodeKind, alike: Alike, rails: Rails | None) -> Fit | None:
        """The answer that is kept with the first request class; one that was sought in vain is sought again with a larger budget."""
        kept = kept_with(alike[0][0], "fits")
        key: Hashable = (kind.where, tuple((asks, len(own)) for asks, own in alike), rails)
        known: tuple[Fit | None, int] | None = kept.get(key)
        if known is None or 0 < known[1] < self.budget:
            self.asked += 1
            fit, unknown = None, False
            if len(alike) == 1:
                fit = fit_by_table(self.engine, kind, *alike[0], rails)
            if fit is None:
                fit, unknown = self.searching.search(kind.info, alike, rails)
            known = kept[key] = fit, self.budget if unknown else 0
        self.unknown = self.unknown or known[1] > 0
        return known[0]


def _all_smaller(count: Count, found: Mapping[Count, object], zero: Count) -> bool:
    """Whether the count with one member less, of any class, fits."""
    for at, number in enumerate(count):
        less = (*count[:at], number - 1, *count[at + 1 :])
        if number and less != zero and less not in found:
            return False
    return True
