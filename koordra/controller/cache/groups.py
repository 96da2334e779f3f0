"""Waiting pods that are decided together: those that share an unallocated claim, for one allocation has to
suit them all. They are joined anew only where one of them has changed.

Groups are planned by pod priority (higher first), then age (older first), then the name, so that the order is
total; claims that no pod waits for come last. A group counts as its most urgent pod. Age is the pod's
creationTimestamp: the moment from which its owner waits; a claim that was made long before its pod gives no
right of way.

    members that changed ──▶ their groups, and those met through a claim, are taken apart ──▶ joined again

Immediate claims that no pod waits for are groups of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import NamedTuple

from koordra.allocator.predicates import node_constraints_text
from koordra.api import objects
from koordra.api.kinds import PODS
from koordra.api.objects import Object
from koordra.api.reader import Reader
from koordra.api.tables import KeySets
from koordra.controller import claims as claims_of
from koordra.controller.cache.cluster_cache import ClusterCache
from koordra.controller.cache.pod_index import PodClaims, PodEntry
from koordra.placement.policy.learned_order import InUse
from koordra.placement.request.claim_groups import Urgency, claim_keys, urgency, urgency_without_pod
from koordra.placement.request.request_class import ResolvedGroup


@dataclass(frozen=True)
class Group:
    """Pods that have to be planned together, most urgent first; or one Immediate claim that no pod waits
    for."""

    members: tuple[PodClaims, ...]
    immediate: Object | None = None

    @cached_property
    def pods(self) -> tuple[Object, ...]:
        return tuple([one.pod for one in self.members])

    @cached_property
    def pending(self) -> tuple[Object, ...]:
        """The claims to allocate, each once, by key."""
        if self.immediate is not None:
            return (self.immediate,)
        return _each(one.pending for one in self.members)

    @cached_property
    def placed(self) -> tuple[Object, ...]:
        """Those of its pods that have devices already (koordra's and others'); each claim once, by key."""
        return tuple(filter(claims_of.is_allocated, _each((*one.ours, *one.others) for one in self.members)))

    @cached_property
    def first(self) -> Object:
        return self.pods[0] if self.immediate is None else self.immediate

    @cached_property
    def key(self) -> str:
        """Its stable name: the uid of its most urgent pod, or of the claim."""
        return objects.uid(self.first)

    @property
    def parts(self) -> tuple[Group, ...]:
        """What is tried, one after the other: the whole group, then each of its pods alone where there are
        several."""
        return (self, *self._alone)

    @cached_property
    def _alone(self) -> tuple[Group, ...]:
        """Without the group itself: what holds itself stays until Python looks for cycles, and with it claims
        that are long gone."""
        return tuple([Group((one,)) for one in self.members if len(self.members) > 1])

    @cached_property
    def urgency(self) -> Urgency:
        """Its place in the order of planning."""
        return urgency(self.first) if self.immediate is None else urgency_without_pod(self.first)

    @property
    def label(self) -> str:
        return objects.key(self.first)

    def users(self, claim: Object) -> tuple[Object, ...]:
        return self._users.get(objects.uid(claim), ())

    @cached_property
    def _users(self) -> dict[str, tuple[Object, ...]]:
        found: dict[str, tuple[Object, ...]] = {}
        for one in self.members:
            for uid in dict.fromkeys(map(objects.uid, one.ours)):
                found[uid] = (*found.get(uid, ()), one.pod)
        return found


def _each(several: Iterable[Sequence[Object]]) -> tuple[Object, ...]:
    found = {objects.key(claim): claim for claims in several for claim in claims}
    return tuple([found[key] for key in sorted(found)])


class PodInUse(NamedTuple):
    """A pod that runs, with the keys of its claims of koordra's, each claim once of all pods. `asked`: equal
    for those that are counted alike."""

    asked: Hashable
    pod: Object
    keys: Sequence[str]


def claims_in_use(
    cache: ClusterCache,
    entries: Iterable[PodEntry],
    requests_of: Callable[[Object], Mapping[str, Decimal]],
    told: set[str],
) -> Iterator[PodInUse]:
    """`requests_of`: what a pod takes of its node; `told`: claims that were told of already, by key."""
    held = cache.claim_index.held
    for entry in entries:
        if has_run(entry.pod) and (own := [key for key in entry.keys if key in held and key not in told]):
            told.update(own)
            pod, claims = entry.pod, [cache.claims[key] for key in own]
            said = [Reader(objects.spec_of(one), object="").content or objects.uid(one) for one in claims]
            asked = (
                objects.namespace(pod),
                tuple(zip(map(entry.keys.index, own), said, strict=True)),
                tuple(requests_of(pod).items()),
                node_constraints_text({"spec": {**objects.spec_of(pod), "nodeName": ""}}),
            )
            yield PodInUse(asked, pod, own)


def as_it_waited(cache: ClusterCache, pod: Object, keys: Sequence[str]) -> Group:
    """The group that these claims were in before they had devices, of the one pod."""
    unbound = {**pod, "spec": {**objects.spec_of(pod), "nodeName": ""}}
    claims = ({**cache.claims[key], "status": {}} for key in sorted(keys))
    return Group((PodClaims(unbound, tuple(claims)),))


class UseReader:
    """The claims of pods that run, each once, as they were asked for. What is asked alike is read once: a
    large cluster runs a few templates, many times. `requests_of`: what a pod takes of its node; `readable`:
    a group as the engine reads it, None where nobody can."""

    def __init__(
        self,
        cache: ClusterCache,
        requests_of: Callable[[Object], Mapping[str, Decimal]],
        readable: Callable[[Group], ResolvedGroup | None],
    ) -> None:
        self._cache, self._requests_of, self._readable = cache, requests_of, readable
        self._known: dict[Hashable, InUse | None] = {}
        self._told: set[str] = set()

    @property
    def in_use(self) -> list[InUse]:
        return list(filter(None, self._known.values()))

    def read(self, entries: Iterable[PodEntry]) -> None:
        cache = self._cache
        for asked, pod, keys in claims_in_use(cache, entries, self._requests_of, self._told):
            if asked not in self._known:
                resolved = self._readable(as_it_waited(cache, pod, keys))
                self._known[asked] = InUse(resolved) if resolved is not None else None
            if (known := self._known[asked]) is not None:
                known.uids += [objects.identity(cache.claims[key]) for key in keys]
                known.pods += 1


def has_run(pod: Object) -> bool:
    """Whether its containers were started, as its kubelet says."""
    return objects.status_of(pod).get("phase") in ("Running", "Succeeded")


class StartedPods:
    """Pods that began to run, each once. A pod that ran when it was first seen is none of them: an earlier
    controller has seen it begin, or `claims_in_use` tells of it. Not thread-safe."""

    def __init__(self, cache: ClusterCache) -> None:
        self._cache = cache
        self._started: dict[str, Object] = {}
        cache.listen(PODS, self._on_pod)

    def _on_pod(self, _key: str, before: Object | None, now: Object | None) -> None:
        if before is None or now is None or has_run(before) or not has_run(now):
            return
        if objects.uid(before) == objects.uid(now):
            self._started[objects.uid(now)] = now

    def groups(self) -> list[Group]:
        """With their claims of koordra's, of those that began since the last call."""
        held, started = self._cache.claim_index.held, self._started
        self._started = {}
        own = ((pod, [key for key in claim_keys(pod) if key in held]) for _, pod in sorted(started.items()))
        return [as_it_waited(self._cache, pod, keys) for pod, keys in own if keys]


