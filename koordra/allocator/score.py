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
            taken (`partitionable_gpu`); so that a small MIG slice goes where no large one can
    1       leftover: what stays free of shared devices in use, in thousandths (best fit), and of the node's GPUs

Policies turn the last three lines: `Spread` counts what is used instead of what is left, on cards (device) or on the node (node),
and does not mind broken groups and destroyed places. On cards it counts it once per share, so that shares of one pod keep apart too. Nearness, NVLink and compactness count as above under TopologyAware, and 1 (NVLink: 1 per half)
as tie-break under Binpack and Spread of the device policy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from koordra.allocator.devices.inventory import GPU, NIC
from koordra.allocator.devices.nvlink_fabric import Fabric
from koordra.allocator.devices.partitionable_gpu import CutCards
from koordra.allocator.node_state import NodeState
from koordra.allocator.search.partial_choice import PartialChoice
from koordra.allocator.search.remaining_supply import Side, Tail
from koordra.api import names
from koordra.api.opaque.parameters import DevicePolicy, NodePolicy, PlacementPolicy
from koordra.errors import PlanError
from koordra.topology.levels import Level, level_between

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

_MOST_COVERED: Final = 12
"""Devices of which the sets that have enough room are gone through."""

PARTITION_WEIGHTS: Final = {2: 4, 4: 1}


