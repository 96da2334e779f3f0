"""The terms of the score that read the selection alone, and what is better not broken; their weights (the
table is in `score`).

Kept apart from the rest of the score since sets of devices of a machine are judged by them once
(`device_table`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Final

from koordra.allocator.devices.gpu_nic_distance import least_sum
from koordra.allocator.devices.nvlink_fabric import Fabric
from koordra.api import names
from koordra.topology.levels import Level

NEARNESS: Final = 10**6
NVLINK: Final = 5 * 10**4
UNLINKED: Final = 10
COMPACTNESS: Final = 10**4

COMPACT: Final = ((names.ATTR_PCIE_SWITCH, 1), (names.STANDARD_PCIE_ROOT, 1), (names.ATTR_NUMA_NODE, 2))
"""Attribute and weight of compactness: what devices should have in common. Another such attribute is a line
here; symmetry and bounds read it."""

_WHOLE: Final = (((names.ATTR_PCIE_SWITCH, names.STANDARD_PCIE_ROOT), 4), ((names.ATTR_NUMA_NODE,), 1))
"""Attributes of COMPACT of which the first that a GPU has names its group, and the weight of a broken
group."""

PARTITION_WEIGHTS: Final = {2: 4, 4: 1}

Groups = Sequence[tuple[int, Sequence[frozenset[int]]]]
"""By level (switch groups, roots, NUMA nodes): the weight of a group more than one, and the GPUs of each
group."""

WholeGroups = list[tuple[int, frozenset[int]]]
"""Weight and members of the groups that are better not broken."""


class SelectionTerms:
    """The terms that read which devices are chosen, whatever else is free: nearness, NVLink, compactness.

    Each has an exact form, for a complete choice, and a least one, for a choice to which devices are still
    added. Devices are positions; `level` is that of a GPU and a NIC. `aware`: these terms are about the
    claim, not a tie-break.
    """

    def __init__(
        self, level: Callable[[int, int], Level], fabric: Fabric, groups: Groups, *, aware: bool = True
    ) -> None:
        self.fabric, self.groups = fabric, groups
        weights = (NEARNESS, NVLINK, COMPACTNESS) if aware else (1, 1, 1)
        self._nearness, self._nvlink, self._compactness = weights
        steps = self.steps = cache(lambda gpu, nic: max(0, level(gpu, nic).value) // 10)
        """Of a GPU and a NIC: PIX 1, PXB 2, PHB 3, NODE 4, SYS 5."""
        self._nearest_of = cache(lambda gpu, nics: min([steps(gpu, nic) for nic in nics]))
        self._pairings: dict[tuple[object, ...], int] = {}
        self._together: dict[frozenset[int], int] = {}
        self._least_of_sets: dict[tuple[object, ...], int] = {}

    def cost(self, gpus: Sequence[int], nics: Sequence[int]) -> int:
        """All of them, for different GPUs and NICs."""
        return self.nearness(gpus, nics) + self.together(gpus)

    def nearness(self, gpus: Sequence[int], nics: Sequence[int], *, every: bool = False) -> int:
        """Steps of the best pairing. `every`: of each GPU to its nearest NIC."""
        if not gpus or not nics:
            return 0
        key = (tuple(sorted(gpus)), tuple(sorted(nics)), every)
        found = self._pairings.get(key)
        if found is None:
            rows = [[self.steps(gpu, nic) for nic in nics] for gpu in gpus]
            found = sum(map(min, rows)) if every else least_sum(rows)
            self._pairings[key] = found
        return found * self._nearness

    def least_nearness(
        self, gpus: Sequence[int], nics: frozenset[int], *, further: frozenset[int], more: int
    ) -> int:
        """With the nearest of the NICs for each GPU, and so many of the further GPUs."""
        least = sum([self._nearest_of(gpu, nics) for gpu in gpus])
        if more:
            least += more * min(
                [self._nearest_of(gpu, nics) for gpu in further if gpu not in gpus], default=0
            )
        return least * self._nearness

    def together(self, gpus: Iterable[int]) -> int:
        """NVLink and compactness."""
        key = frozenset(gpus)
        found = self._together.get(key)
        if found is None:
            found = self._together[key] = self.nvlink(key) + self.compactness(key)
        return found

    def nvlink(self, gpus: frozenset[int]) -> int:
        return (self._lacking_links(gpus) + self._no_partition(gpus)) * self._nvlink

    def compactness(self, gpus: frozenset[int]) -> int:
        return self._spread(gpus) * self._compactness

    def least_together(self, gpus: Iterable[int], *, further: frozenset[int], more: int) -> int:
        """The same with so many of the further GPUs: the set may still become a partition."""
        chosen = frozenset(gpus)
        key = (chosen, further, more)
        found = self._least_of_sets.get(key)
        if found is None:
            spread = self._spread(chosen, further - chosen, more)
            found = spread * self._compactness + self._lacking_links(chosen) * self._nvlink
            self._least_of_sets[key] = found
        return found

    def _spread(self, gpus: frozenset[int], candidates: frozenset[int] = frozenset(), more: int = 0) -> int:
        """Groups that the GPUs are spread over; with `more` of the candidates, which go where they open the
        fewest."""
        if len(gpus) + more < 2:
            return 0
        found = 0
        for weight, groups in self.groups:
            closed = [members for members in groups if gpus.isdisjoint(members)]
            count = len(groups) - len(closed)
            if more:
                left = more - len(candidates.difference(*closed))
                for size in sorted([len(members & candidates) for members in closed], reverse=True):
                    if left > 0:
                        left, count = left - size, count + 1
            found += weight * max(0, count - 1)
        return found

    def _lacking_links(self, gpus: frozenset[int]) -> int:
        """Halves of 10^5: what the pairs of cards lack in NVLink; nothing on a node without it."""
        fabric = self.fabric
        cards = sorted(device for device in gpus if device in fabric.place)
        links = [fabric.between(a, b) for position, a in enumerate(cards) for b in cards[:position]]
        return sum([fabric.widest - count if count else UNLINKED for count in links])

    def _no_partition(self, gpus: frozenset[int]) -> int:
        """That the cards are no partition though the fabric has some of that size."""
        cards = gpus.intersection(self.fabric.place)
        sized = len(cards) > 1 and len(cards) in self.fabric.sizes
        return UNLINKED if sized and cards not in self.fabric.partitions else 0


def whole_groups(groups: Groups, fabric: Fabric, cards: Iterable[int]) -> WholeGroups:
    """The groups of cards that are better not broken, on a node that nobody uses."""
    found: WholeGroups = []
    cards = list(cards)
    for attributes, weight in _WHOLE:
        levels = [level for level, (attribute, _) in enumerate(COMPACT) if attribute in attributes]
        members: dict[tuple[int, int], set[int]] = {}
        for card in cards:
            of = [(level, at) for level in levels for at, one in enumerate(groups[level][1]) if card in one]
            if of:
                members.setdefault(of[0], set()).add(card)
        found += [(weight, frozenset(one)) for one in members.values()]
    return found + [
        (PARTITION_WEIGHTS[len(members)], members)
        for members in fabric.partitions
        if len(members) in PARTITION_WEIGHTS
    ]
