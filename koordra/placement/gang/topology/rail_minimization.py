"""As good in all that counts more, on fewer rails.

The best counts are found without a word on rails. If the gang's NICs are then on more rails than they need to be, sets of rails are
tried, small ones first: with the NICs of other rails taken away, is there a placement that is as good in all that counts more? The first
that has one is taken.

    fewest       no placement can be on fewer: the bound at which the search starts, and often ends
    known        rails that are free on most nodes come first, so good sets are met early
    admitted     a set on which some class fits on no node at all, or all together have no room by counting (room.py), is left out,
                 and so is every smaller one inside it
    questions    what may be asked for this; who runs out keeps what was found, not proven best
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from koordra.allocator.devices.inventory import NIC
from koordra.api import names
from koordra.api.allocation import Allocation
from koordra.placement.gang.member_classes import natural
from koordra.placement.gang.node_devices import Rails, rail_of
from koordra.placement.gang.node_fit import Fitting
from koordra.placement.gang.node_groups import Kind
from koordra.placement.gang.score import Count, NodeCounts
from koordra.placement.gang.topology.distribution import Found, Spreading
from koordra.placement.gang.topology.rail_bound import Room
from koordra.placement.gang.types import Fixed, Gang

_RAIL_QUESTIONS: Final = 150
_RAIL_TABLES: Final = 40_000
"""Questions to nodes, and tables times nodes, that fewer rails are worth."""

_IDENTITIES: Final = frozenset({names.ATTR_UUID, names.ATTR_IB_DEVICE, names.ATTR_NETDEV})


@dataclass(slots=True)
class FewerRails:
    """The rails of one gang, and whether it needs so many."""

    gang: Gang
    fitting: Fitting
    spreading: Spreading
    budget: int
    _takes: dict[Rails, Mapping[Any, NodeCounts]] = field(default_factory=dict)

    def sought(self, found: Found, takes: Mapping[Any, NodeCounts]) -> Found:
        """The same in all that counts more, on the fewest rails."""
        fixed = self.fixed()
        used = fixed | self.used(found)
        nodes = found.counts.keys() | {one.node for one in self.gang.fixed}
        fewest = self._fewest(found, fixed, takes) if found.proven and len(nodes) > 1 else len(used)
        if len(used) <= fewest:
            return found
        known = self._known_rails(takes, fixed)
        started = self.fitting.memory.asked

        def is_enough() -> bool:
            return self.fitting.memory.asked - started > _RAIL_QUESTIONS * self.budget

        room = Room(self.fitting, self.spreading.scope, found, frozenset(one.node for one in self.gang.fixed))
        admitted = _Admitted(
            self.fitting,
            takes,
            frozenset(known),
            self._densest(found, len(nodes)),
            lambda rails: is_enough() or room.suffices(self._on_rails(takes, rails)),
            clean=found.order[0] == 0,
        )
        partly = found.size < len(self.gang.members)  # then a class may be left out as a whole
        tables = max(3, min(48, _RAIL_TABLES // len(self.fitting.nodes))) * self.budget
        for size in range(fewest, len(used)):
            for rails in self._rail_sets(known, size, fixed):
                if is_enough() or not tables:
                    return replace(found, proven=False)
                if not partly and not admitted.by_some_node(rails):
                    continue
                tables -= 1
                other = self._limited(takes, rails)
                if other is not None and other.order[:-1] == found.order[:-1] and other.size == found.size:
                    return other
        return found

    def used(self, found: Found) -> Rails:
        """By members that are placed now."""
        return frozenset(
            rail
            for node, count in found.counts.items()
            for rail in self.fitting.placed(node, count, found.rails).rails
        )

    def fixed(self) -> Rails:
        """Used by members that stay."""
        found: set[str] = set()
        for one in self.gang.fixed:
            if one.node in self.fitting.nodes:
                found |= self._rails_of(one)
        return frozenset(found)

    def _densest(self, found: Found, nodes: int) -> Count:
        """Members of each class that some node has to take, if as few nodes as now are used."""
        placed = [sum(numbers) for numbers in zip(*found.counts.values(), strict=True)]
        return tuple(-(-number // nodes) for number in placed)

    def _limited(self, takes: Mapping[Any, NodeCounts], rails: Rails) -> Found | None:
        """The best counts with the NICs of other rails taken away."""
        most = self.spreading.most
        other = self.spreading.packed(self._on_rails(takes, rails), rails)
        self.spreading.most = most
        return other if other is not None and other.proven else None

    def _on_rails(self, takes: Mapping[Any, NodeCounts], rails: Rails) -> Mapping[Any, NodeCounts]:
        """What nodes take of what they took, with the NICs of other rails taken away."""
        if rails not in self._takes:
            self._takes[rails] = {
                kind: replace(self.fitting.takes(kind, rails), alone=counts.alone) if counts.takes else counts
                for kind, counts in takes.items()
            }
        return self._takes[rails]

    def _fewest(self, found: Found, fixed: Rails, takes: Mapping[Any, NodeCounts]) -> int:
        """No gang like this one can be on fewer rails: its members' NICs have to be on as many nodes, and one member's on one.

        Where other members could have been left out, nothing is known.
        """
        if len(self.fitting.classes) > 1 and found.size < len(self.gang.members):
            return len(fixed)
        most, total = 0, 0
        types: set[str] = set()
        for node, count in found.counts.items():
            seats = [seat for own in self.fitting.placed(node, count, found.rails).seats for seat in own]
            most = max([most, *(len(seat.rails) for seat in seats)])
            total += sum(len(seat.rails) for seat in seats if seat.whole)
            types.update(name for seat in seats for name in seat.types)
        nodes = len(found.counts.keys() | {one.node for one in self.gang.fixed})
        examples = {
            self.fitting.devices.stand_in(self.fitting.kinds.example[kind])
            for kind, counts in takes.items()
            if counts.takes
        }
        shared = max((self._most_of_one_rail(name, frozenset(types)) for name in examples), default=1)
        return max(len(fixed), -(-max(most, -(-total // max(nodes, 1))) // shared))

    def _most_of_one_rail(self, node: str, types: frozenset[str]) -> int:
        """NICs (or VFs, if members have such) of the node on one rail. VFs and shares of a NIC: any number."""
        rails = [
            rail_of(offered.plain)
            for pool in self.fitting.devices.pools(node)
            for offered in pool.devices
            if offered.kind == NIC and offered.plain.get(names.ATTR_TYPE) in types
        ]
        return max(map(rails.count, set(rails)), default=1)

    def _known_rails(self, takes: Mapping[Any, NodeCounts], fixed: Rails) -> list[str]:
        """Those with free NICs, and those of members that stay; rails that are free on most nodes first."""
        nodes = Counter(self.fitting.kinds.of.values())
        free: Counter[str] = Counter()
        for kind, counts in takes.items():
            if counts.takes:
                for rail in self._free_rails(kind):
                    free[rail] += nodes[kind]
        return sorted(free.keys() | fixed, key=lambda rail: (-free[rail], natural(rail)))

    def _free_rails(self, kind: Kind) -> Rails:
        known = self.fitting.memory.free_rails
        if kind.devices is None:
            return self.fitting.devices.free_rails(self.fitting.kinds.example[kind])
        if kind.devices not in known:
            self.fitting.memory.make_room(known)
            known[kind.devices] = self.fitting.devices.free_rails(self.fitting.kinds.example[kind])
        return known[kind.devices]

    def _rail_sets(self, known: Sequence[str], size: int, fixed: Rails) -> Iterator[Rails]:
        for chosen in itertools.combinations(known, size):
            if fixed <= set(chosen):
                yield frozenset(chosen)

    def _rails_of(self, one: Fixed) -> set[str]:
        held = set()
        for claim in one.claims:
            allocation = Allocation.of_claim(claim)
            held |= {result.device for result in allocation.results} if allocation else set()
        return {
            rail_of(offered.plain)
            for pool in (self.fitting.devices.pools(one.node) if held else ())
            for offered in pool.devices
            if offered.id in held and offered.kind == NIC
        }


@dataclass(slots=True)
class _Admitted:
    """Sets of rails on which every class of members fits somewhere, so many `together`; a set is out when a larger one is.

    `clean`: no member may be apart from its NICs.
    """

    fitting: Fitting
    takes: Mapping[Any, NodeCounts]
    every: Rails
    together: Count
    roomy: Callable[[Rails], bool]
    clean: bool
    known: dict[Rails, bool] = field(default_factory=dict)
    faces: dict[str, Hashable] = field(default_factory=dict)

    def by_some_node(self, rails: Rails) -> bool:
        if rails == self.every:
            return True
        found = self.known.get(rails)
        if found is None:
            larger = all(self.by_some_node(rails | {other}) for other in sorted(self.every - rails))
            found = self.known[rails] = (
                larger
                and all(self._class(at, rails) for at, one in enumerate(self.fitting.classes) if one.claims)
                and self.roomy(rails)
            )
        return found

    def _class(self, at: int, rails: Rails) -> bool:
        """Untouched nodes first: where one of those refuses, so does every one that publishes the same."""
        count = tuple(number * (position == at) for position, number in enumerate(self.together))
        kinds = [kind for kind, counts in self.takes.items() if count in counts.takes]
        examples = [self.fitting.kinds.example[kind] for kind in kinds]
        refused: set[Hashable] = set()
        for name in sorted(
            examples, key=lambda name: (bool(self.fitting.nodes[name].holders), natural(name))
        ):
            face = self._face(name)
            if face in refused:
                continue
            told = self.fitting.told(name, count, rails)
            if told is not None and not (self.clean and told[0]):
                return True
            if not self.fitting.nodes[name].holders:
                refused.add(face)
        return False

    def _face(self, node: str) -> Hashable:
        name = self.fitting.devices.stand_in(node)
        found = self.faces.get(name)
        if found is None:
            found = self.faces[name] = tuple(
                (offered.id.device, offered.taints, tuple(sorted(_placing(offered.plain))))
                for pool in self.fitting.devices.pools(name)
                for offered in pool.devices
            )
        return found


def _placing(plain: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Attributes that do not tell single devices of one place apart."""
    for attribute, value in plain.items():
        if attribute not in _IDENTITIES:
            yield attribute, str(value)