class GroupIndex:
    """`groups` by key. Not thread-safe."""

    def __init__(self) -> None:
        self.groups: dict[str, Group] = {}
        self._members: dict[str, PodClaims] = {}
        self._waiting_for = KeySets()
        """Key of an unallocated claim -> uids of the members that wait for it."""
        self._group_of: dict[str, str] = {}
        self._immediate: dict[str, Object] = {}
        self._loose: set[str] = set()

    def group_of(self, uid: str) -> Group | None:
        return self.groups.get(self._group_of.get(uid, ""))

    def update(self, uid: str, member: PodClaims | None) -> None:
        """The pod waits (again); None: it does not."""
        before = self._members.pop(uid, None)
        if before is None and member is None:
            return
        self._waiting_for.move(
            uid, before.pending_keys if before else (), member.pending_keys if member else ()
        )
        if member is not None:
            self._members[uid] = member
        self._loose.add(uid)

    def settle(self, immediate: Mapping[str, Object]) -> tuple[list[Group], list[str]]:
        """Join what is loose: the groups that are new or changed, and the keys of those that are gone.
        `immediate`: claims by key that ask to be allocated without a pod; one that waits with a pod is left
        to it."""
        gone: set[str] = set()
        changed = list(self._join(gone))
        alone = {key: claim for key, claim in immediate.items() if key not in self._waiting_for}
        for key, claim in self._immediate.items():
            if alone.get(key) is not claim:
                gone.add(objects.uid(claim))
                self.groups.pop(objects.uid(claim), None)
        changed += [Group((), claim) for key, claim in alone.items() if self._immediate.get(key) is not claim]
        self.groups.update((group.key, group) for group in changed)
        self._immediate = alone
        return changed, sorted(gone - self.groups.keys())

    def _join(self, gone: set[str]) -> Iterator[Group]:
        """Take apart the groups of loose members, and of all that they share a claim with, and join them by
        their claims; `gone` gets the keys that they had."""
        loose, joined = self._loose, set[str]()
        while loose:
            reached, members = [loose.pop()], []
            while reached:
                uid = reached.pop()
                if uid in joined:
                    continue
                joined.add(uid)
                before = self.groups.pop(self._group_of.pop(uid, ""), None)
                if before is not None:
                    gone.add(before.key)
                    loose.update(objects.uid(pod) for pod in before.pods)
                if (member := self._members.get(uid)) is not None:
                    members.append(member)
                    for key in member.pending_keys:
                        reached += self._waiting_for[key]
            if members:
                group = Group(tuple(sorted(members, key=lambda member: urgency(member.pod))))
                self._group_of.update((objects.uid(member.pod), group.key) for member in members)
                yield group
