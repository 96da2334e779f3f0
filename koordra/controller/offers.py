"""The controller's engine: told of every change by the cache, asked group by group.

    cache ── listeners ──▶ index ──▶ decide ──▶ allocations to be written
    claims that wait ────▶ learned order         └▶ explain ──▶ reasons, once for every state of a node, MOST_TOLD at most

The engine is `koordra.placement`'s: what is planned offline is what happens. Here only its words are translated: groups of plain
objects into claims that are read once, offers into plain allocations. What keeps a pod off nodes (refused by the scheduler,
reserved for somebody, pod-level obstacles) is said with each question and is no part of what is remembered.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Final

from koordra.allocator.devices.gpu_nic_distance import level_of
from koordra.allocator.features import Features
from koordra.allocator.offer import Offer
from koordra.allocator.reasons import Cause, Reason, refusal, told_in_order
from koordra.allocator.score import POLICIES, policy_of
from koordra.api import names, objects
from koordra.api.allocation import Allocation
from koordra.api.claims import ResourceClaim
from koordra.api.kinds import (
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Kind,
)
from koordra.api.objects import Object
from koordra.controller import claims as claims_of
from koordra.controller.cache.cluster_cache import ClusterCache
from koordra.controller.cache.groups import Group
from koordra.controller.cache.pod_claims import PodClaims
from koordra.controller.cache.slice_index import joint_slice
from koordra.controller.placement_results import Offered, Reasons, refused, waits_for_others
from koordra.errors import InvalidManifest, KoordraError
from koordra.logs import get_logger
from koordra.placement.decide import Engine, Undecided
from koordra.placement.index import Change, NodeInfo
from koordra.placement.order.learned_order import Learned, LearnedOrder
from koordra.placement.request import groups as placement_groups
from koordra.placement.request.request_class import Question

log = get_logger(__name__)

MOST_TOLD: Final = 24
"""Nodes that an Event is made from; it has room for fewer."""

KeptOff = Mapping[str, Reason]
"""Node -> why the group must stay off it."""

_KINDS: Final[tuple[Kind, ...]] = (
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    RESOURCE_SLICES,
    NODES,
    RESOURCE_CLAIMS,
    PODS,
)


class Offers:
    """Not thread-safe."""

    def __init__(self, *, learned: Learned | None = None) -> None:
        self.engine = Engine(
            policy_of(POLICIES[0]), Features.of(None), learned=learned or Learned(), contained=_tell_defect
        )
        self._cache: ClusterCache | None = None
        self._read: dict[str, tuple[Object, ResourceClaim]] = {}
        self._asked: tuple[Group, placement_groups.Group] | None = None
        self._told: dict[object, tuple[int, tuple[Reasons, ...], tuple[str, ...]]] = {}

    @property
    def nodes(self) -> Mapping[str, NodeInfo]:
        """Every node, with what holds its devices and takes its room now."""
        return self.engine.index.nodes

    @property
    def order(self) -> LearnedOrder:
        """What was learned of the workload."""
        return self.engine.order

    # what is there

    def look(self, cache: ClusterCache) -> None:
        """Everything as it is at the beginning of a pass. A new cache is listened to from now on."""
        if self._cache is not cache:
            self._cache = cache
            tables: dict[Kind, Collection[tuple[str, Object]]] = {
                DEVICE_CLASSES: cache.classes.items(),
                DEVICE_TAINT_RULES: cache.taint_rules.items(),
                RESOURCE_SLICES: cache.slices.items(),
                NODES: cache.nodes.items(),
                RESOURCE_CLAIMS: cache.claims.items(),
                PODS: cache.pods.items(),
            }
            for kind in _KINDS:
                for key, obj in list(tables[kind]):
                    self._on_change(kind, key, None, obj)
                cache.listen(kind, partial(self._on_change, kind))
        self.engine.settle()
        if self.order.begins:
            groups = _in_use(cache.claims.values(), cache.pods.values())
            if self.order.begin(self._questions(groups)):
                log.info("leftover_table_learned", claims=self.order.learned.table.pods, of="claims in use")

    def _on_change(self, kind: Kind, key: str, _before: Object | None, obj: Object | None) -> None:
        if kind is RESOURCE_SLICES and obj is not None:
            obj = joint_slice(obj) if objects.spec_of(obj).get("driver") == names.DRIVER else None
        self.engine.index.apply(Change(kind.kind, key, obj))

    def given_out(self, claim: Object, pods: Iterable[Object]) -> None:
        """An allocation was written, or is tried: it holds devices, and its pods will come."""
        index, key = self.engine.index, objects.key(claim)
        held = index.allocated.get(key)
        if held is not None and held.claim is claim:
            index.settle()  # the cache has told of it
            return
        allocation = Allocation.of_claim(claim)
        if allocation is not None and index.allocation(key) != allocation:
            index.assume(claim, allocation, key=key, node=claims_of.node_of(claim) or "", pods=pods)
        index.settle()

    def tentative(self, without: frozenset[str] = frozenset()) -> AbstractContextManager[None]:
        """As if these claims and pods (by uid) were gone; what is given out inside is taken back at the end."""
        return self.engine.index.overlay(without)

    # who waits

    def hear(self, groups: Iterable[Group]) -> None:
        """All that waits counts before the first of them is planned: a pass has one table, and searches no node twice for a newer
        one."""
        for group in groups:
            if not group.placed and self.order.is_new(_uids(group)):
                try:
                    self._heard(group, self.engine.resolve(self._group(group)))
                except KoordraError:
                    continue  # said when it is planned

    def _heard(self, group: Group, question: Question) -> None:
        if self.order.heard(question, _uids(group)):
            log.info("leftover_table_learned", claims=self.order.learned.table.pods)

    # where to

    def best(self, group: Group, kept_off: KeptOff) -> Offered:
        """The group as a whole on the best node, or nowhere."""
        keys = [objects.key(claim) for claim in group.pending]
        try:
            asked = self._group(group)
            if not group.placed:
                self._heard(group, self.engine.resolve(asked))
            decision = self.engine.decide(asked, excluded=kept_off)
            if isinstance(decision, Offer):
                return _offered(decision, keys)
            reasons = self._reasons(group, asked, kept_off)
            return Offered(
                reasons=waits_for_others(dict(zip(keys, reasons, strict=True))),
                undecided=isinstance(decision, Undecided),
                broken=decision.defect,
            )
        except KoordraError as error:
            return Offered(reasons=refused(keys, error))
        except Exception as error:  # noqa: BLE001 (a defect met by one claim must not stop the others)
            text = f"{type(error).__name__} inside the allocator: {error}; please report it"
            reason = Reason(None, None, None, "InternalError", text)
            return Offered(reasons=dict.fromkeys(keys, (reason,)), broken=traceback.format_exc())

    def fits(self, group: Group, node: str, *, without: frozenset[str] = frozenset()) -> bool:
        """Whether the group has a place on the node, with these claims and pods (by uid) gone."""
        try:
            return self.engine.fits(self._group(group), node, without=without)
        except KoordraError:
            return False

    def _group(self, group: Group) -> placement_groups.Group:
        """The group as the engine reads it. Raises ClaimRefused for a claim that cannot be read."""
        known = self._asked
        if known is not None and known[0] is group:
            return known[1]
        claims = tuple([self._claim(claim) for claim in group.pending])
        placed = tuple([objects.key(claim) for claim in group.placed])
        found = placement_groups.Group(claims, group.pods, (), placed)
        self._asked = group, found
        return found

    def _claim(self, claim: Object) -> ResourceClaim:
        uid = objects.uid(claim) or objects.key(claim)
        known = self._read.get(uid)
        if known is not None and known[0] is claim:
            return known[1]
        try:
            found = ResourceClaim.from_dict(claim)
        except InvalidManifest as error:
            raise refusal(objects.key(claim), Cause.CONSTRAINT_VIOLATED, str(error)) from error
        if len(self._read) > 10_000:
            self._read.clear()
        self._read[uid] = claim, found
        return found

    # why not

    def _reasons(self, group: Group, asked: placement_groups.Group, kept_off: KeptOff) -> tuple[Reasons, ...]:
        """Of each claim; worked out once for a class while nothing changes."""
        index, names_now = self.engine.index, _names_of(group)
        question = self.engine.resolve(asked)
        version = index.base + len(index.changes)
        known = self._told.get(question.request_class)
        if known is not None and known[0] == version and not kept_off and not group.placed:
            return _renamed(known[1], known[2], names_now)
        nodes = self.engine.nodes_to_tell(asked, excluded=kept_off, most=MOST_TOLD)
        told = self.engine.explain(asked, excluded=kept_off, nodes=nodes).reasons
        gone = self._gone(asked)
        found = tuple(
            told_in_order([*gone, *(reason for owner, reason in told if owner == at)])
            for at in range(len(group.pending))
        )
        if not kept_off and not group.placed:
            if len(self._told) > 1024:
                self._told.clear()
            self._told[question.request_class] = version, found, names_now
        return found

    def _gone(self, asked: placement_groups.Group) -> list[Reason]:
        """The one node that the pods' other claims are on is not there any more."""
        pinned = self.engine.pinned(asked) if asked.allocated else []
        if len(pinned) != 1 or pinned[0] in self.nodes:
            return []
        keys = ", ".join(asked.allocated)
        text = f"ResourceClaim {keys} of the pod is allocated on node {pinned[0]}, which is gone"
        return [Reason(pinned[0], None, None, Cause.SHARED_CLAIM_PINNED.value, text)]

    # what is in use

    def _questions(self, groups: Iterable[Group]) -> Iterator[tuple[Question, frozenset[str]]]:
        for group in groups:
            try:
                yield self.engine.resolve(self._group(group)), _uids(group)
            except KoordraError:
                continue


