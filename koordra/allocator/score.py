"""What makes one placement better than another: an ordered pair of what the claim pays and what the cluster
pays (`CostPair`).

The written cost is the sum of the following. What is 10^4 and more is about the claim, the rest about the
cluster; the smallest pair wins, and among equals the first in search order (node name, then device order).
`Plan.scores` publishes minus the sum, so that higher is better. Every term depends only on the final state up
to symmetry (`symmetry.py` relies on it).

    10^11   per level by which a Preferred JointAllocation is relaxed (added by the caller)
    10^9    per step down in a firstAvailable list
    10^6    nearness: for each GPU, the level of the NIC paired with it (PIX 1, PXB 2, PHB 3, NODE 4, SYS 5;
            best pairing; a device counts once, however many shares of it there are); where a request takes
            `All`, the nearest one, since what everyone of the group has is nobody's own
    10^5    NVLink (of the GPUs of a node that has it): 5 per pair that no NVLink joins, a half per link that
            a pair has less than the widest pair of the node, 5 if the GPUs are no partition though the fabric
            has partitions of that size
    10^4    compactness: switch groups, roots and NUMA nodes that the GPUs are spread over, less one each;
            NUMA counts double
    10      broken groups: free GPUs left in groups that were whole and no longer are: switch groups and
            partitions of two (times 4), NUMA nodes and partitions of four (times 1); a GPU without a switch
            above it is grouped by its root
    1       destroyed places: of each card of which a part is taken, thousandths of its parts, by the square
    of
            their size, that can no longer be taken (`partitionable_gpu`); so that a small MIG slice goes
            where no large one can
    1       leftover: what stays free of shared devices in use, in thousandths (best fit), and of the node's
            GPUs

Each term has an exact form and one for a choice to which devices are still added, which no completion
undercuts. What they read says who else may call them: what reads the selection alone is tabulated
(`device_table`), for gangs.

    term                     reads                       exact                      at least
    alternatives             selection                   `_alternatives`            the same
    nearness                 selection                   `SelectionTerms.nearness`  `least_nearness`
    NVLink, compactness      selection                   `SelectionTerms.together`  `least_together`
    broken groups            selection, who is whole     `_broken`                  less what the rest may
                                                                                    still take
    destroyed places         selection, counters         `_destroyed`               the same
    leftover                 amounts                     `_cards`, `_left_of_node`  `_least_cards`, with all
                                                                                    that may be taken

Where the workload is known, what a choice is expected to waste (`ClusterCost`,
`placement.policy.expected_waste`) comes before the last three lines of the first table, which then break
ties.

Policies turn the last three lines of the first table: `Spread` counts what is used instead of what is left,
on cards (device) or on the node (node), and does not mind broken groups and destroyed places. On cards it
counts it once per share, so that shares of one pod keep apart too. Nearness, NVLink and compactness count as
above under TopologyAware, and 1 (NVLink: 1 per half) as tie-break under Binpack and Spread of the device
policy.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol

from koordra.allocator.allocation_state import AllocationState
from koordra.allocator.devices.inventory import GPU, NIC
from koordra.allocator.devices.partitionable_gpu import PartitionableGpus
from koordra.allocator.explain.cost_terms import TERMS
from koordra.allocator.search.partial_choice import PartialChoice
from koordra.allocator.search.remaining_supply import DeviceTypeDemand, OpenRequests
from koordra.allocator.search.solution import CostPair
from koordra.allocator.selection_terms import COMPACT, SelectionTerms, WholeGroups, whole_groups
from koordra.api import names
from koordra.api.opaque.parameters import DevicePolicy, NodePolicy, PlacementPolicy
from koordra.errors import PlanError
from koordra.topology.levels import level_between

RELAXATION: Final = 10**11

ALTERNATIVE: Final = 10**9
BROKEN: Final = 10

FIRST_FIT: Final = "FirstFit"
_DEFAULT: Final = PlacementPolicy(NodePolicy.FRAGMENTATION_AWARE, DevicePolicy.TOPOLOGY_AWARE)
_POLICIES: Final[Mapping[str, PlacementPolicy | None]] = {
    names.DEFAULT_POLICY: _DEFAULT,
    "FragmentationAware": _DEFAULT,
    "TopologyAware": PlacementPolicy(NodePolicy.BINPACK, DevicePolicy.TOPOLOGY_AWARE),
    "Binpack": PlacementPolicy(NodePolicy.BINPACK, DevicePolicy.BINPACK),
    "Spread": PlacementPolicy(NodePolicy.SPREAD, DevicePolicy.SPREAD),
    FIRST_FIT: None,
}
POLICIES: Final = tuple(_POLICIES)


def policy_of(name: str) -> PlacementPolicy | None:
    """The policy's two halves; None for FirstFit, which does not score. PlanError for an unknown name."""
    if name not in _POLICIES:
        raise PlanError(f"{name!r} is not a policy; policies are {', '.join(POLICIES)}")
    return _POLICIES[name]


