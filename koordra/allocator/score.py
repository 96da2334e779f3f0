"""What makes one placement better than another, as one whole number.

A cost is the sum of the following; the smallest wins, and among equals the first in search order (node name, then device
order). `Plan.scores` publishes minus the cost, so that higher is better. Every term depends only on the final state up to
symmetry (`symmetry.py` relies on it).

    10^11   per rung that a Preferred JointAllocation had to climb (added by the caller)
    10^9    per step down in a firstAvailable list
    10^6    nearness: for each GPU, the level of the NIC paired with it (PIX 1, PXB 2, PHB 3, NODE 4, SYS 5; best pairing; a
            device counts once, however many shares of it there are);
            where a request takes `All`, the nearest one, since what everyone of the group has is nobody's own
    10^5    NVLink (of the GPUs of a node that has it): 5 per pair that no NVLink joins, a half per link that a pair has less
            than the widest pair of the node, 5 if the GPUs are no partition though the fabric has partitions of that size
    10^4    compactness: switch groups, roots and NUMA nodes that the GPUs are spread over, less one each; NUMA counts double
    10      broken groups: free GPUs left in groups that were whole and no longer are: switch groups and partitions of two
            (times 4), NUMA nodes and partitions of four (times 1); a GPU without a switch above it is grouped by its root
    1       destroyed places: of each card of which a part is taken, thousandths of its parts, by size, that can no longer be
            taken (`cut_cards`); so that a small MIG slice goes where no large one can
    1       leftover: what stays free of shared devices in use, in thousandths (best fit), and of the node's GPUs

Policies turn the last three lines: `Spread` counts what is used instead of what is left, on cards (device) or on the node (node),
and does not mind broken groups and destroyed places. On cards it counts it once per share, so that shares of one pod keep apart too. Nearness, NVLink and compactness count as above under TopologyAware, and 1 (NVLink: 1 per half)
as tie-break under Binpack and Spread of the device policy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from koordra.allocator.cut_cards import CutCards
from koordra.allocator.inventory import GPU, NIC
from koordra.api import names
from koordra.api.opaque.parameters import DevicePolicy, NodePolicy, PlacementPolicy
from koordra.errors import PlanError
from koordra.topology.levels import Level, level_between

if TYPE_CHECKING:
    from koordra.allocator.fabric import Fabric
    from koordra.allocator.node_state import NodeState
from koordra.allocator.search import Search

RUNG: Final = 10**11

WORTH: Final = 10**4
"""What is below this in a cost is about the cluster, not about the claim."""

ALTERNATIVE: Final = 10**9
NEARNESS: Final = 10**6
NVLINK: Final = 5 * 10**4
UNLINKED: Final = 10
COMPACTNESS: Final = 10**4
BROKEN: Final = 10

FIRST_FIT: Final = "FirstFit"
_POLICIES: Final[Mapping[str, PlacementPolicy | None]] = {
    "koordra": PlacementPolicy(NodePolicy.FRAGMENTATION_AWARE, DevicePolicy.TOPOLOGY_AWARE),
    "FragmentationAware": PlacementPolicy(NodePolicy.FRAGMENTATION_AWARE, DevicePolicy.TOPOLOGY_AWARE),
    "TopologyAware": PlacementPolicy(NodePolicy.BINPACK, DevicePolicy.TOPOLOGY_AWARE),
    "Binpack": PlacementPolicy(NodePolicy.BINPACK, DevicePolicy.BINPACK),
    "Spread": PlacementPolicy(NodePolicy.SPREAD, DevicePolicy.SPREAD),
    FIRST_FIT: None,
}
POLICIES: Final = tuple(_POLICIES)


def policy_of(name: str) -> PlacementPolicy | None:
    """The policy's two halves; None for FirstFit, which does not score. Raises PlanError for an unknown name."""
    if name not in _POLICIES:
        raise PlanError(f"{name!r} is not a policy; policies are {', '.join(POLICIES)}")
    return _POLICIES[name]


COMPACT: Final = ((names.ATTR_PCIE_SWITCH, 1), (names.STANDARD_PCIE_ROOT, 1), (names.ATTR_NUMA_NODE, 2))
"""Attribute and weight of compactness."""

_WHOLE: Final = (((names.ATTR_PCIE_SWITCH, names.STANDARD_PCIE_ROOT), 4), ((names.ATTR_NUMA_NODE,), 1))
"""Attributes of which the first that a GPU has names its group, and the weight of a broken group."""

