"""The same answers for shapes that are too large for a table, found by a search over the machine's tree.

All devices that hang on the same place of the tree are exchangeable, and so are switch groups of equal contents: no term of
the objective (see ``shapes``) tells them apart. What counts is *how many* GPUs and NICs a class takes, not which. Every
term but the mesh of NVLinks is a sum over classes of a function of these two counts, and sums of such tuples can be
minimised branch by branch: for every subtree and every (a, b) the best way to take a GPUs and b NICs from it is found once,
from the best ways of its children. That replaces the symmetric groups' permutations by counts and is exact.

The numbers of the objective are the digits of one Python integer, in a base that no sum reaches; below them lies the
tie-break, in which each device has a bit, the first device the highest, and the largest sum of bits is the list that comes
first. A way is therefore an integer, adding two ways is addition, and the chosen devices are read off the lowest bits.

Where NVLink does not follow the tree (GPUs wired to each other directly, or a partition table that cuts across NUMA nodes),
the GPUs are enumerated instead and only the NICs are searched.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache, reduce
from itertools import combinations
from operator import or_
from typing import Final

from koordra.topology.levels import Level
from koordra.topology.shapes import NEAR, Choice, Group, Shape, pair_level

_DIGIT: Final = 24
"""Bits of one number of the objective; sums over hundreds of devices stay far below."""

# The numbers of the objective, the first deciding; the four counts of pairing end with that of PIX.
_PAIR_PIX, _MISSED, _UNLINKED, _LINKS, _SPREAD, _INTACT, _LONE, _GROUPS, _NUMA = range(3, 12)
_REMEMBERED: Final = 1 << 14

_Ways = dict[tuple[int, int], int]
"""(GPUs taken, NICs taken) -> the best way to take them, as one integer."""


@dataclass(slots=True)
class _Class:
    """A set of devices that terms of the objective count; ``own`` are the devices in none of the ``children``."""

    gpus: int
    nics: int
    levels: set[Level] = field(default_factory=set)
    partition: bool = False
    nvlinks: int = 0
    children: list[_Class] = field(default_factory=list)
    own: Group = field(default_factory=lambda: Group(0, 0))


@dataclass(frozen=True, slots=True)
class _Question:
    gpus: int
    nics: int
    k: int
    j: int


class ShapeSearch:
    """Answers for one shape, remembering the latest ones. Exact for any number of devices."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._partition_sizes = sorted({mask.bit_count() for mask in shape.partitions}, reverse=True)
        self._tie = shape.gpus + shape.nics
        whole = _tree_with_nvlink(shape)
        self._follows_tree = whole is not None
        self._root = whole or _tree(shape)
        self._remembered = lru_cache(maxsize=_REMEMBERED)(self.search)

    def best(self, gpus: int, nics: int, k: int, j: int) -> Choice | None:
        """See ``shapes.Chooser``."""
        if not (0 <= k <= gpus.bit_count() and 0 <= j <= nics.bit_count()):
            return None
        return self._remembered(gpus, nics, k, j)

    def search(self, gpus: int, nics: int, k: int, j: int) -> Choice:
        """The answer without looking at remembered ones; there must be ``k`` GPUs and ``j`` NICs to choose from."""
        asked = _Question(gpus, nics, k, j)
        if self._follows_tree:
            way = self._ways(self._root, asked, None)[k, j]
        else:
            way = min(
                self._ways(self._root, asked, taken)[k, j] + self._of_nvlink(taken, gpus & ~taken)
                for taken in _subsets(gpus, k)
            )
        bits = -way & ((1 << self._tie) - 1)
        chosen = Group(
            _reversed(bits >> self._shape.nics, self._shape.gpus),
            _reversed(bits & ((1 << self._shape.nics) - 1), self._shape.nics),
        )
        return Choice(*chosen, pair_level(self._shape, *chosen))

    def _ways(self, here: _Class, asked: _Question, taken: int | None) -> _Ways:
        """The best way for each pair of counts within one class; ``taken`` fixes the GPUs."""
        ways: _Ways = dict(self._own_ways(here.own, asked, taken))
        for child in here.children:
            joined: _Ways = {}
            for (a, b), way in self._ways(child, asked, taken).items():
                for (more_a, more_b), other in ways.items():
                    counts = a + more_a, b + more_b
                    if counts[0] <= asked.k and counts[1] <= asked.j:
                        total = way + other
                        known = joined.get(counts)
                        if known is None or total < known:
                            joined[counts] = total
            ways = joined
        if not (here.levels or here.partition or here.nvlinks):
            return ways
        return {(a, b): way + self._terms(here, asked, a, b) for (a, b), way in ways.items()}

    def _own_ways(
        self, own: Group, asked: _Question, taken: int | None
    ) -> Iterator[tuple[tuple[int, int], int]]:
        """Exchangeable devices are taken in their order."""
        gpus = _listed(own.gpus & asked.gpus if taken is None else own.gpus & taken)
        nics = _listed(own.nics & asked.nics)
        fewest = 0 if taken is None else len(gpus)
        for a in range(fewest, min(len(gpus), asked.k) + 1):
            of_gpus = sum(1 << self._tie - 1 - device for device in gpus[:a])
            for b in range(min(len(nics), asked.j) + 1):
                yield (a, b), -(of_gpus + sum(1 << self._shape.nics - 1 - device for device in nics[:b]))

    def _terms(self, here: _Class, asked: _Question, a: int, b: int) -> int:
        """What one class adds to the objective when ``a`` GPUs and ``b`` NICs are taken from it."""
        k, j = asked.k, asked.j
        eligible = here.gpus & asked.gpus
        gpus_left = eligible.bit_count() - a
        nics_left = (here.nics & asked.nics).bit_count() - b
        total = 0
        for level in here.levels:
            if k and j:
                lacking = a - -(-k // j) * b if k >= j else b - -(-j // k) * a
                total += self._digit(_PAIR_PIX - NEAR.index(level), max(0, lacking))
            total -= self._digit(_SPREAD, _pairs(a if k else b))
            total += self._digit(_LONE, max(0, gpus_left - nics_left))
        untouched = a == 0 and here.gpus != 0 and eligible == here.gpus
        if untouched and Level.PXB in here.levels:
            total -= self._digit(_GROUPS, 1)
        if untouched and Level.NODE in here.levels:
            total -= self._digit(_NUMA, 1)
        if here.partition:
            size = here.gpus.bit_count()
            if untouched:
                total -= self._intact(size)
            if a == k == size:
                total -= self._digit(_MISSED, 1)
        if here.nvlinks:
            total -= self._digit(_UNLINKED, _pairs(a)) + self._digit(_LINKS, here.nvlinks * _pairs(a))
        return total

    def _of_nvlink(self, taken: int, left: int) -> int:
        """Objectives 5, 6, 7 and 9 of GPUs that are given."""
        links = self._shape.nvlinks
        joined = [links[a][b] for a, b in combinations(_listed(taken), 2)]
        total = self._digit(_UNLINKED, joined.count(0)) - self._digit(_LINKS, sum(joined))
        if taken in self._shape.partitions:
            total -= self._digit(_MISSED, 1)
        return total - sum(
            self._intact(mask.bit_count()) for mask in self._shape.partitions if mask & left == mask
        )

    def _intact(self, size: int) -> int:
        """One partition of this size left whole; within the one digit, larger ones outweigh all smaller."""
        return self._digit(
            _INTACT, 16 ** (len(self._partition_sizes) - 1 - self._partition_sizes.index(size))
        )

    def _digit(self, number: int, value: int) -> int:
        return value << (self._tie + _DIGIT * (_NUMA - number))


def _tree(shape: Shape) -> _Class:
    """The classes of all levels as a tree. Classes of one level are disjoint and lie within those of the next."""
    root = _Class(_everything(shape.gpus), _everything(shape.nics))
    root.own = Group(root.gpus, root.nics)
    for level, groups in reversed(list(zip(NEAR, shape.classes, strict=True))):
        for group in groups:
            _insert(root, group).levels.add(level)
    return root


def _tree_with_nvlink(shape: Shape) -> _Class | None:
    """The tree with NVLink domains and partitions as further classes; None where these do not follow the tree."""
    root = _tree(shape)
    for domain in _domains(shape):
        width = _width(shape, domain)
        at = _insert_gpus(root, domain) if width else None
        if at is None:
            return None
        at.nvlinks = width
    for mask in shape.partitions:
        at = _insert_gpus(root, mask)
        if at is None:
            return None
        at.partition = True
    return root


def _insert(here: _Class, group: Group) -> _Class:
    """The class of exactly these devices, made where it is missing. It is known to fit into the tree."""
    while (here.gpus, here.nics) != group:
        below = next(
            (child for child in here.children if child.gpus & group.gpus or child.nics & group.nics), None
        )
        if below is None:
            return _split(here, group, [])
        here = below
    return here


def _insert_gpus(here: _Class, gpus: int) -> _Class | None:
    """A class with exactly these GPUs (and the NICs of the classes that it takes in); None where it cuts through one."""
    while True:
        around = next((child for child in here.children if child.gpus & gpus == gpus), None)
        if around is None:
            break
        here = around
    if here.gpus == gpus:
        return here
    inside = [child for child in here.children if child.gpus & gpus]
    if any(child.gpus & ~gpus for child in inside):
        return None
    nics = sum(child.nics for child in inside)
    return _split(here, Group(gpus, nics), inside)


def _split(here: _Class, group: Group, inside: list[_Class]) -> _Class:
    """A new class below ``here`` that takes over the children ``inside`` and what else of ``group`` was ``here``'s own."""
    made = _Class(group.gpus, group.nics, children=inside)
    made.own = Group(here.own.gpus & group.gpus, here.own.nics & group.nics)
    here.own = Group(here.own.gpus & ~group.gpus, here.own.nics & ~group.nics)
    here.children = [child for child in here.children if child not in inside] + [made]
    return made


def _domains(shape: Shape) -> list[int]:
    """Sets of GPUs that NVLink joins, directly or not, of two or more."""
    found: list[int] = []
    for gpu, row in enumerate(shape.nvlinks):
        joined = sum(1 << other for other, links in enumerate(row) if links) | 1 << gpu
        touched = [mask for mask in found if mask & joined]
        found = [mask for mask in found if mask not in touched]
        found.append(reduce(or_, touched, joined))
    return [mask for mask in found if mask.bit_count() > 1]


def _width(shape: Shape, domain: int) -> int:
    """NVLinks of every pair of the domain; 0 where pairs differ."""
    widths = {shape.nvlinks[a][b] for a, b in combinations(_listed(domain), 2)}
    return widths.pop() if len(widths) == 1 else 0


def _everything(count: int) -> int:
    """The mask of all of so many devices."""
    return (1 << count) - 1


def _pairs(count: int) -> int:
    return count * (count - 1) // 2


def _listed(mask: int) -> list[int]:
    return [bit for bit in range(mask.bit_length()) if mask >> bit & 1]


def _subsets(mask: int, size: int) -> Iterator[int]:
    for chosen in combinations(_listed(mask), size):
        yield sum(1 << bit for bit in chosen)


def _reversed(bits: int, width: int) -> int:
    return sum(1 << width - 1 - bit for bit in _listed(bits))
