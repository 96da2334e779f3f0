"""The placement engine as the controller uses it: kept by the changes of the cache, asked group by group.

    cache ── listeners ──▶ index ──▶ decide ─┬▶ allocations to be written
    pods that ran ───────▶ learned order     └▶ explain ──▶ reasons, by clause over all nodes

The engine is `koordra.placement`'s: what is planned offline is what happens. Here groups of plain objects
become claims that are read once, and offers become plain allocations. What keeps a pod off nodes (refused by
the scheduler, reserved for somebody, predicates between pods) is passed with each question and is no part of
what the engine caches.

An error of the allocator becomes a reason with the nearest word of the vocabulary, so that one bad claim
never ends a pass.
"""

from __future__ import annotations

import traceback
from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import partial
from math import inf
from typing import Final
from weakref import WeakKeyDictionary

from koordra.allocator.devices.gpu_nic_distance import level_of
from koordra.allocator.explain.telling import waiting_for_others
from koordra.allocator.features import Features
from koordra.allocator.offer import Offer
from koordra.allocator.predicates import readable_amounts
from koordra.allocator.reasons import Cause, Reason, reason_of, refusal
from koordra.allocator.score import policy_of
from koordra.api import names, objects
from koordra.api.allocation import Allocation
from koordra.api.claims import ResourceClaim
from koordra.api.kinds import (
    DEVICE_CLASSES,
    DEVICE_HOLDS,
    DEVICE_TAINT_RULES,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Kind,
)
from koordra.api.objects import Fields, Object
from koordra.controller import claims as claims_of
from koordra.controller.allocation.waiting_reasons import GroupPlacement, Reasons, refused, renamed
from koordra.controller.cache.cluster_cache import ClusterCache
from koordra.controller.cache.groups import Group, UseReader
from koordra.controller.cache.slice_index import joint_slice
from koordra.controller.reporting.claim_events import INTERNAL_ERROR
from koordra.errors import (
    InvalidManifest,
    KoordraError,
    SelectorsCostTooMuch,
)
from koordra.logs import get_logger
from koordra.placement.candidates.decision import Undecided
from koordra.placement.candidates.node_scoring import ScoringStrategy
from koordra.placement.decide import Engine, Excluded
from koordra.placement.explain import explain
from koordra.placement.index import ClusterChange, NodeInfo
from koordra.placement.mig.mode_switch import ModeSwitch, mode_switch
from koordra.placement.policy.learned_order import InUse, Learned
from koordra.placement.request.claim_groups import ClaimGroup
from koordra.placement.request.request_class import RequestClass, ResolvedGroup
from koordra.process.progress import step

log = get_logger(__name__)

MOST_CLAIMS: Final = 256
"""Claims that are placed together."""
_FEW: Final = 64
"""Pods that any node holds: more are counted against the nodes."""

_KINDS: Final = (
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    RESOURCE_SLICES,
    NODES,
    RESOURCE_CLAIMS,
    DEVICE_HOLDS,
    PODS,
)

_TIMESTAMP: Final = "allocationTimestamp"

_Explained = tuple[object, tuple[Reasons, ...], tuple[str, ...]]
"""When that was, why each claim waits, and the names it is said with."""


