"""How members are spread over the domains of the fabric: the score, and the proof that no spread is better.
Pure numbers.

Members of a class are alike and so are nodes of a kind, so a placement is: for each node, how many members of
each class (a *count*, one number per class). Which counts a node of a kind takes is known (`node_fit`). Then
every domain has a table

    cost of a domain for a count  =  least sum of its parts' costs over all ways to share the count among them
                                     + what the domain itself costs once it is used

computed from the nodes upwards; the root's table has the answer (cost_tables.py). Nodes that take the same
have one table, and so have domains made of the same parts; so a fresh cluster costs next to nothing, and one
in which all nodes differ costs (nodes x members) additions. What the tables say is the optimum, and a count
that the root's table does not have cannot be placed.

The score, most important first; each part is a whole number and less is better:

    placed    as many members as can be (an elastic gang)
    apart     steps above PXB between a GPU and its NIC (PHB 1, NODE 2, SYS 3), since GPUDirect is off there
              and the slowest member slows all; 64 for each step down in a firstAvailable list, 1024 for each
              level by which a Preferred scope is widened
    domains   number of domains used, wide levels before narrow ones: fewest zones, in them fewest cores,
              spines, blocks, NVLink domains
    opened    blocks and NVLink domains that nobody used and that the gang uses in part, so that whole ones
              stay whole for who needs them; "in part": the members in it are fewer than its nodes take one by
              one
    nodes     number of nodes
    rails     number of rails that the gang's NICs are on: members on the same rails talk through one leaf
              switch (rail_minimization); not minded where the whole gang is on one node
    full      PreferNoSchedule taints of their nodes that members do not tolerate, for each member; then how
              full the nodes that get members are by the operator's weights, summed up (`node_scoring`)
    spare     GPUs left free on the nodes used (best fit)

What is *preferred* comes before `apart`: the domains of every level down to the one that the gang prefers
("one domain of it, else one of the next wider, else the fewest" is the fewest of the widest first), then the
members in units that are not whole in one domain of the level that these prefer, again wide levels first.

Every part but rails gets a digit of its own in one whole number, with a radix as large as this gang can make
it, so that comparing numbers is comparing scores part by part. Mostly all digits fit into an int64; where
they do not, Python's whole numbers are taken.

Domains and nodes that fixed members are in cost nothing more. A *required* level demands one domain of it
(the one of the fixed members). Members of a unit (a slice, a role) with a required level are together in one
domain of it, whole: so every domain of that level takes whole units only, which is a rule about counts, and
the tables stay exact (`UnitRule`). Ties: of equal ways to share, the first part by name takes the most; so
places follow the names of domains and nodes.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from koordra.placement.gang.topology.cost_tables import (
    OPERATIONS,
    Costs,
    CostTable,
    Count,
    SharedTables,
    minus,
)
from koordra.placement.gang.topology.domains import Domain, Path

_INFEASIBLE: Final = 1 << 61
_BEYOND: Final = 1 << 400
"""Infeasible, for costs that do not fit into 64 bits."""

Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class NodeCounts:
    """What one node of a kind takes: count -> (apart, spare). The empty count is left out. `fixed`: a fixed
    member is there.

    `alone`: the most members that the node takes when nothing else is asked of it (no rails). `full`: what
    the counts cost by taints that members are to avoid and by the operator's weights, where there are some.
    """

    takes: Mapping[Count, tuple[int, int]]
    fixed: bool = False
    alone: int = 0
    full: Mapping[Count, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UnitRule:
    """Units of one sort, each of so many members of each class (`of`; 0: the class is none of theirs).

    `required`, `preferred` number levels: each unit whole in one domain of it, without fail or if it can be.
    `homes`: domains of all levels in which members of the sort's only unit stay already; elsewhere nobody of
    it is whole.
    """

    of: Count
    required: int | None = None
    preferred: int | None = None
    homes: frozenset[Path] | None = None

    def members(self, counts: Numbers) -> Numbers:
        """By count (the first axis of `counts` numbers the classes)."""
        own: Numbers = counts[np.flatnonzero(self.of)].sum(axis=0)
        return own

    def stray(self, counts: Numbers) -> Numbers:
        """Members that are in no whole unit."""
        whole = reduce(np.minimum, [counts[at] // number for at, number in enumerate(self.of) if number])
        own: Numbers = self.members(counts) - whole * sum(self.of)
        return own


class Packed(NamedTuple):
    """The best counts by node; `order`: the parts of their score by which placements compare, without rails;
    `parts`: the same by name."""

    counts: dict[str, Count]
    order: tuple[int, ...]
    parts: Mapping[str, int]


@dataclass(slots=True)
class GangPacking:
    """One run over one tree. `kinds`: kind of every node; `takes`: what a kind takes; `want`: members of each
    class; `domains`: how many there are of each level; `opened`: levels whose untouched domains count;
    `required`, `preferred`: of the gang as a whole; `units`: of parts of it."""

    root: Domain
    kinds: Mapping[str, Hashable]
    takes: Mapping[Any, NodeCounts]
    want: Count
    domains: Sequence[int] = ()
    opened: frozenset[int] = frozenset()
    required: int | None = None
    preferred: int | None = None
    units: Sequence[UnitRule] = ()
    operations: int = OPERATIONS
    _weights: dict[str, int] = field(default_factory=dict)
    _infeasible: int = _INFEASIBLE
    _shared: SharedTables = field(init=False)
    _tables: dict[int, CostTable] = field(default_factory=dict)
    _keys: dict[Domain | str, int] = field(default_factory=dict)
    _numbers: dict[Hashable, int] = field(default_factory=dict)
    _sorts: dict[Hashable, Hashable] = field(default_factory=dict)
    _capacities: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        entries = [entry for kind in set(self.kinds.values()) for entry in self.takes[kind].takes.values()]
        members = sum(self.want)
        used = min(members, len(self.kinds))
        levels = len(self.domains)
        domains = {level_at(at): min(members, number) for at, number in enumerate(self.domains)}
        first = 0 if self.preferred is None else self.preferred + 1
        cut = max((-1 if unit.preferred is None else unit.preferred for unit in self.units), default=-1)
        most = dict(list(domains.items())[:first])
        if first > levels:
            most["nodes"] = used
        most |= {cut_at(at): members for at in range(cut + 1)}
        most["apart"] = used * max((apart for apart, _ in entries), default=0)
        most |= domains
        most["opened"] = sum(min(members, self.domains[at]) for at in self.opened)
        most["nodes"] = used
        full = [max(self.takes[kind].full.values(), default=0) for kind in set(self.kinds.values())]
        most["full"] = used * max(full, default=0)
        most["spare"] = used * max((spare for _, spare in entries), default=0)
        weight = 1
        for part in reversed(most):
            self._weights[part] = weight
            weight *= most[part] + 1
        if weight >= _INFEASIBLE:
            self._infeasible = _BEYOND
        self._shared = SharedTables(self.want, self._infeasible, self.operations)

    def best(self) -> Packed | None:
        """The counts with the most members, and of those the cheapest, and of equal ones the one with most
        members of the first class. None: no domain of the required level may take the gang."""
        found = []
        for number, chain in enumerate(self._chains((self.root,))):
            table = self._table(chain[-1])
            costs = table.costs
            for domain in chain[-2::-1]:
                costs = self._used(domain, costs)
            counts = np.argwhere(costs < self._infeasible)
            totals = counts.sum(axis=1)
            counts = counts[totals == totals.max()]
            cost = costs[tuple(counts.T)]
            count: Count = tuple(counts[cost == cost.min()][-1].tolist())
            found.append((-sum(count), int(cost.min()), number, count, chain[-1], table))
        if not found:
            return None
        _, cost, _, count, domain, table = min(found, key=lambda way: way[:3])
        parts = {}
        for part in reversed(self._weights):
            parts[part], cost = divmod(cost, self._weights[part])
        chosen: dict[str, Count] = {}
        self._give(domain, table, count, chosen)
        return Packed(chosen, tuple(parts.values()), parts)

    def _chains(self, chain: tuple[Domain, ...]) -> Iterator[tuple[Domain, ...]]:
        """From the root to the domains that may take the whole gang: the root itself, or those of the
        required level."""
        domain = chain[-1]
        if self.required is None:
            yield chain
        elif domain.level == self.required:
            # What no label names cannot be promised.
            if domain.path[-1] and domain.fixed == self.root.fixed:
                yield chain
        else:
            for part in domain.parts:
                if isinstance(part, Domain):
                    yield from self._chains((*chain, part))

    # --- tables ---------------------------------------------------------------------------------------------

    def _key(self, part: Domain | str) -> int:
        """Equal for nodes that take the same, and for domains whose tables are equal: made of the same parts,
        with the same to pay."""
        known = self._keys.get(part)
        if known is None:
            content: Hashable
            if isinstance(part, str):
                content = self._sort(self.kinds[part])
            else:
                keys = sorted(map(self._key, part.parts))
                homes = [unit.homes is not None and part.path in unit.homes for unit in self.units]
                named = not self.units or bool(part.path and part.path[-1])
                content = part.level, part.fixed > 0, part.untouched, named, *homes, tuple(keys)
            known = self._keys[part] = self._numbers.setdefault(content, len(self._numbers))
        return known

    def _sort(self, kind: Hashable) -> Hashable:
        if kind not in self._sorts:
            takes = self.takes[kind]
            self._sorts[kind] = (
                frozenset(takes.takes.items()),
                takes.fixed,
                takes.alone,
                frozenset(takes.full.items()),
            )
        return self._sorts[kind]

    def _groups(self, domain: Domain) -> list[list[Domain | str]]:
        """The parts, alike ones together, in an order that domains made of the same parts share."""
        found: dict[int, list[Domain | str]] = {}
        for part in domain.parts:
            found.setdefault(self._key(part), []).append(part)
        return [found[key] for key in sorted(found)]

    def _table(self, part: Domain | str) -> CostTable:
        key = self._key(part)
        if key not in self._tables:
            if isinstance(part, str):
                self._tables[key] = CostTable(self._of_node(self.takes[self.kinds[part]]))
            else:
                shared = self._shared
                powers = [shared.power(self._table(group[0]), len(group)) for group in self._groups(part)]
                inner = reduce(shared.share, powers or [CostTable(self._of_node(NodeCounts({})))])
                self._tables[key] = CostTable(self._used(part, inner.costs), (inner,))
        return self._tables[key]

    def _of_node(self, counts: NodeCounts) -> Costs:
        shape = [max(numbers) + 1 for numbers in zip(*counts.takes, (0,) * len(self.want), strict=True)]
        dtype = np.int64 if self._infeasible == _INFEASIBLE else object
        costs: Costs = np.full(shape, self._infeasible, dtype=dtype)
        costs[(0,) * costs.ndim] = 0
        parts = ("apart", "nodes", "full", "spare")
        per_apart, per_node, per_full, per_spare = (self._weights[part] for part in parts)
        for count, (apart, spare) in counts.takes.items():
            costs[count] = apart * per_apart + (0 if counts.fixed else per_node) + spare * per_spare
            costs[count] += counts.full.get(count, 0) * per_full
        return costs

    def _used(self, domain: Domain, inner: Costs) -> Costs:
        """With what the domain itself costs once it is used, and without what it must not take."""
        costs = inner.copy()
        if 0 <= domain.level < len(self.domains) and not domain.fixed:
            costs += self._weights[level_at(domain.level)]
        if domain.level in self.opened and domain.untouched:
            totals = np.indices(costs.shape).sum(axis=0)
            costs[totals < self._capacity(domain)] += self._weights["opened"]
        if domain.level >= 0:
            for unit in self.units:
                self._keep_whole(unit, domain, costs)
        costs[(0,) * costs.ndim] = 0
        costs[costs >= self._infeasible] = self._infeasible
        return costs

    def _keep_whole(self, unit: UnitRule, domain: Domain, costs: Costs) -> None:
        is_preferred = unit.preferred is not None and domain.level <= unit.preferred
        if not is_preferred and domain.level != unit.required:
            return
        counts = np.indices(costs.shape)
        # What no label names is not known to be one domain.
        is_known = bool(domain.path[-1])
        stray = unit.stray(counts) if is_known else unit.members(counts)
        if domain.level == unit.required:
            costs[stray > 0] = self._infeasible
        if is_preferred:
            if unit.homes is not None:
                stray = unit.members(counts) * (domain.path not in unit.homes)
            costs += stray.astype(costs.dtype) * self._weights[cut_at(domain.level)]

    def _capacity(self, part: Domain | str) -> int:
        """Members that the nodes take one by one."""
        if isinstance(part, str):
            return self.takes[self.kinds[part]].alone
        key = self._key(part)
        if key not in self._capacities:
            self._capacities[key] = sum(map(self._capacity, part.parts))
        return self._capacities[key]

    # --- back to nodes --------------------------------------------------------------------------------------

    def _give(self, domain: Domain, table: CostTable, count: Count, found: dict[str, Count]) -> None:
        """Share a count that the table has among the domain's nodes."""
        if not any(count):
            return
        (whole,), groups, shared = table.parts, self._groups(domain), self._shared
        for at in range(len(groups) - 1, -1, -1):
            one, own = self._table(groups[at][0]), count
            power = shared.power(one, len(groups[at]))
            if at:
                rest = shared.split(whole, count)
                whole, count, own = whole.parts[0], rest, minus(count, rest)
            for part, number in zip(groups[at], shared.each(power, one, own), strict=False):
                if isinstance(part, Domain):
                    self._give(part, one, number, found)
                elif any(number):
                    found[part] = number


def level_at(at: int) -> str:
    """The part of a score that counts domains of a level."""
    return f"domains of level {at}"


def cut_at(at: int) -> str:
    """The part of a score that counts members in units that are not whole."""
    return f"cut at level {at}"
