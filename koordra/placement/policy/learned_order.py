"""What was learned of the workload, and what the cluster pays for a placement on a node by it.

A cost has two parts. What a placement is worth to its claim comes first; where that is equal, what it does to
the cluster decides: how much free GPU it makes useless to the claims that are to come
(`policy.expected_waste`). The table for that was given, or is learned from the pods that ran, by their
claims: claims alone cost their author nothing, and he could have the others placed by what is never used.

    pods that ran ──▶ counts by namespace and class ──▶ table, made anew when these grew by a quarter: new
                                                        `epoch`
    table ──▶ `waste`: the cluster's part of a cost, in the search
          └─▶ `least`, `value`: of nodes, before and after their search

A state of the index is turned into free amounts once (`EquivalentNodes.free`), by the devices of the first
node of its class.

No namespace counts for more than all others together (workload.together). Before 32 claims were counted there
is no table: then the rest of the written cost decides. So it does for claims that ask for Binpack or Spread,
and for those that counting devices does not describe. A claim is counted once.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from operator import is_
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from koordra.allocator.devices.inventory import Usage
from koordra.allocator.score import effective_policy
from koordra.api import objects
from koordra.errors import KoordraError
from koordra.placement.free_amounts.node_devices import NodeDevices, devices_of_pools, size_of
from koordra.placement.free_amounts.request_mapping import counted, request_of, share_of
from koordra.placement.free_amounts.state import FreeAmounts, Request
from koordra.placement.index import ClusterIndex, NodeInfo
from koordra.placement.mig.profiles import NO_PROFILES, Profiles
from koordra.placement.node_class import positions_in
from koordra.placement.policy.expected_waste import DeviceWaste, ExpectedWaste
from koordra.placement.policy.request_models import RequestModels
from koordra.placement.policy.workload import Online, Workload, expected, together
from koordra.placement.policy.workload_table import LearnedTable
from koordra.placement.request.request_class import RequestClass, ResolvedGroup

_ENOUGH: Final = 32
"""Claims from which on a workload is worth learning from."""

_LAST: Final = 1 << 62
"""Of a node whose free amounts cannot be told."""

_PACKING_BITS: Final = 20
"""Below the expected waste, of the rest of the written cost."""

Failed = Callable[[str, str], None]
"""(event, node): told of an error while it is handled."""


@dataclass(slots=True)
class InUse:
    """What pods run with that asked alike: how many they are, and the uids of their claims."""

    resolved: ResolvedGroup
    pods: int = 0
    uids: list[str] = field(default_factory=list)


class ComesAgain(NamedTuple):
    """Of pods that asked for a share by these amounts (`memory` in bytes, `cores` in percent), how many will
    ask for which."""

    namespace: str
    asked: Mapping[str, Decimal]
    wanted: Mapping[str, Decimal]
    pods: int


@dataclass(frozen=True)
class Learned:
    """What outlives a process."""

    table: LearnedTable = field(default_factory=LearnedTable)
    of: Mapping[str, Workload] = field(default_factory=dict)
    """By namespace, what the table was made from and goes on with."""

    @property
    def workload(self) -> Workload:
        return together(self.of)


class LearnedOrder:
    """Not thread-safe.

    `epoch` goes up when the table is new, or cards are cut otherwise than before; what was ordered by the old
    one has to be ordered anew. `failed` is told of errors that are not the cluster's: this is only a
    preference, and no defect of it may keep claims from being placed. Without it they are raised.
    """

    def __init__(
        self, index: ClusterIndex, learned: Learned | None = None, *, failed: Failed | None = None
    ) -> None:
        known = learned or Learned()
        self.epoch = 0
        self.index = index
        self.failed = failed
        self.learning = learned is not None
        """Whether nodes are to be known before there is a table."""
        self.waste = ExpectedWaste(known.table)
        self.online = Online({})
        self.online.resume(known.of)
        self._models = RequestModels(index.features, index.known.identities)
        self._gpus: list[tuple[NodeInfo, str]] = []
        """The nodes with GPUs, and their model."""
        self._memory = Decimal(0)
        self._profiles = NO_PROFILES
        self._published = -1
        self._counted_uids: set[str] = set()
        self._requests = WeakKeyDictionary[RequestClass, tuple[Request | None, bool]]()
        self._begun = bool(self.online.of)

    @property
    def table(self) -> LearnedTable:
        return self.waste.table

    @property
    def learned(self) -> Learned:
        """What to keep."""
        return Learned(
            self.table, {name: Workload(one.counts.items()) for name, one in self.online.of.items()}
        )

    # --- nodes ----------------------------------------------------------------------------------------------

    def follow(self) -> None:
        """Take over what nodes publish."""
        index = self.index
        if (self.learning or self.table.pods) and self._published != index.published_version:
            self._published = index.published_version
            self._measure()

    def knows(self, resolved: ResolvedGroup) -> bool:
        """Whether the expected waste decides what this group's placements cost the cluster."""
        request, described = self._asked(resolved)
        return bool(self.table.pods) and request is not None and described

    def least(self, resolved: ResolvedGroup, info: NodeInfo, *, alone: bool) -> int:
        """What any placement of the group on the node costs the cluster at least. `alone`: nodes that publish
        the same may answer differently."""
        free, request = self.free(info), self.request(resolved)
        if free and request:
            with self._only_a_preference("node_not_ranked", info.name):
                left = self._left(resolved, info, free[1].gpus, alone=alone)
                return self.waste.least(*free, request, left) << _PACKING_BITS
        return _LAST

    def _left(
        self, resolved: ResolvedGroup, info: NodeInfo, free: Sequence[int], *, alone: bool
    ) -> Collection[tuple[int, int]]:
        """Of each GPU that a request could have, or have a share of, what is left then, by position. Cards of
        a node may differ, and a share may take of what others of the card have left."""
        devices, taken, found = devices_of_pools(info.pools), self.index.taken, set[tuple[int, int]]()
        for device, amounts in resolved.request_class.bound.choices(info, taken, alone=alone):
            place = devices.parts.get(device)
            if place is not None and place.is_gpu and place.cut < 0:
                found.add((place.card, max(0, free[place.card] - devices.added(device, taken, amounts))))
        return found

    def value(self, resolved: ResolvedGroup, info: NodeInfo, cluster: Sequence[int]) -> int:
        """What a placement costs the cluster that the search found, by the cluster's part of its cost."""
        free, request = self.free(info), self.request(resolved)
        if free and request:
            with self._only_a_preference("node_not_ranked", info.name):
                *wasted, packing = cluster
                found = self.waste.of_node(*free, DeviceWaste(*wasted), request.cpu, request.memory)
                return (found << _PACKING_BITS) + packing
        return _LAST

    def free(self, info: NodeInfo) -> tuple[NodeDevices, FreeAmounts] | None:
        """The node's devices and what is free of them; None where that cannot be told, so that the node is
        preferred last."""
        state = info.state
        if state is not None and state.free is None:
            with self._only_a_preference("node_not_ranked", info.name):
                devices = self._devices(info)
                state.free = devices, devices.state(0, self._taken(info), info.load, size_of(info.node))
        return None if state is None else state.free

    def _devices(self, info: NodeInfo) -> NodeDevices:
        """The devices of the first node of the class, or of the node that has none."""
        of = info.devices.node_class
        return devices_of_pools(info.pools if of is None else of.pools)

    def _taken(self, info: NodeInfo) -> Usage:
        """What is taken on the node, of the devices that stand at the same places on the first node of its
        class."""
        taken, of = self.index.taken, info.devices.node_class
        if of is None or all(map(is_, of.pools, info.pools)):
            return taken
        position, there = positions_in(info.pools), [one.id for pool in of.pools for one in pool.devices]
        return Usage(
            {
                first.id: {
                    there[position[device]]: use
                    for device, use in taken.of_pool.get(own.id, {}).items()
                    if device in position
                }
                for own, first in zip(info.pools, of.pools, strict=True)
            }
        )

    def _measure(self) -> None:
        """What requests are measured by: the usual memory of a GPU, profiles of cards that are cut, GPUs by
        model."""
        memories, gpus = Counter[Decimal](), Counter[str]()
        profiles: dict[int, Profiles] = {}
        self._gpus = []
        for name in sorted(self.index.nodes):
            info = self.index.nodes[name]
            with self._only_a_preference("node_not_ranked", name):
                devices = self._devices(info)
                profiles[id(devices.profiles)] = devices.profiles
                if devices.memory:
                    memories[devices.memory] += 1
                gpus[devices.kind.model] += devices.kind.gpus
                if devices.kind.gpus:
                    self._gpus.append((info, devices.kind.model))
        self._memory = min(memories, key=lambda size: (-memories[size], size)) if memories else Decimal(0)
        if {key for one in profiles.values() for key in one.known} != self._profiles.known:
            self._profiles = Profiles(sample for one in profiles.values() for sample in one.samples)
            self.epoch += 1
        self.online.capacity = dict(sorted(gpus.items()))
        self._requests.clear()

    # --- what is asked --------------------------------------------------------------------------------------

    @property
    def measures(self) -> bool:
        """Whether the nodes tell by what to measure requests."""
        return bool(self._memory or self._profiles)

    def begin(self, in_use: Iterable[InUse]) -> bool:
        """Once, where nothing was counted yet and the nodes tell by what to measure: what is in use already
        is what was asked for until now. True when a table was made of it."""
        if self._begun or not self.measures:
            return False
        self._begun = True
        found = defaultdict[str, Workload](Workload)
        for one in in_use:
            self._counted_uids.update(one.uids)
            request = self.request(one.resolved)
            if request is not None:
                found[_namespace(one.resolved)].add(request, one.pods)
        self.online.resume(found)
        workload = self.online.workload
        if workload.count < _ENOUGH:
            return False
        self.know(expected(workload, self.online.capacity))
        return True

    def is_new(self, uids: frozenset[str]) -> bool:
        """Whether some of the claims were not counted yet."""
        return self.measures and not uids <= self._counted_uids

    def observe(self, resolved: ResolvedGroup, uids: frozenset[str]) -> bool:
        """These claims were used; those that are new are counted. True when a table was made of it."""
        if not self.is_new(uids):
            return False
        self._counted_uids |= uids
        request = self.request(resolved)
        with self._only_a_preference("claims_not_counted"):
            table = None if request is None else self.online.observe(request, _namespace(resolved))
            if table is not None:
                self.know(table)
                return True
        return False

    def foresee(self, again: Iterable[ComesAgain]) -> bool:
        """What is known of jobs that come again, in place of what was. True when the table was made anew by
        it."""
        moves = defaultdict[str, dict[int, Counter[int]]](dict)
        for one in again:
            asked, wanted = (share_of(amounts, self._memory) for amounts in (one.asked, one.wanted))
            moves[one.namespace].setdefault(asked, Counter())[wanted] += one.pods
        if moves == self.online.moves:
            return False
        self.online.moves = dict(moves)
        if not self.table.pods:
            return False
        self.know(expected(self.online.workload, self.online.capacity))
        return True

    def know(self, table: LearnedTable) -> None:
        """Use this table from now on."""
        self.waste = ExpectedWaste(table)
        self.epoch += 1

    def retain(self, claims: Collection[Mapping[str, Any]]) -> None:
        """Claims that are not there any more need not be known."""
        if len(self._counted_uids) > 2 * len(claims) + 100:
            self._counted_uids &= set(map(objects.identity, claims))

    def request(self, resolved: ResolvedGroup) -> Request | None:
        """The group as a request class, shares measured by GPUs of the usual memory; None where counting
        devices does not describe it."""
        return self._asked(resolved)[0]

    def _asked(self, resolved: ResolvedGroup) -> tuple[Request | None, bool]:
        """The same, and whether counting says all that is asked for, and the claims leave the choice of
        devices to the default policy."""
        known = self._requests.get(resolved.request_class)
        if known is None:
            default = effective_policy(())
            policy = effective_policy([claim.placement for claim in resolved.asked])
            described = counted(resolved.asked) and policy.device is default.device
            known = None, described
            with self._only_a_preference("claims_not_counted"):
                if policy.node is default.node:
                    known = self._counted(resolved), described
            self._requests[resolved.request_class] = known
        return known

    def _counted(self, resolved: ResolvedGroup) -> Request | None:
        asked, pods = resolved.asked, resolved.group.pods
        shipped = self._models.shipped(asked, [info for info, _ in self._gpus])
        found = request_of(shipped, pods, self._memory, self._profiles)
        if found is None or not found.share:
            return found
        return found._replace(models=self._models.models(asked, pods, self._gpus))

    @contextmanager
    def _only_a_preference(self, event: str, node: str = "") -> Iterator[None]:
        """What cannot be read (the search says why), or goes wrong, is only not preferred."""
        try:
            yield
        except KoordraError:
            pass
        except Exception:
            if self.failed is None:
                raise
            self.failed(event, node)


def _namespace(resolved: ResolvedGroup) -> str:
    return resolved.group.claims[0].namespace if resolved.group.claims else ""
