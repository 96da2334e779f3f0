"""The allocations that still wait for the scheduler's answer, and the noes among the answers that came."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from koordra.api import objects
from koordra.api.objects import Object
from koordra.controller import answers, snapshot
from koordra.controller import claims as claims_of
from koordra.controller.answers import Answer, Grant, Reading
from koordra.controller.snapshot import PodClaims


@dataclass(frozen=True, slots=True)
class Refusal:
    """The scheduler said no to `node` for this pod; `claim` is the one that showed it."""

    member: PodClaims
    claim: Object
    node: str
    answer: Answer


class Grants:
    """One Grant per pod and allocated claim (answers.py has the rules). Not thread-safe.

    `refusals` says how often a pod (by uid) was refused before.
    """

    def __init__(self, *, refusals: Callable[[str], int]) -> None:
        self._refusals = refusals
        self._grants: dict[tuple[str, str], Grant] = {}

    def remember(self, claim: Object, pods: Iterable[Object], *, now: float) -> None:
        """The claim was just allocated for these pods: what they say at this moment is an old answer."""
        for pod in pods:
            grant = answers.granted(claim, pod, now=now)
            if grant is not None:
                self._grants[_place(pod, claim)] = grant

    def drop(self, claim: Object) -> None:
        """We took the allocation back ourselves; its absence is nobody's answer."""
        uid = objects.uid(claim)
        self._grants = {place: grant for place, grant in self._grants.items() if place[1] != uid}

    def settle(self, refusal: Refusal) -> None:
        """A no has been acted on; until then every reading finds it again."""
        pod = objects.uid(refusal.member.pod)
        self._grants = {place: grant for place, grant in self._grants.items() if place[0] != pod}

    def read(self, members: Iterable[PodClaims], *, now: float) -> tuple[list[Refusal], float | None]:
        """Bring all grants up to date and read them: the noes (one per pod), and when to look again at the
        latest.

        An allocation that is seen for the first time (after a restart) counts from now.
        """
        current: dict[tuple[str, str], Grant] = {}
        refusals: list[Refusal] = []
        look_again: float | None = None
        for member in members:
            if snapshot.is_bound(member.pod):
                continue
            refusal = None
            for claim in member.ours:
                grant = self._up_to_date(member.pod, claim, now)
                if grant is None:
                    continue
                answer = answers.read(
                    grant,
                    pod=member.pod,
                    claim=claim,
                    all_allocated=not member.pending,
                    refusals=self._refusals(objects.uid(member.pod)),
                    now=now,
                )
                if answer.is_no and refusal is None:
                    refusal = Refusal(member, claim, grant.node, answer)
                if answer.reading is not Reading.SETTLED:
                    current[_place(member.pod, claim)] = grant
                if answer.look_again is not None:
                    look_again = min(answer.look_again, look_again or answer.look_again)
            if refusal is not None:
                refusals.append(refusal)
        self._grants = current
        return refusals, look_again

    def _up_to_date(self, pod: Object, claim: Object, now: float) -> Grant | None:
        before = self._grants.get(_place(pod, claim))
        if before is not None:
            return answers.noted(before, pod=pod, claim=claim, now=now)
        return answers.granted(claim, pod, now=now) if claims_of.is_allocated(claim) else None


def _place(pod: Object, claim: Object) -> tuple[str, str]:
    return objects.uid(pod), objects.uid(claim)
