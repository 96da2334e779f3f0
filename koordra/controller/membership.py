"""Which claims each pod has, worked out again only where something changed.

A pass looks at every pod; most of them are as they were. An entry is kept while the pod, its claims and the
classes are the very same values (watch caches hand out the same value until a new version comes in), so that
a pass over thousands of unchanged pods costs a few comparisons each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from koordra.api import objects
from koordra.api.objects import Object
from koordra.controller.snapshot import Cluster, PodClaims, claims_of_pod, is_living


@dataclass(frozen=True, slots=True)
class _Entry:
    pod: Object
    keys: tuple[str, ...]
    claims: tuple[Object | None, ...]
    missing: bool
    found: PodClaims | None
    is_open: bool


class Membership:
    """Not thread-safe. After `look`: `members`, `open`, `users` and `lacking` describe that cluster."""

    def __init__(self) -> None:
        self.members: list[PodClaims] = []
        """Every living pod all of whose claims exist and of which at least one concerns koordra."""
        self.open: list[PodClaims] = []
        """Those of them about whom anything is left to decide; the others have their node and their devices."""
        self.users: dict[str, list[Object]] = {}
        """Claim key -> the pods that name it and have not finished."""
        self.lacking: set[str] = set()
        """uids of pods that name a claim which does not exist or is about to go."""
        self._entries: dict[str, _Entry] = {}
        self._classes: Sequence[Object] = ()

    def look(self, cluster: Cluster) -> None:
        if not _same(self._classes, cluster.classes):
            self._entries.clear()
        self._classes = cluster.classes
        entries: dict[str, _Entry] = {}
        self.members, self.open, self.users, self.lacking = [], [], {}, set()
        for pod in cluster.pods:
            if not (pod.get("spec") or {}).get("resourceClaims") or objects.pod_is_finished(pod):
                continue
            uid = objects.uid(pod)
            entry = entries[uid] = self._entry(pod, self._entries.get(uid), cluster)
            for key in entry.keys:
                self.users.setdefault(key, []).append(pod)
            if entry.missing:
                self.lacking.add(uid)
            if entry.found is not None:
                self.members.append(entry.found)
                if entry.is_open:
                    self.open.append(entry.found)
        self._entries = entries

    def usable(self, claim: Object) -> bool:
        """Whether some pod that names the claim can still run with it."""
        return any(objects.uid(pod) not in self.lacking for pod in self.users.get(objects.key(claim), ()))

    def _entry(self, pod: Object, before: _Entry | None, cluster: Cluster) -> _Entry:
        by_key = cluster.claims_by_key
        if before is not None and before.pod is pod:
            keys = before.keys
            if all(by_key.get(key) is claim for key, claim in zip(keys, before.claims, strict=True)):
                return before
        else:
            keys = claim_keys(pod)
        claims = tuple(by_key.get(key) for key in keys)
        missing = any(claim is None or objects.is_deleting(claim) for claim in claims)
        found = claims_of_pod(pod, cluster) if is_living(pod) else None
        if found is not None and not (found.ours or found.refused):
            found = None
        return _Entry(pod, keys, claims, missing, found, found is not None and found.is_open)


def claim_keys(pod: Mapping[str, object]) -> tuple[str, ...]:
    """`namespace/name` of the claims that the pod names and that have a name by now."""
    place = objects.namespace(pod)
    return tuple(f"{place}/{name}" for name in objects.pod_claim_names(pod).values() if name is not None)


def _same(one: Sequence[Object], other: Sequence[Object]) -> bool:
    return len(one) == len(other) and all(mine is theirs for mine, theirs in zip(one, other, strict=True))
