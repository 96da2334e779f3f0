"""The pods of each gang, and how far each of them is. Pure but for what `Gathering` remembers of unchanged pods.

Of a member it matters whether

    it is held        koordra's gate is on it
    it is committed   the gate was lifted by the controller, or it has its node
    it is a stray     neither: nobody held it, so it may start at any moment without the others. In a gang that has
                      started it is one of those that were let go
    it rides along    it needs nothing of koordra's and no gate (members of foreign pod groups without claims); that it
                      runs says nothing about the gang

Only gangs that concern koordra are gathered: those with a member that has claims of koordra's, and those by koordra's own
annotation; pods for native nodes are in none. Members that have finished well count as present while others of the same owner live: a job whose first worker is
done has not lost a member.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from koordra.api import names, objects
from koordra.api.objects import Object
from koordra.controller import snapshot
from koordra.controller.gangs.lifting import Lifts
from koordra.controller.gangs.marks import COMMITTED, Mark, Source, Terms, mark_of, terms_of, whole_number
from koordra.controller.membership import claim_keys
from koordra.controller.order import Urgency, most_urgent, urgency
from koordra.controller.snapshot import Cluster, PodClaims, claims_of_pod

_INDEXES: Final = (
    "batch.kubernetes.io/job-completion-index",
    "apps.kubernetes.io/pod-index",
    "training.kubeflow.org/replica-index",
    "leaderworkerset.sigs.k8s.io/worker-index",
    "volcano.sh/task-index",
)
"""Labels or annotations by which workloads number their pods."""


@dataclass(frozen=True, slots=True)
class Member:
    """A living pod of a gang. `claims` is None while one of its claims does not exist. `let_go`: the controller lifted its
    gate, as the API or the controller itself knows; `in_doubt`: it tried to, and no answer came."""

    pod: Object
    claims: PodClaims | None
    let_go: bool = False
    in_doubt: bool = False

    @property
    def uid(self) -> str:
        return objects.uid(self.pod)

    @property
    def key(self) -> str:
        return objects.key(self.pod)

    @property
    def is_bound(self) -> bool:
        return snapshot.is_bound(self.pod)

    @property
    def is_committed(self) -> bool:
        return self.is_bound or self.let_go

    @property
    def is_held(self) -> bool:
        return not self.is_committed and snapshot.is_gated(self.pod)

    @property
    def concerns_koordra(self) -> bool:
        return self.claims is not None and bool(self.claims.ours or self.claims.refused)

    @property
    def may_be_planned(self) -> bool:
        """Whether it waits for koordra and for nobody else."""
        if self.claims is None or self.claims.refused or self.is_bound:
            return False
        return all(gate == names.JOINT_GATE for gate in snapshot.gates(self.pod))

    @property
    def is_placed(self) -> bool:
        """Whether its claims have their devices; without claims there is nothing to wait for."""
        return self.claims is not None and not self.claims.pending and not self.claims.refused


@dataclass(frozen=True, slots=True)
class Gang:
    """`members` by completion index, then by urgency; `done` members have finished well."""

    mark: Mark
    terms: Terms
    members: tuple[Member, ...]
    done: int = 0

    @property
    def key(self) -> str:
        return self.mark.key

    @property
    def committed(self) -> tuple[Member, ...]:
        riding = {member.uid for member in self.riders}
        if not any(member.is_committed and member.uid not in riding for member in self.members):
            return ()
        strays = {member.uid for member in self.strays}
        return tuple(
            member
            for member in self.members
            if member.uid in strays or (member.is_committed and member.uid not in riding)
        )

    @property
    def held(self) -> tuple[Member, ...]:
        return tuple(member for member in self.members if member.is_held)

    @property
    def riders(self) -> tuple[Member, ...]:
        """Members of a foreign pod group that need nothing of koordra's and were never held, wherever they are by now."""
        if self.mark.source is Source.KOORDRA:
            return ()
        return tuple(
            member
            for member in self.members
            if not member.concerns_koordra
            and member.claims is not None
            and not member.let_go
            and not snapshot.is_gated(member.pod)
        )

    @property
    def strays(self) -> tuple[Member, ...]:
        """Members that nobody holds and that nobody let go."""
        riding = {member.uid for member in self.riders}
        return tuple(member for member in self._loose if member.uid not in riding)

    @property
    def _loose(self) -> tuple[Member, ...]:
        return tuple(
            member for member in self.members if not member.is_committed and not snapshot.is_gated(member.pod)
        )

    @property
    def urgency(self) -> Urgency:
        """Its place in the order of planning: its most urgent member's."""
        return most_urgent(member.pod for member in self.members)


@dataclass(frozen=True, slots=True)
class _Seen:
    """A member as it was made from these very values."""

    claims: tuple[Object | None, ...]
    classes: Mapping[str, Object]
    member: Member


