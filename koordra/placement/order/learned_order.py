"""What was learned of the workload, and which of two nodes that serve a claim equally well it prefers.

A cost has two parts. What a placement is worth to its claim comes first; where that is equal, what it does to the cluster decides:
how much free GPU it makes useless to the claims that are to come (`policy.expected_waste`). Here that is asked with a table that was
given, or learned from the claims that arrive:

    nodes that changed ──▶ ranking (kept) ──▶ key of a request class on a node ──▶ order of candidates (`decide`)
    claims that arrive ──▶ counts by class ──▶ table, made anew whenever the count grew by a quarter: a new `epoch`

Before 32 claims were counted there is no table and no key: then the rest of the written cost decides. So it does for claims that
ask for Binpack or Spread, and for those whose classes cannot be counted in devices. A claim is counted once. The same table chooses
the devices inside a node (`cards`).

Nodes of one class publish the same devices under pools of their own names: they are read once per class.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

from koordra.allocator.devices.inventory import Pool
from koordra.allocator.request.requests import ResolvedClaim
from koordra.api.devices import DeviceID
from koordra.api.opaque.parameters import NodePolicy
from koordra.errors import KoordraError
from koordra.placement.columns.arrays import INFEASIBLE
from koordra.placement.columns.node_devices import NodeDevices, size_of
from koordra.placement.columns.state import Request
from koordra.placement.index import ClusterIndex, NodeInfo, identity
from koordra.placement.node_class import NodeClass
from koordra.placement.order.node_ranking import NodeRanking, read_node
from koordra.placement.policy.device_selection import Cards
from koordra.placement.policy.workload import Workload
from koordra.placement.policy.workload_table import Table
from koordra.placement.request.request_class import Question, RequestClass

Failed = Callable[[str, str], None]
"""(event, node): told of an error while it is handled."""


@dataclass(frozen=True)
class Learned:
    """What outlives a process."""

    table: Table = field(default_factory=Table)
    workload: Workload = field(default_factory=Workload)


class LearnedOrder:
    """All nodes as a fleet, and what was learned. Not thread-safe.

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
        self.ranking = NodeRanking((), known.table, features=index.features)
        self.ranking.online.resume(known.workload)
        self._read = -1
        self._of_class: dict[NodeClass, tuple[Sequence[Pool], NodeDevices]] = {}
        """Pools and devices of the first node of a class; the node itself may be of another class by now."""
        self._published: dict[str, tuple[object, object]] = {}
        self._heard: set[str] = set()
        self._requests: dict[RequestClass, Request | None] = {}
        self._sets_epoch = -1
        self._measures = self.ranking.measures
        self._begun = known.workload.count > 0
        self._cards: Cards | None = None

    @property
    def cards(self) -> Cards | None:
        """What is known, for the choice of devices inside a node; None while nothing is."""
        table = self.ranking.policy.table
        if not table.pods:
            return None
        if self._cards is None or self._cards.table is not table:
            self._cards = Cards(table)
        return self._cards

    @property
    def learned(self) -> Learned:
        """What to keep."""
        return Learned(self.ranking.policy.table, self.ranking.online.workload)

    def follow(self) -> None:
        """Take over the nodes that changed since the last call."""
        if not self.learning and not self.ranking.policy.table.pods:
            return
        index = self.index
        end = index.base + len(index.changes)
        if self._read == end:
            return
        if self._read < index.base:
            stale = index.nodes.keys() | self._published.keys()
        else:
            stale = {one.name for one in index.changes[self._read - index.base :]}
        self._read = end
        for name in sorted(stale):
            info = index.nodes.get(name)
            if info is None:
                self._forget(name)
                continue
            taken_over = False
            with self._only_a_preference("node_not_ranked", name):
                self._take_over(info)
                taken_over = True
            if not taken_over:
                self._forget(name)
        if stale and self.ranking.measures != self._measures:
            self._measures = self.ranking.measures
            self._requests.clear()

    @property
    def begins(self) -> bool:
        """Whether nothing was counted yet and the nodes tell by what to measure."""
        return not self._begun and any(self.ranking.measures)

    def begin(self, questions: Iterable[tuple[Question, Iterable[str]]]) -> bool:
        """Once: what is in use already is what was asked for until now. With the uids of its claims."""
        self._begun = True
        requests: list[Request] = []
        for question, uids in questions:
            self._heard.update(uids)
            request = self._request(question)
            if request is not None:
                requests.append(request)
        if self.ranking.begin_with(requests):
            self.epoch += 1
            return True
        return False

    def is_new(self, uids: frozenset[str]) -> bool:
        """Whether some of the claims were not counted yet."""
        return any(self.ranking.measures) and not uids <= self._heard

    def heard(self, question: Question, uids: frozenset[str]) -> bool:
        """These claims wait; those that are new are counted. True when a table was made of it."""
        if not self.is_new(uids):
            return False
        self._heard |= uids
        request, learned = self._request(question), False
        with self._only_a_preference("claims_not_counted"):
            learned = request is not None and self.ranking.heard(request)
        self.epoch += learned
        return learned

    def retain(self, claims: Collection[Mapping[str, Any]]) -> None:
        """Claims that are not there any more need not be known."""
        if len(self._heard) > 2 * len(claims) + 100:
            self._heard &= set(map(identity, claims))

    def key(self, question: Question, name: str) -> int | None:
        """Smaller is better for what is to come; None for all where nothing is known, or the request cannot be counted."""
        if not self.ranking.policy.table.pods:
            return None
        request = self._request(question)
        if request is None:
            return None
        found: int | None = None
        told = False
        with self._only_a_preference("node_not_ranked", name):
            found, told = self.ranking.key(name, request), True
        if not told:
            self._requests[question.request_class] = None
            return None
        return INFEASIBLE if found is None else found

    # nodes

    def _take_over(self, info: NodeInfo) -> None:
        published = (info.pools, info.node)
        before = self._published.get(info.name)
        if before is not None and before[0] is published[0] and before[1] is published[1]:
            self.ranking.changed(info.name, self.index.taken, info.load)
            return
        self.ranking.put(self._devices(info), self.index.taken, info.load)
        self._published[info.name] = published

    def _devices(self, info: NodeInfo) -> NodeDevices:
        of = info.devices.node_class
        known = None if of is None else self._of_class.get(of)
        if known is None:
            own = read_node(info.name, info.node, self.index.inventory)
            if of is not None:
                if len(self._of_class) > len(self.index.nodes) + 64:
                    self._of_class.clear()
                self._of_class[of] = (info.pools, own)
            return own
        return _renamed(known[1], known[0], info)

    def _forget(self, name: str) -> None:
        self.ranking.gone(name)
        self._published.pop(name, None)

    # requests

    def _request(self, question: Question) -> Request | None:
        if self._sets_epoch != self.ranking.sets.epoch:
            # Nodes of another sort came: what some requests may use is another set now.
            self._sets_epoch = self.ranking.sets.epoch
            self._requests.clear()
        of = question.request_class
        if of not in self._requests:
            if len(self._requests) >= _MOST_CLASSES:
                self._requests.clear()
            self._requests[of] = None
            with self._only_a_preference("claims_not_counted"):
                if leaves_the_node(question.asked):
                    self._requests[of] = self.ranking.request(question.asked, question.group.pods)
        return self._requests[of]

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


