"""What a namespace may take of one pass, so that none makes the others wait.

    groups and gangs are considered by priority, age and name, as long as their namespace has steps left of
      its SHARE
    those that are left over are considered in the next pass, which follows at once: while some of a namespace
      are left over, its most urgent groups have half of the share, those that are late the other half, the
      longest left over first; one of these at least, whatever the others have cost

So the order among namespaces holds while each asks for less than its share, which is thousands of claims that
are alike, or hundreds of which no two are. Beyond it a claim of another namespace that comes later may be
served first; within its own, one that is late is served after as many passes as the work before it takes.
A decision is never cut off: a namespace may go beyond its share by two, whose cost has a bound of its own.
What it went beyond counts for its next passes: as long as that is a share or more nothing of it is
considered, and if nobody else is left over each of these follows after NEXT_PAID seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from koordra.api import objects
from koordra.controller.cache.groups import Group
from koordra.controller.gangs.membership import Gang
from koordra.placement.request.claim_groups import Urgency

SHARE: Final = 20_000
"""Steps (koordra.effort) of a namespace in one pass: half a second."""
JUDGED: Final = 10
"""Steps that considering a group takes besides."""
MOST_PARTS: Final = 32
"""Pods of one group that are tried alone at a time: hundreds may share a claim, in a chain thousands."""
NEXT_PAID: Final = 1.0
NEXT_PARTS: Final = 1.0
ALL_AGAIN: Final = 10.0
MOST_LEARNED: Final = 256
"""New groups of a namespace that are counted before the first one is placed; others when it is their turn."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A group that is to be considered, or a gang, known by its key. `size` is how many pods it has, as far
    as they add to its cost."""

    urgency: Urgency
    key: str
    namespace: str
    size: int
    group: Group | None = None

    @property
    def label(self) -> str:
        return f"gang {self.key}" if self.group is None else self.group.label

    @staticmethod
    def of(group: Group) -> Turn:
        size = min(len(group.pods) + 1, MOST_PARTS)
        return Turn(group.urgency, group.key, objects.namespace(group.first), size, group)

    @staticmethod
    def of_gang(urgency: Urgency, gang: Gang) -> Turn:
        return Turn(urgency, gang.key, gang.ref.namespace, len(gang.members) + 1)


class Turns:
    """Not thread-safe."""

    def __init__(self, share: int = SHARE) -> None:
        self._share = share
        self._spent = Counter[str]()
        self._late_in = set[str]()
        self._late: dict[str, int] = {}
        """Groups and gangs that were left over, by key, and since which pass."""
        self._next_part: dict[str, int] = {}
        self._pass = 0

    def of(self, all: Sequence[Turn]) -> Iterator[Turn]:
        """Those that are considered in this pass, of all that are to be, the most urgent first. The caller
        says what each has cost (`charge`) before the next."""
        self._pass += 1
        self._spent = Counter({place: owed for place, owed in self._owed().items() if owed})
        in_debt = {place for place, owed in self._spent.items() if owed >= self._share}
        waiting = {turn.key for turn in all}
        self._late = {key: since for key, since in self._late.items() if key in waiting}
        if len(self._next_part) > 1000:
            self._next_part.clear()
        halved = {turn.namespace for turn in all if turn.key in self._late}
        left: list[Turn] = []
        for turn in all:
            place = turn.namespace
            if self._spent[place] < self._share // (2 if place in halved else 1):
                yield self._now(turn)
            else:
                left.append(turn)
        self._late_in.clear()
        never, served = self._pass, set[str]()
        for turn in sorted(left, key=lambda one: (self._late.get(one.key, never), one.urgency)):
            place = turn.namespace
            if self._spent[place] < self._share or (turn.key in self._late and place not in served | in_debt):
                served.add(place)
                yield self._now(turn)
            else:
                self._late.setdefault(turn.key, self._pass)
                self._late_in.add(place)

    def _now(self, turn: Turn) -> Turn:
        self._late.pop(turn.key, None)
        return turn

    def charge(self, turn: Turn, steps: int) -> None:
        self._spent[turn.namespace] += JUDGED * turn.size + steps

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

    def _owed(self) -> dict[str, int]:
        """What each namespace spent beyond its share."""
        return {place: spent - self._share for place, spent in self._spent.items() if spent > self._share}

    @property
    def next_pass(self) -> float | None:
        """In how many seconds those are due that were left over; None where none were."""
        if not self._late:
            return None
        owed = self._owed()
        return NEXT_PAID if all(owed.get(place, 0) >= self._share for place in self._late_in) else 0.0
