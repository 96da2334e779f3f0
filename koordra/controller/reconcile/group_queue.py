"""The groups that wait, and which of them a pass considers.

A group is considered when it is new or changed, when something has changed that concerns all, when its pods
are kept off other nodes than before, when its pause is over, and when what its predicates read of other pods
has changed. It is planned again only if its *basis* changed: the capacity epoch (something that
could make room), its own pods and claims, or the nodes it is kept off.

Not planned for are pods beyond a quota (quota/), members of gangs, pods with a claim
that nobody can allocate, and consumers of a shared claim beyond the 256 that it can be reserved for
(ReservedForFull). They are told so (`unplanned`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import Final

from koordra.api import objects
from koordra.api.objects import Object
from koordra.api.tables import DueKeys, KeySets, set_or_drop
from koordra.controller import claims as claims_of
from koordra.controller.allocation.guest_index import Concern, concerns_of
from koordra.controller.allocation.pass_context import PassContext
from koordra.controller.allocation.reserved.quotas import Quotas
from koordra.controller.cache import pod_index
from koordra.controller.cache.consumers import first_consumers
from koordra.controller.cache.groups import Group, GroupIndex
from koordra.controller.cache.pod_index import PodClaims
from koordra.controller.claims import Owner
from koordra.controller.gangs import events
from koordra.controller.gangs.controller import GangController
from koordra.controller.reconcile.unplanned import Unplanned, created
from koordra.controller.reporting.claim_events import QUOTA_EXCEEDED
from koordra.placement.decide import Excluded
from koordra.placement.request.claim_groups import MAX_CONSUMERS

NOT_READ_PAUSE = 1.0
"""Seconds. Nothing wakes a pass when quotas were read and there are none."""


Basis = tuple[object, ...]
NO_BASIS: Final[Basis] = ()
"""Of a group that could not be planned at all: any other is a new one."""
_NOTHING: Final = frozenset[Concern]()


class GroupQueue:
    """Not thread-safe."""

    def __init__(self, context: PassContext, gangs: GangController, quotas: Quotas) -> None:
        self._context = context
        self._gangs = gangs
        self.quotas = quotas
        self.beyond_quota: Mapping[str, str] = {}
        """Pods that stand beyond their quota, and why; an empty text where the quota could not be read
        yet."""
        self.requoted: set[str] = set()
        """Pods of which another thing is said than before."""
        self._awaits_quotas = False
        self._unplanned = Unplanned(context)
        self._index = GroupIndex()
        self.groups: Mapping[str, Group] = self._index.groups
        self._touched = context.cache.pod_index.follow()
        self._crowded: set[str] = set()
        self._paused = DueKeys()
        self._unconsidered: set[str] = set()
        self._reading = KeySets()
        """Groups by what their predicates read of other pods."""
        self._reads: dict[str, frozenset[Concern]] = {}
        self._seen: tuple[object, ...] = ()
        self.waiting: dict[str, tuple[Basis, float]] = {}
        """Groups that were planned without success: on which basis, and until when that holds although
        nothing changes."""

    @property
    def next_pause(self) -> float | None:
        return self._paused.next

    # one group

    def is_unchanged(self, group: Group, basis: Basis, now: float) -> bool:
        """Whether it was planned on this very basis before; then it need not be considered before something
        changes."""
        before, until = self.waiting.get(group.key, (None, now))
        if before != basis or until <= now:
            return False
        self._unconsidered.discard(group.key)
        return True

    def waits(self, group: Group, basis: Basis, until: float, *, why: str) -> None:
        """It was planned without success, in one word: on another basis it is planned again, and at the time
        `until`."""
        if until < inf:
            self._paused.add(until, group.key)
        self.waiting[group.key] = basis, until
        self._context.waiting.put(group.key, why, created(group.first))
        self._unconsidered.discard(group.key)

    def done(self, group: Group) -> bool:
        """It need not wait, or is to be considered in the next pass; whether it waited before."""
        self._context.waiting.drop(group.key)
        return self.waiting.pop(group.key, None) is not None

    # all groups

    def ask_quota(self, now: float) -> None:
        """Which pods stand beyond their quota now."""
        pods, before = self._context.cache.pod_index, self.beyond_quota
        self._awaits_quotas = self.quotas.is_awaited()
        if self._awaits_quotas:
            self._context.wake(now + NOT_READ_PAUSE)
        if not before and not self.quotas.is_bounding():
            return
        self.beyond_quota = (
            self.quotas.held(pods.members(pods.open), self._gangs.indispensable()) if pods.pending else {}
        )
        if self.beyond_quota and not all(self.beyond_quota.values()):
            self._context.wake(now + NOT_READ_PAUSE)
        self.requoted = {uid for uid, _ in {*before.items()} ^ {*self.beyond_quota.items()}}
        self._touched |= self.requoted

    def update(self) -> tuple[list[Group], list[str]]:
        """Bring the groups up to date: those that are new or changed, and the keys of those that are gone."""
        self._touched |= self._gangs.changed_members()
        served = self._served()
        for uid in self._touched:
            self._unplanned.look_at(uid)
            self._index.update(uid, self._planned(uid, served))
        self._touched.clear()
        self._unplanned.tell_lacking()
        self._unplanned.tell_refused()
        changed, gone = self._index.settle(self._immediate())
        for key in gone:
            self.waiting.pop(key, None)
            self._context.waiting.drop(key)
            self._unconsidered.discard(key)
            self._read(key, _NOTHING)
        for group in changed:
            self._unconsidered.add(group.key)
            self._read(group.key, frozenset([concern for pod in group.pods for concern in concerns_of(pod)]))
        return changed, gone

    def _read(self, key: str, concerns: frozenset[Concern]) -> None:
        self._reading.move(key, self._reads.pop(key, _NOTHING), concerns)
        set_or_drop(self._reads, key, concerns)

    def to_consider(
        self,
        concerns: tuple[object, ...],
        excluded: Iterable[str],
        now: float,
        *,
        touched: set[Concern] | None = None,
    ) -> list[Group]:
        """In the order of planning. What could not be considered because a pass was cut off is left for the
        next one.

        `concerns`: what concerns all groups; `excluded`: pods that are kept off other nodes than before;
        `touched`: what has changed that the predicates of some read, which is emptied.
        """
        groups = self._index.groups
        if concerns != self._seen:
            self._seen = concerns
            self._unconsidered.update(groups)
        for concern in touched or ():
            self._unconsidered |= self._reading.get(concern, set())
        if touched:
            touched.clear()
        for uid in excluded:
            if (group := self._index.group_of(uid)) is not None:
                self._unconsidered.add(group.key)
        self._unconsidered |= self._paused.pop(now)
        self._unconsidered &= groups.keys()
        return sorted((groups[key] for key in self._unconsidered), key=lambda group: group.urgency)

    # who is planned for

    def _served(self) -> dict[str, frozenset[str]]:
        """Claims with more consumers than they can be reserved for -> those that have the claim, by uid."""
        pods = self._context.cache.pod_index
        claims = self._crowded.union(*(pods.entries[uid].keys for uid in self._touched & pods.entries.keys()))
        crowded = {key for key in claims if len(pods.users.get(key, ())) > MAX_CONSUMERS}
        for key in crowded | self._crowded:
            self._touched.update(objects.uid(pod) for pod in pods.users.get(key, ()))
        self._crowded = crowded
        return {
            key: first_consumers(claim, pods.users[key], self._context.cache.pod_groups)
            for key in crowded
            if (claim := self._context.cache.claims.get(key))
        }

    def _planned(self, uid: str, served: Mapping[str, frozenset[str]]) -> PodClaims | None:
        """The pod with its claims, where it is planned for by itself: it waits for nobody else, is in no
        gang, within its quota, and has a place in the reservedFor of its claims."""
        pods = self._context.cache.pod_index
        member = pods.member(uid) if uid in pods.refused or uid in pods.pending else None
        if member is not None and uid in pods.refused:
            self._unplanned.tell_unplannable(member)
        if member is None or uid not in pods.pending or self._gangs.has(uid):
            return None
        if (why := self.beyond_quota.get(uid)) is not None:
            if why:
                events.tell_quota_exceeded(member, why, context=self._context)
                self._unplanned.waits(member.pod, QUOTA_EXCEEDED)
            return None
        for claim in member.ours if served else ():
            if uid not in served.get(objects.key(claim), (uid,)):
                self._unplanned.tell_full(claim, member)
                return None
        return member

    def _immediate(self) -> dict[str, Object]:
        cache, found = self._context.cache, dict[str, Object]()
        if self._awaits_quotas:  # pods come first, and get nothing yet
            return found
        for key in cache.claim_index.waiting_without_pod():
            claim = cache.claims[key]
            owner = claims_of.owner(claim, cache.classes)
            if owner is Owner.KOORDRA:
                found[key] = claim
            elif owner is not Owner.FOREIGN:
                self._unplanned.tell_unplannable(PodClaims({}, (), (), ((claim, owner),)))
        return found


def basis_of(group: Group, epoch: int, excluded: Sequence[Excluded]) -> Basis:
    """What a plan for this group depends on; specs of claims cannot change. `excluded`: of each part."""
    pods = tuple(
        (
            objects.uid(member.pod),
            objects.metadata(member.pod).get("generation"),
            tuple(pod_index.gates(member.pod)),
            objects.spec_of(member.pod).get("nodeName"),
            tuple((objects.uid(claim), claims_of.node_of(claim)) for claim in (*member.ours, *member.others)),
        )
        for member in group.members
    )
    return (epoch, pods, tuple(tuple((node, of[node].detail) for node in sorted(of)) for of in excluded))