_MOST_CLASSES: Final = 1024


def leaves_the_node(asked: Sequence[ResolvedClaim]) -> bool:
    """Whether the claims leave the choice of the node to the default policy."""
    return all(claim.placement.node in {None, NodePolicy.FRAGMENTATION_AWARE} for claim in asked)


def _renamed(devices: NodeDevices, pools: Sequence[Pool], info: NodeInfo) -> NodeDevices:
    """The devices of another node of the same class, position by position."""
    own: Mapping[DeviceID, DeviceID] = {
        one.id: other.id
        for before, after in zip(pools, info.pools, strict=True)
        for one, other in zip(before.devices, after.devices, strict=True)
    }
    cpu, memory = size_of(info.node)
    return replace(
        devices,
        name=info.name,
        node=info.node,
        gpus=tuple([own[one] for one in devices.gpus]),
        nics=tuple([own[one] for one in devices.nics]),
        parts={own[one]: part for one, part in devices.parts.items()},
        cuts={own[one]: place for one, place in devices.cuts.items()},
        capacity={own[one]: amounts for one, amounts in devices.capacity.items()},
        unusable=frozenset([own[one] for one in devices.unusable]),
        pools=frozenset([pool.id for pool in info.pools]),
        cpu=cpu,
        host_memory=memory,
        sources=tuple(info.pools),
    )
