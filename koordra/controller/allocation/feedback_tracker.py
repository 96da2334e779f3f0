"""The allocations that still wait for the scheduler's answer, and the noes among the answers that came.

A pod is read again when it or one of its claims has changed, and when its patience ends.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from koordra.api import objects
from koordra.api.objects import Object
from koordra.controller import claims as claims_of
from koordra.controller.allocation import scheduler_feedback
from koordra.controller.allocation.scheduler_feedback import Answer, Grant, Reading
from koordra.controller.cache import pod_claims
from koordra.controller.cache.pod_claims import PodClaims
from koordra.controller.cache.pod_index import PodIndex


@dataclass(frozen=True, slots=True)
class Refusal:
    """The scheduler said no to `node` for this pod; `claim` is the one that showed it."""

    member: PodClaims
    claim: Object
    node: str
    answer: Answer


class FeedbackTracker:
    """One Grant per pod and allocated claim (scheduler_feedback.py has the rules). Not thread-safe.

    `refusals` says how often a pod (by uid) was refused before.
    """

    def __init__(self, pods: PodIndex, *, refusals: Callable[[str], int]) -> None:
        self._pods = pods
        self._refusals = refusals
        self._grants: dict[str, dict[str, Grant]] = {}
        """uid of a pod -> uid of a claim -> its grant."""
        self._unread = pods.follow()
        self._due: list[tuple[float, str]] = []

    def remember(self, claim: Object, pods: Iterable[Object], *, now: float) -> None:
        """The claim was just allocated for these pods: what they say at this moment is an old answer."""
        for pod in pods:
            grant = scheduler_feedback.granted(claim, pod, now=now)
            if grant is not None:
                self._put(
                    objects.uid(pod), {**self._grants.get(objects.uid(pod), {}), grant.claim_uid: grant}
                )

    def drop(self, claim: Object) -> None:
        """We took the allocation back ourselves; its absence is nobody's answer."""
        for pod in self._pods.users.get(objects.key(claim), ()):
            self._grants.get(objects.uid(pod), {}).pop(objects.uid(claim), None)

    def settle(self, refusal: Refusal) -> None:
        """A no has been acted on; until then every reading finds it again."""
        pod = objects.uid(refusal.member.pod)
        self._put(pod, {})
        self._unread.add(pod)

    def read(self, *, now: float) -> tuple[list[Refusal], float | None]:
        """Bring the grants that may have changed up to date and read them: the noes (one per pod, by the pods' keys), and when to
        look again at the latest.

        An allocation that is seen for the first time (after a restart) counts from now.
        """
        while self._due and self._due[0][0] <= now:
            self._unread.add(heapq.heappop(self._due)[1])
        unread, refusals = set(self._unread), []
        for uid in unread:
            refusal = self._read(uid, now)
            if refusal is None:
                self._unread.discard(uid)
            else:
                refusals.append(refusal)
        refusals.sort(key=lambda refusal: objects.key(refusal.member.pod))
        return refusals, self._due[0][0] if self._due else None

    def _read(self, uid: str, now: float) -> Refusal | None:
        entry = self._pods.entries.get(uid)
        member = entry.member if entry is not None and uid in self._pods.open else None
        if member is None or pod_claims.is_bound(member.pod):
            self._put(uid, {})
            return None
        current: dict[str, Grant] = {}
        refusal = None
        for claim in member.ours:
            grant = self._up_to_date(member.pod, claim, now)
            if grant is None:
                continue
            answer = scheduler_feedback.read(
                grant,
                pod=member.pod,
                claim=claim,
                all_allocated=not member.pending,
                refusals=self._refusals(uid),
                now=now,
            )
            if answer.is_no and refusal is None:
                refusal = Refusal(member, claim, grant.node, answer)
            if answer.reading is not Reading.SETTLED:
                current[grant.claim_uid] = grant
            if answer.look_again is not None:
                heapq.heappush(self._due, (answer.look_again, uid))
        self._put(uid, current)
        return refusal

    def _up_to_date(self, pod: Object, claim: Object, now: float) -> Grant | None:
        before = self._grants.get(objects.uid(pod), {}).get(objects.uid(claim))
        if before is not None:
            return scheduler_feedback.updated(before, pod=pod, claim=claim, now=now)
        return scheduler_feedback.granted(claim, pod, now=now) if claims_of.is_allocated(claim) else None

    def _put(self, pod: str, grants: dict[str, Grant]) -> None:
        if grants:
            self._grants[pod] = grants
        else:
            self._grants.pop(pod, None)
