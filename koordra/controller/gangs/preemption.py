"""Whom to evict so that a gang fits that is more urgent (`--preemption`). Pure.

    1. single pods that are less urgent are taken away; if the gang does not fit, gangs too
    2. of those, who has none of the devices that the gang then gets stays
    3. the others are put back (`in_the_way`), gangs first, the most urgent first: who does not stand in the
       way stays. Where the effort of a pass ends before that is known of all, the rest go: they have devices
       that the gang gets

A gang is taken whole, or it gives up members beyond its least, unless its group says that all end together:
never so many that it is left with too few. It is as urgent as its group says, or as its most urgent member. A
gang that started and lost members takes the place of single pods alone: two of them would else take from each
other. Nobody is taken for a gang of which a member, or the group, has `preemptionPolicy: Never`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from koordra.api import objects
from koordra.api.objects import Object
from koordra.controller import claims as claims_of
from koordra.controller.allocation.eviction.preemption import EvictedWith
from koordra.controller.cache import pod_index
from koordra.controller.claims import Users
from koordra.controller.gangs.eviction import beyond_least, in_the_way
from koordra.controller.gangs.membership import Gang
from koordra.placement.gang import GangAnswer, GangPlaced
from koordra.placement.request.claim_groups import urgency

Fits = Callable[[frozenset[str]], GangAnswer]
"""The answer as if these claims and pods (by uid) were gone."""


@dataclass(frozen=True, slots=True)
class Victim:
    """Pods that are evicted together: a single one, a member beyond the least of its gang, or a whole gang.
    `gang`: its key."""

    pods: tuple[Object, ...]
    priority: int
    gang: str = ""
    is_whole: bool = False


@dataclass(frozen=True, slots=True)
class GangPreemption:
    """For one gang. `claims`: those that have devices; `spared`: whom a pod (by uid) that is not
    evicted alone is evicted with; nobody for those that are not to be evicted now."""

    gang: Gang
    claims: Sequence[Object]
    users: Users
    spared: EvictedWith
    gangs: Mapping[str, Gang]
    fits: Fits

    def victims(self, *, singles_only: bool) -> tuple[list[Victim], frozenset[str]] | None:
        """Who is evicted, and the nodes on which the gang then has its places; None where that does not
        help."""
        if not self.gang.terms.disruption.preempts or any(
            objects.spec_of(one.pod).get("preemptionPolicy") == "Never" for one in self.gang.members
        ):
            return None
        weaker = [one for one in self._candidates() if one.priority < -self.gang.urgency[0]]
        singles = [one for one in weaker if not one.gang]
        for able in (singles,) if singles_only else (singles, weaker):
            if able and isinstance(answer := self.fits(self._gone(able)), GangPlaced):
                return self._fewest(able, answer)
        return None

    def _candidates(self) -> list[Victim]:
        """Pods with devices; of gangs whole ones, and members beyond their least."""
        found: dict[str, Victim] = {}
        for claim in self.claims:
            for pod in () if claims_of.is_kept(claim) else self.users.get(objects.key(claim), ()):
                if (
                    pod_index.is_bound(pod)
                    and pod_index.is_living(pod)
                    and objects.uid(pod) not in self.spared
                ):
                    found[objects.uid(pod)] = Victim((pod,), -urgency(pod)[0])
        for key, gang in self.gangs.items():
            committed = [one for one in gang.committed if self.spared.get(one.uid)]
            if key == self.gang.key or not committed or len(committed) < len(gang.committed):
                continue
            priority = -gang.urgency[0]
            found[f"gang {key}"] = Victim(tuple(one.pod for one in committed), priority, key, is_whole=True)
            for one in beyond_least(gang):
                found[one.uid] = Victim((one.pod,), priority, key)
        return [found[name] for name in sorted(found)]

    def _fewest(self, able: list[Victim], answer: GangPlaced) -> tuple[list[Victim], frozenset[str]]:
        """Of these, as few as will do."""
        given = {
            (result["pool"], result["device"])
            for placed in answer.members
            for allocation in placed.allocations.values()
            for result in allocation["devices"]["results"]
        }
        holding = self._holding(given)
        met = [one for one in able if any(objects.uid(pod) in holding for pod in one.pods)]
        ids, gangs = set(map(id, met)), {one.gang for one in met if one.gang}
        having = [one for one in able if id(one) in ids or one.gang in gangs]
        if len(having) < len(able):
            fewer = self.fits(self._gone(having))
            if isinstance(fewer, GangPlaced):
                able, answer = having, fewer
        able, answer = self._put_back(able, answer, whole=True)
        gone = {one.gang for one in able if one.is_whole}
        able = [one for one in able if one.is_whole or not one.gang or one.gang not in gone]
        able, answer = self._put_back(able, answer, whole=False)
        return able, frozenset(placed.node for placed in answer.members)

    def _put_back(
        self, able: list[Victim], answer: GangPlaced, *, whole: bool
    ) -> tuple[list[Victim], GangPlaced]:
        """Those without whom the gang fits, of whole gangs or of the others only who is in the way."""
        rest = [one for one in able if one.is_whole is not whole]
        asked = sorted((one for one in able if one.is_whole is whole), key=_most_urgent)
        gone, answer = in_the_way(
            asked, answer, fits=lambda some: self.fits(self._gone(both)) if (both := [*rest, *some]) else None
        )
        return [*rest, *gone], answer

    def _holding(self, devices: set[tuple[str, str]]) -> set[str]:
        """Pods, by uid, with a claim that has some of the devices (pool and name)."""
        return {
            objects.uid(pod)
            for claim in self.claims
            if any(
                (str(one.get("pool")), str(one.get("device"))) in devices for one in claims_of.results(claim)
            )
            for pod in self.users.get(objects.key(claim), ())
        }

    def _gone(self, victims: Iterable[Victim]) -> frozenset[str]:
        """The pods, and the claims that nobody uses any more without them."""
        pods = {objects.uid(pod) for one in victims for pod in one.pods}
        claims = {
            objects.uid(claim)
            for claim in self.claims
            if (using := self.users.get(objects.key(claim)))
            and pods.issuperset(map(objects.uid, using))
            and not claims_of.outlives_pods(claim)
        }
        return frozenset(pods | claims)


def _most_urgent(victim: Victim) -> tuple[Any, ...]:
    """Members of gangs before single pods; of each the most urgent."""
    return not victim.gang, -victim.priority, min(map(urgency, victim.pods))
