"""How many pods the old and the new ReplicaSet of a Deployment may have now. Pure.

Rolling update, with s = maxSurge, u = maxUnavailable, n = spec.replicas:

    new set     grows while all pods together are fewer than n + s
    old sets    shrink while at least n - u pods stay available; pods that are not available go first
    Recreate    the old sets go to 0 first; the new one comes when no pod of theirs is left

Percentages of s round up, those of u round down; both 0 would never move, so u is 1 then.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from koordra.api.objects import Object, annotations_of, metadata, name, spec_of, status_of, uid

DESIRED = "deployment.kubernetes.io/desired-replicas"
MOST = "deployment.kubernetes.io/max-replicas"
REVISION = "deployment.kubernetes.io/revision"
HASH_LABEL = "pod-template-hash"


@dataclass(frozen=True, slots=True)
class Limits:
    """What a Deployment's strategy allows. `replicas`: what is wanted."""

    replicas: int
    surge: int
    unavailable: int

    @property
    def most(self) -> int:
        return self.replicas + self.surge

    @property
    def least_available(self) -> int:
        return self.replicas - self.unavailable


def limits(deployment: Object) -> Limits:
    replicas = int(spec_of(deployment).get("replicas", 1))
    strategy = spec_of(deployment).get("strategy") or {}
    if strategy.get("type") == "Recreate" or replicas == 0:
        return Limits(replicas, 0, 0)
    rolling = strategy.get("rollingUpdate") or {}
    surge = share(rolling.get("maxSurge", "25%"), replicas, up=True)
    unavailable = share(rolling.get("maxUnavailable", "25%"), replicas, up=False)
    if not surge and not unavailable:
        unavailable = 1
    return Limits(replicas, surge, min(unavailable, replicas))


def share(value: Any, total: int, *, up: bool) -> int:
    """An int, or a percentage of `total`."""
    if isinstance(value, str) and value.endswith("%"):
        part = int(value[:-1]) * total / 100
        return math.ceil(part) if up else math.floor(part)
    return int(value)


def wanted(replica_set: Object) -> int:
    return int(spec_of(replica_set).get("replicas", 0))


def counted(replica_set: Object, field: str = "replicas") -> int:
    """A count of the set's status."""
    return int(status_of(replica_set).get(field, 0))


def revision(obj: Object) -> int:
    text = annotations_of(obj).get(REVISION, "0")
    return int(text) if text.isdigit() else 0


def same_template(replica_set: Object, deployment: Object) -> bool:
    """Whether a set was made for the Deployment's present template: the label with the hash does not
    count."""
    theirs = dict(spec_of(replica_set)["template"])
    head = dict(metadata(theirs))
    labels = {key: value for key, value in (head.get("labels") or {}).items() if key != HASH_LABEL}
    head.pop("labels", None)
    theirs["metadata"] = head | ({"labels": labels} if labels else {})
    return _without_empty(theirs) == _without_empty(spec_of(deployment)["template"])


def _without_empty(template: Mapping[str, Any]) -> dict[str, Any]:
    head = {field: value for field, value in (template.get("metadata") or {}).items() if value}
    return {"metadata": head, "spec": template.get("spec")}


def by_age(sets: Sequence[Object]) -> list[Object]:
    return sorted(sets, key=lambda one: (metadata(one)["creationTimestamp"], name(one)))


def scaled(allowed: Limits, new: Object, old: Sequence[Object]) -> dict[str, int]:
    """uid of a set -> the replicas that a rolling update gives it now, for the sets where that changes."""
    total = wanted(new) + sum(map(wanted, old))
    if wanted(new) > allowed.replicas:
        return {uid(new): allowed.replicas}
    if wanted(new) < allowed.replicas and total < allowed.most:
        return {uid(new): wanted(new) + min(allowed.most - total, allowed.replicas - wanted(new))}
    return _shrunk(allowed, new, old, total)


def _shrunk(allowed: Limits, new: Object, old: Sequence[Object], total: int) -> dict[str, int]:
    """The old sets: first pods that are not available, then as many as may be missed."""
    missing_new = wanted(new) - counted(new, "availableReplicas")
    spare = total - allowed.least_available - missing_new
    if spare <= 0:
        return {}
    found: dict[str, int] = {}
    for one in by_age(old):
        unhealthy = wanted(one) - counted(one, "availableReplicas")
        less = max(0, min(spare, unhealthy))
        if less:
            found[uid(one)] = wanted(one) - less
            spare -= less
    available = counted(new, "availableReplicas") + sum(counted(one, "availableReplicas") for one in old)
    spare = available - allowed.least_available
    for one in by_age(old):
        now = found.get(uid(one), wanted(one))
        less = max(0, min(spare, now))
        if less:
            found[uid(one)] = now - less
            spare -= less
    return found


def proportions(allowed: Limits, sets: Sequence[Object]) -> dict[str, int]:
    """What each set gets when a Deployment is scaled in the middle of a rollout: its share, the rest to the
    largest."""
    total = sum(map(wanted, sets))
    goal = allowed.most if allowed.replicas > 0 else 0
    extra = goal - total
    if not extra or not total:
        return {}
    largest_first = sorted(sets, key=lambda one: (-wanted(one), metadata(one)["creationTimestamp"]))
    found, given = {}, 0
    for one in largest_first:
        desired = int(annotations_of(one).get(MOST, total) or total)
        part = round(wanted(one) * goal / desired) - wanted(one)
        part = max(min(part, extra - given), 0) if extra > 0 else min(max(part, extra - given), 0)
        found[uid(one)] = wanted(one) + part
        given += part
    first = uid(largest_first[0])
    found[first] = max(0, found[first] + extra - given)
    return found
