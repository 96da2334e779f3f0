"""Why a group fits nowhere, over all nodes: each clause once, with how many nodes and devices it holds for.

    nodes ─┬ the pod has to run there      everything that is wrong with it, told first
           ├ left out by the caller        its reason
           ├ none for the pod              its predicates, if its devices would do; otherwise its devices
           └ others, by state              request by request; where each by itself could be served, what all
                                           of them together fail, of the first MOST_IN_DEPTH states

The counts are of all nodes. What is worked out of a node is kept with the request class until the node is
another, so that who asks again pays for what changed.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Final, NamedTuple

from koordra.allocator.allocation_state import AllocationState
from koordra.allocator.devices.inventory import Usage
from koordra.allocator.explain.diagnosis import reasons_one_by_one
from koordra.allocator.explain.grouping import ReasonGroups
from koordra.allocator.group_search import GroupSearch, NodeAnswer, takes_all, undecided_on
from koordra.allocator.predicates import named_nodes
from koordra.allocator.reasons import Cause, ClaimReason, ClaimRefused, Reason, reason_of
from koordra.api import names
from koordra.effort import spend
from koordra.placement.decide import NOTHING, Engine, Excluded
from koordra.placement.index import NodeInfo
from koordra.placement.mig.mode_switch import mode_switch
from koordra.placement.request.claim_groups import ClaimGroup
from koordra.placement.request.request_class import (
    KnownReasons,
    OneByOne,
    ResolvedGroup,
    refusals,
    suits,
)

MOST_IN_DEPTH: Final = 24
"""States of nodes of which it is found out what all requests together fail."""
_MOST_PINNED: Final = 8
_NEW: Final = 2
"""Steps that a node takes which was not looked into before."""
_UNUSED: Final = Usage()
_NATIVE: Final = (
    f"the node is in native mode (label {names.MODE_LABEL}: {names.MODE_NATIVE}), in which kube-scheduler gives "
    "its devices out: this claim is for nodes in joint mode"
)
_NO_PLUGIN: Final = "koordra's kubelet plugin does not run there, or finds none"
_TOGETHER: Final = "every request has enough devices by itself, but all of them together have no place; what they fail is told of other nodes"

_EXCLUDED: Final = (
    "every request has enough devices by itself, but all of them together have no place; so many placements were "
    "tried before that was certain that what they fail is not told"
)


class Explanation(NamedTuple):
    """By position of the claim, in the order in which reasons are told. `error`: the one with which upstream
    would have ended."""

    reasons: tuple[tuple[Reason, ...], ...] = ()
    undecided: bool = False
    error: ClaimRefused | None = None


def explain(
    engine: Engine,
    group: ClaimGroup,
    *,
    excluded: Excluded = NOTHING,
    besides: str = "",
    errors: bool = False,
) -> Explanation:
    """Why the group is on none of the nodes, of which one may be left aside (`besides`). `errors`: whether
    upstream's is looked for, on every node."""
    resolved = engine.resolve(group)
    engine.settle()
    return _Explaining(
        engine,
        group,
        excluded,
        sorted(engine.index.nodes.keys() - {besides}),
        errors,
        resolved,
        engine.placement_for(resolved),
        resolved.request_class.reasons,
        engine.policy is None or takes_all(resolved.asked),
        told=[ReasonGroups() for _ in group.claims],
    ).run()


class _Pinned(NamedTuple):
    """The nodes that a pod has to run on, and what says so."""

    nodes: frozenset[str]
    why: str
    cause: Cause


