"""The best choice of GPUs and NICs by trying all of them: the objective of ``koordra.topology.shapes``, word by word.

Written from that text alone, with lists, a matching algorithm and networkx instead of masks, counts and classes; nothing is
shared with the tables or the search but the facts of the machine and the published level of two devices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations

import networkx as nx
import numpy as np

from koordra.topology.levels import Level
from koordra.topology.machine import Device, Gpu, Machine, Nic, nvlinks_between, pcie_level

LEVELS = (Level.PIX, Level.PXB, Level.PHB, Level.NODE)
HOPPER = ([0, 1, 2, 3, 4, 5, 6, 7], [0, 1, 2, 3], [4, 5, 6, 7], [0, 1], [2, 3], [4, 5], [6, 7])
Numbers = tuple[int, ...]


class BestChoice:
    """Devices are numbered as in the machine; sets of devices are sorted tuples of numbers."""

    def __init__(self, gpus: Sequence[Gpu], nics: Sequence[Nic]) -> None:
        self.gpus, self.nics = gpus, nics
        everything: list[Device] = [*gpus, *nics]
        self.within = {level: self._connected(everything, level) for level in LEVELS}
        self.links = [[0 if a is b else nvlinks_between(a, b) for b in gpus] for a in gpus]
        self.partitions = self._partitions()
        self._inside: dict[tuple[Numbers, Numbers], Numbers] = {}
        self._left: dict[tuple[Numbers, Numbers], Numbers] = {}

    @classmethod
    def of(cls, machine: Machine) -> BestChoice:
        return cls(machine.gpus, machine.nics)

    def best(self, gpus: Numbers, nics: Numbers, k: int, j: int) -> tuple[Numbers, Numbers, Level | None]:
        """Every choice is tried; ``combinations`` yields them in the order of ties and ``min`` keeps the first."""
        chosen = min(
            ((g, n) for g in combinations(gpus, k) for n in combinations(nics, j)),
            key=lambda choice: self.inside(*choice) + self.left(_but(gpus, choice[0]), _but(nics, choice[1])),
        )
        return (*chosen, self.level(*chosen))

    def inside(self, gpus: Numbers, nics: Numbers) -> Numbers:
        """Numbers 1 to 8."""
        if (gpus, nics) not in self._inside:
            among = gpus or tuple(len(self.gpus) + nic for nic in nics)
            pairs = list(combinations(among, 2))
            linked = [self.links[a][b] for a, b in combinations(gpus, 2)]
            of_size = [partition for partition in self.partitions if len(partition) == len(gpus)]
            self._inside[gpus, nics] = (
                *(self.without_partner(gpus, nics, level) for level in reversed(LEVELS)),
                int(bool(of_size) and list(gpus) not in of_size),
                linked.count(0),
                -sum(linked),
                sum(1 + sum(b not in self.within[level][a] for level in LEVELS) for a, b in pairs),
            )
        return self._inside[gpus, nics]

    def left(self, gpus: Numbers, nics: Numbers) -> Numbers:
        """Numbers 9 to 12."""
        if (gpus, nics) not in self._left:
            intact = [partition for partition in self.partitions if set(partition) <= set(gpus)]
            self._left[gpus, nics] = (
                *(-sum(len(partition) == size for partition in intact) for size in (8, 4, 2)),
                sum(len(gpus) - self.matched(gpus, nics, level, room=1) for level in LEVELS),
                -self.whole_groups(gpus, Level.PXB),
                -self.whole_groups(gpus, Level.NODE),
            )
        return self._left[gpus, nics]

    def level(self, gpus: Numbers, nics: Numbers) -> Level | None:
        if not gpus or not nics:
            return None
        reached = (level for level in LEVELS if not self.without_partner(gpus, nics, level))
        return next(reached, Level.SYS)

    def without_partner(self, gpus: Numbers, nics: Numbers, level: Level) -> int:
        if not gpus or not nics:
            return 0
        if len(gpus) >= len(nics):
            return len(gpus) - self.matched(gpus, nics, level, room=-(-len(gpus) // len(nics)))
        return len(nics) - self.matched(gpus, nics, level, room=-(-len(nics) // len(gpus)), for_nics=True)

    def matched(
        self, gpus: Numbers, nics: Numbers, level: Level, *, room: int, for_nics: bool = False
    ) -> int:
        """The most devices of one kind that can have a partner of the other, each of which serves up to ``room``."""
        first_nic = len(self.gpus)
        seekers: list[int] = list(gpus)
        partners = [first_nic + nic for nic in nics]
        if for_nics:
            seekers, partners = partners, seekers
        near = self.within[level]
        wanted = [
            [place for place, partner in enumerate(partners) if partner in near[seeker]] for seeker in seekers
        ]
        return _matching(wanted, [room] * len(partners))

    def whole_groups(self, left: Numbers, level: Level) -> int:
        gpus = range(len(self.gpus))
        groups = {frozenset(gpu for gpu in gpus if gpu in self.within[level][one]) for one in gpus}
        return sum(group <= set(left) for group in groups)

    @staticmethod
    def _connected(devices: Sequence[Device], level: Level) -> dict[int, set[int]]:
        graph: nx.Graph[int] = nx.empty_graph(len(devices))
        graph.add_edges_from(
            (a, b)
            for a, b in combinations(range(len(devices)), 2)
            if pcie_level(devices[a], devices[b]) <= level
        )
        return {device: component for component in nx.connected_components(graph) for device in component}

    def _partitions(self) -> list[list[int]]:
        joined = {self.links[a][b] for a, b in combinations(range(len(self.gpus)), 2)}
        if len(self.gpus) != 8 or len(joined) != 1 or joined == {0}:
            return []
        if any(gpu.architecture != "Hopper" for gpu in self.gpus):
            return []
        by_minor = sorted(range(8), key=lambda gpu: self.gpus[gpu].minor or 0)
        return [sorted(by_minor[place] for place in partition) for partition in HOPPER]


def _matching(wanted: Sequence[Sequence[int]], room: Sequence[int]) -> int:
    """Augmenting paths (Kuhn): each seeker in turn, pushing earlier ones aside where they can go elsewhere."""
    served: list[list[int]] = [[] for _ in room]

    def place(seeker: int, tried: set[int]) -> bool:
        for partner in wanted[seeker]:
            if partner in tried:
                continue
            tried.add(partner)
            if len(served[partner]) < room[partner]:
                served[partner].append(seeker)
                return True
            for index, other in enumerate(served[partner]):
                if place(other, tried):
                    served[partner][index] = seeker
                    return True
        return False

    return sum(place(seeker, set()) for seeker in range(len(wanted)))


def _but(everything: Numbers, taken: Iterable[int]) -> Numbers:
    return tuple(device for device in everything if device not in taken)


def numbers(mask: int) -> Numbers:
    """The devices of a mask."""
    return tuple(bit for bit in range(mask.bit_length()) if mask >> bit & 1)


def mask_of(devices: Iterable[int]) -> int:
    return sum(1 << device for device in devices)


def all_answers(truth: BestChoice, gpus: int, nics: int) -> Iterator[tuple[int, int, int, int, int, int]]:
    """For all masks within ``gpus`` x ``nics`` and all sizes: eligible GPUs and NICs, k, j, best GPUs, best NICs.

    Every subset of every mask is compared; the numbers of each (set, rest) are computed once and ranked.
    """
    gpu_sets, nic_sets = _subsets(gpus), _subsets(nics)
    inside = _ranks(gpu_sets, nic_sets, truth.inside)
    left = _ranks(gpu_sets, nic_sets, truth.left)
    gpu_at = {mask: index for index, mask in enumerate(gpu_sets)}
    nic_at = {mask: index for index, mask in enumerate(nic_sets)}
    for eligible_gpus in gpu_sets:
        g = [mask for mask in gpu_sets if not mask & ~eligible_gpus]
        g_rows, g_rest = [gpu_at[mask] for mask in g], [gpu_at[eligible_gpus ^ mask] for mask in g]
        for eligible_nics in nic_sets:
            n = [mask for mask in nic_sets if not mask & ~eligible_nics]
            n_rows, n_rest = [nic_at[mask] for mask in n], [nic_at[eligible_nics ^ mask] for mask in n]
            worth = (inside[np.ix_(g_rows, n_rows)] << 20) + left[np.ix_(g_rest, n_rest)]
            for k in range(eligible_gpus.bit_count() + 1):
                of_k = [at for at, mask in enumerate(g) if mask.bit_count() == k]
                for j in range(eligible_nics.bit_count() + 1):
                    of_j = [at for at, mask in enumerate(n) if mask.bit_count() == j]
                    first = int(np.argmin(worth[np.ix_(of_k, of_j)]))
                    row, column = divmod(first, len(of_j))
                    yield eligible_gpus, eligible_nics, k, j, g[of_k[row]], n[of_j[column]]


def _subsets(mask: int) -> list[int]:
    """Subsets by size, those of one size in the order of ties."""
    devices = numbers(mask)
    return [mask_of(chosen) for size in range(len(devices) + 1) for chosen in combinations(devices, size)]


def _ranks(
    gpu_sets: Sequence[int], nic_sets: Sequence[int], worth: Callable[[Numbers, Numbers], Numbers]
) -> np.ndarray:
    values = [[worth(numbers(g), numbers(n)) for n in nic_sets] for g in gpu_sets]
    order = {value: rank for rank, value in enumerate(sorted({value for row in values for value in row}))}
    return np.array([[order[value] for value in row] for row in values], dtype=np.int64)