PARTITION_WEIGHTS: Final = {2: 4, 4: 1}


@dataclass(slots=True)
class Before:
    """The node as it was: which GPUs were free, the groups they form, and those of them that were whole."""

    groups: Sequence[tuple[int, Sequence[frozenset[int]]]]
    whole: Sequence[tuple[int, frozenset[int]]]
    gpu_total: Decimal

    @classmethod
    def of(cls, state: NodeState) -> Before:
        gpus = [device for device, offered in enumerate(state.devices) if offered.kind == GPU]
        cards = [
            device for device in gpus if state.devices[device].plain.get(names.ATTR_TYPE) != names.TYPE_MIG
        ]
        free = {device for device in cards if not state.busy[device] and not state.holders[device]}
        candidates = [
            (weight, members) for levels, weight in _WHOLE for members in _grouped(state, cards, levels)
        ]
        candidates += [
            (PARTITION_WEIGHTS[len(members)], members)
            for members in state.fabric.partitions
            if len(members) in PARTITION_WEIGHTS
        ]
        return cls(
            groups=[(weight, _grouped(state, gpus, (attribute,))) for attribute, weight in COMPACT],
            whole=[(weight, members) for weight, members in candidates if members <= free],
            gpu_total=Decimal(max(len(gpus), 1)),
        )


def _grouped(state: NodeState, gpus: Sequence[int], attributes: Sequence[str]) -> list[frozenset[int]]:
    """GPUs by the first of the attributes that they have."""
    found: dict[str, set[int]] = {}
    for device in gpus:
        plain = state.devices[device].plain
        value = next((f"{name}={plain[name]}" for name in attributes if plain.get(name) is not None), None)
        if value is not None:
            found.setdefault(value, set()).add(device)
    return [frozenset(members) for members in found.values()]


class Cost:
    """The objective of one node under one policy; called at each complete choice."""

    def __init__(self, state: NodeState, policy: PlacementPolicy) -> None:
        self.before = Before.of(state)
        self.node = policy.node or NodePolicy.FRAGMENTATION_AWARE
        self.device = policy.device or DevicePolicy.TOPOLOGY_AWARE
        self._cut = CutCards(state)
        self._pairings: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}

    def __call__(self, search: Search) -> int:
        placed = search.placed
        devices = dict.fromkeys(entry.device for entry in placed)
        gpus = [device for device in devices if search.state.devices[device].kind == GPU]
        nics = [device for device in devices if search.state.devices[device].kind == NIC]
        every = any(entry.wanted.takes_all for entry in placed)
        # One step per request, however many devices it has.
        chosen = {(entry.wanted.claim, entry.wanted.request): entry.wanted.index for entry in placed}
        cost = sum(chosen.values()) * ALTERNATIVE
        cost += self.near(search.state, gpus, nics, every=every)
        if self.device is not DevicePolicy.SPREAD:
            cost += self._broken(gpus) * BROKEN + self._cut.destroyed(gpus)
        return cost + self._cards(search) + self._node(search)

    def near(self, state: NodeState, gpus: Sequence[int], nics: Sequence[int], *, every: bool = False) -> int:
        """How near these devices are to each other: nothing else counts here, and nothing of what is in use."""
        aware = self.device is DevicePolicy.TOPOLOGY_AWARE
        found = self._nearness(state, gpus, nics, every=every) * (NEARNESS if aware else 1)
        found += self._compactness(gpus) * (COMPACTNESS if aware else 1)
        return found + _nvlink(state.fabric, gpus) * (NVLINK if aware else 1)

    def _nearness(self, state: NodeState, gpus: Sequence[int], nics: Sequence[int], *, every: bool) -> int:
        if not gpus or not nics:
            return 0
        key = (tuple(sorted(gpus)), tuple(sorted(nics)))
        found = self._pairings.get(key)
        if found is None:
            rows = [
                [_steps(state.devices[gpu].plain, state.devices[nic].plain) for nic in nics] for gpu in gpus
            ]
            found = sum(map(min, rows)) if every else least_sum(rows)
            self._pairings[key] = found
        return found

    def _compactness(self, gpus: Sequence[int]) -> int:
        if len(gpus) < 2:
            return 0
        held = set(gpus)
        return sum(
            weight * max(0, sum(not held.isdisjoint(members) for members in groups) - 1)
            for weight, groups in self.before.groups
        )

    def _broken(self, gpus: Sequence[int]) -> int:
        held = set(gpus)
        return sum(weight * len(members - held) for weight, members in self.before.whole if held & members)

    def _cards(self, search: Search) -> int:
        """Thousandths left of each shared device that the group uses; spreading, what each share finds used, its own included."""
        shared = [entry.device for entry in search.placed if entry.shared]
        if self.device is DevicePolicy.SPREAD:
            return sum(int(1000 * _used_share(search.state, device)) for device in shared)
        return sum(int(1000 * (1 - _used_share(search.state, device))) for device in set(shared))

    def _node(self, search: Search) -> int:
        state = search.state
        used = Decimal(0)
        for device, offered in enumerate(state.devices):
            if offered.kind == GPU:
                taken = state.busy[device] or bool(search.allocating.get(device))
                used += Decimal(1) if taken else _used_share(state, device)
        share = used / self.before.gpu_total
        return int(1000 * share) if self.node is NodePolicy.SPREAD else int(1000 * (1 - share))