class Placer:
    """`nodes`: every node, with what holds its devices and takes its room now. `asks_again`: whether what is
    undecided is asked again later (`Engine.decide`). `explains`: whether a pass works out why groups fit
    nowhere; without it that is left to who asks. `policy`, `features` and `scoring` as `engine_for()` takes
    them. Not thread-safe."""

    def __init__(
        self,
        *,
        learned: Learned | None = None,
        asks_again: bool = False,
        explains: bool = True,
        policy: str = names.DEFAULT_POLICY,
        features: str | None = None,
        scoring: ScoringStrategy | None = None,
    ) -> None:
        """Raises PlanError for an unknown policy or gate."""
        self._asks_again = asks_again
        self.explains = explains
        self.engine = Engine(
            policy_of(policy),
            Features.of(features),
            learned=learned or Learned(),
            contained=lambda event, node: log.exception(event, node=node),
            scoring=scoring,
        )
        self.nodes: Mapping[str, NodeInfo] = self.engine.index.nodes
        self.order = self.engine.order
        self.declined: dict[str, tuple[float, Reason]] = {}
        """Nodes that did not switch the MIG mode of a card; until when they are not asked."""
        self._cache: ClusterCache | None = None
        self._read: dict[str, tuple[Group, ResolvedGroup]] = {}
        """Groups by key, as they were read in this pass."""
        self._offered: dict[str, tuple[Fields, Allocation]] = {}
        """By claim key: what was offered last, as it is written and as the engine reads it."""
        self._explained = WeakKeyDictionary[RequestClass, _Explained]()

    # the cluster

    def follow(self, cache: ClusterCache) -> None:
        """Hear of everything that is there, and that changes from now on."""
        if self._cache is not cache:
            self._cache = cache
            for kind in _KINDS:
                cache.listen(kind, partial(self._on_change, kind), replay=True)

    def sync(self, cache: ClusterCache) -> None:
        """Everything as it is at the beginning of a pass."""
        self.follow(cache)
        self.engine.settle()
        if self.order.begin(self.in_use(cache)):
            log.info("leftover_table_learned", claims=self.order.learned.table.pods, of="claims in use")
        self._read.clear()

    def _on_change(self, kind: Kind, key: str, _before: Object | None, obj: Object | None) -> None:
        step()
        if kind is RESOURCE_SLICES and obj is not None:
            obj = joint_slice(obj) if objects.spec_of(obj).get("driver") == names.DRIVER else None
        allocation = None
        if kind is RESOURCE_CLAIMS and obj is not None and key in self._offered:
            allocation = self._known_allocation(key, obj)
        self.engine.index.apply(ClusterChange(kind.kind, key, obj, allocation))

    def _known_allocation(self, key: str, claim: Object) -> Allocation | None:
        """The allocation of a claim if it is what was offered last, but for the time."""
        found = claims_of.allocation(claim)
        written, allocation = self._offered[key]
        if found is None or {**written, _TIMESTAMP: found.get(_TIMESTAMP)} != found:
            return None
        return allocation

    def assume(self, claim: Object, pods: Iterable[Object]) -> None:
        """As if the claim's allocation had been written: it holds devices, and its pods will come."""
        if (allocation := Allocation.of_claim(claim)) is not None:
            key, node = objects.key(claim), claims_of.node_of(claim) or ""
            self.engine.index.assume(claim, allocation, key=key, node=node, pods=pods)
            self.engine.index.settle()

    def overlay(self, without: frozenset[str] = frozenset()) -> AbstractContextManager[None]:
        """As if these claims and pods (by uid) were gone; what is assumed inside is taken back at the end."""
        return self.engine.index.overlay(without)

    # the workload

    def learn(self, groups: Iterable[Group]) -> None:
        """Count the claims of pods that began to run, before the first group of a pass is placed: it has one
        table, and searches no node twice for a newer one."""
        new = (
            group
            for group in groups
            if not group.placed and self.order.is_new(_uids(group)) and not self._too_many(group)
        )
        for group, resolved in self._readable(new):
            if self.order.observe(resolved, _uids(group)):
                log.info("leftover_table_learned", claims=self.order.table.pods)

    def in_use(self, cache: ClusterCache) -> Iterable[InUse]:
        """What pods run with now; read when somebody looks."""
        reader = self.use_reader(cache)
        reader.read(cache.pod_index.entries.values())
        yield from reader.in_use

    def use_reader(self, cache: ClusterCache) -> UseReader:
        return UseReader(cache, self.engine.index.pods.requests_of, self.readable)

    # questions

    def place(self, group: Group, excluded: Excluded, *, why: bool = True) -> GroupPlacement:
        """`why`: whether anybody reads the reasons of a group that fits nowhere."""
        step()
        keys = [objects.key(claim) for claim in group.pending]
        if too_many := self._too_many(group):
            reason = reason_of(Cause.NODE_UNSUITABLE, too_many)
            return GroupPlacement(reasons=dict.fromkeys(keys, (reason,)))
        try:
            resolved = self._resolved(group)
            decision = self.engine.decide(resolved, excluded=excluded, once=self._asks_again)
            if isinstance(decision, Offer):
                offered = dict(zip(keys, decision.allocations(pin_to_node=True), strict=True))
                self._offered = {key: (one.to_dict(), one) for key, one in offered.items()}
                return GroupPlacement(
                    decision.node,
                    {key: written for key, (written, _) in self._offered.items()},
                    {key: level_of(decision.devices_of(at)) for at, key in enumerate(keys)},
                    score=-decision.cost.written,
                )
            switch, later = self._mode_switch(resolved, excluded)
            told = self._reasons(group, resolved, excluded) if why else ((),) * len(keys)
            reasons = zip(keys, told, strict=True)
            return GroupPlacement(
                reasons=waiting_for_others(dict(reasons)),
                undecided=isinstance(decision, Undecided) or later,
                defect=decision.defect,
                switch=switch,
            )
        except SelectorsCostTooMuch as error:
            reason = reason_of(Cause.SEARCH_LIMIT, str(error))
            return GroupPlacement(reasons=dict.fromkeys(keys, (reason,)), undecided=True, interrupted=True)
        except KoordraError as error:
            return GroupPlacement(reasons=refused(keys, error))
        except Exception as error:  # noqa: BLE001 (a defect met by one claim must not stop the others)
            text = f"{type(error).__name__} inside the allocator: {error}; please report it"
            reason = Reason(None, None, None, INTERNAL_ERROR, text)
            return GroupPlacement(reasons=dict.fromkeys(keys, (reason,)), defect=traceback.format_exc())

    def _mode_switch(self, resolved: ResolvedGroup, excluded: Excluded) -> tuple[ModeSwitch | None, bool]:
        """What would do, and, where nothing does, whether something will once nodes are asked again."""
        off = {name: reason for name, (_, reason) in self.declined.items()} | dict(excluded)
        found = mode_switch(self.engine, resolved, off)
        if found is not None or len(off) == len(excluded):
            return found, False
        return None, mode_switch(self.engine, resolved, excluded) is not None

    def question(self, group: Group, excluded: Excluded) -> Hashable:
        """Equal for groups that get the same answer now; None where that is not known."""
        if group.placed or self._too_many(group):
            return None
        try:
            return self._resolved(group).request_class, frozenset(excluded)
        except KoordraError:
            return None

    def _too_many(self, group: Group) -> str:
        """Why the group is more than any node holds, seen before anything of it is read; empty where it is
        not: pods that share claims in a chain are as many as somebody likes."""
        most = inf
        if len(group.pods) > _FEW:
            most = max((_pods_of(info) for info in self.nodes.values()), default=inf)
        if len(group.pods) > most:
            return (
                f"{len(group.pods)} pods share claims in a chain and have to be on one node, which takes {most:.0f} "
                "at most; give them claims of their own"
            )
        if (number := len(group.pending)) > MOST_CLAIMS:
            return f"{number} claims have to be on one node at once, and {MOST_CLAIMS} are placed together at most"
        return ""

    def fits_when_empty(self, group: Group, info: NodeInfo) -> bool:
        """Whether the group has a place on the node without the claims that have devices there, and without
        their pods."""
        users = {} if self._cache is None else self._cache.pod_index.users
        pods = [pod for claim in info.holders for pod in users.get(objects.key(claim), ())]
        return self.fits(group, info, frozenset(map(objects.uid, (*info.holders, *pods))))

    def fits(self, group: Group, info: NodeInfo, without: frozenset[str]) -> bool:
        step()
        if self._too_many(group):
            return False
        try:
            return self.engine.fits(self._resolved(group), info.name, without=without)
        except KoordraError:
            return False

    def _resolved(self, group: Group) -> ResolvedGroup:
        """The group as the engine reads it. Raises ClaimRefused for a claim that cannot be read or placed by
        anybody."""
        known = self._read.get(group.key)
        if known is None or known[0] is not group:
            known = self._read[group.key] = group, self.engine.resolve(self.group(group))
        return known[1]

    def group(self, group: Group) -> ClaimGroup:
        claims = []
        for claim in group.pending:
            try:
                claims.append(ResourceClaim.from_dict(claim))
            except InvalidManifest as error:
                raise refusal(objects.key(claim), Cause.CONSTRAINT_VIOLATED, str(error)) from error
        return ClaimGroup(
            tuple(claims), group.pods, (), tuple([objects.key(claim) for claim in group.placed])
        )

    # why a group fits nowhere

    def _reasons(self, group: Group, resolved: ResolvedGroup, excluded: Excluded) -> tuple[Reasons, ...]:
        """Of each claim; worked out once for a class while nothing changes."""
        index, asked, of = self.engine.index, resolved.group, resolved.request_class
        names_now = tuple(map(objects.key, (*group.pending, *group.pods)))
        version = (
            index.base + len(index.changes),
            self._cache and self._cache.capacity_epoch.epoch,
            of.budget,
        )
        is_common = not excluded and not group.placed
        known = self._explained.get(of) if is_common else None
        if known is not None and known[0] == version:
            return renamed(known[1], known[2], names_now)
        found = explain(self.engine, asked, excluded=excluded).reasons
        if is_common:
            self._explained[of] = version, found, names_now
        return found

    def _readable(self, groups: Iterable[Group]) -> Iterator[tuple[Group, ResolvedGroup]]:
        for group in groups:
            if (resolved := self.readable(group)) is not None:
                yield group, resolved

    def readable(self, group: Group) -> ResolvedGroup | None:
        step()
        try:
            return self._resolved(group)
        except KoordraError:
            return None


def _pods_of(info: NodeInfo) -> float:
    """How many pods the node takes."""
    amounts = readable_amounts(objects.fields(objects.status_of(info.node).get("allocatable")))
    return float(amounts.get("pods", inf))


def _uids(group: Group) -> frozenset[str]:
    return frozenset([objects.uid(claim) or objects.key(claim) for claim in group.pending])
