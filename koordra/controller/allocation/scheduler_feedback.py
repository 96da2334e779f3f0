"""Did kube-scheduler say no to an allocation? Pure rules over what the caches show, and the allocations that
wait for its answer: a pod is read again when it or one of its claims has changed, and when its patience ends.

kube-scheduler never says "no" in so many words (reference: measured on 1.36). It either *erases* the
allocation (its PostFilter, when the claim was unavailable on some node), or leaves it and only says
`PodScheduled=False, reason Unschedulable` on the pod, because every node failed an earlier filter. That
condition may as well be an *old* answer: the pod was tried before its claims were allocated, or a scheduling
cycle that began before our write ended after it. The API shows no causal link, so evidence is needed.

From our write on, an `AwaitedAllocation` remembers per pod and claim when it was written and which condition
the pod had. Then:

    allocation  reservedFor    pod                                          reads as
    ----------  -------------  -------------------------------------------  ---------------------------
    any         any            bound, finished, deleting or gone            SETTLED
    set         somebody       any                                          SETTLED (a)
    set         empty          gated                                        NOT_YET
    set         empty          condition is not (False, Unschedulable)      NOT_YET
    set         empty          Unschedulable, but another claim of koordra's
                               in the pod is unallocated (of course it is)  NOT_YET
    set         empty          Unschedulable, with a proof (below)          REFUSED
    set         empty          Unschedulable, without proof                 NOT_YET till patience ends
    gone        was empty, or  waits                                        ERASED
                only this pod
    gone        was others     waits                                        SETTLED (b)
    moved       any            any                                          SETTLED (c)

    (a) accepted: by this pod, or by one that now pins the claim to its node
    (b) its last user ended and kube-controller-manager freed it
    (c) somebody else allocated it anew

Proofs that an Unschedulable answers this allocation (none of them holds for what is said of the pod's
PodGroup as a whole: there is a place for this pod, and none for another one, whose gate may not be lifted
yet):

    gate        the pod carried koordra's gate when the claim was written: it is tried only once that is
                lifted, and it is lifted last (*)
    generation  condition.observedGeneration is beyond the pod's generation at the time of the write (*)
    transition  condition.lastTransitionTime lies SETTLE or more after allocation.allocationTimestamp (it
                moves only with the status, so this serves pods that were first tried after the write)
    changed     the condition was seen to change SETTLE or more after the write; a cycle that ran across
                our write ends sooner than that
    patience    it has said Unschedulable for PATIENCE since the write. A change of the claim requeues the
                pod, and the scheduler's longest back-off is 10 s. The patience doubles with each refusal
                of the pod, so that a scheduler that is away does not make pods wander.

    (*) but not what is said of allocating claims, where none is left to allocate: kube-scheduler has a copy
        of the pod that is newer than the write, and one of the claim that is older. The claim's update makes
        it try again.

A wrong NO costs a round, never correctness: devices are only taken back while the claim is unreserved,
conditional on its version. After a restart of the controller nothing is remembered: the grant then counts
from the first time it is seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Final

from koordra.api import objects
from koordra.api.objects import Fields, Object
from koordra.api.tables import DueKeys, set_or_drop
from koordra.controller import claims as claims_of
from koordra.controller.cache import pod_index
from koordra.controller.cache.pod_index import Condition, PodClaims, PodIndex, pod_scheduled

SETTLE: Final = 1.0
PATIENCE: Final = 15.0
LONGEST_PATIENCE: Final = 240.0
CANNOT_ALLOCATE: Final = "cannot allocate all claims"
"""What the plugin DynamicResources says of claims that have no allocation, and of no others."""


@dataclass(frozen=True, slots=True)
class AwaitedAllocation:
    """An allocation that waits for the scheduler's answer, as far as one pod is concerned.

    `since` and `changed` are monotonic seconds; `condition` is the last one seen and `changed` when it last
    differed from the one before (None: not since the write). `reserved` are the uids last seen in
    reservedFor.
    """

    claim_uid: str
    node: str
    allocated_at: str
    since: float
    condition: Condition
    generation: int
    was_gated: bool
    changed: float | None = None
    reserved: tuple[str, ...] = ()

    @classmethod
    def of(cls, claim: Object, pod: Object, now: float) -> AwaitedAllocation | None:
        """To be remembered for an allocated claim and a pod that waits; None where it is pinned to no node.

        `pod` is the pod as it was seen when the allocation was written, or is first seen with it.
        """
        node = claims_of.node_of(claim)
        if node is None:
            return None
        return cls(
            objects.uid(claim),
            node,
            _timestamp(claim),
            now,
            pod_scheduled(pod),
            int(objects.metadata(pod).get("generation") or 0),
            pod_index.is_gated(pod),
            reserved=tuple(claims_of.reserved_for(claim)),
        )

    def with_seen(self, claim: Object, pod: Object, now: float) -> AwaitedAllocation:
        """With what is seen now, for the rules that compare two moments."""
        condition, reserved = pod_scheduled(pod), self.reserved
        if claims_of.is_allocated(claim):
            reserved = tuple(claims_of.reserved_for(claim))
        changed = now if condition != self.condition else self.changed
        return replace(self, condition=condition, changed=changed, reserved=reserved)

    def read(self, claim: Object, member: PodClaims, *, refusals: int, now: float) -> SchedulerAnswer:
        """Apply the table, for a living pod without a node. `refusals`: how often it was refused before."""
        if not claims_of.is_allocated(claim):
            if set(self.reserved) - {objects.uid(member.pod)}:
                return SchedulerAnswer(Reading.SETTLED)
            return SchedulerAnswer(Reading.ERASED, self.condition.message or "the allocation was erased")
        has_moved = claims_of.node_of(claim) != self.node or _timestamp(claim) != self.allocated_at
        if has_moved or claims_of.reserved_for(claim):
            return SchedulerAnswer(Reading.SETTLED)
        if not self.condition.is_unschedulable or pod_index.gates(member.pod) or member.pending:
            return SchedulerAnswer(Reading.NOT_YET)
        patience_ends = self.since + min(PATIENCE * 2.0**refusals, LONGEST_PATIENCE)
        if self._is_proven(member) or now >= patience_ends:
            return SchedulerAnswer(Reading.REFUSED, self.condition.message or "Unschedulable")
        return SchedulerAnswer(Reading.NOT_YET, look_again=patience_ends)

    def _is_proven(self, member: PodClaims) -> bool:
        condition = self.condition
        if condition.is_of_group:
            return False
        knows_claims = CANNOT_ALLOCATE not in condition.message or any(
            not claims_of.is_allocated(claim) for claim in member.others
        )
        if knows_claims and (self.was_gated or condition.observed_generation > self.generation > 0):
            return True
        if self.changed is not None and self.changed >= self.since + SETTLE:
            return True
        transition, allocated = _seconds(condition.transition), _seconds(self.allocated_at)
        return transition is not None and allocated is not None and transition >= allocated + 1.0 + SETTLE


class Reading(StrEnum):
    SETTLED = "settled"
    NOT_YET = "not yet"
    REFUSED = "refused"
    ERASED = "erased"


@dataclass(frozen=True, slots=True)
class SchedulerAnswer:
    """`look_again`: monotonic time at which NOT_YET may have become something else without any change in the
    API."""

    reading: Reading
    why: str = ""
    look_again: float | None = None


def _timestamp(claim: Fields) -> str:
    return str((claims_of.allocation(claim) or {}).get("allocationTimestamp") or "")


def _seconds(text: str) -> float | None:
    """RFC 3339 as Unix seconds; Kubernetes cuts fractions off, hence the extra second above."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class SchedulerRefusal:
    """The scheduler said no to `node` for this pod; `claim` is the one that showed it."""

    member: PodClaims
    claim: Object
    node: str
    answer: SchedulerAnswer


