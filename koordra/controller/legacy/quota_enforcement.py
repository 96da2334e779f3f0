"""Pods beyond a quota get no devices: what makes the bound exact although the webhook has several replicas.

    two replicas admit the last card to a pod each, because neither's watch shows the other's pod yet
        ──> both pods are stored, held by their gate
        ──> the leader, which alone gives out devices, counts the namespace's pods: those that have devices first, then by age;
            whoever no longer fits gets none, and is told why (QuotaExceeded, on claim and pod)
        ──> members of a gang are counted next to each other, and where too few of them fit none takes anything: two gangs that
            have half of the bound each would wait for each other for ever
        ──> a pod ends or the bound is raised: the next one gets its devices

Kubernetes' own ResourceQuota writes the quota at each admission, on condition that nobody else has, and so refuses the second pod. Here
the second pod waits instead; no admission waits for a write, and nobody needs the right to change quotas. It holds
however late a watch is: the leader gives a pod devices only after it has counted it, and counts all that have some.

Nothing is taken from a pod that has its devices, also where a bound was lowered or came later. On native nodes
kube-scheduler gives out devices and knows nothing of these quotas: there the count only tells (QuotaExceeded). Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from koordra.api import objects
from koordra.api.objects import Object
from koordra.controller.legacy.quota import Charge, bounded, exceeded, in_scope

TEXT: Final = (
    "the pod was admitted while others were, and stands beyond a bound of its namespace: {}; it gets its devices when others end, "
    "or when spec.hard of ResourceQuota {} is raised"
)
WITH_ITS_GANG: Final = "gang {} waits as a whole, since too few of its members fit: {}"


@dataclass(frozen=True, slots=True)
class Counted:
    """A pod of one namespace and what it amounts to. `has_devices`: nothing is taken from it, and it comes
    first. `age` orders the others. `gang`: whom it starts with; `spare`: how many of them may be held without holding all."""

    name: str
    charges: tuple[Charge, ...]
    has_devices: bool
    age: tuple[str, str]
    gang: str = ""
    spare: int = 0


def beyond(quotas: Sequence[Object], pods: Iterable[Counted]) -> dict[str, str]:
    """Name -> why the pod gets no devices. `quotas` and `pods` are of one namespace; who cannot be given devices now is not
    among them, for nobody should wait for him."""
    bounding = [quota for quota in quotas if bounded(quota)]
    taken: Counter[tuple[str, str]] = Counter()
    waiting: list[Counted] = []
    for pod in pods:
        if pod.has_devices:
            _take(bounding, pod, taken)
        else:
            waiting.append(pod)
    held: dict[str, str] = {}
    for together in _in_turn(waiting):
        before, found = taken.copy(), {}
        for pod in together:
            quota, why = _first_exceeded(bounding, pod, taken)
            if why:
                found[pod.name] = TEXT.format(why, quota)
            else:
                _take(bounding, pod, taken)
        first = together[0]
        if first.gang and len(found) > first.spare:
            taken, words = before, WITH_ITS_GANG.format(first.gang, next(iter(found.values())))
            found = dict.fromkeys((pod.name for pod in together), words)
        held.update(found)
    return held


def _in_turn(pods: Iterable[Counted]) -> list[list[Counted]]:
    """By age; a gang is as old as its oldest member."""
    found: dict[tuple[str, str], list[Counted]] = {}
    for pod in sorted(pods, key=lambda one: one.age):
        found.setdefault((pod.gang, "" if pod.gang else pod.name), []).append(pod)
    return list(found.values())


def _take(quotas: Sequence[Object], pod: Counted, taken: Counter[tuple[str, str]]) -> None:
    for quota in quotas:
        for charge in pod.charges:
            if in_scope(quota, charge.pod):
                for name, amount in charge.amounts.items():
                    taken[objects.name(quota), name] += amount or 0


def _first_exceeded(
    quotas: Sequence[Object], pod: Counted, taken: Counter[tuple[str, str]]
) -> tuple[str, str]:
    """(quota, words); all charges of a pod at once."""
    more: Counter[str] = Counter()
    for charge in pod.charges:
        more.update({name: amount for name, amount in charge.amounts.items() if amount})
    for quota in quotas:
        if pod.charges and in_scope(quota, pod.charges[0].pod):
            asking = Charge(pod.charges[0].pod, more)
            why = exceeded(quota, asking, lambda one, name: taken[objects.name(one), name])
            if why:
                return objects.name(quota), why
    return "", ""
