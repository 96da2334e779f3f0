"""From a gang to its answer.

    members ─▶ classes ┐
    nodes ───▶ kinds ──┼─▶ what each kind takes ─▶ tables over the tree of domains ─▶ counts per node ─▶ seats, ranks
    labels ──▶ tree ───┘

The best counts are found first without a word on rails. If the gang's NICs are then on more rails than they need to be, sets of
rails are tried, small ones first: with the NICs of other rails taken away, is there a placement that is as good in all that
counts more? The first that has one is taken.

Where the tables would be too large (many classes with many members each), classes are placed one after the other, each at its best
beside the earlier ones. Such an answer is valid and not proven best; if it finds nothing and counting does not exclude a placement, the
answer is Undecided.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from koordra.allocator.features import Features
from koordra.allocator.gang.asked import (
    Fixed,
    Gang,
    GangAnswer,
    GangNode,
    GangPlaced,
    GangScore,
    GangUndecided,
    GangUnsatisfiable,
    Member,
    PlacedMember,
)
from koordra.allocator.gang.classes import classes_of, natural
from koordra.allocator.gang.domains import Domain, domains_at, tree_of
from koordra.allocator.gang.fitting import Fit, Fitting, Rails, Remembered, rail_of, refusals_of, seated
from koordra.allocator.gang.packing import Count, NodeCounts, Packing, Rules, TooMuch
from koordra.allocator.inventory import NIC
from koordra.allocator.reasons import Cause, ClaimRefused, Reason
from koordra.allocator.score import policy_of
from koordra.api import names, objects
from koordra.api.allocation import Allocation
from koordra.api.claims import DeviceClass
from koordra.errors import InvalidManifest
from koordra.topology.fabric import NODE, NVLINK, FabricLevels, trimmed

_OPENED: Final = frozenset({"block", NVLINK})
_MOST_TOLD: Final = 24
_MOST_STATES: Final = 400_000
_RAIL_QUESTIONS: Final = 150
_RAIL_TABLES: Final = 40_000
"""Questions to nodes, and tables times nodes, that fewer rails are worth."""

_IDENTITIES: Final = frozenset({names.ATTR_UUID, names.ATTR_IB_DEVICE, names.ATTR_NETDEV})

Chosen = dict[str, Count]


def place_gang(
    gang: Gang,
    nodes: Mapping[str, GangNode],
    classes: Mapping[str, Mapping[str, Any]],
    *,
    fabric: FabricLevels | None = None,
    policy: str = "koordra",
    features: str | Iterable[str] | None = None,
    memory: Remembered | None = None,
    budget: int = 1,
) -> GangAnswer:
    """The best placement of the gang's members on the nodes, or why there is none.

    `classes`  DeviceClasses by name
    `memory`   answers of nodes, kept by who plans often
    `budget`   a larger one searches longer before it says Undecided
    Raises PlanError for an unknown policy or gate.
    """
    placing = _Placing(
        gang,
        nodes,
        Fitting(
            classes_of(gang.members),
            nodes,
            {name: _read(entry) for name, entry in classes.items()},
            Features.of(features),
            policy_of(policy),
            Remembered() if memory is None else memory,
            budget,
        ),
        fabric or FabricLevels(),
        budget,
    )
    try:
        return placing.run()
    except ClaimRefused as error:
        return placing.nothing(
            len(gang.fixed), str(error), {member.key: (error.reason,) for member in gang.members}
        )


def _read(entry: Mapping[str, Any]) -> DeviceClass | InvalidManifest:
    try:
        return DeviceClass.from_dict(entry)
    except InvalidManifest as error:
        return error


@dataclass(slots=True)
class _Found:
    """Counts per node under a set of rails, with the parts of the score that the tables know."""

    counts: Chosen
    rails: Rails | None
    order: tuple[int, ...]
    opened: int
    proven: bool = True


@dataclass(slots=True)
class _Placing:
    gang: Gang
    nodes: Mapping[str, GangNode]
    fitting: Fitting
    fabric: FabricLevels
    budget: int
    levels: list[str] = field(default_factory=list)
    places: dict[str, tuple[str, ...]] = field(default_factory=dict)
    required: int | None = None
    slice_level: int | None = None
    most: int = 0

    def run(self) -> GangAnswer:
        if not self.gang.members:
            return self._nobody()
        why = self._look()
        if why:
            return self.nothing(len(self.gang.fixed), why, {}, cause=Cause.TOPOLOGY_SCOPE_UNMET)
        self.fitting.look(frozenset(one.node for one in self.gang.fixed))
        takes = {kind: self.fitting.takes(kind) for kind in self.fitting.example}
        found = self._packed(takes, None)
        if found is None:
            return self._told()
        return self._answer(self._on_fewer_rails(found, takes))

    def _nobody(self) -> GangAnswer:
        """A gang of which all are placed already has nothing to ask for."""
        size = len(self.gang.fixed)
        if size < self.gang.minimum:
            return self.nothing(
                size, f"{size} of {size} members fit, at least {self.gang.minimum} are needed", {}
            )
        nodes = len({one.node for one in self.gang.fixed})
        return GangPlaced((), (), size, GangScore(size, 0, (), 0, nodes, len(self._fixed_rails()), 0))

    # --- the fabric -------------------------------------------------------------------------------------------------

    def _look(self) -> str:
        """The tree's levels; a text if what the gang requires of them cannot be."""
        if self.gang.slice_size < 1:
            return f"slices of {self.gang.slice_size} members cannot be"
        whole = {name: self.fabric.place(objects.labels_of(node.node)) for name, node in self.nodes.items()}
        kept = trimmed(whole)
        self.levels = [self.fabric.names[at] for at in kept]
        self.places = {name: tuple(place[at] for at in kept) for name, place in whole.items()}
        for wanted in (self.gang.required, self.gang.preferred, self.gang.slice_level):
            why = self._unknown(wanted)
            if why and wanted != self.gang.preferred:
                return why
        self.required = self._position(self.gang.required)
        self.slice_level = self._position(self.gang.slice_level)
        if len(self.levels) in (self.required, self.slice_level):
            # The node is a level only for who demands one.
            self.places = {name: (*place, name) for name, place in self.places.items()}
        return self._apart() if self.required is not None else ""

    def _unknown(self, level: str | None) -> str:
        if level is None:
            return ""
        at = self.fabric.position(level)
        if at is None:
            return f"{level} is no level of the fabric; levels are {', '.join((*self.fabric.names, NODE))}"
        if at < len(self.fabric.names) and self.fabric.names[at] not in self.levels:
            known = ", ".join(self.fabric.levels[at].labels)
            return f"no node says which {self.fabric.names[at]} it is in (labels {known})"
        return ""

    def _position(self, level: str | None) -> int | None:
        at = None if level is None else self.fabric.position(level)
        if at is None:
            return None
        if at == len(self.fabric.names):
            return len(self.levels)
        return self.levels.index(self.fabric.names[at]) if self.fabric.names[at] in self.levels else None

    def _apart(self) -> str:
        """Why fixed members already break what is required."""
        lost = [one for one in self.gang.fixed if one.node not in self.places]
        if lost:
            return f"member {lost[0].key} is on node {lost[0].node}, which is not there"
        assert self.required is not None
        held = sorted({self.places[one.node][: self.required + 1] for one in self.gang.fixed})
        if len(held) > 1:
            where = " and ".join(place[-1] or "an unnamed one" for place in held[:3])
            return f"members that stay are in several domains of level {self.gang.required}: {where}"
        return ""

    def _tree(self, beside: Mapping[str, int]) -> Domain:
        fixed = dict(beside)
        for one in self.gang.fixed:
            fixed[one.node] = fixed.get(one.node, 0) + 1
        touched = {name for name, node in self.nodes.items() if node.holders}
        return tree_of(self.places, fixed=fixed, touched=frozenset(touched | fixed.keys()))

    def _rules(self, want: Count) -> Rules:
        order = list(range(len(self.levels)))
        preferred = self._position(self.gang.preferred)
        if preferred is not None and preferred in order:
            order.remove(preferred)
            order.insert(0, preferred)
        return Rules(
            want=want,
            levels=tuple(order),
            opened=frozenset(at for at, name in enumerate(self.levels) if name in _OPENED),
            required=self.required,
            slice_level=self.slice_level,
            slice_size=self.gang.slice_size,
        )

    # --- counts -----------------------------------------------------------------------------------------------------

    def _packed(self, takes: Mapping[Any, NodeCounts], rails: Rails | None) -> _Found | None:
        """The best counts; None where fewer than the minimum fit (`most` says how many do)."""
        want = tuple(len(one.members) for one in self.fitting.classes)
        states = int(np.prod([number + 1 for number in want], dtype=object))
        if states <= _MOST_STATES * self.budget:
            try:
                return self._by_tables(want, takes, rails)
            except TooMuch:
                pass
        return self._class_by_class(want, takes, rails)

    def _packing(
        self, want: Count, root: Domain, kinds: Mapping[str, Hashable], takes: Mapping[Any, NodeCounts]
    ) -> Packing:
        rules = self._rules(want)
        domains = {level: len(domains_at(root, level)) for level in rules.levels}
        packing = Packing(root, rules, kinds, takes, domains)
        packing.operations *= self.budget
        return packing

    def _by_tables(self, want: Count, takes: Mapping[Any, NodeCounts], rails: Rails | None) -> _Found | None:
        packing = self._packing(want, self._tree({}), self.fitting.kinds, takes)
        best: tuple[Any, ...] | None = None
        needed = tuple(one.needed for one in self.fitting.classes)
        beside = len(self.gang.fixed)
        for number, (costs, chain, table) in enumerate(packing.costs()):
            counts = np.argwhere(costs < packing.infeasible)
            totals = counts.sum(axis=1)
            self.most = max(self.most, beside + int(totals.max(initial=0)))
            good = (counts >= needed).all(axis=1) & (totals + beside >= self.gang.minimum)
            if not good.any():
                continue
            counts, totals = counts[good], totals[good]
            counts = counts[totals == totals.max()]
            cost = costs[tuple(counts.T)]
            count = tuple(int(value) for value in counts[cost == cost.min()][-1])
            found = (-sum(count), int(cost.min()), number, count, chain, table)
            if best is None or found[:3] < best[:3]:
                best = found
        if best is None:
            return None
        counts_by_node = packing.places(best[4], best[5], best[3])
        return _Found(counts_by_node, rails, *_read_off(packing, best[1]))

    def _class_by_class(
        self, want: Count, takes: Mapping[Any, NodeCounts], rails: Rails | None
    ) -> _Found | None:
        """Those with indispensable members and then the largest first; each beside what was placed before, as many as can be."""
        self.fitting.unknown = True
        placed: Chosen = {}
        order = sorted(range(len(want)), key=lambda at: (not self.fitting.classes[at].needed, -want[at]))
        for at in order:
            beside = {node: sum(count) for node, count in placed.items()}
            root = self._tree(beside)
            kinds: dict[str, Hashable] = {}
            own: dict[Hashable, NodeCounts] = {}
            for node, kind in self.fitting.kinds.items():
                base = placed.get(node, (0,) * len(want))
                kinds[node] = key = (kind, base)
                if key not in own:
                    own[key] = _beside(takes[kind], base, at, fixed=kind.fixed or any(base))
            packing = self._packing((want[at],), root, kinds, own)
            ways = [
                (-most, int(costs[most]), number, chain, table)
                for number, (costs, chain, table) in enumerate(packing.costs())
                for most in [int(np.flatnonzero(costs < packing.infeasible)[-1])]
            ]
            if not ways:
                return None
            best = min(ways, key=lambda way: way[:3])
            if -best[0] < self.fitting.classes[at].needed:
                return None
            for node, (number,) in packing.places(best[3], best[4], (-best[0],)).items():
                base = placed.get(node, (0,) * len(want))
                placed[node] = (*base[:at], number, *base[at + 1 :])
        found = _Found(placed, rails, (), 0, proven=False)
        self.most = max(self.most, len(self.gang.fixed) + _sizes(found))
        return found if len(self.gang.fixed) + _sizes(found) >= self.gang.minimum else None

    # --- rails ------------------------------------------------------------------------------------------------------

    def _on_fewer_rails(self, found: _Found, takes: Mapping[Any, NodeCounts]) -> _Found:
        """The same in all that counts more, on the fewest rails."""
        fixed = self._fixed_rails()
        used = fixed | self._rails(found)
        nodes = found.counts.keys() | {one.node for one in self.gang.fixed}
        fewest = self._fewest(found, fixed, takes) if found.proven and len(nodes) > 1 else len(used)
        if len(used) <= fewest:
            return found
        known = self._known_rails(takes, fixed)
        admitted = _Admitted(
            self.fitting, takes, frozenset(known), self._densest(found, len(nodes)), clean=found.order[0] == 0
        )
        partly = _sizes(found) < len(self.gang.members)  # then a class may be left out as a whole
        budget = [
            _RAIL_QUESTIONS * self.budget,
            max(3, min(48, _RAIL_TABLES // len(self.nodes))) * self.budget,
        ]
        started = self.fitting.memory.asked
        for size in range(fewest, len(used)):
            for rails in self._rail_sets(known, size, fixed):
                if self.fitting.memory.asked - started > budget[0] or not budget[1]:
                    return replace(found, proven=False)
                if not partly and not admitted.by_some_node(rails):
                    continue
                budget[1] -= 1
                other = self._limited(takes, rails)
                if (
                    other is not None
                    and other.order[:-1] == found.order[:-1]
                    and _sizes(other) == _sizes(found)
                ):
                    return other
        return found

    def _densest(self, found: _Found, nodes: int) -> Count:
        """Members of each class that some node has to take, if as few nodes as now are used."""
        placed = [sum(numbers) for numbers in zip(*found.counts.values(), strict=True)]
        return tuple(-(-number // nodes) for number in placed)

    def _limited(self, takes: Mapping[Any, NodeCounts], rails: Rails) -> _Found | None:
        """The best counts with the NICs of other rails taken away."""
        most = self.most
        limited = {
            kind: replace(self.fitting.takes(kind, rails), alone=counts.alone) if counts.takes else counts
            for kind, counts in takes.items()
        }
        other = self._packed(limited, rails)
        self.most = most
        return other if other is not None and other.proven else None

    def _rails(self, found: _Found) -> Rails:
        return frozenset(
            rail for node, count in found.counts.items() for rail in self._fit(node, count, found.rails).rails
        )

    def _fewest(self, found: _Found, fixed: Rails, takes: Mapping[Any, NodeCounts]) -> int:
        """No gang like this one can be on fewer rails: its members' NICs have to be on as many nodes, and one member's on one.

        Where other members could have been left out, nothing is known.
        """
        if len(self.fitting.classes) > 1 and _sizes(found) < len(self.gang.members):
            return len(fixed)
        most, total = 0, 0
        types: set[str] = set()
        for node, count in found.counts.items():
            seats = [seat for own in self._fit(node, count, found.rails).seats for seat in own]
            most = max([most, *(len(seat.rails) for seat in seats)])
            total += sum(len(seat.rails) for seat in seats if seat.whole)
            types.update(name for seat in seats for name in seat.types)
        nodes = len(found.counts.keys() | {one.node for one in self.gang.fixed})
        examples = [self.fitting.example[kind] for kind, counts in takes.items() if counts.takes]
        shared = max((self._most_of_one_rail(name, frozenset(types)) for name in examples), default=1)
        return max(len(fixed), -(-max(most, -(-total // max(nodes, 1))) // shared))

    def _most_of_one_rail(self, node: str, types: frozenset[str]) -> int:
        """NICs (or VFs, if members have such) of the node on one rail. VFs and shares of a NIC: any number."""
        rails = [
            rail_of(offered.plain)
            for pool in self.fitting.pools(node)
            for offered in pool.devices
            if offered.kind == NIC and offered.plain.get(names.ATTR_TYPE) in types
        ]
        return max(map(rails.count, set(rails)), default=1)

    def _known_rails(self, takes: Mapping[Any, NodeCounts], fixed: Rails) -> list[str]:
        """Those with free NICs, and those of members that stay; rails that are free on most nodes first."""
        nodes = Counter(self.fitting.kinds.values())
        free: Counter[str] = Counter()
        for kind, counts in takes.items():
            if counts.takes:
                for rail in self.fitting.free_rails(self.fitting.example[kind]):
                    free[rail] += nodes[kind]
        return sorted(free.keys() | fixed, key=lambda rail: (-free[rail], natural(rail)))

    def _rail_sets(self, known: Sequence[str], size: int, fixed: Rails) -> Iterator[Rails]:
        for chosen in itertools.combinations(known, size):
            if fixed <= set(chosen):
                yield frozenset(chosen)

    def _fixed_rails(self) -> Rails:
        found: set[str] = set()
        for one in self.gang.fixed:
            if one.node in self.nodes:
                found |= self._rails_of(one)
        return frozenset(found)

    def _rails_of(self, one: Fixed) -> set[str]:
        held = set()
        for claim in one.claims:
            allocation = Allocation.of_claim(claim)
            held |= {result.device for result in allocation.results} if allocation else set()
        return {
            rail_of(offered.plain)
            for pool in (self.fitting.pools(one.node) if held else ())
            for offered in pool.devices
            if offered.id in held and offered.kind == NIC
        }

    def _fit(self, node: str, count: Count, rails: Rails | None) -> Fit:
        fit = self.fitting.fit(self.fitting.example[self.fitting.kinds[node]], count, rails)
        assert fit is not None
        return fit

    # --- answers ----------------------------------------------------------------------------------------------------

    def _answer(self, found: _Found) -> GangPlaced:
        waiting = [iter(one.members) for one in self.fitting.classes]
        placed: list[tuple[Member, PlacedMember]] = []
        for node in sorted(
            found.counts, key=lambda name: (tuple(map(natural, self.places[name])), natural(name))
        ):
            fit = self._fit(node, found.counts[node], found.rails)
            for members, seats in zip(waiting, fit.seats, strict=True):
                for seat in seats:
                    member = next(members)
                    allocations = seated(seat, member, example=fit.node, node=node)
                    levels = {
                        objects.key(claim): level
                        for claim, level in zip(member.claims, seat.levels, strict=True)
                    }
                    domains = dict(zip(self.levels, self.places[node], strict=False))
                    placed.append(
                        (member, PlacedMember(member.key, node, 0, allocations, levels, domains, seat.rails))
                    )
        ranked = ranks(placed, self.gang.fixed)
        done = {one.key for one in ranked}
        return GangPlaced(
            members=tuple(ranked),
            left=tuple(member.key for member in self.gang.members if member.key not in done),
            size=len(done) + len(self.gang.fixed),
            score=self._score(found),
            proven=found.proven and not self.fitting.unknown,
        )

    def _score(self, found: _Found) -> GangScore:
        used = set(found.counts) | {one.node for one in self.gang.fixed if one.node in self.places}
        fits = [self._fit(node, count, found.rails) for node, count in found.counts.items()]
        rules = self._rules(())
        return GangScore(
            placed=sum(map(sum, found.counts.values())) + len(self.gang.fixed),
            apart=sum(fit.apart for fit in fits),
            domains=tuple(
                (self.levels[at], len({self.places[node][: at + 1] for node in used})) for at in rules.levels
            ),
            opened=found.opened,
            nodes=len(used),
            rails=len(self._fixed_rails() | self._rails(found)),
            spare=sum(fit.spare for fit in fits),
        )

    def _told(self) -> GangAnswer:
        """Fewer than the minimum fit, as far as is known."""
        whole = len(self.gang.fixed) + len(self.gang.members)
        where = (
            f" in one {self.levels[self.required] if self.required < len(self.levels) else NODE}"
            if self.required is not None
            else ""
        )
        enough = f", at least {self.gang.minimum} are needed" if self.gang.minimum < whole else ""
        text = f"{self.most} of {whole} members fit{where}{enough}"
        if self.most >= self.gang.minimum and not self.fitting.unknown:
            text += ", but not all that are indispensable"
        reasons = {}
        for at, one in enumerate(self.fitting.classes):
            told = refusals_of(self.fitting, one, at, most=_MOST_TOLD)
            for member in one.members:
                reasons[member.key] = tuple(told)
        cause = Cause.INSUFFICIENT_CAPACITY if self.required is None else Cause.TOPOLOGY_SCOPE_UNMET
        return self.nothing(self.most, text, reasons, cause=cause)

    def nothing(
        self,
        most: int,
        text: str,
        reasons: Mapping[str, Sequence[Reason]],
        *,
        cause: Cause = Cause.INSUFFICIENT_CAPACITY,
    ) -> GangUnsatisfiable | GangUndecided:
        if self.fitting.unknown:
            text = f"no placement was found or excluded within the search limit; so far {text}"
            cause = Cause.SEARCH_LIMIT
        head = Reason(None, None, None, cause.value, f"gang {self.gang.name}: {text}")
        told = {member.key: (head, *reasons.get(member.key, ())) for member in self.gang.members}
        return (
            GangUndecided(most, text, told) if self.fitting.unknown else GangUnsatisfiable(most, text, told)
        )


@dataclass(slots=True)
class _Admitted:
    """Sets of rails on which every class of members fits somewhere, so many `together`; a set is out when a larger one is.

    `clean`: no member may be apart from its NICs.
    """

    fitting: Fitting
    takes: Mapping[Any, NodeCounts]
    every: Rails
    together: Count
    clean: bool
    known: dict[Rails, bool] = field(default_factory=dict)
    faces: dict[str, Hashable] = field(default_factory=dict)

    def by_some_node(self, rails: Rails) -> bool:
        if rails == self.every:
            return True
        found = self.known.get(rails)
        if found is None:
            larger = all(self.by_some_node(rails | {other}) for other in sorted(self.every - rails))
            found = self.known[rails] = larger and all(
                self._class(at, rails) for at, one in enumerate(self.fitting.classes) if one.claims
            )
        return found

    def _class(self, at: int, rails: Rails) -> bool:
        """Untouched nodes first: where one of those refuses, so does every one that publishes the same."""
        count = tuple(number * (position == at) for position, number in enumerate(self.together))
        kinds = [kind for kind, counts in self.takes.items() if count in counts.takes]
        examples = [self.fitting.example[kind] for kind in kinds]
        refused: set[Hashable] = set()
        for name in sorted(
            examples, key=lambda name: (bool(self.fitting.nodes[name].holders), natural(name))
        ):
            face = self._face(name)
            if face in refused:
                continue
            fit = self.fitting.fit(name, count, rails)
            if fit is not None and not (self.clean and fit.apart):
                return True
            if not self.fitting.nodes[name].holders:
                refused.add(face)
        return False

    def _face(self, name: str) -> Hashable:
        found = self.faces.get(name)
        if found is None:
            found = self.faces[name] = tuple(
                (offered.id.device, offered.taints, tuple(sorted(_placing(offered.plain))))
                for pool in self.fitting.pools(name)
                for offered in pool.devices
            )
        return found


def _placing(plain: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Attributes that do not tell single devices of one place apart."""
    for attribute, value in plain.items():
        if attribute not in _IDENTITIES:
            yield attribute, str(value)


def _sizes(found: _Found) -> int:
    return sum(map(sum, found.counts.values()))


def _read_off(packing: Packing, cost: int) -> tuple[tuple[int, ...], int]:
    """The parts of the score in a cost, in order, and how many domains are opened."""
    digits = packing.digits
    weights = [
        digits.apart,
        *(digits.level[at] for at in packing.rules.levels),
        digits.opened,
        digits.nodes,
        digits.spare,
    ]
    order = []
    for weight in weights:
        number, cost = divmod(cost, weight)
        order.append(number)
    return tuple(order), order[-3]


def _beside(takes: NodeCounts, base: Count, at: int, *, fixed: bool) -> NodeCounts:
    """What the node takes of one class when it has `base` already."""
    before = takes.takes.get(base, (0, 0))
    found: dict[Count, tuple[int, int]] = {}
    for count, (apart, spare) in takes.takes.items():
        more = count[at] - base[at]
        if more > 0 and count == (*base[:at], count[at], *base[at + 1 :]):
            found[(more,)] = (max(0, apart - before[0]), spare)
    return NodeCounts(found, fixed, takes.alone)


def ranks(placed: Sequence[tuple[Member, PlacedMember]], fixed: Sequence[Fixed]) -> list[PlacedMember]:
    """Every member's rank: its index where all members have one of their own, else free numbers along the fabric.

    Members that stay keep their rank, also one that is not their index; indispensable ones (a launcher) come first.
    """
    indexes = [member.index for member, _ in placed] + [one.index for one in fixed]
    kept = all(one.rank in (None, one.index) for one in fixed)
    if kept and None not in indexes and len(set(indexes)) == len(indexes):
        found = [replace(one, rank=int(member.index or 0)) for member, one in placed]
        return sorted(found, key=lambda one: one.rank)
    held = {one.rank for one in fixed}
    free = (number for number in itertools.count() if number not in held)
    ordered = [one for _, one in sorted(placed, key=lambda entry: not entry[0].needed)]
    return [replace(one, rank=next(free)) for one in ordered]
