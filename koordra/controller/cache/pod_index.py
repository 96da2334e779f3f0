"""Pods with their claims, and what is to be done about each, kept by the events that change either.

A pod is looked at again when it, one of the claims that it names, or a DeviceClass has changed. Each set
holds uids of pods that have not finished; a step of a pass goes through the one set that it acts on.

A pod *waits* when it is neither finished nor being deleted, every one of its claims exists and stays (a
template's claim is the one made for this very pod), and at least one claim of koordra's is not allocated.
Gated and ungated pods alike; a pod that carries somebody else's scheduling gate (a queue, a quota) is not
planned before that gate is gone, since nobody knows when it will be.

Claims of other drivers in a pod count when they are allocated (they may pin the pod to a node) and not while
they are pending.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Final

from koordra.api import names, objects
from koordra.api.objects import Fields, Object
from koordra.api.tables import keep_if, set_or_drop
from koordra.controller import claims as claims_of
from koordra.controller.cache import consumers
from koordra.controller.claims import ClaimEntry, Owner
from koordra.placement.request.claim_groups import claim_keys


@dataclass(frozen=True)
class PodClaims:
    """A pod with all its claims: `ours` are koordra's, `others` another driver's, `refused` nobody's (with
    why)."""

    pod: Object
    ours: tuple[Object, ...]
    others: tuple[Object, ...] = ()
    refused: tuple[tuple[Object, Owner], ...] = ()

    @cached_property
    def pending(self) -> tuple[Object, ...]:
        """Those of ours that are still to be allocated."""
        return tuple([claim for claim in self.ours if not claims_of.is_allocated(claim)])

    @cached_property
    def pending_keys(self) -> tuple[str, ...]:
        return tuple(map(objects.key, self.pending))

    @property
    def is_open(self) -> bool:
        """Whether anything is left to decide: the pod has no node yet, or claims without devices."""
        return bool(self.pending or self.refused) or not is_bound(self.pod)


_GROUP_UNSCHEDULABLE: Final = "pod group is unschedulable"


@dataclass(frozen=True, slots=True)
class Condition:
    """The pod's PodScheduled condition; empty strings and 0 where it says nothing."""

    status: str = ""
    reason: str = ""
    message: str = ""
    observed_generation: int = 0
    transition: str = ""

    @property
    def is_unschedulable(self) -> bool:
        return self.status == "False" and self.reason == "Unschedulable"

    @property
    def is_of_group(self) -> bool:
        """Whether kube-scheduler says this of the pod's PodGroup as a whole (gate GangScheduling, from 1.36):
        for the pod itself it has found a place."""
        return _GROUP_UNSCHEDULABLE in self.message


def gates(pod: Fields) -> list[str]:
    return [str(gate.get("name")) for gate in objects.spec_of(pod).get("schedulingGates") or ()]


def is_gated(pod: Fields) -> bool:
    return names.JOINT_GATE in gates(pod)


def _held_by_others(pod: Fields) -> bool:
    return any(gate != names.JOINT_GATE for gate in gates(pod))


def is_bound(pod: Fields) -> bool:
    return bool(objects.spec_of(pod).get("nodeName"))


def is_living(pod: Fields) -> bool:
    """Neither finished nor being deleted."""
    return not objects.pod_is_finished(pod) and not objects.is_deleting(pod)


def may_be_planned(member: PodClaims) -> bool:
    return bool(member.pending) and not _held_by_others(member.pod) and not member.refused


def pod_scheduled(pod: Fields) -> Condition:
    for entry in objects.status_of(pod).get("conditions") or ():
        if entry.get("type") == "PodScheduled":
            return Condition(
                str(entry.get("status") or ""),
                str(entry.get("reason") or ""),
                str(entry.get("message") or ""),
                int(entry.get("observedGeneration") or 0),
                str(entry.get("lastTransitionTime") or ""),
            )
    return Condition()


