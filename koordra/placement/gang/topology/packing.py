"""How members are spread over the domains of the fabric: the score, and the proof that no spread is better. Pure numbers.

Members of a class are alike and so are nodes of a kind, so a placement is: for each node, how many members of each class (a *count*,
one number per class). Which counts a node of a kind takes is known (`node_fit`). Then every domain has a table

    cost of a domain for a count  =  least sum of its parts' costs over all ways to share the count among them
                                     + what the domain itself costs once it is used

computed from the nodes upwards; the root's table has the answer. Sharing is a (min,+) convolution in numpy. Domains made of the same parts
have one table, and a part that is there k times is convolved log k times, so that a fresh cluster costs next to nothing and one
in which all nodes differ costs (nodes x members) additions. Nothing is sampled or cut: what the tables say is the optimum, and a
count that the root's table does not have cannot be placed.

The score is that of `score`. Domains and nodes that fixed members are in cost nothing more. A *required* level demands one domain of it
(the one of the fixed members); slices demand multiples.

Ties: of equal ways to share, the first part by name takes the most; so places follow the names of domains and nodes.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from koordra.placement.gang.score import INFEASIBLE, Count, NodeCounts, Rules, ScoreWeights
from koordra.placement.gang.topology.domains import Domain

Costs = NDArray[Any]

_MOST_SHIFTS: Final = 64
OPERATIONS: Final = 1_500_000_000
"""Additions that one gang may cost: some seconds."""


class TooMuch(Exception):
    """The tables would cost more additions than allowed."""


@dataclass(slots=True, eq=False)
class Table:
    """`costs` by count. Made of two tables (`left`, `right`) that share the count, of one (`left`) with costs of its own on top,
    or of nothing: a node."""

    costs: Costs
    left: Table | None = None
    right: Table | None = None


@dataclass(slots=True)
class Packing:
    """One run over one tree. `kinds`: kind of every node; `takes`: what a kind takes."""

    root: Domain
    rules: Rules
    kinds: Mapping[str, Hashable]
    takes: Mapping[Hashable, NodeCounts]
    domains: Mapping[int, int]
    operations: int = OPERATIONS
    weights: ScoreWeights = field(init=False)
    _tables: dict[Hashable, Table] = field(default_factory=dict)
    _powers: dict[tuple[int, int], Table] = field(default_factory=dict)
    _sums: dict[tuple[int, int], Table] = field(default_factory=dict)
    _keys: dict[int, Hashable] = field(default_factory=dict)
    _numbers: dict[Hashable, int] = field(default_factory=dict)
    _capacity: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        used = [self.takes[kind] for kind in dict.fromkeys(self.kinds.values())]
        self.weights = ScoreWeights.of(self.rules, used, self.domains, len(self.kinds))

    # --- tables -----------------------------------------------------------------------------------------------------

    def costs(self) -> list[tuple[Costs, tuple[Domain, ...], Table]]:
        """The tables to choose from, with the domains from the root down to the one that takes all: one, or one per domain
        of the required level."""
        if self.rules.required is None:
            table = self._of_domain(self.root)
            return [(table.costs, (self.root,), table)]
        return [(costs, chain, table) for chain in self._required() for costs, table in [self._within(chain)]]

    def _required(self) -> list[tuple[Domain, ...]]:
        """The chains to domains of the required level that may take the gang."""
        found: list[tuple[Domain, ...]] = []

        def walk(chain: tuple[Domain, ...]) -> None:
            domain = chain[-1]
            if domain.level == self.rules.required:
                if domain.known and domain.fixed == self.root.fixed:
                    found.append(chain)
                return
            for part in domain.parts:
                walk((*chain, part))

        walk((self.root,))
        return found

    def _within(self, chain: tuple[Domain, ...]) -> tuple[Costs, Table]:
        table = self._of_domain(chain[-1])
        costs = table.costs
        for domain in reversed(chain[:-1]):
            costs = self._used(domain, costs)
        return costs, table

    def _key(self, domain: Domain) -> Hashable:
        """Equal for domains whose tables are equal: made of the same parts, with the same to pay."""
        known = self._keys.get(id(domain))
        if known is None:
            parts: list[Hashable] = [self._key(part) for part in domain.parts]
            parts += [("node", self.kinds[node]) for node in domain.nodes]
            numbered = sorted(self._numbers.setdefault(part, len(self._numbers)) for part in parts)
            fixed = domain.fixed % self.rules.slice_size if domain.level == self.rules.slice_level else 0
            known = (domain.level, domain.fixed > 0, fixed, domain.untouched, tuple(numbered))
            self._keys[id(domain)] = known
        return known

    def _of_domain(self, domain: Domain) -> Table:
        key = self._key(domain)
        table = self._tables.get(key)
        if table is None:
            parts = [(self._of_domain(members[0]), len(members)) for members in self._alike(domain)]
            parts += [(self._of_node(kind), len(nodes)) for kind, nodes in self._alike_nodes(domain)]
            inner = self._sum([self._power(part, times) for part, times in parts])
            table = self._tables[key] = Table(self._used(domain, inner.costs), inner)
        return table

    def _alike(self, domain: Domain) -> list[list[Domain]]:
        """The parts by key, in order of their first."""
        found: dict[Hashable, list[Domain]] = {}
        for part in domain.parts:
            found.setdefault(self._key(part), []).append(part)
        return self._in_order(found)

    def _alike_nodes(self, domain: Domain) -> list[tuple[Hashable, list[str]]]:
        found: dict[Hashable, list[str]] = {}
        for node in domain.nodes:
            found.setdefault(self.kinds[node], []).append(node)
        return [(self.kinds[nodes[0]], nodes) for nodes in self._in_order(found)]

    def _in_order(self, found: Mapping[Hashable, list[Any]]) -> list[list[Any]]:
        """By number of the kind, which equal compositions share, so that they share their tables."""
        return [
            found[key]
            for key in sorted(
                found, key=lambda key: self._numbers.get(key, self._numbers.get(("node", key), 0))
            )
        ]

    def _of_node(self, kind: Hashable) -> Table:
        table = self._tables.get(("node", kind))
        if table is None:
            costs = self._nothing()
            counts = self.takes[kind]
            for count, (apart, spare) in counts.takes.items():
                costs[count] = (
                    apart * self.weights.apart
                    + (0 if counts.fixed else self.weights.nodes)
                    + spare * self.weights.spare
                )
            table = self._tables["node", kind] = Table(costs)
        return table

    def _nothing(self) -> Costs:
        shape = tuple(number + 1 for number in self.rules.want)
        costs: Costs = (
            np.full(shape, INFEASIBLE, dtype=np.int64)
            if self.weights.small
            else np.full(shape, _BEYOND, dtype=object)
        )
        costs[(0,) * len(shape)] = 0
        return costs

    @property
    def infeasible(self) -> int:
        return INFEASIBLE if self.weights.small else _BEYOND

    def _used(self, domain: Domain, inner: Costs) -> Costs:
        """What the domain itself costs once it is used, and what it refuses."""
        costs = inner.copy()
        nothing = (0,) * costs.ndim
        before = costs[nothing]
        if not domain.fixed:
            costs += self.weights.level.get(domain.level, 0)
        if domain.level in self.rules.opened and domain.untouched:
            total = self._totals()
            costs[total < self._capacity_of(domain)] += self.weights.opened
        costs[nothing] = before
        if domain.level == self.rules.slice_level and domain.level >= 0:
            uneven = (self._totals() + domain.fixed) % self.rules.slice_size != 0
            costs[uneven] = self.infeasible
        costs[costs >= self.infeasible] = self.infeasible
        return costs

    def _totals(self) -> NDArray[np.int64]:
        found: NDArray[np.int64] = np.indices(tuple(number + 1 for number in self.rules.want)).sum(axis=0)
        return found

    def _capacity_of(self, domain: Domain) -> int:
        found = self._capacity.get(id(domain))
        if found is None:
            found = sum(map(self._capacity_of, domain.parts))
            found += sum(self.takes[self.kinds[node]].alone for node in domain.nodes)
            self._capacity[id(domain)] = found
        return found

    def _power(self, table: Table, times: int) -> Table:
        """The table of `times` parts alike."""
        nothing = (0,) * table.costs.ndim
        if table.costs[nothing] == 0:
            times = min(times, max(sum(self.rules.want), 1))
        known = self._powers.get((id(table), times))
        if known is None:
            if times == 1:
                known = table
            else:
                more = times - times // 2
                known = self._share(self._power(table, more), self._power(table, times // 2))
            self._powers[id(table), times] = known
        return known

    def _sum(self, tables: Sequence[Table]) -> Table:
        if not tables:
            return Table(self._nothing())
        found = tables[0]
        for table in tables[1:]:
            found = self._share(found, table)
        return found

    def _share(self, left: Table, right: Table) -> Table:
        known = self._sums.get((id(left), id(right)))
        if known is None:
            known = Table(self._convolved(left.costs, right.costs), left, right)
            self._sums[id(left), id(right)] = known
        return known

    def _convolved(self, left: Costs, right: Costs) -> Costs:
        if left.ndim == 1:
            return self._convolved_in_line(left, right)
        few, many = left, right
        counts = np.argwhere(left < self.infeasible)
        others = np.argwhere(right < self.infeasible)
        if len(others) < len(counts):
            few, many, counts = right, left, others
        self.operations -= len(counts) * many.size
        if self.operations < 0:
            raise TooMuch
        found: Costs = np.full_like(many, self.infeasible)
        for count in map(tuple, counts.tolist()):
            here = tuple(slice(number, None) for number in count)
            there = tuple(slice(None, size - number) for number, size in zip(count, many.shape, strict=True))
            np.minimum(found[here], many[there] + few[count], out=found[here])
        return found

    def _convolved_in_line(self, left: Costs, right: Costs) -> Costs:
        """With one class: all shifts of the longer table at once, as far as it is feasible."""
        few, many = left, right
        counts, others = ((side < self.infeasible).nonzero()[0] for side in (left, right))
        if len(others) < len(counts):
            few, many, counts, others = right, left, others, counts
        self.operations -= len(counts) * many.size
        if self.operations < 0:
            raise TooMuch
        found: Costs = np.full_like(many, self.infeasible)
        if not len(counts):
            return found
        reach, room = int(counts[-1]), int(others[-1]) + 1
        width = min(reach + room, many.size)
        padded = np.full(reach + width, self.infeasible, dtype=many.dtype)
        padded[reach : reach + room] = many[: min(room, width)]
        windows = as_strided(padded, (reach + 1, width), padded.strides * 2, writeable=False)
        for part in range(0, len(counts), _MOST_SHIFTS):
            shifts = counts[part : part + _MOST_SHIFTS]
            shifted = windows[reach - shifts]
            shifted += few[shifts][:, None]
            np.minimum(found[:width], shifted.min(axis=0), out=found[:width])
        return found

    # --- back to nodes ----------------------------------------------------------------------------------------------

    def places(self, chain: Sequence[Domain], table: Table, count: Count) -> dict[str, Count]:
        """Which node takes what, for a count that the table has."""
        found: dict[str, Count] = {}
        self._into(chain[-1], table, count, found)
        return found

    def _into(self, domain: Domain, table: Table, count: Count, found: dict[str, Count]) -> None:
        if not any(count):
            return
        assert table.left is not None
        groups: list[list[Any]] = [list(members) for members in self._alike(domain)]
        tables = [self._of_domain(members[0]) for members in groups]
        near = self._alike_nodes(domain)
        groups += [nodes for _, nodes in near]
        tables += [self._of_node(kind) for kind, _ in near]
        powers = [self._power(one, len(group)) for one, group in zip(tables, groups, strict=True)]
        for one, power, group, part in zip(
            tables, powers, groups, self._parts(powers, table.left, count), strict=True
        ):
            for member, own in zip(group, self._each(power, one, part), strict=False):
                if isinstance(member, Domain):
                    self._into(member, one, own, found)
                elif any(own):
                    found[member] = own

    def _parts(self, powers: Sequence[Table], whole: Table, count: Count) -> list[Count]:
        """What each group of alike parts takes."""
        taken: list[Count] = []
        for _ in range(len(powers) - 1):
            assert whole.left is not None
            assert whole.right is not None
            first = self._split(whole, count)
            taken.append(_minus(count, first))
            whole, count = whole.left, first
        taken.append(count)
        return taken[::-1]

    def _each(self, table: Table, one: Table, count: Count) -> list[Count]:
        """What each of the alike parts takes, those that take most first."""
        if table is one:
            return [count]
        assert table.left is not None
        assert table.right is not None
        first = self._split(table, count)
        shares = self._each(table.left, one, first) + self._each(table.right, one, _minus(count, first))
        return sorted(shares, reverse=True)

    def _split(self, table: Table, count: Count) -> Count:
        """What the left side takes: of equal ways the one that gives it most."""
        assert table.left is not None
        assert table.right is not None
        upto = tuple(slice(None, number + 1) for number in count)
        backwards = tuple(slice(number, None, -1) for number in count)
        total = table.left.costs[upto] + table.right.costs[backwards]
        ways = np.argwhere(total == table.costs[count])
        return tuple(int(number) for number in ways[-1])


_BEYOND: Final = 1 << 400
"""Infeasible, for costs that do not fit into 64 bits."""


def _minus(count: Count, other: Count) -> Count:
    return tuple(a - b for a, b in zip(count, other, strict=True))