@dataclass(slots=True, eq=False)
class _Explaining:
    engine: Engine
    group: ClaimGroup
    excluded: Excluded
    nodes: Sequence[str]
    errors: bool
    resolved: ResolvedGroup
    placement: GroupSearch
    known: KnownReasons
    all_fail: bool
    undecided: bool = False
    error: ClaimRefused | None = None
    told: Sequence[ReasonGroups] = ()
    could_serve: dict[Hashable, bool] = field(default_factory=dict)

    def run(self) -> Explanation:
        pinned = self._pinned()
        if not self.nodes:
            nowhere = "there is no node and no ResourceSlice that names one"
            there = self.engine.index.nodes
            self._everywhere(Cause.NODE_UNSUITABLE, "there is no other node" if there else nowhere)
        elif pinned is None:
            self._over_nodes()
        else:
            self._on_pinned(pinned)
        if (switch := mode_switch(self.engine, self.resolved, self.excluded)) is not None:
            self._add(switch.reason)
        return Explanation(tuple([groups.told() for groups in self.told]), self.undecided, self.error)

    def _add(self, reason: Reason, nodes: Sequence[str] = ()) -> None:
        for groups in self.told:
            groups.add(reason, nodes)

    def _everywhere(self, cause: Cause, detail: str, *, pinned: bool = False) -> None:
        self._add(replace(reason_of(cause, detail), is_pinned=pinned))

    # the node that it has to be

    def _pinned(self) -> _Pinned | None:
        """Where the group has to be, if that is said node by node."""
        group, index = self.group, self.engine.index
        found: list[_Pinned] = []
        for pod in group.pods:
            named = named_nodes(pod)
            if named is None:
                continue
            nodes = named.values
            if named.label:
                alike = [name for name, info in index.nodes.items() if info.labels.get(named.label) in nodes]
                nodes = frozenset(alike) or nodes
            found.append(_Pinned(nodes, named.said_by, Cause.NODE_UNSUITABLE))
        allocated = {
            key: one.node
            for key in group.allocated
            if (one := index.allocation(key)) is not None and one.node
        }
        for key, node in sorted(allocated.items()):
            why = f"ResourceClaim {key} of the pod is allocated there"
            found.append(_Pinned(frozenset({node}), why, Cause.SHARED_CLAIM_PINNED))
        least = min(found, key=lambda one: len(one.nodes), default=None)
        return least if least is not None and len(least.nodes) <= _MOST_PINNED else None

    def _on_pinned(self, pinned: _Pinned) -> None:
        """All of the nodes that come into question; of the others how many they are."""
        index = self.engine.index
        shown, there = ", ".join(sorted(pinned.nodes)), pinned.nodes & index.nodes.keys()
        for name in sorted(pinned.nodes):
            info = index.nodes.get(name)
            if info is None:
                detail = f"node {name}, where the pod has to run ({pinned.why}), does not exist"
                self._everywhere(pinned.cause, detail, pinned=True)
                continue
            for position, reason in self._all_of(info):
                told = replace(reason, is_pinned=True)
                if reason.is_aside and reason.request is None:  # it has no devices, which is why
                    told = replace(told, detail=f"{reason.detail}: {_NO_PLUGIN}", is_aside=False)
                self.told[position].add(told)
        others = [name for name in self.nodes if name not in pinned.nodes]
        if others and there:
            detail = f"the pod has to run on {shown} ({pinned.why})"
            self._add(reason_of(pinned.cause, detail, others[0]), others)

    def _all_of(self, info: NodeInfo) -> Iterator[ClaimReason]:
        """Everything that keeps the group off one node."""
        excluded = self.excluded.get(info.name)
        own = [excluded] if excluded is not None else refusals(self.engine.index, self.group, info)
        positions = range(len(self.group.claims))
        yield from [(position, reason) for reason in own for position in positions]
        found = self._by_devices(info, info)
        yield from found.reasons
        if found.served and not own:
            yield from self._together(info, info)

    # all nodes

    def _over_nodes(self) -> None:
        index = self.engine.index
        states: dict[Hashable, list[str]] = {}
        hopeless: dict[Hashable, list[str]] = {}
        for name in self.nodes:
            info = index.nodes[name]
            if name in self.excluded:
                self._add(self.excluded[name])
            elif not (refused := self._refused(info)):
                states.setdefault(self.engine.where(self.resolved, info), []).append(name)
            elif self._could_serve(info):
                for reason in refused:
                    self._add(reason, [name])
            else:
                hopeless.setdefault(info.devices.node_class or info, []).append(name)
        for alike in hopeless.values():
            for position, reason in self._if_unused(index.nodes[alike[0]])[1]:
                self.told[position].add(reason, alike)
        self._states(states)

    def _states(self, states: dict[Hashable, list[str]]) -> None:
        """Nodes that are suitable, by what their devices say."""
        served: dict[Hashable, dict[Hashable, list[str]]] = {}
        for number, (where, alike) in enumerate(states.items()):
            info = self.engine.index.nodes[alike[0]]
            found = self._by_devices(where, info)
            if self.errors and self.error is None and (self.all_fail or found.may_fail or not number):
                self.error = self._search(where, info).error
            for position, reason in found.reasons:
                self.told[position].add(reason, alike)
            if found.served:
                served.setdefault(info.devices.node_class or info, {})[where] = alike
        # One of each kind of node, then a second one of each.
        every = [
            one for row in zip_longest(*(kind.items() for kind in served.values())) for one in row if one
        ]
        for where, alike in every[:MOST_IN_DEPTH]:
            for position, reason in self._together(where, self.engine.index.nodes[alike[0]]):
                self.told[position].add(reason, alike)
        for _, alike in every[MOST_IN_DEPTH:]:
            self._add(reason_of(Cause.INSUFFICIENT_CAPACITY, _TOGETHER, alike[0]), alike)

    # one node, and what is known of it

    def _refused(self, info: NodeInfo) -> tuple[Reason, ...]:
        """Why the node is none for the pods; of several pods by their names, which are no part of the
        class."""
        known = self.known.of_nodes.get(info)
        if known is not None and known[0] == info.settled and not (known[1] and len(self.group.pods) > 1):
            return known[1]
        spend(_NEW)
        found, index = tuple[Reason, ...](), self.engine.index
        by_itself = self.resolved.request_class.names_nodes or self.group.allocated
        if by_itself or not suits(index, self.resolved, info):
            found = tuple(refusals(index, self.group, info))
        self.known.of_nodes[info] = info.settled, found
        return found

    def _by_devices(self, where: Hashable, info: NodeInfo) -> OneByOne:
        """Whether each request by itself could be served, and why other devices cannot."""
        without = self._without_devices(info)
        if without:
            return OneByOne(info, info.settled, False, True, without)
        known = self.known.of_devices.get(where)
        if known is not None and (known.info, known.settled) == (info, info.settled):
            return known
        spend(_NEW)
        state = self._devices(info, self.engine.index.taken)
        served, reasons = reasons_one_by_one(info.name, self.resolved.asked, state)
        may_fail = any(pool.trouble for pool in info.pools) or any(
            verdict.error for verdict in state.verdicts.values()
        )
        found = OneByOne(info, info.settled, served, may_fail, tuple(reasons))
        self.known.of_devices[where] = found
        return found

    def _together(self, where: Hashable, info: NodeInfo) -> tuple[ClaimReason, ...]:
        """What all requests together fail on a node on which each could be served."""
        known = self.known.together.get(where)
        if known is not None and known[0] is info and known[1] == info.settled:
            return known[2]
        answer = self._search(where, info)
        alone = set(self._by_devices(where, info).reasons)
        found = tuple([one for one in answer.reasons() if one not in alone])
        if not answer.exhausted:
            self.known.together[where] = info, info.settled, found
        return found

    def _search(self, where: Hashable, info: NodeInfo) -> NodeAnswer:
        """What is known is not searched for again, or, where it took too much, not told in detail."""
        engine, claims = self.engine, len(self.group.claims)
        known = self.resolved.request_class.results.saying(
            engine.where(self.resolved, info), engine.order.epoch, None, 0
        )
        if known is not None and known.undecided:
            self.undecided = True
            return undecided_on(info.name, claims, known.undecided)
        answer = engine.search(self.resolved, info, engine.index.taken, placement=self.placement, alike=where)
        if answer.exhausted and known is not None and known.bound is None:
            reason = reason_of(Cause.INSUFFICIENT_CAPACITY, _EXCLUDED, info.name)
            return NodeAnswer(reasons=lambda: [(position, reason) for position in range(claims)])
        self.undecided = self.undecided or answer.exhausted
        return answer

    def _could_serve(self, info: NodeInfo) -> bool:
        """Whether the node's devices would do if nobody used them."""
        of = info.devices.node_class
        if of is None:
            return self._if_unused(info)[0]
        if of not in self.could_serve:
            self.could_serve[of] = self._if_unused(info)[0]
        return self.could_serve[of]

    def _if_unused(self, info: NodeInfo) -> tuple[bool, Sequence[ClaimReason]]:
        without = self._without_devices(info)
        if without:
            return False, without
        state = self._devices(info, _UNUSED)
        return reasons_one_by_one(info.name, self.resolved.asked, state)

    def _devices(self, info: NodeInfo, taken: Usage) -> AllocationState:
        return AllocationState(
            info.pools,
            taken,
            self.engine.features,
            namespace=self.resolved.namespace,
            honors_partitions=info.devices.honors_partitions,
            verdicts=self.resolved.request_class.verdicts_of(info),
        )

    def _without_devices(self, info: NodeInfo) -> tuple[ClaimReason, ...]:
        """Why the node looks as if it had no devices: its slices cannot be read, or are not for koordra's
        controller."""
        pool, own = (names.DRIVER, info.name), [one for one in info.pools if one.devices]
        texts = self.engine.index.inventory.unreadable.get(pool, {})
        found = [reason_of(Cause.POOL_INCOMPLETE, text, info.name) for text in sorted(texts.values())]
        if any(one.id == pool for one in own):
            return ()
        if not found and not own and info.labels.get(names.MODE_LABEL) == names.MODE_NATIVE:
            found = [reason_of(Cause.NODE_UNSUITABLE, _NATIVE, info.name)]
        return tuple([(at, reason) for reason in found for at in range(len(self.group.claims))])
