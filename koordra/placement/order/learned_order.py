"""What was learned of the workload, and which of two states that serve a claim equally well it prefers.

A cost has two parts. What a placement is worth to its claim comes first; where that is equal, what it does to the cluster decides:
how much free GPU it makes useless to the claims that are to come (`policy.expected_waste`). Here that is asked with a table that was
given, or learned from the claims that arrive:

    index.changes ──▶ states that nodes entered or left ──▶ columns ──▶ key of a request class on a state ──▶ order of candidates
    claims that arrive ──▶ counts by class ──▶ table, made anew whenever the count grew by a quarter: a new `epoch`

The columns' rows are the index's own NodeStates. Each is turned into numbers once (`NodeState.columns`), by the devices of the
first node of its class, and is a row for as long as some node is in it.

Before 32 claims were counted there is no table and no key: then the rest of the written cost decides. So it does for claims that
ask for Binpack or Spread, and for those whose classes cannot be counted in devices. A claim is counted once. The same table chooses
the devices inside a node (`device_selection`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, Final

from koordra.allocator.devices.inventory import Usage
from koordra.allocator.request.requests import ResolvedClaim
from koordra.api.opaque.parameters import NodePolicy
from koordra.errors import KoordraError
from koordra.placement.columns.arrays import INFEASIBLE
from koordra.placement.columns.fleet import Fleet
from koordra.placement.columns.node_devices import NodeDevices, devices_of_pools, size_of
from koordra.placement.columns.request_mapping import request_of
from koordra.placement.columns.state import Kind, Request, State
from koordra.placement.index import ClusterIndex, NodeInfo, identity
from koordra.placement.mig.profiles import NO_PROFILES, Profiles
from koordra.placement.node_class import NodeState, positions_in
from koordra.placement.order.request_models import RequestModels
from koordra.placement.policy.device_selection import Cards
from koordra.placement.policy.expected_waste import ExpectedWaste
from koordra.placement.policy.workload import Workload
from koordra.placement.policy.workload_learning import Online, expected
from koordra.placement.policy.workload_table import Table
from koordra.placement.request.request_class import RequestClass, ResolvedGroup

_ENOUGH: Final = 32
"""Claims from which on a workload is worth learning from."""

_MOST_CLASSES: Final = 1024

Failed = Callable[[str, str], None]
"""(event, node): told of an error while it is handled."""


@dataclass(frozen=True)
class Learned:
    """What outlives a process."""

    table: Table = field(default_factory=Table)
    workload: Workload = field(default_factory=Workload)


class LearnedOrder:
    """All states as columns, and what was learned. Not thread-safe.

    `epoch` goes up when the table is new; what was ordered by the old one has to be ordered anew. `failed` is told of errors that
    are not the cluster's: this is only a preference, and no defect of it may keep claims from being placed. Without it they are raised.
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
        self.policy = ExpectedWaste(known.table)
        self.online = Online(self.policy, {})
        self.online.resume(known.workload)
        self.columns = Fleet((), (), self.policy)
        self._kinds: dict[Kind, int] = {}
        self._rows: dict[NodeState, int] = {}
        self._free: list[int] = []
        self._models = RequestModels(index.features, index.known.identities)
        self._gpus: list[tuple[NodeInfo, str]] = []
        """The nodes with GPUs, and their model."""
        self._memory = Decimal(0)
        self._profiles = NO_PROFILES
        self._published = -1
        self._read = -1
        self._heard: set[str] = set()
        self._requests: dict[RequestClass, Request | None] = {}
        self._begun = known.workload.count > 0
        self._cards: Cards | None = None

    @property
    def table(self) -> Table:
        return self.policy.table

    @property
    def cards(self) -> Cards | None:
        """What is known, for the choice of devices inside a node; None while nothing is."""
        if not self.table.pods:
            return None
        if self._cards is None or self._cards.table is not self.table:
            self._cards = Cards(self.table)
        return self._cards

    @property
    def learned(self) -> Learned:
        """What to keep."""
        return Learned(self.table, self.online.workload)

    # --- states -----------------------------------------------------------------------------------------------------

    def follow(self) -> None:
        """Take over the states that nodes entered or left since the last call."""
        if not self.learning and not self.table.pods:
            return
        index = self.index
        end = index.base + len(index.changes)
        if self._read == end:
            return
        states: Iterable[NodeState | None]
        if self._read < index.base:
            states = {*self._rows, *(info.state for info in index.nodes.values())}
        else:
            moved = index.changes[self._read - index.base :]
            states = dict.fromkeys([state for one in moved for state in (one.before, one.after)])
        self._read = end
        come: list[tuple[NodeState, Kind, State]] = []
        for state in states:
            if state is not None and bool(state.nodes) != (state in self._rows):
                if not state.nodes:
                    self._leave(state)
                elif (found := self._columns_of(state)) is not None:
                    come.append((state, *found))
        if any(kind not in self._kinds for _, kind, _ in come):
            come = self._with_kinds(come)
        for state, kind, numbers in come:
            self._enter(state, numbers._replace(kind=self._kinds[kind]))
        if self._published != index.published_version:
            self._published = index.published_version
            self._measure()

    def _enter(self, state: NodeState, numbers: State) -> None:
        row = self._free.pop() if self._free else self.columns.add_node(None)
        self._rows[state] = row
        self.columns.set_node(row, numbers)

    def _leave(self, state: NodeState) -> None:
        row = self._rows.pop(state)
        self.columns.set_node(row, None)
        self._free.append(row)

    def _with_kinds(
        self, come: Sequence[tuple[NodeState, Kind, State]]
    ) -> list[tuple[NodeState, Kind, State]]:
        """The columns anew, for machines that were not there before; returns all states that are to enter them."""
        found = [*((state, *state.columns) for state in self._rows if state.columns is not None), *come]
        self._kinds = {kind: at for at, kind in enumerate(dict.fromkeys(kind for _, kind, _ in found))}
        self._rows, self._free = {}, []
        self.columns = Fleet(tuple(self._kinds), (), self.policy)
        return found

    def _columns_of(self, state: NodeState) -> tuple[Kind, State] | None:
        """The state as numbers; None where they cannot be told, so that the state has no row and is preferred last."""
        if state.columns is None:
            info = self.index.nodes[state.nodes[0]]
            with self._only_a_preference("node_not_ranked", info.name):
                devices = self._devices(info)
                cpu, memory = size_of(info.node)
                own = replace(devices, cpu=cpu, host_memory=memory)
                state.columns = devices.kind, own.state(0, self._taken(info), info.load)
        return state.columns

    def _devices(self, info: NodeInfo) -> NodeDevices:
        """The devices of the first node of the class, or of the node that has none."""
        of = info.devices.node_class
        return devices_of_pools(tuple(info.pools) if of is None else of.pools)

    def _taken(self, info: NodeInfo) -> Usage:
        """What is taken on the node, of the devices that stand at the same places on the first node of its class."""
        taken, of = self.index.taken, info.devices.node_class
        if of is None or all(map(_same, of.pools, info.pools)):
            return taken
        there = {
            device: first.devices[at].id
            for own, first in zip(info.pools, of.pools, strict=True)
            for device in taken.of_pool.get(own.id, ())
            if (at := positions_in(own).get(device)) is not None
        }
        return Usage(
            {there[one]: taken.dedicated[one] for one in there if one in taken.dedicated},
            {there[one]: taken.shares[one] for one in there if one in taken.shares},
            {there[one]: taken.consumed[one] for one in there if one in taken.consumed},
        )

    def _measure(self) -> None:
        """What requests are measured by: the usual memory of a GPU, profiles of cards that are cut, GPUs by model."""
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
        self.online.capacity = dict(sorted(gpus.items()))
        self._requests.clear()

    # --- what is asked ----------------------------------------------------------------------------------------------

    @property
    def measures(self) -> bool:
        """Whether the nodes tell by what to measure requests."""
        return bool(self._memory or self._profiles)

    @property
    def begins(self) -> bool:
        """Whether nothing was counted yet and the nodes tell by what to measure."""
        return not self._begun and self.measures

    def begin(self, resolved_groups: Iterable[tuple[ResolvedGroup, Iterable[str]]]) -> bool:
        """Once: what is in use already is what was asked for until now. With the uids of its claims."""
        self._begun = True
        workload = Workload()
        for resolved, uids in resolved_groups:
            self._heard.update(uids)
            request = self.request(resolved)
            if request is not None:
                workload.add(request)
        self.online.resume(workload)
        if workload.count < _ENOUGH:
            return False
        self.know(expected(workload, self.online.capacity))
        return True

    def is_new(self, uids: frozenset[str]) -> bool:
        """Whether some of the claims were not counted yet."""
        return self.measures and not uids <= self._heard

    def observe(self, resolved: ResolvedGroup, uids: frozenset[str]) -> bool:
        """These claims wait; those that are new are counted. True when a table was made of it."""
        if not self.is_new(uids):
            return False
        self._heard |= uids
        request = self.request(resolved)
        with self._only_a_preference("claims_not_counted"):
            if request is not None and self.online.observe(request):
                self.know(self.table)
                return True
        return False

    def know(self, table: Table) -> None:
        """Use this table from now on."""
        self.policy.learn(table)
        self.columns.tables_changed()
        self.epoch += 1

    def retain(self, claims: Collection[Mapping[str, Any]]) -> None:
        """Claims that are not there any more need not be known."""
        if len(self._heard) > 2 * len(claims) + 100:
            self._heard &= set(map(identity, claims))

    def key(self, resolved: ResolvedGroup, state: NodeState | None) -> int | None:
        """Smaller is better for what is to come; None for all where nothing is known, or the request cannot be counted."""
        if not self.table.pods:
            return None
        request = self.request(resolved)
        if request is None:
            return None
        row = None if state is None else self._rows.get(state)
        key: int | None = INFEASIBLE
        if row is not None:
            self._requests[resolved.request_class], key = None, None
            with self._only_a_preference("claims_not_counted"):
                key = self.columns.key_on(row, request)
                self._requests[resolved.request_class] = request
        return key

    def request(self, resolved: ResolvedGroup) -> Request | None:
        """The group as a request of the columns; None where counting devices does not describe it."""
        of = resolved.request_class
        if of not in self._requests:
            if len(self._requests) >= _MOST_CLASSES:
                self._requests.clear()
            self._requests[of] = None
            with self._only_a_preference("claims_not_counted"):
                if leaves_the_node(resolved.asked):
                    self._requests[of] = self._counted(resolved)
        return self._requests[of]

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


def _same(one: object, other: object) -> bool:
    return one is other


def leaves_the_node(asked: Sequence[ResolvedClaim]) -> bool:
    """Whether the claims leave the choice of the node to the default policy."""
    return all(claim.placement.node in {None, NodePolicy.FRAGMENTATION_AWARE} for claim in asked)
