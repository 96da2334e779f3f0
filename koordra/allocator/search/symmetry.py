"""When two partial choices are the same up to renaming devices.

Devices sit in a tree: socket, NUMA node, PCIe root, switch, chain of switches, counter set
(`device_tree.py`). Exchanging two subtrees that are alike changes nothing that the search or a score looks
at. So a state is written as the tree with a label at each device and sorted children: two states with equal
forms are equivalent, and the search enters only one of them. Of devices in one orbit only the first is tried.

A device's label holds everything that matters about it:

- static: driver, capacities and what is used of them, which requests it can serve and with which demand, and
  whether by MPS where that bounds what else a claim has, the values that it shares with other devices of
  attributes that constraints look at and that are no tree levels, counters it consumes;
- of the walk: what is used now, which requests that are still open hold it, which PerDevice rules count it
  already (another share of it changes nothing there), and its standing: for each constraint that still has
  devices to come, whether this device could be added now; for each JointAllocation, how its scope stands.

Codes may be shared between the nodes of one plan: nodes whose forms are equal at the start have the same best
placement.

Where a score or demanded partitions look at NVLink, its sets are levels too (GPUs that a bridge joins,
partitions); cards that are wired unevenly keep their place as a label, so that none of them is exchanged. A
level that does not nest is put into the label by its value, which makes fewer states equal but never too
many.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Final

from koordra.allocator import constraints as rules
from koordra.allocator.request.requests import RequestAlternative
from koordra.allocator.search.device_tree import Column, DeviceTree, Orbits, insert, nests
from koordra.allocator.search.partial_choice import PartialChoice
from koordra.allocator.search.solution import Position
from koordra.api import names
from koordra.api.opaque.parameters import Pairing

_LEVELS: Final = (
    names.ATTR_SOCKET,
    names.ATTR_NUMA_NODE,
    names.STANDARD_NUMA_NODE,
    names.STANDARD_PCIE_ROOT,
    names.ATTR_PCIE_SWITCH,
    names.ATTR_PCIE_PATH,
    names.STANDARD_PCI_BUS_ID,
)
"""Devices that differ in what the score reads are not exchangeable. Outer levels come first: what crosses
them is left out."""

Form = tuple[Any, ...]
_Columns = list[tuple[str, Column]]


class Symmetry:
    """Static part of the labels and the tree of one node for one group of claims."""

    def __init__(self, search: PartialChoice, codes: dict[Hashable, int]) -> None:
        self.devices = search.state.devices
        self.codes = codes
        self.pinned: dict[int, Hashable] = {}
        columns, loose = self._columns(search)
        self.tree = DeviceTree(columns, len(self.devices))
        constrained = {
            rules.attribute_of(constraint) for found in search.constraints for constraint in found
        } | loose
        # The tree knows the bus of a device, not its address.
        tree_names = set(_LEVELS) - loose - {names.STANDARD_PCI_BUS_ID}
        self.values: list[Sequence[Hashable]] = [
            self._shared_values(name) for name in sorted(constrained - tree_names)
        ]
        if names.STANDARD_PCI_BUS_ID in loose:
            self.values.append(self._buses())
        self.static = self._statics(search)
        self.last_use = self._last_use(search)
        # Admin access looks at which claim holds a device, partitions and MPS at which cards a claim has.
        self.by_claim = search.demanded is not None or search.one_card is not None
        self.by_claim = self.by_claim or any(
            wanted.spec.admin_access for _, _, request in search.requests for wanted in request.alternatives
        )
        self.like, self.first = self._alike(search)
        self._joinable: dict[tuple[int, int, rules.State], list[bool]] = {}

    def form(self, search: PartialChoice, at: Position) -> tuple[Form, Orbits]:
        """The canonical form of the walk's present state, and each device's orbit."""
        open_constraints = [one for one, last in self.last_use.items() if last >= at.request]
        columns: list[list[Any]] = [
            self._who_could_join(search, claim, index) for claim, index in open_constraints
        ]
        columns += [
            [tally.standing(self.devices[device]) for device in self.first] for tally in search.tallies
        ]
        standings = list(zip(*columns, strict=True)) if columns else [()] * len(self.first)
        untouched = [
            self._code((self.static[device], None, standing))
            for device, standing in zip(self.first, standings, strict=True)
        ]
        labels = [untouched[like] for like in self.like]
        per_device = [tally for tally in search.tallies if tally.rule.pairing is Pairing.PER_DEVICE]
        for device, holders in self._holders(search, at, open_constraints).items():
            holders.sort()
            counted = tuple(self.devices[device] in tally.shares for tally in per_device)
            now = (self._used(search, device), counted, *holders)
            labels[device] = self._code((self.static[device], now, standings[self.like[device]]))
        folded, orbits = self.tree.fold(labels, self._code)
        return (tuple(search.per_claim), folded), orbits

    def _holders(
        self, search: PartialChoice, at: Position, open_constraints: list[tuple[int, int]]
    ) -> dict[int, list[tuple[int, int]]]:
        """Who holds each device that the walk has placed."""
        holders = defaultdict[int, list[tuple[int, int]]](list)
        filling = search.requests[at.request][:2] if at.placed else None
        for placed in search.placed:
            wanted = placed.wanted
            # Who holds a device matters while its request, or a constraint over it, has devices to come;
            # those are of one claim.
            still_open = (wanted.claim, wanted.request) == filling or any(
                claim == wanted.claim and search.constraints[claim][index].covers(wanted.base, wanted.sub)
                for claim, index in open_constraints
            )
            holders[placed.device].append(
                (wanted.claim if self.by_claim else -1, wanted.request if still_open else -1)
            )
        return holders

    # --- the tree -------------------------------------------------------------------------------------------

    def _columns(self, search: PartialChoice) -> tuple[_Columns, set[str]]:
        """The levels of the tree, and the attribute names whose values do not nest."""
        loose: set[str] = set()
        kept: _Columns = []
        for level in _LEVELS:
            values = self._buses() if level == names.STANDARD_PCI_BUS_ID else self._values(level)
            if values is not None and nests(values, [column for _, column in kept]):
                if any(values):
                    kept.append((level, values))
            else:
                loose.add(level)
        sets = [
            "+".join(
                sorted(f"{search.state.pool_of[device]}/{name}" for name in offered.device.consumes_counters)
            )
            for device, offered in enumerate(self.devices)
        ]
        if any("+" in value for value in sets) or not nests(sets, [column for _, column in kept]):
            # Sets that cross the tree pin every device that consumes: no symmetry among those.
            cards = self._pinned_cards(search, None)
            consuming = [device for device, value in enumerate(sets) if value]
            self.pinned = cards | {device: (device, cards.get(device)) for device in consuming}
            return [], set(_LEVELS)
        columns = [*kept, ("counters", sets)] if any(sets) else kept
        self.pinned = self._pinned_cards(search, columns)
        return columns, loose

    def _pinned_cards(self, search: PartialChoice, columns: _Columns | None) -> dict[int, Hashable]:
        """Put the sets of NVLink and its partitions into the tree; returns what is to be in the cards' labels
        for it.

        Only a score and demanded partitions look at NVLink.
        """
        fabric = search.state.fabric
        if not fabric.cards or (not search.scored and search.demanded is None):
            return {}
        groups = fabric.groups()
        if (
            columns is not None
            and groups is not None
            and all(
                insert("nvlink", dict.fromkeys(range(len(self.devices)), "") | group, columns) is not None
                for group in groups
            )
        ):
            return dict.fromkeys(fabric.cards, (fabric.widest, len(fabric.partitions)))
        sets = tuple(tuple(sorted(fabric.place[card] for card in members)) for members in fabric.partitions)
        return {card: (place, fabric.links, sets) for place, card in enumerate(fabric.cards)}

    def _values(self, level: str) -> Column | None:
        """The level's value per device, "" where it is not published; None where a list makes it no tree
        level."""
        found = [offered.facts.attributes.get(level) for offered in self.devices]
        if any(attribute is not None and attribute.is_list for attribute in found):
            return None
        return ["" if attribute is None else f"{attribute.kind}:{attribute.value}" for attribute in found]

    def _buses(self) -> Column:
        """The PCI bus of each device that shares it with another one: functions of one card are nearest to
        each other."""
        found = [
            str(offered.plain.get(names.STANDARD_PCI_BUS_ID) or "").rpartition(":")[0]
            for offered in self.devices
        ]
        times = Counter(found)
        return [bus if bus and times[bus] > 1 else "" for bus in found]

    def _shared_values(self, name: str) -> list[Hashable]:
        """Per device what of the attribute other devices have too; values of its own only matter by being
        there.

        Values that one device alone has can be renamed along with the device.
        """
        found = [offered.facts.attributes.get(name) for offered in self.devices]
        elements = [attribute.elements if attribute is not None else frozenset() for attribute in found]
        times = Counter(itertools.chain.from_iterable(elements))
        return [
            None
            if attribute is None
            else (attribute.is_list, tuple(sorted(map(str, shared))), len(shared) < len(values))
            for attribute, values in zip(found, elements, strict=True)
            for shared in [[value for value in values if times[value] > 1]]
        ]

    # --- labels ---------------------------------------------------------------------------------------------

    def _statics(self, search: PartialChoice) -> list[int]:
        """Per device everything that does not change during the walk."""
        state = search.state
        serving = [wanted for _, _, request in search.requests for wanted in request.alternatives]
        left = {wanted: set(devices) for wanted, devices in search.candidates.items()}

        def serves(wanted: RequestAlternative, device: int) -> Hashable:
            if device not in left.get(wanted, (device,)):
                return None
            demand = state.demand(wanted, device)
            if demand is None:
                return state.verdict(wanted, device).error
            return demand.key, bool(search.one_card and state.by_mps(wanted, device, demand))

        found = []
        for device, offered in enumerate(self.devices):
            # What is left of counters and capacities as the walk began, also where this is made in its midst.
            counters = search.counters_before[state.pool_of[device]]
            label = (
                offered.id.driver,
                self.tree.alone[device],
                self.pinned.get(device),
                state.busy[device],
                state.shared[device] and (search.shares_before[device], _amounts(search.used_before[device])),
                _amounts(state.capacity[device]),
                tuple([serves(wanted, device) for wanted in serving]),
                tuple([values[device] for values in self.values]),
                offered.type,
                tuple(
                    [
                        (key[1], amount, counters.get(key))
                        for key, amount in sorted(state.consumes(device).items())
                    ]
                ),
            )
            found.append(self._code(label))
        return found

    def _alike(self, search: PartialChoice) -> tuple[list[int], list[int]]:
        """Devices that have the same label while the walk has not touched them: a number per device, and the
        first of each."""
        like: list[int] = []
        firsts: dict[Hashable, int] = {}
        for device, offered in enumerate(self.devices):
            key = (
                self.static[device],
                *[search.values_of(claim, index, device) for claim, index in self.last_use],
                *[tally.key(offered) for tally in search.tallies],
            )
            like.append(firsts.setdefault(key, device))
        first = list(firsts.values())
        return [first.index(device) for device in like], first

    def _used(self, search: PartialChoice, device: int) -> Hashable:
        if search.state.shared[device]:
            return (search.state.holders[device], _amounts(search.state.used[device]))
        return len(search.allocating.get(device, ()))

    def _who_could_join(self, search: PartialChoice, claim: int, index: int) -> list[bool]:
        """For the first device of each kind, whether the constraint would accept it now."""
        key = claim, index, search.constraint_states[claim][index]
        if key not in self._joinable:
            constraint = search.constraints[claim][index]
            self._joinable[key] = [
                rules.after(constraint, key[2], search.values_of(claim, index, device)) is not None
                for device in self.first
            ]
        return self._joinable[key]

    def _last_use(self, search: PartialChoice) -> dict[tuple[int, int], int]:
        """By constraint (of a claim, by its position): the last request in walking order that it covers."""
        found = dict[tuple[int, int], int]()
        for claim, constraints in enumerate(search.constraints):
            for index, constraint in enumerate(constraints):
                covered = [
                    at
                    for at, (owner, _, request) in enumerate(search.requests)
                    if owner == claim
                    and any(constraint.covers(one.base, one.sub) for one in request.alternatives)
                ]
                found[claim, index] = max(covered, default=-1)
        return found

    def _code(self, value: Hashable) -> int:
        return self.codes.setdefault(value, len(self.codes))


def _amounts(used: Mapping[str, int]) -> Hashable:
    return tuple(sorted(used.items()))
