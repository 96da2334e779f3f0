"""Pods with their claims, and what is to be done about each, kept by the events that change either.

A pod is looked at again when it, one of the claims that it names, or a DeviceClass has changed. Each set holds uids of pods that
have not finished; a step of a pass goes through the one set that it acts on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from koordra.api import objects
from koordra.api.objects import Object
from koordra.controller import claims as claims_of
from koordra.controller.cache.pod_claims import (
    PodClaims,
    claims_of_pod,
    is_bound,
    is_gated,
    is_living,
    may_be_planned,
    pod_scheduled,
)


@dataclass(frozen=True, slots=True)
class PodEntry:
    """`keys`: `namespace/name` of its claims that have a name by now; `missing`: one of them does not exist or is about to go.
    `claims` is None while they are not complete, or the pod ends."""

    pod: Object
    keys: tuple[str, ...]
    missing: bool
    claims: PodClaims | None

    @property
    def member(self) -> PodClaims | None:
        """With at least one claim that concerns koordra."""
        found = self.claims
        return found if found is not None and (found.ours or found.refused) else None


OnTouch = Callable[[str, PodEntry | None, PodEntry | None], None]
"""(uid, before, now)."""


@dataclass
class PodIndex:
    """Over the tables of claims and classes, which their owner changes before it tells. Not thread-safe."""

    STATE: ClassVar[tuple[str, ...]] = (
        "entries", "users", "lacking", "open", "pending", "refused", "split", "complete", "unschedulable",
    )  # fmt: skip

    claim_table: Mapping[str, Object]
    class_table: Mapping[str, Object]
    entries: dict[str, PodEntry] = field(default_factory=dict)
    """Pods with claims or with scheduling gates, by uid."""
    users: dict[str, tuple[Object, ...]] = field(default_factory=dict)
    """Claim key -> the pods that name it, by their keys."""
    lacking: set[str] = field(default_factory=set)
    """Pods that name a claim which does not exist or is about to go."""
    open: set[str] = field(default_factory=set)
    """Pods about whose claims anything is left to decide."""
    pending: set[str] = field(default_factory=set)
    """Pods that wait for devices, and for nobody else."""
    refused: set[str] = field(default_factory=set)
    """Pods with a claim that nobody can allocate."""
    split: set[str] = field(default_factory=set)
    """Pods whose claims are pinned to different nodes."""
    complete: set[str] = field(default_factory=set)
    """Gated pods whose claims all have their devices."""
    unschedulable: set[str] = field(default_factory=set)
    """Pods that have their devices and that kube-scheduler does not place."""
    on_touch: list[OnTouch] = field(default_factory=list)

    def member(self, uid: str) -> PodClaims | None:
        entry = self.entries.get(uid)
        return None if entry is None else entry.member

    def members(self, uids: Iterable[str]) -> list[PodClaims]:
        """By the pods' keys."""
        found = [member for uid in uids if (member := self.member(uid)) is not None]
        return sorted(found, key=lambda member: objects.key(member.pod))

    def follow(self) -> set[str]:
        """uids of the pods there are, and of those that are touched: a set that the caller empties."""
        touched = set(self.entries)
        self.on_touch.append(lambda uid, _before, _now: touched.add(uid))
        return touched

    def usable(self, claim: Object) -> bool:
        """Whether some pod that names the claim can still run with it."""
        return any(objects.uid(pod) not in self.lacking for pod in self.users.get(objects.key(claim), ()))

    # changes

    def on_pod(self, _key: str, before: Object | None, now: Object | None) -> None:
        if before is not None and (now is None or objects.uid(before) != objects.uid(now)):
            self._set(objects.uid(before), None)
        if now is not None:
            spec = now.get("spec") or {}
            counts = spec.get("resourceClaims") or spec.get("schedulingGates")
            stays = counts and not objects.pod_is_finished(now)
            self._set(objects.uid(now), self._entry(now) if stays else None)

    def on_claim(self, key: str, _before: Object | None, _now: Object | None) -> None:
        for pod in self.users.get(key, ()):
            self._set(objects.uid(pod), self._entry(pod))

    def on_class(self, _key: str, _before: Object | None, _now: Object | None) -> None:
        for uid, entry in list(self.entries.items()):
            self._set(uid, self._entry(entry.pod))

    def _entry(self, pod: Object) -> PodEntry:
        keys = claim_keys(pod)
        claims = [self.claim_table.get(key) for key in keys]
        missing = any(claim is None or objects.is_deleting(claim) for claim in claims)
        found = claims_of_pod(pod, self.claim_table, self.class_table) if is_living(pod) else None
        return PodEntry(pod, keys, missing, found)

    def _set(self, uid: str, now: PodEntry | None) -> None:
        before = self.entries.pop(uid, None)
        if before is None and now is None:
            return
        if now is not None:
            self.entries[uid] = now
        if before is None or now is None or before.pod is not now.pod:
            self._use(uid, before, now)
        for name, holds in _sets(now).items():
            members: set[str] = getattr(self, name)
            if holds:
                members.add(uid)
            else:
                members.discard(uid)
        for on_touch in self.on_touch:
            on_touch(uid, before, now)

    def _use(self, uid: str, before: PodEntry | None, now: PodEntry | None) -> None:
        """The claims' consumers."""
        for key in dict.fromkeys((*(before.keys if before else ()), *(now.keys if now else ()))):
            using = [pod for pod in self.users.get(key, ()) if objects.uid(pod) != uid]
            if now is not None and key in now.keys:
                using.append(now.pod)
                using.sort(key=objects.key)
            if using:
                self.users[key] = tuple(using)
            else:
                self.users.pop(key, None)


def _sets(entry: PodEntry | None) -> dict[str, bool]:
    """Name of each set -> whether the pod belongs there."""
    pod = {} if entry is None else entry.pod
    claims = None if entry is None else entry.claims
    member = None if entry is None else entry.member
    is_open = member is not None and member.is_open
    allocated = member is not None and is_open and not member.pending and not is_bound(pod)
    return {
        "lacking": entry is not None and entry.missing,
        "open": is_open,
        "pending": member is not None and may_be_planned(member),
        "refused": member is not None and bool(member.refused),
        "split": member is not None and is_open and bool(split_across_nodes(member)),
        "complete": claims is not None and is_gated(pod) and not claims.pending and not claims.refused,
        "unschedulable": allocated and pod_scheduled(pod).is_unschedulable,
    }


def split_across_nodes(member: PodClaims) -> tuple[Object, ...]:
    """Unreserved claims of a pod to give back because its claims are pinned to different nodes, where it can
    never run.

    It happens when a shared claim moved on with another pod. Claims beside one that is reserved stay.
    """
    if is_bound(member.pod) or len(member.ours) < 2:
        return ()
    pinned = [(claim, node) for claim in member.ours if (node := claims_of.node_of(claim)) is not None]
    if len({node for _, node in pinned}) < 2:
        return ()
    settled = {node for claim, node in pinned if claims_of.reserved_for(claim)}
    return tuple(claim for claim, node in pinned if not claims_of.reserved_for(claim) and settled != {node})


def claim_keys(pod: Mapping[str, object]) -> tuple[str, ...]:
    """`namespace/name` of the claims that the pod names and that have a name by now."""
    place = objects.namespace(pod)
    return tuple(f"{place}/{name}" for name in objects.pod_claim_names(pod).values() if name is not None)