def _nvlink(fabric: Fabric, gpus: Sequence[int]) -> int:
    """What the GPUs lack in NVLink, in halves of 10^5; nothing on a node without NVLink."""
    cards = sorted({device for device in gpus if device in fabric.place})
    if len(cards) < 2:
        return 0
    links = [fabric.between(a, b) for position, a in enumerate(cards) for b in cards[:position]]
    total = sum(fabric.widest - count if count else UNLINKED for count in links)
    if len(cards) in fabric.sizes and frozenset(cards) not in fabric.partitions:
        total += UNLINKED
    return total


def _used_share(state: NodeState, device: int) -> Decimal:
    """The largest used part of any capacity that measures the device (not the number of sharers)."""
    used = state.used[device]
    if not used:
        return Decimal(0)
    capacity = state.devices[device].device.capacity
    parts = [
        used.get(name, Decimal(0)) / entry.value
        for name, entry in capacity.items()
        if entry.value > 0 and name.rpartition("/")[2] != names.CAPACITY_SLOTS
    ]
    return max(parts, default=Decimal(0))


def _steps(gpu: Mapping[str, Any], nic: Mapping[str, Any]) -> int:
    return max(0, level_between(gpu, nic).value) // 10


def least_sum(costs: Sequence[Sequence[int]]) -> int:
    """Least total when each row gets a column of its own; with fewer columns than rows each column serves its share."""
    rows, columns = len(costs), len(costs[0])
    room = -(-rows // columns)
    return sum(costs[row][column // room] for row, column in enumerate(_assignment(costs, room)))


def _assignment(costs: Sequence[Sequence[int]], room: int) -> list[int]:
    """Hungarian algorithm (shortest augmenting paths); columns are repeated `room` times. Returns a column per row."""
    rows, columns = len(costs), len(costs[0]) * room
    infinity = 10**9
    row_price, column_price = [0] * (rows + 1), [0] * (columns + 1)
    owner, way = [0] * (columns + 1), [0] * (columns + 1)
    for row in range(1, rows + 1):
        owner[0], column = row, 0
        least, done = [infinity] * (columns + 1), [False] * (columns + 1)
        while owner[column]:
            done[column] = True
            current, delta, following = owner[column], infinity, 0
            for other in range(1, columns + 1):
                if done[other]:
                    continue
                reduced = costs[current - 1][(other - 1) // room] - row_price[current] - column_price[other]
                if reduced < least[other]:
                    least[other], way[other] = reduced, column
                if least[other] < delta:
                    delta, following = least[other], other
            for other in range(columns + 1):
                if done[other]:
                    row_price[owner[other]] += delta
                    column_price[other] -= delta
                else:
                    least[other] -= delta
            column = following
        while column:
            owner[column] = owner[way[column]]
            column = way[column]
    found = [0] * rows
    for column in range(1, columns + 1):
        if owner[column]:
            found[owner[column] - 1] = column - 1
    return found


def worst_pair(gpus: Sequence[Mapping[str, Any]], nics: Sequence[Mapping[str, Any]]) -> Level | None:
    """The worst level of the pairing whose worst level is best; None where there is nothing to pair."""
    if not gpus or not nics:
        return None
    room = -(-len(gpus) // len(nics))
    levels = [[level_between(gpu, nic) for nic in nics] for gpu in gpus]
    for bound in sorted({level for row in levels for level in row}):
        blocked = [[0 if level <= bound else 1 for level in row] for row in levels]
        columns = _assignment(blocked, room)
        if all(blocked[row][column // room] == 0 for row, column in enumerate(columns)):
            return bound
    return None