@dataclass(frozen=True, slots=True)
class PodEntry:
    """`keys`: `namespace/name` of its claims that have a name by now; `claims` is None while they are not
    complete, or the pod ends. `sets`: names of the index's sets that the pod belongs to."""

    pod: Object
    keys: tuple[str, ...]
    claims: PodClaims | None
    sets: frozenset[str]

    @property
    def member(self) -> PodClaims | None:
        """With at least one claim that concerns koordra."""
        return self.claims if self.claims is not None and (self.claims.ours or self.claims.refused) else None


OnTouch = Callable[[str, PodEntry | None, PodEntry | None], None]
"""(uid, before, now)."""


@dataclass
class PodIndex:
    """Over the entries of claims and the table of classes, which are changed before it is told. Not
    thread-safe.

    entries          pods with claims or with scheduling gates, by uid
    users            claim key -> the pods that name it, by their keys

    The other sets are of uids of pods:

    lacking          they name a claim which does not exist or is about to go
    open             something is left to decide about their claims
    pending          they wait for devices, and for nobody else
    refused          they have a claim that nobody can allocate
    split            their claims are pinned to different nodes
    complete         they are gated, and their claims all have their devices
    unschedulable    they have their devices, and kube-scheduler does not place them
    """

    STATE: ClassVar[tuple[str, ...]] = (
        "entries", "users",
        "lacking", "open", "pending", "refused", "split", "complete", "unschedulable",
    )  # fmt: skip

    claim_entries: Mapping[str, ClaimEntry]
    class_table: Mapping[str, Object]
    entries: dict[str, PodEntry] = field(default_factory=dict)
    users: dict[str, tuple[Object, ...]] = field(default_factory=dict)
    lacking: set[str] = field(default_factory=set)
    open: set[str] = field(default_factory=set)
    pending: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    split: set[str] = field(default_factory=set)
    complete: set[str] = field(default_factory=set)
    unschedulable: set[str] = field(default_factory=set)
    on_touch: list[OnTouch] = field(default_factory=list)
    _owners: dict[tuple[str, ...], Owner] = field(default_factory=dict)
    """By the classes that a claim names."""

    def member(self, uid: str) -> PodClaims | None:
        return self.entries[uid].member if uid in self.entries else None

    def members(self, uids: Iterable[str]) -> list[PodClaims]:
        return sorted(filter(None, map(self.member, uids)), key=lambda member: objects.key(member.pod))

    def follow(self) -> set[str]:
        """uids of the pods there are, and of those that are touched: a set that the caller empties."""
        touched = set(self.entries)
        self.on_touch.append(lambda uid, _before, _now: touched.add(uid))
        return touched

    def usable(self, key: str) -> bool:
        """Whether some pod that names the claim can still run with it; not one that somebody else's gate
        holds, nobody knows for how long."""
        using = self.users.get(key, ())
        return any(objects.uid(pod) not in self.lacking and not _held_by_others(pod) for pod in using)

    def serves(self, claim: Object) -> bool:
        """Whether some pod that names the claim can start as its claims are: all allocated, on one node."""
        using = map(objects.uid, self.users.get(objects.key(claim), ()))
        return any(not (one.pending or one.refused) for one in self.members({*using} - self.split))

    # changes

    def on_pod(self, _key: str, before: Object | None, now: Object | None) -> None:
        uid = "" if now is None else objects.uid(now)
        if before is not None and objects.uid(before) != uid:
            self._set(objects.uid(before), None)
        if now is not None:
            spec = now.get("spec") or {}
            counts = spec.get("resourceClaims") or spec.get("schedulingGates")
            self._set(uid, self._entry(now, None) if counts and not objects.pod_is_finished(now) else None)

    def on_claim(self, key: str, _before: ClaimEntry | None, _now: ClaimEntry | None) -> None:
        for pod in self.users.get(key, ()):
            uid = objects.uid(pod)
            self._set(uid, self._entry(pod, self.entries.get(uid)))

    def on_class(self, _key: str, _before: Object | None, _now: Object | None) -> None:
        self._owners.clear()
        for uid, entry in list(self.entries.items()):
            self._set(uid, self._entry(entry.pod, entry))

    def _entry(self, pod: Object, before: PodEntry | None) -> PodEntry:
        """`before`: an entry of the same version of the pod."""
        keys = tuple(claim_keys(pod)) if before is None else before.keys
        claims = [entry for key in keys if (entry := self.claim_entries.get(key)) and not entry.is_deleting]
        missing = len(claims) < len(keys)
        is_complete = not missing and is_living(pod) and None not in objects.pod_claim_names(pod).values()
        found = self._claims_of(pod, claims) if is_complete else None
        return PodEntry(pod, keys, found, _sets(pod, found, missing=missing))

    def _claims_of(self, pod: Object, entries: Sequence[ClaimEntry]) -> PodClaims | None:
        """The pod's claims sorted by owner; None while one is another pod's."""
        if not all(_may_use(pod, entry) for entry in entries):
            return None
        owned = [(one.claim, self._owner(one)) for one in entries]
        return PodClaims(
            pod,
            tuple([claim for claim, owner in owned if owner is Owner.KOORDRA]),
            tuple([claim for claim, owner in owned if owner is Owner.FOREIGN]),
            tuple([one for one in owned if one[1] in (Owner.MIXED, Owner.UNKNOWN)]),
        )

    def _owner(self, entry: ClaimEntry) -> Owner:
        if entry.is_allocated:
            return Owner.KOORDRA if entry.pools else Owner.FOREIGN
        found = self._owners.get(entry.class_names)
        if found is None:
            found = self._owners[entry.class_names] = claims_of.owner_of(entry.class_names, self.class_table)
        return found

    def _set(self, uid: str, now: PodEntry | None) -> None:
        before = self.entries.get(uid)
        if before is None and now is None:
            return
        set_or_drop(self.entries, uid, now)
        if before is None or now is None or before.pod is not now.pod:
            self._use(uid, before, now)
        for name in (before.sets if before else _NONE) ^ (now.sets if now else _NONE):
            keep_if(getattr(self, name), uid, now is not None and name in now.sets)
        for on_touch in self.on_touch:
            on_touch(uid, before, now)

    def _use(self, uid: str, before: PodEntry | None, now: PodEntry | None) -> None:
        for key in {key for entry in (before, now) if entry is not None for key in entry.keys}:
            using = [pod for pod in self.users.get(key, ()) if objects.uid(pod) != uid]
            if now is not None and key in now.keys:
                using.append(now.pod)
            set_or_drop(self.users, key, tuple(sorted(using, key=objects.key)))