def _tell_defect(event: str, node: str) -> None:
    log.exception(event, node=node)


def _offered(offer: Offer, keys: Iterable[str]) -> Offered:
    allocations = offer.allocations(pin_to_node=True)
    return Offered(
        offer.node,
        {key: one.to_dict() for key, one in zip(keys, allocations, strict=True)},
        {key: level_of(offer.devices_of(at)) for at, key in enumerate(keys)},
    )


def _uids(group: Group) -> frozenset[str]:
    return frozenset([objects.uid(claim) or objects.key(claim) for claim in group.pending])


def _in_use(claims: Iterable[Object], pods: Iterable[Object]) -> Iterator[Group]:
    """The claims that have their devices, by pod, as they were when they waited; those without a pod one by one."""
    held = {
        objects.key(claim): {**claim, "status": {}}
        for claim in claims
        if claims_of.holds_koordra_devices(claim)
    }
    for pod in pods:
        keys = [f"{objects.namespace(pod)}/{name}" for name in objects.pod_claim_names(pod).values()]
        own = [held.pop(key) for key in keys if key in held]
        if own:
            spec = {name: value for name, value in objects.spec_of(pod).items() if name != "nodeName"}
            yield Group((PodClaims({**pod, "spec": spec}, tuple(own)),))
    for claim in held.values():
        yield Group((), claim)


def _names_of(group: Group) -> tuple[str, ...]:
    """The keys by which reasons may speak of a group's claims and pods."""
    return (*(objects.key(claim) for claim in group.pending), *(objects.key(pod) for pod in group.pods))


def _renamed(
    reasons: tuple[Reasons, ...], before: tuple[str, ...], after: tuple[str, ...]
) -> tuple[Reasons, ...]:
    """Reasons that were worked out for one group of a class, in the words of another."""
    if before == after or len(before) != len(after):
        return reasons
    called = dict(zip(before, after, strict=True))
    if not any(name in reason.detail for told in reasons for reason in told for name in called):
        return reasons
    pattern = re.compile(
        r"(?<![\w./-])("
        + "|".join(re.escape(name) for name in sorted(called, key=len, reverse=True))
        + r")(?![\w-])"
    )

    def new(reason: Reason) -> Reason:
        return replace(reason, detail=pattern.sub(lambda found: called[found.group()], reason.detail))

    return tuple(tuple(new(reason) for reason in told) for told in reasons)
