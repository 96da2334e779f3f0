"""What a namespace may take of one pass, so that none makes the others wait.

    groups are considered by priority, age and name, as long as their namespace has steps left of its SHARE
    those that are left over are considered in the next pass, which follows at once: while some of a namespace
      are left over, its most urgent groups have half of the share, those that are late the other half, the
      longest left over first; one of these at least, whatever the others have cost

So the order among namespaces holds while each asks for less than its share, which is thousands of claims that
are alike, or hundreds of which no two are. Beyond it a claim of another namespace that comes later may be
served first; within its own, one that is late is served after as many passes as the work before it takes.
A decision is never cut off: a namespace may go beyond its share by two, whose cost has a bound of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from koordra.api import objects
from koordra.controller.cache.groups import Group

SHARE: Final = 20_000
"""Steps (koordra.effort) of a namespace in one pass: half a second."""
JUDGED: Final = 10
"""Steps that considering a group takes besides."""
MOST_PARTS: Final = 32
"""Pods of one group that are tried alone at a time: hundreds may share a claim, in a chain thousands."""
NEXT_PARTS: Final = 1.0
ALL_AGAIN: Final = 10.0
MOST_LEARNED: Final = 256
"""New groups of a namespace that are counted before the first one is placed; others when it is their turn."""


class Turns:
    """Not thread-safe."""

    def __init__(self, share: int = SHARE) -> None:
        self._share = share
        self._spent = Counter[str]()
        self._late: dict[str, int] = {}
        """Groups that were left over, by key, and since which pass."""
        self._next_part: dict[str, int] = {}
        self._pass = 0

    def of(self, groups: Sequence[Group]) -> Iterator[Group]:
        """Those whose turn it is in this pass. `groups`: all that are to be considered, the most urgent
        first; the caller says what each has cost (`charge`) before the next."""
        self._pass += 1
        self._spent.clear()
        waiting = {group.key for group in groups}
        self._late = {key: since for key, since in self._late.items() if key in waiting}
        if len(self._next_part) > 1000:
            self._next_part.clear()
        halved = {objects.namespace(group.first) for group in groups if group.key in self._late}
        left: list[Group] = []
        for group in groups:
            place = objects.namespace(group.first)
            if self._spent[place] < self._share // (2 if place in halved else 1):
                yield self._now(group)
            else:
                left.append(group)
        never, served = self._pass, set[str]()
        for group in sorted(left, key=lambda one: (self._late.get(one.key, never), one.urgency)):
            place = objects.namespace(group.first)
            if self._spent[place] < self._share or (group.key in self._late and place not in served):
                served.add(place)
                yield self._now(group)
            else:
                self._late.setdefault(group.key, self._pass)

    def _now(self, group: Group) -> Group:
        self._late.pop(group.key, None)
        return group

    def charge(self, group: Group, steps: int) -> None:
        self._spent[objects.namespace(group.first)] += JUDGED * min(len(group.pods) + 1, MOST_PARTS) + steps

    def first(self, groups: Sequence[Group]) -> list[Group]:
        """MOST_LEARNED of each namespace."""
        found, seen = list[Group](), Counter[str]()
        for group in groups:
            place = objects.namespace(group.first)
            seen[place] += 1
            if seen[place] <= MOST_LEARNED:
                found.append(group)
        return found

    def parts_of(self, group: Group) -> tuple[Sequence[Group], float | None]:
        """What of the group is tried now: all of it, and its pods one by one; of more than MOST_PARTS pods
        each time others, and then in how many seconds the next are due."""
        parts = group.parts
        if len(parts) <= MOST_PARTS:
            return parts, None
        at = self._next_part.pop(group.key, 1)
        if at + MOST_PARTS < len(parts):
            self._next_part[group.key] = at + MOST_PARTS
            return (group, *parts[at : at + MOST_PARTS]), NEXT_PARTS
        return (group, *parts[at:]), ALL_AGAIN

    @property
    def some_are_late(self) -> bool:
        """Whether groups were left over for the next pass."""
        return bool(self._late)
