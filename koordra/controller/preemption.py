"""Whom to evict so that a more urgent pod fits. Pure; off unless asked for (`--preemption`).

As kube-scheduler does it for what it knows: a group that fits nowhere may take the place of pods with lower
priority. On each node that has such pods with claims of koordra's

    1. take all of them away; if the group does not fit even so, the node is out of the question
    2. put them back one by one, the most urgent first, and keep every one beside which the group still fits
    3. those left over are the victims

and of all nodes the one whose most urgent victim is the least urgent is chosen, then the one with fewer victims,
then by name. A pod with `preemptionPolicy: Never` takes nobody's place. A claim that a pod of equal or higher
priority uses too is nobody's to take, nor is an Immediate claim. The victims are evicted through the eviction API, so
PodDisruptionBudgets hold; the node is then kept free for the group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from koordra.api import objects
from koordra.api.objects import Object
from koordra.controller import claims as claims_of
from koordra.controller.order import urgency
from koordra.controller.sites import Site
from koordra.controller.snapshot import Group

MOST_NODES: Final = 100
"""Nodes that are worked out for one group in one pass."""

Fits = Callable[[Group, Site, frozenset[str]], bool]
"""Whether the group fits on the site as if these claims and pods (by uid) were gone."""


@dataclass(frozen=True, slots=True)
class Preemption:
    """`victims`: pods to evict from `node`."""

    node: str
    victims: tuple[Object, ...]


def preemption_for(
    group: Group, sites: Iterable[Site], users: Mapping[str, Sequence[Object]], *, fits: Fits
) -> Preemption | None:
    """The cheapest eviction that makes the group fit, None when there is none. `users`: claim key -> pods."""
    if not group.pods or any(objects.spec_of(pod).get("preemptionPolicy") == "Never" for pod in group.pods):
        return None
    priority = min(_priority(pod) for pod in group.pods)
    found: list[tuple[tuple[int, int, str], Preemption]] = []
    candidates = [site for site in sites if _weaker(site, users, priority)]
    for site in sorted(candidates, key=lambda each: each.name)[:MOST_NODES]:
        victims = _victims(group, site, users, priority, fits)
        if victims:
            worst = max(_priority(pod) for pod in victims)
            found.append(((worst, len(victims), site.name), Preemption(site.name, victims)))
    return min(found, key=lambda entry: entry[0])[1] if found else None


def _victims(
    group: Group, site: Site, users: Mapping[str, Sequence[Object]], priority: int, fits: Fits
) -> tuple[Object, ...]:
    weaker = _weaker(site, users, priority)
    if not fits(group, site, _uids(site, weaker, users)):
        return ()
    gone = list(weaker)
    for pod in sorted(weaker, key=urgency):
        rest = [other for other in gone if other is not pod]
        if fits(group, site, _uids(site, rest, users)):
            gone = rest
    return tuple(sorted(gone, key=objects.key))


def _weaker(site: Site, users: Mapping[str, Sequence[Object]], priority: int) -> list[Object]:
    """Pods of lower priority that hold devices here together with nobody stronger."""
    found: dict[str, Object] = {}
    for claim in site.holders:
        using = users.get(objects.key(claim), ())
        if using and not claims_of.is_immediate(claim) and all(_priority(pod) < priority for pod in using):
            found.update((objects.uid(pod), pod) for pod in using if not objects.is_deleting(pod))
    return [found[uid] for uid in sorted(found)]


def _uids(site: Site, pods: Iterable[Object], users: Mapping[str, Sequence[Object]]) -> frozenset[str]:
    """The pods, and the claims that nobody uses any more without them."""
    gone = {objects.uid(pod) for pod in pods}
    freed = {
        objects.uid(claim)
        for claim in site.holders
        if (using := users.get(objects.key(claim))) and all(objects.uid(pod) in gone for pod in using)
    }
    return frozenset(gone | freed)


def _priority(pod: Mapping[str, Any]) -> int:
    found = objects.spec_of(pod).get("priority")
    return found if isinstance(found, int) and not isinstance(found, bool) else 0