@dataclass(slots=True)
class InitialState:
    """The node as it was: its GPUs, the groups they form, and those of them that were whole.

    `heaviest`: the weights of all whole groups that one card is in, at most.
    """

    gpus: Sequence[int]
    groups: Sequence[tuple[int, Sequence[frozenset[int]]]]
    whole: Sequence[tuple[int, frozenset[int]]]
    heaviest: int

    @classmethod
    def of(cls, state: NodeState) -> InitialState:
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
        whole = [(weight, members) for weight, members in candidates if members <= free]
        return cls(
            gpus=gpus,
            groups=[(weight, _grouped(state, gpus, (attribute,))) for attribute, weight in COMPACT],
            whole=whole,
            heaviest=max((sum(w for w, members in whole if card in members) for card in cards), default=0),
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
    """The objective of one node under one policy: `cost(search)` of a complete choice, `bound` of a partial one."""

    def __init__(self, state: NodeState, policy: PlacementPolicy) -> None:
        self.state = state
        self.before = InitialState.of(state)
        self.node = policy.node or NodePolicy.FRAGMENTATION_AWARE
        self.device = policy.device or DevicePolicy.TOPOLOGY_AWARE
        self.aware = self.device is DevicePolicy.TOPOLOGY_AWARE
        self._cut = CutCards(state)
        self._pairings: dict[tuple[object, ...], int] = {}
        self._steps: dict[tuple[int, int], int] = {}
        self._of_sets: dict[frozenset[int], tuple[int, int, int]] = {}
        self._nearest: dict[tuple[int, frozenset[int]], int] = {}
        self._least_further_of: dict[tuple[object, ...], int] = {}
        self._least_of_sets: dict[tuple[object, ...], int] = {}
        self._overdrawn = sum(min(0, self._left(device)) for device in range(len(state.devices)))

    def __call__(self, search: PartialChoice) -> int:
        devices = dict.fromkeys([entry.device for entry in search.placed])
        gpus = [device for device in devices if self.state.devices[device].kind == GPU]
        nics = [device for device in devices if self.state.devices[device].kind == NIC]
        every = any(entry.wanted.takes_all for entry in search.placed)
        cost = self._alternatives(search) + sum(self._of_set(gpus))
        cost += self._nearness(gpus, nics, every=every) * (NEARNESS if self.aware else 1)
        return cost + self._cards(search) + self._left_of_node(self._used_of_node(search))

    def bound(
        self,
        search: PartialChoice,
        gpus: Sequence[int],
        others: Sequence[int],
        *,
        tail: Tail,
        more_gpus: int,
        more_others: int,
    ) -> int:
        """At most the cost of any completion. `gpus`, `others`: the devices chosen so far; at least so many more will be.

        Each term by its own least: a step down stays, and so do pairs of GPUs and groups that they are spread over.
        """
        together, broken, destroyed = self._of_set(gpus)
        if tail.gpus.most:
            # The set may still become a partition, and the free rest of a broken group be taken.
            together = self._least_together(gpus, tail.gpus.devices, more_gpus)
            broken = max(0, broken - tail.gpus.most * self.before.heaviest * BROKEN)
        cost = self._alternatives(search) + together + broken + destroyed + self._overdrawn
        cost += self._least_nearness(gpus, others, tail, more_gpus) * (NEARNESS if self.aware else 1)
        nearest = self._least_nearness([], others, tail, 1) * (NEARNESS if self.aware else 1)
        cost += self._least_cards(search, gpus, tail.gpus, more_gpus, nearest)
        cost += self._least_cards(search, others, tail.others, more_others, 0)
        used = self._used_of_node(search)
        spread = self.node is NodePolicy.SPREAD
        return cost + self._left_of_node(used if spread else used + tail.gpus.parts)

    def near(self, gpus: Sequence[int], nics: Sequence[int]) -> int:
        """How near these devices are to each other: nothing else counts here, and nothing of what is in use."""
        nearness = self._nearness(gpus, nics, every=False) * (NEARNESS if self.aware else 1)
        return nearness + self._together(gpus, partition=True)

    # --- terms ------------------------------------------------------------------------------------------------------------

    def _alternatives(self, search: PartialChoice) -> int:
        # One step per request, however many devices it has.
        chosen = {(entry.wanted.claim, entry.wanted.request): entry.wanted.index for entry in search.placed}
        return sum(chosen.values()) * ALTERNATIVE

    def _nearness(self, gpus: Sequence[int], nics: Sequence[int], *, every: bool) -> int:
        if not gpus or not nics:
            return 0
        key = (tuple(sorted(gpus)), tuple(sorted(nics)), every)
        found = self._pairings.get(key)
        if found is None:
            rows = [[self.steps(gpu, nic) for nic in nics] for gpu in gpus]
            found = sum(map(min, rows)) if every else least_sum(rows)
            self._pairings[key] = found
        return found

    def _least_nearness(self, gpus: Sequence[int], others: Sequence[int], tail: Tail, more_gpus: int) -> int:
        nics = tail.may_get
        if not tail.brings_nic or not tail.nics:
            chosen = frozenset(device for device in others if self.state.devices[device].kind == NIC)
            if not chosen:
                return 0
            nics = nics if tail.nics else chosen
        least = sum([self._nearest_of(gpu, nics) for gpu in gpus])
        if more_gpus:
            further = [self._nearest_of(gpu, nics) for gpu in tail.gpus.devices if gpu not in gpus]
            least += more_gpus * min(further, default=0)
        return least

    def _nearest_of(self, gpu: int, nics: frozenset[int]) -> int:
        found = self._nearest.get((gpu, nics))
        if found is None:
            found = self._nearest[gpu, nics] = min([self.steps(gpu, nic) for nic in nics])
        return found

    def steps(self, gpu: int, nic: int) -> int:
        """PIX 1, PXB 2, PHB 3, NODE 4, SYS 5."""
        found = self._steps.get((gpu, nic))
        if found is None:
            level = level_between(self.state.devices[gpu].plain, self.state.devices[nic].plain)
            found = self._steps[gpu, nic] = max(0, level.value) // 10
        return found

    def _of_set(self, gpus: Sequence[int]) -> tuple[int, int, int]:
        """What the GPUs cost as a set: how near they are to each other, broken groups, destroyed places."""
        key = frozenset(gpus)
        found = self._of_sets.get(key)
        if found is None:
            together = self._together(gpus, partition=True)
            keeps = self.device is not DevicePolicy.SPREAD
            found = self._of_sets[key] = (
                together,
                self._broken(key) * BROKEN if keeps else 0,
                self._cut.destroyed(gpus) if keeps else 0,
            )
        return found

    def _together(self, gpus: Sequence[int], *, partition: bool) -> int:
        nvlink = _nvlink(self.state.fabric, gpus, partition=partition)
        return self._compactness(gpus) * (COMPACTNESS if self.aware else 1) + nvlink * (
            NVLINK if self.aware else 1
        )

    def _least_together(self, gpus: Sequence[int], candidates: frozenset[int], more: int) -> int:
        """How near the GPUs and so many further ones are to each other at best."""
        key = (frozenset(gpus), candidates, more)
        found = self._least_of_sets.get(key)
        if found is None:
            nvlink = _nvlink(self.state.fabric, gpus, partition=False)
            spread = self._compactness(gpus, candidates - key[0], more)
            found = spread * (COMPACTNESS if self.aware else 1) + nvlink * (NVLINK if self.aware else 1)
        self._least_of_sets[key] = found
        return found

    def _compactness(
        self, gpus: Sequence[int], candidates: frozenset[int] = frozenset(), more: int = 0
    ) -> int:
        """Groups that the GPUs are spread over; with `more` of the candidates, which go where they open the fewest."""
        if len(gpus) + more < 2:
            return 0
        held = set(gpus)
        found = 0
        for weight, groups in self.before.groups:
            closed = [members for members in groups if held.isdisjoint(members)]
            count = len(groups) - len(closed)
            if more:
                left = more - len(candidates.difference(*closed))
                for size in sorted([len(members & candidates) for members in closed], reverse=True):
                    if left > 0:
                        left, count = left - size, count + 1
            found += weight * max(0, count - 1)
        return found

    def _broken(self, held: frozenset[int]) -> int:
        return sum(weight * len(members - held) for weight, members in self.before.whole if held & members)

    def _cards(self, search: PartialChoice) -> int:
        """Thousandths left of each shared device that the group uses; spreading, what each share finds used, its own included."""
        shared = [entry.device for entry in search.placed if entry.shared]
        if self.device is DevicePolicy.SPREAD:
            return sum([1000 * self.state.parts[device] // self.state.whole for device in shared])
        return sum([self._left(device) for device in set(shared)])

    def _least_cards(
        self, search: PartialChoice, chosen: Sequence[int], side: Side, more: int, penalty: int
    ) -> int:
        """The same at least: what the chosen devices leave less all that may still be taken, and the fullest of those to come."""
        if self.device is DevicePolicy.SPREAD:
            held = [entry.device for entry in search.placed if entry.shared and entry.device in chosen]
            return sum([1000 * self.state.parts[device] // self.state.whole for device in held])
        shared = [device for device in chosen if self.state.shared[device]]
        left = sum([max(0, self._left(device)) for device in shared])
        if more > side.unshared:
            left += self._least_further(side, shared, more - side.unshared, penalty)
        return max(0, left - side.thousandths)

    def _least_further(self, side: Side, chosen: Sequence[int], more: int, penalty: int) -> int:
        """What further devices leave at least before anything is taken of them: so many, with the room that is lacking.

        `penalty`: what each device beyond that number costs.
        """
        key = (
            id(side),
            more,
            *[(device, self.state.holders[device], self.state.parts[device]) for device in chosen],
        )
        found = self._least_further_of.get(key)
        if found is None:
            free = sorted((max(0, self._left(device)), device) for device in side.shared.difference(chosen))
            found = sum(left for left, _ in free[:more])
            if len(free) <= _MOST_COVERED:
                found = max(found, side.least_cover(self.state, chosen, free, more=more, penalty=penalty))
            self._least_further_of[key] = found
        return found

    def _left(self, device: int) -> int:
        return _thousandths(self.state.whole - self.state.parts[device], self.state.whole)

    def _used_of_node(self, search: PartialChoice) -> int:
        parts, busy, held = self.state.parts, self.state.busy, search.allocating
        whole = self.state.whole
        return sum([whole if busy[gpu] or held.get(gpu) else parts[gpu] for gpu in self.before.gpus])

    def _left_of_node(self, used: int) -> int:
        total = self.state.whole * max(len(self.before.gpus), 1)
        return _thousandths(used if self.node is NodePolicy.SPREAD else total - used, total)


def _thousandths(part: int, whole: int) -> int:
    """Rounded towards zero: where more was given out than is published now, less than nothing is left."""
    return 1000 * part // whole if part >= 0 else -(1000 * -part // whole)


def _nvlink(fabric: Fabric, gpus: Sequence[int], *, partition: bool) -> int:
    """What the GPUs lack in NVLink, in halves of 10^5; nothing on a node without NVLink. `partition`: being none counts."""
    cards = sorted({device for device in gpus if device in fabric.place})
    if len(cards) < 2:
        return 0
    links = [fabric.between(a, b) for position, a in enumerate(cards) for b in cards[:position]]
    total = sum(fabric.widest - count if count else UNLINKED for count in links)
    if partition and len(cards) in fabric.sizes and frozenset(cards) not in fabric.partitions:
        total += UNLINKED
    return total


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