class Gathering:
    """Not thread-safe. A pod that is the very same value as before is not read again, nor are its claims."""

    def __init__(self) -> None:
        self._marks: dict[str, tuple[Object, Mark | None]] = {}
        self._seen: dict[str, _Seen] = {}

    def gather(self, cluster: Cluster, lifts: Lifts) -> list[Gang]:
        """All gangs that concern koordra, the most urgent first."""
        native = frozenset(
            objects.name(entry)
            for entry in cluster.namespaces
            if objects.labels_of(entry).get(names.MODE_LABEL) == names.MODE_NATIVE
        )
        marked = self._by_mark(cluster.pods, native)
        if not marked:
            self._seen.clear()
            return []
        before, self._seen = self._seen, {}
        groups = {
            (
                str(group.get("apiVersion")).partition("/")[0],
                objects.namespace(group),
                objects.name(group),
            ): group
            for group in cluster.pod_groups
        }
        looking = _Looking(cluster, lifts, groups, before)
        found = [self._gang(mark, pods, looking) for mark, pods in marked.items()]
        return sorted((gang for gang in found if gang is not None), key=lambda gang: (gang.urgency, gang.key))

    def _by_mark(self, pods: Sequence[Object], native: frozenset[str]) -> dict[Mark, list[Object]]:
        marks: dict[str, tuple[Object, Mark | None]] = {}
        marked: dict[Mark, list[Object]] = defaultdict(list)
        for pod in pods:
            uid = objects.uid(pod)
            known = self._marks.get(uid)
            if known is None or known[0] is not pod:
                known = (pod, mark_of(pod))
            marks[uid] = known
            if known[1] is not None and not _is_native(pod, native):
                marked[known[1]].append(pod)
        self._marks = marks
        return marked

    def _gang(self, mark: Mark, pods: list[Object], looking: _Looking) -> Gang | None:
        living = [pod for pod in pods if snapshot.is_living(pod)]
        members = tuple(self._member(pod, looking) for pod in sorted(living, key=_position))
        if not members:
            return None
        if mark.source is not Source.KOORDRA and not any(member.concerns_koordra for member in members):
            return None
        terms = terms_of(mark, living, looking.groups)
        return None if terms is None else Gang(mark, terms, members, _done(pods, living))

    def _member(self, pod: Object, looking: _Looking) -> Member:
        cluster, lifts, uid = looking.cluster, looking.lifts, objects.uid(pod)
        let_go, in_doubt = _was_let_go(pod, lifts), lifts.in_doubt(pod)
        claims = tuple(cluster.claims_by_key.get(key) for key in claim_keys(pod))
        seen = looking.before.get(uid)
        if seen is None or not _is_same(seen, pod, claims, cluster.classes_by_name):
            seen = _Seen(
                claims, cluster.classes_by_name, Member(pod, claims_of_pod(pod, cluster), let_go, in_doubt)
            )
        elif (seen.member.let_go, seen.member.in_doubt) != (let_go, in_doubt):
            seen = replace(seen, member=replace(seen.member, let_go=let_go, in_doubt=in_doubt))
        self._seen[uid] = seen
        return seen.member


@dataclass(frozen=True, slots=True)
class _Looking:
    """What one look is made from."""

    cluster: Cluster
    lifts: Lifts
    groups: Mapping[tuple[str, str, str], Object]
    before: Mapping[str, _Seen]


def _is_same(
    seen: _Seen, pod: Object, claims: tuple[Object | None, ...], classes: Mapping[str, Object]
) -> bool:
    if seen.member.pod is not pod or len(seen.claims) != len(claims):
        return False
    if any(one is not other for one, other in zip(seen.claims, claims, strict=True)):
        return False
    return seen.classes is classes or (
        seen.classes.keys() == classes.keys() and all(seen.classes[name] is classes[name] for name in classes)
    )


def index_of(pod: Mapping[str, Any]) -> int | None:
    """The position that the workload gave the pod."""
    for place in (objects.labels_of(pod), objects.annotations_of(pod)):
        for name in _INDEXES:
            number = whole_number(place.get(name, ""))
            if number is not None:
                return number
    return None


def _is_native(pod: Object, namespaces: frozenset[str]) -> bool:
    """Whether kube-scheduler allocates for the pod: its own word first, then its namespace's (the webhook's rule)."""
    if snapshot.is_gated(pod):
        return False
    selector = objects.spec_of(pod).get("nodeSelector") or {}
    for place in (objects.annotations_of(pod), objects.labels_of(pod), selector):
        if place.get(names.MODE_LABEL) in (names.MODE_NATIVE, names.MODE_JOINT):
            return bool(place[names.MODE_LABEL] == names.MODE_NATIVE)
    return objects.namespace(pod) in namespaces


def _position(pod: Object) -> tuple[bool, int, Urgency]:
    index = index_of(pod)
    return index is None, index or 0, urgency(pod)


def _was_let_go(pod: Object, lifts: Lifts) -> bool:
    if snapshot.is_gated(pod):
        return lifts.is_lifted(pod)
    return COMMITTED in objects.annotations_of(pod)


def _done(pods: Iterable[Object], living: Iterable[Object]) -> int:
    owners = {owner for pod in living if (owner := _owner(pod))}
    return sum(
        1
        for pod in pods
        if objects.status_of(pod).get("phase") == "Succeeded"
        and COMMITTED in objects.annotations_of(pod)
        and _owner(pod) in owners
    )


def _owner(pod: Mapping[str, Any]) -> str:
    owners = objects.metadata(pod).get("ownerReferences") or ()
    return next((str(entry.get("uid")) for entry in owners if entry.get("controller")), "")
