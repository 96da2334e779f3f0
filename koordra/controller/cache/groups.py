"""Waiting pods that are decided together: those that share an unallocated claim, for one allocation has to suit them all. They are
joined anew only where one of them has changed.

    members that changed ──▶ their groups, and those they meet through a claim, are taken apart ──▶ joined again

Immediate claims that no pod waits for are groups of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from koordra.api import objects
from koordra.api.objects import Object
from koordra.controller import claims as claims_of
from koordra.controller.cache.pod_claims import PodClaims
from koordra.controller.cache.priority import Urgency, most_urgent, urgency


@dataclass(frozen=True, slots=True)
class Group:
    """Pods that have to be planned together, most urgent first; or one Immediate claim that no pod waits for.

    `pending` are the claims to allocate, `placed` those of its pods that have their devices already (koordra's and
    others'); each claim once, by key.
    """

    members: tuple[PodClaims, ...]
    immediate: Object | None = None
    pods: tuple[Object, ...] = field(init=False, compare=False)
    pending: tuple[Object, ...] = field(init=False, compare=False)
    placed: tuple[Object, ...] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        members = self.members
        pending = [self.immediate] if self.immediate is not None else _each(one.pending for one in members)
        placed = [
            claim
            for claim in _each((*one.ours, *one.others) for one in members)
            if claims_of.is_allocated(claim)
        ]
        object.__setattr__(self, "pods", tuple(one.pod for one in members))
        object.__setattr__(self, "pending", tuple(pending))
        object.__setattr__(self, "placed", tuple(placed))

    def users(self, claim: Object) -> tuple[Object, ...]:
        """The pods that use a claim."""
        uid = objects.uid(claim)
        return tuple(one.pod for one in self.members if uid in {objects.uid(entry) for entry in one.ours})

    @property
    def key(self) -> str:
        """Stable name of the group: its most urgent pod's uid, or the claim's."""
        return objects.uid(self.members[0].pod if self.immediate is None else self.immediate)

    @property
    def urgency(self) -> Urgency:
        """Its place in the order of planning."""
        return most_urgent(self.pods) if self.immediate is None else urgency(self.immediate)


def _each(claims: Iterable[Sequence[Object]]) -> list[Object]:
    """Each claim once, by key."""
    found = {objects.key(claim): claim for some in claims for claim in some}
    return [found[key] for key in sorted(found)]


class GroupIndex:
    """`groups` by key. Not thread-safe."""

    def __init__(self) -> None:
        self.groups: dict[str, Group] = {}
        self._members: dict[str, PodClaims] = {}
        self._waiting_for: dict[str, set[str]] = {}
        """Key of an unallocated claim -> uids of the members that wait for it."""
        self._group_of: dict[str, str] = {}
        self._immediate: dict[str, Object] = {}
        self._loose: set[str] = set()

    def group_of(self, uid: str) -> Group | None:
        """The group of a pod that waits."""
        return self.groups.get(self._group_of.get(uid, ""))

    def update(self, uid: str, member: PodClaims | None) -> None:
        """The pod waits (again); None: it does not."""
        before = self._members.pop(uid, None)
        if before is None and member is None:
            return
        for claim in before.pending if before is not None else ():
            waiting = self._waiting_for[objects.key(claim)]
            waiting.discard(uid)
            if not waiting:
                del self._waiting_for[objects.key(claim)]
        if member is not None:
            self._members[uid] = member
            for claim in member.pending:
                self._waiting_for.setdefault(objects.key(claim), set()).add(uid)
        self._loose.add(uid)

    def settle(self, immediate: Mapping[str, Object]) -> tuple[list[Group], list[str]]:
        """Join what is loose: the groups that are new or changed, and the keys of those that are gone. `immediate`: claims by key
        that ask to be allocated without a pod; one that waits with a pod is left to it."""
        gone: set[str] = set()
        apart = self._taken_apart(gone)
        changed = [self._join(uids) for uids in self._components(apart)]
        alone = {key: claim for key, claim in immediate.items() if key not in self._waiting_for}
        for key, claim in self._immediate.items():
            if alone.get(key) is not claim:
                gone.add(objects.uid(claim))
                self.groups.pop(objects.uid(claim), None)
        for key, claim in alone.items():
            if self._immediate.get(key) is not claim:
                group = Group((), claim)
                self.groups[group.key] = group
                changed.append(group)
        self._immediate = alone
        return changed, sorted(gone - self.groups.keys())

    def _taken_apart(self, gone: set[str]) -> set[str]:
        """Members whose groups are to be joined anew: the loose ones, and all that they share a claim or a group with."""
        apart: set[str] = set()
        loose, self._loose = self._loose, set()
        while loose:
            uid = loose.pop()
            key = self._group_of.pop(uid, None)
            group = None if key is None else self.groups.pop(key, None)
            if group is not None and key is not None:
                gone.add(key)
                loose.update(objects.uid(pod) for pod in group.pods)
            member = self._members.get(uid)
            if member is None:
                continue
            apart.add(uid)
            for claim in member.pending:
                loose |= self._waiting_for[objects.key(claim)] - apart
        return apart

    def _components(self, uids: Iterable[str]) -> list[list[str]]:
        rest, found = set(uids), []
        while rest:
            todo, inside = [rest.pop()], []
            while todo:
                uid = todo.pop()
                inside.append(uid)
                for claim in self._members[uid].pending:
                    for other in self._waiting_for[objects.key(claim)] & rest:
                        rest.discard(other)
                        todo.append(other)
            found.append(inside)
        return found

    def _join(self, uids: Iterable[str]) -> Group:
        members = sorted((self._members[uid] for uid in uids), key=lambda member: urgency(member.pod))
        group = Group(tuple(members))
        self.groups[group.key] = group
        for member in members:
            self._group_of[objects.uid(member.pod)] = group.key
        return group
