"""Whom to evict so that a more urgent pod fits. Pure; off unless asked for (`--preemption`).

As kube-scheduler does it for what it knows: a group that fits nowhere may take the place of pods with lower
priority. On each node that has such pods with claims of koordra's

    1. take all of them away; if the group does not fit even so, the node is out of the question
    2. put them back one by one, the most urgent first, and keep every one beside which the group still fits
    3. those left over are the victims

and of all nodes the one whose most urgent victim is the least urgent is chosen, then the one with fewer
victims, then by name. A pod with `preemptionPolicy: Never` takes nobody's place. A claim that a pod of equal
or higher priority uses too is nobody's to take, nor is one that has its devices without pods. The victims are
evicted through the eviction API, so PodDisruptionBudgets hold; the node is then kept free for the group.

The members of a gang are of use only together, so they are one victim: all of them, on whatever node they
are, or none, but for those beyond the least of a group whose pods end one by one. A gang is as urgent as its
group says, or as its most urgent member, and it counts as many victims as it has members, so single pods are
taken before gangs. A gang that is just being started is nobody's victim.

Who may not be evicted now (a budget says no) is nobody's victim for a while, and his gang with him: a gang of
which a budget gives up one member at a time would lose that one again and again, for nobody's good.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

from koordra.api import objects
from koordra.api.objects import Object
from koordra.controller import claims as claims_of
from koordra.controller.allocation.node_backoff import PodBackoff
from koordra.controller.cache.groups import Group
from koordra.controller.claims import Users
from koordra.placement.index import NodeInfo
from koordra.placement.request.claim_groups import Urgency, urgency

MOST_NODES: Final = 100
"""Nodes that are worked out for one group in one pass."""

Fits = Callable[[Group, NodeInfo, frozenset[str]], bool]
"""Whether the group fits on the node as if these claims and pods (by uid) were gone."""

Victim = tuple[Object, ...]
"""Pods that are evicted together: one, or all members of a gang."""

EvictedWith = Mapping[str, Victim]
"""Whom a pod (by uid) is evicted with, itself included; nobody: it is not to be evicted. Others are evicted
alone."""

FIRST_REFUSAL: Final = 30.0
LONGEST_REFUSAL: Final = 3600.0


class EvictionBackoff(PodBackoff):
    """Pods that may not be evicted now."""

    def __init__(self) -> None:
        super().__init__(first=FIRST_REFUSAL, longest=LONGEST_REFUSAL)

    def without_refused(self, together: EvictedWith, now: float) -> dict[str, Victim]:
        """`together` with nobody for those that are spared."""
        found = dict(together)
        for uid, (until, _) in self._until.items():
            if until > now:
                found.update((objects.uid(pod), ()) for pod in together.get(uid, ()))
                found[uid] = ()
        return found

    def is_active(self, now: float) -> bool:
        return any(until > now for until, _ in self._until.values())


@dataclass(frozen=True, slots=True)
class Preemption:
    """Evictions that make room for a group; members of gangs may be elsewhere. `priorities`: of pods, by uid,
    that are as urgent as the group they are in."""

    group: Group
    users: Users
    together: EvictedWith
    fits: Fits
    priorities: Mapping[str, int] = field(default_factory=dict)

    def cheapest(self, nodes: Iterable[NodeInfo]) -> tuple[str, Victim] | None:
        """The node, and the pods to evict. None when there is none."""
        pods = self.group.pods
        if not pods or any(objects.spec_of(pod).get("preemptionPolicy") == "Never" for pod in pods):
            return None
        priority = min(map(self._priority, pods))
        weaker = {info.name: (info, found) for info in nodes if (found := self._weaker(info, priority))}
        victims = {name: self._victims(*weaker[name]) for name in sorted(weaker)[:MOST_NODES]}
        return min(
            (one for one in victims.items() if one[1]),
            key=lambda one: (max(map(self._priority, one[1])), len(one[1]), one[0]),
            default=None,
        )

    def _victims(self, info: NodeInfo, weaker: Sequence[Victim]) -> Victim:
        if not self.fits(self.group, info, self._freed(info, weaker)):
            return ()
        gone = list(weaker)
        for victim in sorted(weaker, key=self._put_back):
            rest = [other for other in gone if other is not victim]
            if self.fits(self.group, info, self._freed(info, rest)):
                gone = rest
        ended = {objects.uid(pod): pod for pod in chain.from_iterable(gone)}
        return tuple(sorted(ended.values(), key=objects.key))

    def _weaker(self, info: NodeInfo, priority: int) -> list[Victim]:
        """Pods of lower priority that hold devices here together with nobody stronger; gangs as a whole."""
        found: dict[str, Victim] = {}
        for claim in info.holders:
            using = self.users.get(objects.key(claim), ())
            if claims_of.is_kept(claim):
                continue
            taken = [self.together.get(objects.uid(pod), (pod,)) for pod in using]
            if not all(victim and all(self._priority(pod) < priority for pod in victim) for victim in taken):
                continue
            for victim in taken:
                if living := tuple(pod for pod in victim if not objects.is_deleting(pod)):
                    found[min(map(objects.uid, living))] = living
        return [found[uid] for uid in sorted(found)]

    def _freed(self, info: NodeInfo, victims: Iterable[Victim]) -> frozenset[str]:
        """The pods, and the claims that nobody uses any more without them."""
        gone = frozenset(map(objects.uid, chain.from_iterable(victims)))
        return gone.union(
            objects.uid(claim)
            for claim in info.holders
            if (using := self.users.get(objects.key(claim)))
            and gone.issuperset(map(objects.uid, using))
            and not claims_of.outlives_pods(claim)
        )

    def _put_back(self, victim: Victim) -> tuple[int, Urgency, int]:
        """The most urgent first, and a gang before a member that may go without it."""
        return -max(map(self._priority, victim)), min(map(urgency, victim)), -len(victim)

    def _priority(self, pod: Object) -> int:
        return self.priorities.get(objects.uid(pod), -urgency(pod)[0])
