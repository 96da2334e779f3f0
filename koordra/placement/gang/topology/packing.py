"""How members are spread over the domains of the fabric: the score, and the proof that no spread is better.
Pure numbers.

Members of a class are alike and so are nodes of a kind, so a placement is: for each node, how many members of
each class (a *count*, one number per class). Which counts a node of a kind takes is known (`node_fit`). Then
every domain has a table

    cost of a domain for a count  =  least sum of its parts' costs over all ways to share the count among them
                                     + what the domain itself costs once it is used

computed from the nodes upwards; the root's table has the answer. Sharing is a (min,+) convolution in numpy.
Domains made of the same parts have one table, and a part that is there k times is convolved log k times, so
that a fresh cluster costs next to nothing and one in which all nodes differ costs (nodes x members)
additions. Nothing is sampled or cut: what the tables say is the optimum, and a count that the root's table
does not have cannot be placed.

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
    spare     GPUs left free on the nodes used (best fit)

Every part but rails gets a digit of its own in one whole number, with a radix as large as this gang can make
it, so that comparing numbers is comparing scores part by part. Mostly all digits fit into an int64; where
they do not, Python's whole numbers are taken.

Domains and nodes that fixed members are in cost nothing more. A *required* level demands one domain of it
(the one of the fixed members). Ties: of equal ways to share, the first part by name takes the most; so places
follow the names of domains and nodes.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from koordra.effort import spend
from koordra.placement.gang.topology.domains import Domain

Costs = NDArray[Any]

Count = tuple[int, ...]
"""Members of each class."""

OPERATIONS: Final = 1_500_000_000
"""Additions that one gang may cost: some seconds."""

_ADDED: Final = 20_000
"""Additions in a step."""

_MOST_ADDED: Final = 1 << 15
"""Additions that are made at once."""

_INFEASIBLE: Final = 1 << 61
_BEYOND: Final = 1 << 400
"""Infeasible, for costs that do not fit into 64 bits."""


class TooMuch(Exception):
    """The tables would cost more additions than allowed."""


@dataclass(frozen=True, slots=True)
class NodeCounts:
    """What one node of a kind takes: count -> (apart, spare). The empty count is left out. `fixed`: a fixed
    member is there.

    `alone`: the most members that the node takes when nothing else is asked of it (no rails).
    """

    takes: Mapping[Count, tuple[int, int]]
    fixed: bool = False
    alone: int = 0


@dataclass(slots=True, eq=False)
class CostTable:
    """`costs` by count. Made of two tables (`parts`) that share the count, of one with costs of its own on
    top, or of none: a node."""

    costs: Costs
    parts: tuple[CostTable, ...] = ()


class Packed(NamedTuple):
    """The best counts by node; `order`: the parts of their score from `apart` on, without rails."""

    counts: dict[str, Count]
    order: tuple[int, ...]


@dataclass(slots=True)
class GangPacking:
    """One run over one tree. `kinds`: kind of every node; `takes`: what a kind takes; `want`: members of each
    class; `domains`: how many there are of each level; `opened`: levels whose untouched domains count."""

    root: Domain
    kinds: Mapping[str, Hashable]
    takes: Mapping[Any, NodeCounts]
    want: Count
    domains: Sequence[int] = ()
    opened: frozenset[int] = frozenset()
    required: int | None = None
    operations: int = OPERATIONS
    _weights: list[int] = field(default_factory=list)
    _infeasible: int = _INFEASIBLE
    _totals: NDArray[np.int64] = field(init=False)
    _tables: dict[int, CostTable] = field(default_factory=dict)
    _powers: dict[tuple[CostTable, int], CostTable] = field(default_factory=dict)
    _sums: dict[tuple[CostTable, CostTable], CostTable] = field(default_factory=dict)
    _keys: dict[Domain | str, int] = field(default_factory=dict)
    _numbers: dict[Hashable, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._totals = np.indices([number + 1 for number in self.want]).sum(axis=0)
        entries = [entry for kind in set(self.kinds.values()) for entry in self.takes[kind].takes.values()]
        members = sum(self.want)
        used = min(members, len(self.kinds))
        parts = [
            used * max((apart for apart, _ in entries), default=0),
            *(min(members, number) for number in self.domains),
            sum(min(members, self.domains[at]) for at in self.opened),
            used,
            used * max((spare for _, spare in entries), default=0),
        ]
        weight = 1
        for most in reversed(parts):
            self._weights.insert(0, weight)
            weight *= most + 1
        if weight >= _INFEASIBLE:
            self._infeasible = _BEYOND

    def best(self) -> Packed | None:
        """The counts with the most members, of those the cheapest, and of equal ones the one with most
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
        order = []
        for weight in self._weights:
            part, cost = divmod(cost, weight)
            order.append(part)
        chosen: dict[str, Count] = {}
        self._give(domain, table, count, chosen)
        return Packed(chosen, tuple(order))

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
        """Equal for nodes of a kind, and for domains whose tables are equal: made of the same parts, with the
        same to pay."""
        known = self._keys.get(part)
        if known is None:
            content: Hashable
            if isinstance(part, str):
                content = self.kinds[part]
            else:
                keys = sorted(map(self._key, part.parts))
                content = part.level, part.fixed > 0, part.untouched, tuple(keys)
            known = self._keys[part] = self._numbers.setdefault(content, len(self._numbers))
        return known

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
                powers = [self._power(self._table(group[0]), len(group)) for group in self._groups(part)]
                inner = reduce(self._share, powers or [CostTable(self._of_node(NodeCounts({})))])
                self._tables[key] = CostTable(self._used(part, inner.costs), (inner,))
        return self._tables[key]

    def _of_node(self, counts: NodeCounts) -> Costs:
        costs: Costs = np.full(
            self._totals.shape,
            self._infeasible,
            dtype=np.int64 if self._infeasible == _INFEASIBLE else object,
        )
        costs[(0,) * costs.ndim] = 0
        per_apart, per_node, per_spare = self._weights[0], self._weights[-2], self._weights[-1]
        for count, (apart, spare) in counts.takes.items():
            costs[count] = apart * per_apart + (0 if counts.fixed else per_node) + spare * per_spare
        return costs

    def _used(self, domain: Domain, inner: Costs) -> Costs:
        """With what the domain itself costs once it is used."""
        costs = inner.copy()
        if 0 <= domain.level < len(self.domains) and not domain.fixed:
            costs += self._weights[1 + domain.level]
        if domain.level in self.opened and domain.untouched:
            costs[self._totals < self._capacity(domain)] += self._weights[-3]
        costs[(0,) * costs.ndim] = 0
        costs[costs >= self._infeasible] = self._infeasible
        return costs

    def _capacity(self, part: Domain | str) -> int:
        """Members that the nodes take one by one."""
        if isinstance(part, str):
            return self.takes[self.kinds[part]].alone
        return sum(map(self._capacity, part.parts))

    def _power(self, table: CostTable, times: int) -> CostTable:
        times = min(times, max(sum(self.want), 1))
        known = self._powers.get((table, times))
        if known is None:
            known = table
            if times > 1:
                known = self._share(self._power(table, times - times // 2), self._power(table, times // 2))
            self._powers[table, times] = known
        return known

    def _share(self, left: CostTable, right: CostTable) -> CostTable:
        known = self._sums.get((left, right))
        if known is None:
            known = self._sums[left, right] = CostTable(
                self._convolved(left.costs, right.costs), (left, right)
            )
        return known

    def _convolved(self, left: Costs, right: Costs) -> Costs:
        """The least of all shifts of one table by the counts of the other, many shifts at once, as far as
        they are feasible."""
        few, many = left, right
        counts, others = (np.argwhere(side < self._infeasible) for side in (left, right))
        if len(others) < len(counts):
            few, many, counts, others = right, left, others, counts
        self.operations -= len(counts) * many.size
        spend(len(counts) * many.size // _ADDED)
        if self.operations < 0:
            raise TooMuch
        found: Costs = np.full_like(many, self._infeasible)
        reach, most = counts.max(axis=0).tolist(), others.max(axis=0).tolist()
        shape = tuple(map(min, [a + b + 1 for a, b in zip(reach, most, strict=True)], many.shape))
        padded = np.full([a + b for a, b in zip(reach, shape, strict=True)], self._infeasible, many.dtype)
        inside = tuple(slice(min(number + 1, size)) for number, size in zip(most, shape, strict=True))
        padded[tuple(slice(a, a + one.stop) for a, one in zip(reach, inside, strict=True))] = many[inside]
        windows = as_strided(padded, (*(number + 1 for number in reach), *shape), padded.strides * 2)
        least = found[tuple(map(slice, shape))]
        at_once = max(1, _MOST_ADDED // math.prod(shape))
        for first in range(0, len(counts), at_once):
            shifts = counts[first : first + at_once]
            shifted = windows[tuple((reach - shifts).T)]
            shifted += few[tuple(shifts.T)].reshape(-1, *[1] * few.ndim)
            np.minimum(least, shifted.min(axis=0), out=least)
        return found

    # --- back to nodes --------------------------------------------------------------------------------------

    def _give(self, domain: Domain, table: CostTable, count: Count, found: dict[str, Count]) -> None:
        """Share a count that the table has among the domain's nodes."""
        if not any(count):
            return
        (whole,), groups = table.parts, self._groups(domain)
        for at in range(len(groups) - 1, -1, -1):
            one, own = self._table(groups[at][0]), count
            power = self._power(one, len(groups[at]))
            if at:
                rest = self._split(whole, count)
                whole, count, own = whole.parts[0], rest, _minus(count, rest)
            for part, number in zip(groups[at], self._each(power, one, own), strict=False):
                if isinstance(part, Domain):
                    self._give(part, one, number, found)
                elif any(number):
                    found[part] = number

    def _each(self, table: CostTable, one: CostTable, count: Count) -> list[Count]:
        """What each of the alike parts takes, those that take most first."""
        if table is one:
            return [count]
        left, right = table.parts
        first = self._split(table, count)
        shares = self._each(left, one, first) + self._each(right, one, _minus(count, first))
        return sorted(shares, reverse=True)

    def _split(self, table: CostTable, count: Count) -> Count:
        """What the left side takes: of equal ways the one that gives it most."""
        left, right = table.parts
        upto = tuple(slice(None, number + 1) for number in count)
        backwards = tuple(slice(number, None, -1) for number in count)
        total = left.costs[upto] + right.costs[backwards]
        return tuple(np.argwhere(total == table.costs[count])[-1].tolist())


def _minus(count: Count, other: Count) -> Count:
    return tuple(a - b for a, b in zip(count, other, strict=True))