class FeedbackTracker:
    """One AwaitedAllocation per pod and allocated claim (scheduler_feedback.py has the rules). Not
    thread-safe.

    `refusals` says how often a pod (by uid) was refused before.
    """

    def __init__(self, pods: PodIndex, *, refusals: Callable[[str], int]) -> None:
        self._pods = pods
        self._refusals = refusals
        self._grants: dict[str, dict[str, AwaitedAllocation]] = {}
        """uid of a pod -> uid of a claim -> its grant."""
        self._unread = pods.follow()
        self._due = DueKeys()

    def remember(self, claim: Object, pods: Iterable[Object], *, now: float) -> None:
        """The claim was just allocated for these pods: what they say at this moment is an old answer."""
        for pod in pods:
            if (grant := AwaitedAllocation.of(claim, pod, now)) is not None:
                self._grants.setdefault(objects.uid(pod), {})[grant.claim_uid] = grant

    def drop(self, claim: Object) -> None:
        """We took the allocation back ourselves; its absence is nobody's answer."""
        for pod in self._pods.users.get(objects.key(claim), ()):
            self._grants.get(objects.uid(pod), {}).pop(objects.uid(claim), None)

    def settle(self, refusal: SchedulerRefusal) -> None:
        """A no has been acted on; until then every reading finds it again."""
        pod = objects.uid(refusal.member.pod)
        self._grants.pop(pod, None)
        self._unread.add(pod)

    def read(self, *, now: float) -> tuple[list[SchedulerRefusal], float | None]:
        """Bring the grants that may have changed up to date and read them: the noes (one per pod, by the
        pods' keys), and when to look again at the latest.

        An allocation that is seen for the first time (after a restart) counts from now.
        """
        self._unread |= self._due.pop(now)
        unread = [uid for uid in self._unread if uid in self._pods.open or uid in self._grants]
        refusals = {uid: refusal for uid in unread if (refusal := self._read(uid, now)) is not None}
        self._unread.intersection_update(refusals)
        return sorted(refusals.values(), key=lambda refusal: objects.key(refusal.member.pod)), (
            self._due.next
        )

    def _read(self, uid: str, now: float) -> SchedulerRefusal | None:
        member = self._pods.member(uid) if uid in self._pods.open else None
        before, current, refusal = self._grants.pop(uid, {}), dict[str, AwaitedAllocation](), None
        if member is None or pod_index.is_bound(member.pod):
            return None
        for claim in member.ours:
            grant = before.get(objects.uid(claim))
            if grant is not None:
                grant = grant.with_seen(claim, member.pod, now)
            elif claims_of.is_allocated(claim):
                grant = AwaitedAllocation.of(claim, member.pod, now)
            if grant is None:
                continue
            answer = grant.read(claim, member, refusals=self._refusals(uid), now=now)
            if answer.reading in {Reading.REFUSED, Reading.ERASED} and refusal is None:
                refusal = SchedulerRefusal(member, claim, grant.node, answer)
            if answer.reading is not Reading.SETTLED:
                current[grant.claim_uid] = grant
            if answer.look_again is not None:
                self._due.add(answer.look_again, uid)
        set_or_drop(self._grants, uid, current)
        return refusal