def effective_policy(
    of_claims: Iterable[PlacementPolicy], policy: PlacementPolicy | None = None
) -> PlacementPolicy:
    """The policy of a group: per half, that of the first claim that names one, else of `policy`, else of
    names.DEFAULT_POLICY."""
    in_order = (*of_claims, policy or _DEFAULT, _DEFAULT)
    return PlacementPolicy(
        next(each.node for each in in_order if each.node),
        next(each.device for each in in_order if each.device),
    )


_MOST_COVERED: Final = 12
"""Devices of which the sets that have enough room are gone through."""


class ClusterCost(Protocol):
    """What a choice on one node costs the cluster beside what is written here."""

    def __call__(self, search: PartialChoice) -> tuple[int, ...]:
        """Of the devices chosen so far; the first number is bounded by `least`, the others break ties."""
        ...

    def least(self, device: int, amounts: Mapping[str, int] | None) -> int:
        """What the first number changes at least when a request gets these amounts of the device, all of it
        for None, whatever else was chosen, but no other share of the device."""
        ...


class Cost:
    """The objective of one node under one policy, both halves of which are said: `cost(search)` of a complete
    choice, `bound` of a partial one."""

    def __init__(
        self, state: AllocationState, policy: PlacementPolicy, waste: ClusterCost | None = None
    ) -> None:
        self.state, self.waste = state, waste
        self._gpus = [device for device, offered in enumerate(state.devices) if offered.kind == GPU]
        groups = [(weight, _grouped(state, self._gpus, attribute)) for attribute, weight in COMPACT]
        cards = [device for device in self._gpus if state.devices[device].type != names.TYPE_MIG]
        free = {device for device in cards if not state.busy[device] and not state.holders[device]}
        self.whole: WholeGroups = [one for one in whole_groups(groups, state.fabric, cards) if one[1] <= free]
        """Groups of cards that are whole as long as nothing is chosen."""
        self._heaviest = max(
            (sum(weight for weight, members in self.whole if card in members) for card in cards), default=0
        )
        self.node, self.device = policy.node, policy.device
        self._aware = self.device is DevicePolicy.TOPOLOGY_AWARE
        self.selection = SelectionTerms(
            lambda gpu, nic: level_between(state.devices[gpu].plain, state.devices[nic].plain),
            state.fabric,
            groups,
            aware=self._aware,
        )
        self._keeps = self.device is not DevicePolicy.SPREAD
        self._partitionable = PartitionableGpus(state)
        self._least_further_of: dict[tuple[object, ...], int] = {}
        self._overdrawn = sum(min(0, self._left(device)) for device in range(len(state.devices)))

    def __call__(self, search: PartialChoice) -> CostPair:
        gpus, nics = self._chosen(search)
        selection = self._nearness(search, gpus, nics) + self.selection.together(gpus)
        packing = self._broken(gpus) + self._destroyed(gpus) + self._cards(search)
        packing += self._left_of_node(self._used_of_node(search))
        waste = () if self.waste is None else self.waste(search)
        return self._pair(search, selection, (*waste, packing))

    def terms(self, search: PartialChoice) -> dict[str, int]:
        """The written cost of a complete choice, term by term, the most significant first (TERMS)."""
        gpus, nics = self._chosen(search)
        cards = frozenset(gpus)
        found = (
            self._alternatives(search),
            self._nearness(search, gpus, nics),
            self.selection.nvlink(cards),
            self.selection.compactness(cards),
            self._broken(gpus),
            self._destroyed(gpus),
            self._cards(search) + self._left_of_node(self._used_of_node(search)),
        )
        return dict(zip(TERMS[1:], found, strict=True))

    def _chosen(self, search: PartialChoice) -> tuple[list[int], list[int]]:
        """The GPUs and the NICs, each once."""
        devices = dict.fromkeys([entry.device for entry in search.placed])
        gpus = [device for device in devices if self.state.devices[device].kind == GPU]
        return gpus, [device for device in devices if self.state.devices[device].kind == NIC]

    def _nearness(self, search: PartialChoice, gpus: Sequence[int], nics: Sequence[int]) -> int:
        every = any(entry.wanted.takes_all for entry in search.placed)
        return self.selection.nearness(gpus, nics, every=every)

    def _pair(self, search: PartialChoice, selection: int, cluster: tuple[int, ...]) -> CostPair:
        """Nearness and the like are about the claim, or but a tie-break."""
        claim = self._alternatives(search)
        if self._aware:
            return CostPair(claim + selection, cluster)
        return CostPair(claim, (*cluster[:-1], cluster[-1] + selection))

    def bound(
        self,
        search: PartialChoice,
        gpus: Sequence[int],
        others: Sequence[int],
        *,
        tail: OpenRequests,
        more_gpus: int,
        more_others: int,
        further_waste: int = 0,
    ) -> CostPair:
        """At most the cost of any completion. `gpus`, `others`: the devices chosen so far; at least so many
        more will be, which change the first number of the cluster's cost by `further_waste` at least.

        Each term by its own least: a step down stays, and so do pairs of GPUs and groups that they are spread
        over.
        """
        further = tail.gpus.devices
        packing = self._destroyed(gpus) + self._overdrawn
        if tail.gpus.most:
            selection = self.selection.least_together(gpus, further=further, more=more_gpus)
            # The free rest of a broken group may still be taken.
            packing += max(0, self._broken(gpus) - tail.gpus.most * self._heaviest * BROKEN)
        else:
            selection = self.selection.together(gpus)
            packing += self._broken(gpus)
        nearest = 0
        nics = self._nics_to_be_near(others, tail)
        if nics:
            selection += self.selection.least_nearness(gpus, nics, further=further, more=more_gpus)
            nearest = self.selection.least_nearness([], nics, further=further, more=1)
        farther, left = self._least_cards(search, gpus, tail.gpus, more_gpus, nearest)
        selection += farther
        if self.waste is not None:
            return self._pair(search, selection, (self.waste(search)[0] + further_waste,))
        packing += left + self._least_cards(search, others, tail.others, more_others, 0)[1]
        used = self._used_of_node(search)
        spread = self.node is NodePolicy.SPREAD
        packing += self._left_of_node(used if spread else used + tail.gpus.parts)
        return self._pair(search, selection, (packing,))

    # --- terms ----------------------------------------------------------------------------------------------

    def _alternatives(self, search: PartialChoice) -> int:
        # One step per request, however many devices it has.
        chosen = {(entry.wanted.claim, entry.wanted.request): entry.wanted.index for entry in search.placed}
        return sum(chosen.values()) * ALTERNATIVE

    def _nics_to_be_near(self, others: Sequence[int], tail: OpenRequests) -> frozenset[int]:
        """The NICs of which every GPU has one, in any completion; empty where there may be none at all."""
        if tail.brings_nic and tail.nics:
            return tail.may_get
        chosen = frozenset(device for device in others if self.state.devices[device].kind == NIC)
        return tail.may_get if chosen and tail.nics else chosen

    def _broken(self, gpus: Sequence[int]) -> int:
        """Free GPUs left in groups that were whole."""
        if not self._keeps:
            return 0
        held = frozenset(gpus)
        return BROKEN * sum(
            [weight * len(members - held) for weight, members in self.whole if held & members]
        )

    def _destroyed(self, gpus: Sequence[int]) -> int:
        return self._partitionable.destroyed(gpus) if self._keeps else 0

    def _cards(self, search: PartialChoice) -> int:
        """Thousandths left of each shared device that the group uses; spreading, what each share finds used,
        its own included."""
        shared = [entry.device for entry in search.placed if entry.shared]
        if self.device is DevicePolicy.SPREAD:
            return sum([1000 * self.state.parts[device] // self.state.whole for device in shared])
        return sum([self._left(device) for device in set(shared)])

    def _least_cards(
        self, search: PartialChoice, chosen: Sequence[int], side: DeviceTypeDemand, more: int, penalty: int
    ) -> tuple[int, int]:
        """The same at least: what the chosen devices leave less all that may still be taken, and the fullest
        of those to come. Before it what the claim pays for devices beyond `more`, each of which is the
        penalty."""
        if self.device is DevicePolicy.SPREAD:
            held = [entry.device for entry in search.placed if entry.shared and entry.device in chosen]
            return 0, sum([1000 * self.state.parts[device] // self.state.whole for device in held])
        shared = [device for device in chosen if self.state.shared[device]]
        left = sum([max(0, self._left(device)) for device in shared])
        further = farther = 0
        if more > side.unshared:
            further = self._least_further(side, shared, more - side.unshared, penalty)
            if self._aware and penalty:
                farther = further - further % penalty
        return farther, max(0, left + further - farther - side.thousandths)

    def _least_further(self, side: DeviceTypeDemand, chosen: Sequence[int], more: int, penalty: int) -> int:
        """What further devices leave at least before anything is taken of them: so many, with the room that
        is lacking.

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
        return sum([whole if busy[gpu] or held.get(gpu) else parts[gpu] for gpu in self._gpus])

    def _left_of_node(self, used: int) -> int:
        total = self.state.whole * max(len(self._gpus), 1)
        return _thousandths(used if self.node is NodePolicy.SPREAD else total - used, total)


def _grouped(state: AllocationState, gpus: Sequence[int], attribute: str) -> list[frozenset[int]]:
    """GPUs by the value that they have."""
    found = defaultdict[object, set[int]](set)
    for device in gpus:
        found[state.devices[device].plain.get(attribute)].add(device)
    found.pop(None, None)
    return list(map(frozenset, found.values()))


def _thousandths(part: int, whole: int) -> int:
    """Rounded towards zero: where more was given out than is published now, less than nothing is left."""
    return 1000 * part // whole if part >= 0 else -(1000 * -part // whole)
