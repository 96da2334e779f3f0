"""The tree that a node's devices sit in, and how a labelled tree is written down so that equal ones read the
same.

Levels are columns: per device the value at that level, "" where it has none. Levels are used only when they
nest (every NUMA node lies in one socket, every root in one NUMA node, ...); `insert` puts one more level
where it nests, as deep as that is possible. The tree itself keeps only what branches: a level with a single
child is remembered in the child, with its number, so that nodes of different machines compare rightly.

`fold` writes a tree from the leaves up: each subtree becomes a number for (its levels, its children's
numbers, sorted). Devices with equal labels whose subtrees are equal, ancestor by ancestor, can be exchanged:
they are in one orbit.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from itertools import repeat
from typing import Any, Final, NamedTuple

Column = list[str]

_ROOT: Final = 0


def nests(values: Sequence[str], above: Sequence[Sequence[str]]) -> bool:
    """Whether each value lies under one path of the levels above."""
    parents: dict[str, tuple[str, ...]] = {}
    paths = zip(*above, strict=True) if above else repeat(())
    return all(
        not value or parents.setdefault(value, path) == path
        for value, path in zip(values, paths, strict=False)
    )


def insert(level: str, group: dict[int, str], columns: list[tuple[str, Column]]) -> int | None:
    """Put the level where all nest, as deep as possible, and tell where that is; the values in `group` are
    completed.

    Devices without a value (NICs, where the level is about GPUs) go along with those below one roof.
    """
    for depth in range(len(columns), -1, -1):
        values = spread(group, [column for _, column in columns[depth:]])
        lowered = [column for _, column in [*columns[:depth], (level, values), *columns[depth:]]]
        if all(nests(lowered[at], lowered[:at]) for at in range(depth, len(lowered))):
            columns.insert(depth, (level, values))
            return depth
    return None


def spread(group: dict[int, str], lower: Sequence[Column]) -> Column:
    """The level's values, given also to the devices that share a lower roof with devices of one value."""
    if not lower:
        size = max(group, default=-1) + 1
        return [group.get(device, "") for device in range(size)]
    values = [group.get(device, "") for device in range(len(lower[0]))]
    for column in lower:
        roofs: dict[str, set[str]] = {}
        for device, roof in enumerate(column):
            if roof and values[device]:
                roofs.setdefault(roof, set()).add(values[device])
        values = [
            values[device] or (next(iter(roofs[roof])) if len(roofs.get(roof, ())) == 1 else "")
            for device, roof in enumerate(column)
        ]
    return values


class Orbits(NamedTuple):
    """Each device's orbit in one labelled tree, put together when it is asked for."""

    labels: Sequence[int]
    ancestors: Sequence[Sequence[int]]
    subtrees: Sequence[int]

    def of(self, device: int) -> Hashable:
        return (self.labels[device], *[self.subtrees[above] for above in self.ancestors[device]])


class DeviceTree:
    """Built once per node and group. `alone[device]` are the levels at which the device has no company."""

    def __init__(self, columns: Sequence[tuple[str, Column]], size: int) -> None:
        levels: list[tuple[str, ...]] = [()]
        parents: list[int] = [_ROOT]
        numbers: dict[tuple[str, ...], int] = {}
        homes: list[int] = []
        for device in range(size):
            path: tuple[str, ...] = ()
            home = _ROOT
            for level, column in columns:
                value = column[device]
                path += (value,)
                if value:
                    if path not in numbers:
                        numbers[path] = len(levels)
                        levels.append((level,))
                        parents.append(home)
                    home = numbers[path]
            homes.append(home)
        self.alone: list[tuple[str, ...]] = [()] * size
        self._collapse(levels, parents, homes)
        self.ancestors = [self._above(home, parents) for home in homes]
        self._homes, self._parents, self._levels = homes, parents, levels
        kept = {node for above in self.ancestors for node in above}
        self._order = sorted(kept, reverse=True)

    def _collapse(self, levels: list[tuple[str, ...]], parents: list[int], homes: list[int]) -> None:
        """Leave out subtrees with one child; parents have smaller numbers than their children."""
        nodes: list[list[int]] = [[] for _ in levels]
        devices: list[list[int]] = [[] for _ in levels]
        for device, home in enumerate(homes):
            devices[home].append(device)
        for node in range(len(levels) - 1, _ROOT, -1):
            above = parents[node]
            if len(nodes[node]) + len(devices[node]) != 1:
                nodes[above].append(node)
            elif devices[node]:
                (only,) = devices[node]
                self.alone[only] = levels[node] + self.alone[only]
                homes[only] = above
                devices[above].append(only)
            else:
                (only,) = nodes[node]
                levels[only] = levels[node] + levels[only]
                parents[only] = above
                nodes[above].append(only)

    @staticmethod
    def _above(home: int, parents: Sequence[int]) -> list[int]:
        found = []
        while home != _ROOT:
            found.append(home)
            home = parents[home]
        return found

    def fold(self, labels: Sequence[int], code: Callable[[Any], int]) -> tuple[tuple[int, ...], Orbits]:
        """The canonical form of the tree with these labels, and the devices' orbits."""
        children: dict[int, list[int]] = {node: [] for node in self._order}
        top = children.setdefault(_ROOT, [])
        for device, home in enumerate(self._homes):
            children[home].append(labels[device])
        subtrees = [0] * len(self._levels)
        for node in self._order:
            found = children[node]
            found.sort()
            number = code((self._levels[node], *found))
            subtrees[node] = number
            children[self._parents[node]].append(number)
        top.sort()
        return tuple(top), Orbits(labels, self.ancestors, subtrees)
