"""Whom to evict so that a gang fits that is more urgent (`--preemption`). Pure.

    1. single pods that are less urgent are taken away; if the gang does not fit, gangs too
    2. of those, who has none of the devices that the gang then gets stays
    3. the others are put back one by one, gangs first, the most urgent first: who does not stand in the way
       stays

A gang is taken whole, or it gives up members beyond its least, unless its group says that all end together:
never so many that it is left with too few. It is as urgent as its group says, or as its most urgent member. A
gang that started and lost members takes the place of single pods alone: two of them would else take from each
other. Nobody is taken for a gang of which a member, or the group, has `preemptionPolicy: Never`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from koordra.api import objects
from koordra.api.objects import Object
from koordra.controller import claims as claims_of
from koordra.controller.allocation.eviction.preemption import EvictedWith
from koordra.controller.cache import pod_index
from koordra.controller.claims import Users
from koordra.controller.gangs.eviction import beyond_least
from koordra.controller.gangs.membership import Gang
from koordra.placement.gang import GangAnswer, GangPlaced
from koordra.placement.request.claim_groups import urgency

MOST_TRIED: Final = 16
"""Victims that are put back to see whether the gang fits beside them."""

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
        met = [one for one in able if not given.isdisjoint(self._places(one))]
        gangs = {one.gang for one in met if one.gang}
        in_the_way = [one for one in able if one in met or one.gang in gangs]
        if len(in_the_way) < len(able):
            fewer = self.fits(self._gone(in_the_way))
            if isinstance(fewer, GangPlaced):
                able, answer = in_the_way, fewer
        for victim in sorted(able, key=_put_back)[:MOST_TRIED]:
            if victim not in able:
                continue
            rest = [one for one in able if one is not victim and not _contains(one, victim)]
            without = self.fits(self._gone(rest)) if rest else None
            if isinstance(without, GangPlaced):
                able, answer = rest, without
        whole = {one.gang for one in able if one.is_whole}
        left = [one for one in able if one.is_whole or one.gang not in whole or not one.gang]
        return left, frozenset(placed.node for placed in answer.members)

    def _places(self, victim: Victim) -> set[tuple[str, str]]:
        pods = {objects.uid(pod) for pod in victim.pods}
        return {
            (str(result.get("pool")), str(result.get("device")))
            for claim in self.claims
            if pods & {objects.uid(pod) for pod in self.users.get(objects.key(claim), ())}
            for result in claims_of.results(claim)
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


def _contains(whole: Victim, one: Victim) -> bool:
    """Whether the one is put back with that gang, or cannot be without it."""
    return whole.is_whole and not one.is_whole and whole.gang == one.gang


def _put_back(victim: Victim) -> tuple[Any, ...]:
    """Whole gangs first, then members of gangs, then single pods; of each the most urgent."""
    return not victim.is_whole, not victim.gang, -victim.priority, min(map(urgency, victim.pods))
