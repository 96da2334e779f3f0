"""The units that members stand in: parts of the gang and their slices, each with a level of the fabric.

    parts ─▶ units: who is to be placed in them, and who stays
          ─▶ sorts: units that are alike
          ─▶ classes of members, by sort, and rules about their counts (`packing.UnitRule`)

A unit of which somebody stays is in that member's domain: its other members are kept to the nodes there, and
come one by one. A unit with a required level that nobody is in yet is placed whole or not at all; a slice
that is not complete has to wait.

Members that ask the same and stand in units of different sorts are classes of their own, since they are
counted by themselves. Where units are alike (sixty slices of sixteen) they are one sort.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from koordra.placement.gang.equivalence import KeptTo, MemberClass, member_order
from koordra.placement.gang.topology.domains import GangTopology, Path, domain_of_fixed
from koordra.placement.gang.topology.packing import UnitRule
from koordra.placement.gang.topology.slices import Layer, Unit, sliced
from koordra.placement.gang.types import NewMember, Part
from koordra.topology.network_topology import NODE

Sorts = tuple[Hashable, ...]
"""What units a member is in, the outermost first; equal for units that are alike."""


@dataclass(frozen=True, slots=True)
class Units:
    """`sorts` by class; `rules` and `units` by sort, the latter in the order in which they get places."""

    classes: list[MemberClass]
    sorts: Sequence[Sorts] = ()
    rules: Mapping[Sorts, UnitRule] = field(default_factory=dict)
    units: Mapping[Sorts, Sequence[Unit]] = field(default_factory=dict)


def units_of(topology: GangTopology, classes: Sequence[MemberClass]) -> Units:
    """Raises TopologyUnmet for what no placement can keep."""
    outermost = [unit for part in topology.gang.parts for unit in _units(topology, part)]
    if not outermost:
        return Units(list(classes))
    reading = _Reading(topology, {one.key: at for at, own in enumerate(classes) for one in own.members})
    for unit in outermost:
        reading.bind(unit)
    for unit in outermost:
        reading.sort(unit, ())
    order = [member.key for member in chain.from_iterable(unit.every_new() for unit in outermost)]
    refined, sorts = reading.split(classes, {key: at for at, key in enumerate(order)})
    of = {member.key: at for at, own in enumerate(refined) for member in own.members}
    rules = {
        sort: rule
        for sort, units in reading.units.items()
        if (rule := reading.rule(units[0], of, len(refined))) is not None
    }
    return Units(refined, sorts, rules, reading.units)


def _units(topology: GangTopology, part: Part) -> list[Unit]:
    """The part, or its slices where it has no level of its own."""
    below = [unit for one in part.parts for unit in _units(topology, one)]
    inside = {member.key for unit in below for member in unit.every_new()}
    inside |= {one.key for unit in below for one in unit.every_fixed()}
    keys = part.members.keys() - inside
    new = sorted([one for one in topology.gang.members if one.key in keys], key=member_order)
    fixed = [one for one in topology.gang.fixed if one.key in keys]
    of = f" of {part.name}" if part.name else ""
    if part.slices:
        layers = [Layer(one.size, *topology.numbers(one.required, one.preferred)) for one in part.slices]
        below += sliced(layers, new, fixed, numbers=part.members, paths=topology.paths, of=of)
        new, fixed = [], []
    required, preferred = topology.numbers(part.required, part.preferred)
    if required is None and preferred is None:
        return below
    return [Unit(part.name, required, preferred, part.size, new=new, fixed=fixed, parts=below)]


@dataclass(slots=True)
class _Reading:
    topology: GangTopology
    class_of: Mapping[str, int]
    units: dict[Sorts, list[Unit]] = field(default_factory=dict)
    _kept_to: dict[str, tuple[Path | None, str]] = field(default_factory=dict)
    """Members that may not go everywhere: their domain (None: nowhere, yet), and why."""
    _sorts: dict[str, Sorts] = field(default_factory=dict)

    def bind(self, unit: Unit, home: Path | None = None, why: str = "") -> None:
        """Keep members of the unit to where others of it are."""
        fixed = unit.every_fixed()
        if unit.required is not None and fixed:
            level = (*self.topology.levels, NODE)[unit.required]
            who = f"members of {unit.name} that stay"
            own = domain_of_fixed(who, fixed, self.topology.paths, unit.required, level)
            if own is not None and len(own) > len(home or ()):
                home, why = own, f"{unit.name} is in {level} {own[-1]}"
        for part in unit.parts:
            self.bind(part, home, why)
        if unit.required is not None and not fixed and unit.missing:
            why = f"{unit.name} lacks {unit.missing} of {unit.size} members"
            self._kept_to.update({member.key: (None, why) for member in unit.every_new()})
        elif home is not None:
            self._kept_to.update({member.key: (home, why) for member in unit.new})

    def sort(self, unit: Unit, outer: Sorts) -> None:
        """Find the units that are alike."""
        sort = *outer, self._sort(unit)
        self.units.setdefault(sort, []).append(unit)
        self._sorts.update(dict.fromkeys([member.key for member in self._placed(unit.new)], sort))
        for part in unit.parts:
            self.sort(part, sort)

    def _sort(self, unit: Unit) -> Hashable:
        alone = [self._kept_to.get(member.key) for member in unit.every_new()]
        content = Counter(self.class_of[member.key] for member in self._placed(unit.new))
        parts = Counter(self._sort(part) for part in unit.parts)
        return (
            unit.required,
            unit.preferred,
            unit.name if unit.every_fixed() else "",
            frozenset(alone),
            frozenset(content.items()),
            frozenset(parts.items()),
        )

    def _placed(self, members: Iterable[NewMember]) -> list[NewMember]:
        """Without those that are to wait."""
        return [one for one in members if self._kept_to.get(one.key, ((), ""))[0] is not None]

    def split(
        self, classes: Sequence[MemberClass], order: Mapping[str, int]
    ) -> tuple[list[MemberClass], list[Sorts]]:
        """The classes by sort, the members of each in order of their units."""
        refined, sorts = [], []
        for one in classes:
            own: dict[Hashable, list[int]] = {}
            for at, member in enumerate(one.members):
                key = self._sorts.get(member.key, ()), self._kept_to.get(member.key)
                own.setdefault(key, []).append(at)
            for numbers in own.values():
                numbers.sort(key=lambda at: order.get(one.members[at].key, at))
                first = one.members[numbers[0]].key
                refined.append(
                    replace(
                        one,
                        members=tuple([one.members[at] for at in numbers]),
                        resolved_groups=tuple([one.resolved_groups[at] for at in numbers]),
                        kept_to=self._nodes(first),
                    )
                )
                sorts.append(self._sorts.get(first, ()))
        return refined, sorts

    def _nodes(self, key: str) -> KeptTo | None:
        if key not in self._kept_to:
            return None
        home, why = self._kept_to[key]
        if home is None:
            return KeptTo(frozenset(), why)
        paths = self.topology.paths
        return KeptTo(frozenset(name for name, path in paths.items() if path[: len(home)] == home), why)

    def rule(self, unit: Unit, of: Mapping[str, int], classes: int) -> UnitRule | None:
        """What one unit of a sort asks of counts; None where nothing."""
        counts = Counter(of[member.key] for member in self._placed(unit.every_new()))
        fixed = unit.every_fixed()
        required = unit.required if not fixed else None
        preferred = unit.preferred
        if preferred is not None and unit.required is not None and preferred <= unit.required:
            preferred = None
        if not counts or (required is None and preferred is None):
            return None
        paths = [self.topology.paths[one.node] for one in fixed if one.node in self.topology.paths]
        homes = frozenset(path[:depth] for path in paths for depth in range(1, len(path) + 1))
        return UnitRule(
            tuple([counts[at] for at in range(classes)]), required, preferred, homes if fixed else None
        )
