"""What fits on one node: how many members of each class at the same time, and on which devices.

    kinds       nodes that give the same answers: one of them is asked (kinds.py)
    counts      asked for from small to large
    answers     remembered from gang to gang (remembered.py), else from tables (tabled.py), else searched for (searching.py)

What does not fit is not asked for with more on top, for taking a member away never makes a placement impossible.

`unknown` says that some answer is not the last word: a search ran out of budget, or there were too many counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from koordra.allocator.features import Features
from koordra.api.claims import DeviceClass
from koordra.api.opaque.parameters import PlacementPolicy
from koordra.errors import InvalidManifest
from koordra.placement.gang.member_assignment import BARE, Alike, Fit, by_class
from koordra.placement.gang.member_classes import MemberClass
from koordra.placement.gang.node_devices import Devices, Rails
from koordra.placement.gang.node_groups import Kind, Kinds
from koordra.placement.gang.node_search import Searching
from koordra.placement.gang.result_cache import Remembered
from koordra.placement.gang.score import Count, NodeCounts
from koordra.placement.gang.table_fit import Tabled
from koordra.placement.gang.types import GangNode, Member

_MOST_COUNTS: Final = 3_000
"""Counts that are tried on one kind of node (many classes that ask differently)."""


@dataclass(slots=True)
class Fitting:
    """Asks nodes for one gang. Not thread-safe. Nothing is asked before `kinds.look`."""

    classes: Sequence[MemberClass]
    nodes: Mapping[str, GangNode]
    device_classes: Mapping[str, DeviceClass | InvalidManifest]
    features: Features
    policy: PlacementPolicy | None
    memory: Remembered
    budget: int = 1
    unknown: bool = False
    devices: Devices = field(init=False)
    kinds: Kinds = field(init=False)
    searching: Searching = field(init=False)
    tabled: Tabled = field(init=False)

    def __post_init__(self) -> None:
        self.devices = Devices(self.nodes, self.features)
        self.kinds = Kinds(self.classes, self.nodes, self.devices, self.memory)
        self.searching = Searching(
            self.nodes, self.devices, self.device_classes, self.features, self.policy, self.budget
        )
        self.tabled = Tabled(self.devices, self.features, self.policy, self.memory, self.searching)

    def takes(self, kind: Kind, rails: Rails | None = None) -> NodeCounts:
        """All counts that fit on a node of the kind."""
        name = self.kinds.example[kind]
        found: dict[Count, tuple[int, int]] = {}
        zero = (0,) * len(self.classes)
        reached, frontier = {zero}, [zero]
        while frontier:
            following: list[Count] = []
            for base in frontier:
                for at, one in enumerate(self.classes):
                    count = _plus_one(base, at)
                    if count in reached or count[at] > len(one.members) or not kind.suits[at]:
                        continue
                    reached.add(count)
                    if len(reached) > _MOST_COUNTS * self.budget:
                        self.unknown = True
                        continue
                    if not self.kinds.roomy(kind, count) or not _all_smaller(count, found, zero):
                        continue
                    told = self.told(name, count, rails)
                    if told is not None:
                        found[count] = told
                        following.append(count)
            frontier = following
        return NodeCounts(found, kind.fixed, max(map(sum, found), default=0))

    def told(self, name: str, count: Count, rails: Rails | None = None) -> tuple[int, int] | None:
        """How good the node's answer to a count is (apart, spare); None where the count does not fit."""
        alike = self._alike(count)
        if not alike:
            return 0, 0
        if len(alike) == 1:
            ((asks, own),) = alike
            known = self.tabled.numbers(name, self.kinds.of[name], asks, own, rails)
            if known is not None and len(own) <= len(known[0]):
                return known[0][len(own) - 1]
            if known is not None and known[1]:
                return None
        fit = self.fit(name, count, rails)
        return None if fit is None else (fit.apart, fit.spare)

    def fit(self, name: str, count: Count, rails: Rails | None = None) -> Fit | None:
        """The node's answer to a count, by the rails allowed."""
        kind = self.kinds.of[name]
        if not any(number and one.claims for one, number in zip(self.classes, count, strict=True)):
            seats = tuple((BARE,) * number for number in count)
            return Fit(name, seats, 0, 0, frozenset())
        fit = self._asked_alike(name, kind, self._alike(count), rails)
        return None if fit is None else by_class(fit, self.classes, count)

    def placed(self, node: str, count: Count, rails: Rails | None) -> Fit:
        """The answer to a count that is known to fit on the node, as the example of its kind gave it."""
        fit = self.fit(self.kinds.example[self.kinds.of[node]], count, rails)
        assert fit is not None
        return fit

    def _alike(self, count: Count) -> Alike:
        """How many members ask the same of devices. Classes may differ in nothing but CPU or in where they are kept off."""
        found: dict[str, list[Member]] = {}
        for one, number in zip(self.classes, count, strict=True):
            if one.claims and number:
                found.setdefault(one.key, []).extend(one.members[:number])
        return [(key, found[key]) for key in sorted(found)]

    def _asked_alike(self, name: str, kind: Kind, alike: Alike, rails: Rails | None) -> Fit | None:
        key = (kind.devices, tuple((asks, len(own)) for asks, own in alike), rails, self.policy)
        fit, unknown = self.memory.answer(
            key, lambda: self._sought(name, kind, alike, rails), budget=self.budget
        )
        self.unknown = self.unknown or unknown
        return fit

    def _sought(self, name: str, kind: Kind, alike: Alike, rails: Rails | None) -> tuple[Fit | None, bool]:
        if len(alike) == 1:
            ((asks, own),) = alike
            fit = self.tabled.fit(name, kind, asks, own, rails)
            if fit is not None:
                return fit, False
        return self.searching.search(name, alike, rails)


def _plus_one(count: Count, at: int) -> Count:
    return (*count[:at], count[at] + 1, *count[at + 1 :])


def _all_smaller(count: Count, found: Mapping[Count, object], zero: Count) -> bool:
    """Whether the count with one member less, of any class, fits."""
    for at, number in enumerate(count):
        less = (*count[:at], number - 1, *count[at + 1 :])
        if number and less != zero and less not in found:
            return False
    return True