_NONE: Final = frozenset[str]()


def _may_use(pod: Object, claim: ClaimEntry) -> bool:
    """Whether the claim was not made for another pod, or another PodGroup than the pod's."""
    if claim.made_for is None or objects.uid(pod) in claim.made_for:
        return True
    return claim.made_for_group is not None and claim.made_for_group == consumers.group_name(pod)


def _sets(pod: Object, found: PodClaims | None, *, missing: bool) -> frozenset[str]:
    sets = ["lacking"] if missing else []
    if found is not None and (found.ours or found.refused):
        if found.is_open:
            sets.append("open")
            if split_across_nodes(found):
                sets.append("split")
            said = pod_scheduled(pod)
            if not found.pending and not is_bound(pod) and said.is_unschedulable and not said.is_of_group:
                sets.append("unschedulable")
        if may_be_planned(found):
            sets.append("pending")
        if found.refused:
            sets.append("refused")
    if found is not None and not found.pending and not found.refused and is_gated(pod):
        sets.append("complete")
    return frozenset(sets) if sets else _NONE


def split_across_nodes(member: PodClaims) -> tuple[Object, ...]:
    """Unreserved claims of a pod to give back because its claims are pinned to different nodes, where it can
    never run.

    It happens when a shared claim moved on with another pod. Claims beside one that is reserved stay; those
    with which another pod can start (`PodIndex.serves`) are the caller's to leave alone: they would be given
    to that pod again, and taken again, for ever.
    """
    ours = () if is_bound(member.pod) or len(member.ours) < 2 else member.ours
    pinned = [(claim, node) for claim in ours if (node := claims_of.node_of(claim)) is not None]
    if len({node for _, node in pinned}) < 2:
        return ()
    used = {node for claim, node in pinned if claims_of.reserved_for(claim)}
    return tuple(claim for claim, node in pinned if not claims_of.reserved_for(claim) and used != {node})
