"""Which claims are planned together, in which order, and what their pods demand of a node.

- The pending claims of one pod form a group: they are placed on one node or not at all.
- Pods that share a pending claim are one group, since the claim has one node; if that does not fit, they are
  planned one by one, and the first that fits pins the claim for the others.
- A pod whose claim is not made yet (from its template) is not planned in part. A claim that a pod names and
  that is not among the objects is somebody else's concern.
- A claim has at most 256 consumers. A pod that would be one more of a claim is left out of its group.
- Claims of pods that have ended or are being deleted are left alone.
- Pending claims that no pod refers to form one group (a what-if of several claims), except those marked
  Immediate, each of which is planned for itself.

Order: pod priority, then age, then name; claims without pods come last.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from koordra.api import objects
from koordra.api.claims import ResourceClaim
from koordra.api.objects import Fields

MAX_CONSUMERS: Final = 256
"""Entries that `status.reservedFor` of a claim may have."""


@dataclass(frozen=True, slots=True)
class ClaimGroup:
    """`missing` names pod claims that do not exist yet; `allocated` are the pods' claims that are placed
    already."""

    claims: tuple[ResourceClaim, ...]
    pods: tuple[Fields, ...] = field(default=(), hash=False)
    missing: tuple[str, ...] = ()
    allocated: tuple[str, ...] = ()


def siblings_in(group: ClaimGroup) -> list[frozenset[int]]:
    """For each claim of the group, the positions of the claims that some pod uses together with it."""
    positions = {claim.key: position for position, claim in enumerate(group.claims)}
    used = [{positions[key] for key in claim_keys(pod) if key in positions} for pod in group.pods]
    return [
        frozenset(other for together in used if position in together for other in together) - {position}
        for position in range(len(group.claims))
    ]


Urgency = tuple[int, str, str]
"""Sorts ascending: negated priority, creation time (RFC 3339 in UTC sorts as text), `namespace/name`."""


def groups_of(
    claims: Mapping[str, ResourceClaim], pods: Iterable[Fields], allocated: Container[str]
) -> list[ClaimGroup]:
    """All groups of pending claims (by key), in planning order. `allocated` are the keys of claims placed
    already."""
    users = [pod for pod in pods if _pending_of(pod, claims)]
    waiting = sorted(
        (pod for pod in users if not objects.pod_is_finished(pod) and not objects.is_deleting(pod)),
        key=urgency,
    )
    leader: dict[str, str] = {}
    """By claim, one of its group."""

    def leader_of(key: str) -> str:
        while leader.setdefault(key, key) != key:
            leader[key] = key = leader[leader[key]]
        return key

    for pod in waiting:
        first, *others = _pending_of(pod, claims)
        for key in others:
            leader[leader_of(key)] = leader_of(first)
    members: dict[str, list[Fields]] = {}
    for pod in waiting:
        members.setdefault(leader_of(_pending_of(pod, claims)[0]), []).append(pod)
    found = [group_of(own, claims, allocated) for own in members.values()]
    known_to_pods = {key for pod in users for key in _pending_of(pod, claims)}
    alone = [claims[key] for key in sorted(claims) if key not in known_to_pods]
    together = tuple(claim for claim in alone if not claim.immediate)
    found += [ClaimGroup((claim,)) for claim in alone if claim.immediate]
    return [*found, ClaimGroup(together)] if together else found


def group_of(
    pods: Sequence[Fields], claims: Mapping[str, ResourceClaim], allocated: Container[str]
) -> ClaimGroup:
    keys = list(dict.fromkeys(key for pod in pods for key in _pending_of(pod, claims)))
    missing = tuple(
        f"pod {objects.key(pod)}: entry {entry} has no ResourceClaim yet"
        for pod in pods
        for entry, name in objects.pod_claim_names(pod).items()
        if name is None
    )
    placed = tuple(key for pod in pods for key in claim_keys(pod) if key in allocated)
    return ClaimGroup(tuple(claims[key] for key in keys), tuple(pods), missing, placed)


def one_too_many(group: ClaimGroup, consumers: Mapping[str, set[str]]) -> dict[str, str]:
    """Pods of the group that some claim has no place for, with that claim; earlier pods of the group come
    first."""
    named = {key for pod in group.pods for key in claim_keys(pod)}
    now = {key: set(consumers[key]) for key in named if key in consumers}
    late = {}
    for pod in group.pods:
        keys, who = claim_keys(pod), identity_of(pod)
        full = [key for key in keys if len(now.get(key, set()) - {who}) >= MAX_CONSUMERS]
        if full:
            late[objects.key(pod)] = full[0]
            continue
        for key in keys:
            now.setdefault(key, set()).add(who)
    return late


def identity_of(pod: Fields) -> str:
    """As `status.reservedFor` names the pod; a manifest that was never applied has only its name."""
    return objects.uid(pod) or objects.name(pod)


def claim_keys(pod: Fields) -> list[str]:
    """The pod's claims by `namespace/name`, in the pod's order, each once: several entries of a pod may name
    one claim."""
    called = dict.fromkeys(filter(None, objects.pod_claim_names(pod).values()))
    return [f"{objects.namespace(pod)}/{name}" for name in called]


def _pending_of(pod: Fields, claims: Mapping[str, ResourceClaim]) -> list[str]:
    return [key for key in claim_keys(pod) if key in claims]


def urgency_without_pod(claim: Fields) -> Urgency:
    """Of a claim that no pod waits for: behind all pods, by age."""
    _, created, key = urgency(claim)
    return (1 << 40, created, key)


def urgency(pod: Fields) -> Urgency:
    """The pod's place in the order of planning."""
    priority = objects.spec_of(pod).get("priority")
    known = priority if isinstance(priority, int) and not isinstance(priority, bool) else 0
    # A manifest without a timestamp is newer than every pod of the cluster.
    return (-known, str(objects.metadata(pod).get("creationTimestamp") or "9999"), objects.key(pod))
