"""The pods of each gang, and how far each of them is. Pure but for what `GangIndex` follows.

Of a member it matters whether

    it is held        koordra's gate is on it
    it is committed   the gate was lifted by the controller, or it has its node
    it is ungated     neither: nothing holds it, so it may start at any moment without the others. In a gang
                      that has started it is one of those that were let go
    it is without     it needs nothing of koordra's and no gate (members of foreign pod groups without
    claims            claims); that it runs says nothing about the gang

Only gangs that concern koordra are gathered: those with a member that has claims of koordra's, and those by
koordra's own annotation; pods for native nodes are in none. Members that have finished well count as present
while others of the same owner live: a job whose first worker is done has not lost a member.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from koordra.api import names, objects
from koordra.api.kinds import COMPOSITE, NAMESPACES, PODS
from koordra.api.objects import Object
from koordra.api.tables import set_or_drop
from koordra.controller import claims as claims_of
from koordra.controller.cache import pod_index
from koordra.controller.cache.changes import POD_GROUP
from koordra.controller.cache.cluster_cache import ClusterCache
from koordra.controller.cache.pod_index import PodClaims, PodEntry
from koordra.controller.cache.ungate_tracker import UngateTracker
from koordra.controller.gangs.declared.annotations import COMMITTED
from koordra.controller.gangs.declared.gang_ref import GangRef, Source, gang_of
from koordra.controller.gangs.declared.member_index import MemberIndex, member_indexes, role_of_pod
from koordra.controller.gangs.declared.roles import ended_role
from koordra.controller.gangs.declared.terms import Terms, terms_of
from koordra.controller.gangs.declared.workload_kind import JOBSET_UID
from koordra.placement.request.claim_groups import Urgency, urgency


@dataclass(frozen=True, slots=True)
class Member:
    """A living pod of a gang. `claims` is None while one of its claims does not exist. `index`: its position
    in its job, None where the workload does not say; `let_go`: the controller lifted its gate, as the API or
    the controller itself knows; `in_doubt`: it tried to, and no answer came. `like`: of one that does
    not exist yet, uid of the member that it is taken to ask as."""

    pod: Object
    claims: PodClaims | None
    index: MemberIndex | None = None
    let_go: bool = False
    in_doubt: bool = False
    like: str = ""

    @property
    def uid(self) -> str:
        return objects.uid(self.pod)

    @property
    def key(self) -> str:
        return objects.key(self.pod)

    @property
    def ours(self) -> tuple[Object, ...]:
        """Its claims of koordra's, as far as they are known."""
        return () if self.claims is None else self.claims.ours

    @property
    def is_bound(self) -> bool:
        return pod_index.is_bound(self.pod)

    @property
    def is_committed(self) -> bool:
        return self.is_bound or self.let_go

    @property
    def commits(self) -> bool:
        """Whether its gang has started. One that needs no devices, and came past its gate, says nothing
        about the others."""
        return self.is_committed and (self.let_go or self.claims is None or self.concerns_koordra)

    @property
    def is_held(self) -> bool:
        return not self.is_committed and pod_index.is_gated(self.pod)

    @property
    def concerns_koordra(self) -> bool:
        return self.claims is not None and bool(self.claims.ours or self.claims.refused)

    @property
    def may_be_planned(self) -> bool:
        """Whether it waits for koordra and for nobody else."""
        if self.claims is None or self.claims.refused or self.is_bound:
            return False
        return all(gate == names.JOINT_GATE for gate in pod_index.gates(self.pod))

    @property
    def is_placed(self) -> bool:
        """Whether its claims have their devices; without claims there is nothing to wait for."""
        return self.claims is not None and not self.claims.pending and not self.claims.refused


@dataclass(frozen=True, slots=True)
class Gang:
    """`members` by their positions in their job, then by urgency; `done` members have finished well, which
    roles these had, where that matters, says `ended`;
    `coming` are those that do not exist yet, and without whom the others start (expected/), some of them
    taken to ask what `coming_like` asks.

    Of what is held for the gang and nobody has, `kept` places are for those who come; `unused` are places
    that nobody had yet."""

    ref: GangRef
    terms: Terms
    members: tuple[Member, ...]
    done: int = 0
    ended: frozenset[str] = frozenset()
    coming: tuple[Member, ...] = ()
    coming_like: str = ""
    kept: int = 0
    unused: int = 0

    @property
    def key(self) -> str:
        return self.ref.key

    @property
    def committed(self) -> tuple[Member, ...]:
        """Of a gang that has started, who is not held."""
        there = self.members if self.has_started else ()
        return tuple(one for one in there if not (one.is_held or self.is_without_claims(one)))

    @property
    def has_started(self) -> bool:
        return any(member.commits for member in self.members)

    @property
    def held(self) -> tuple[Member, ...]:
        return tuple(member for member in self.members if member.is_held)

    @property
    def others(self) -> int:
        """How many count towards the least without devices: members without claims, those that have finished
        well, and those that run already while the gang has not started: these came past their gate."""
        started = self.has_started
        alone = ((not started and one.is_bound) or self.is_without_claims(one) for one in self.members)
        return self.done + sum(alone)

    def is_without_claims(self, member: Member) -> bool:
        """A member of a foreign pod group that needs nothing of koordra's and was never held, wherever it is
        by now."""
        return not (
            self.ref.source is Source.KOORDRA
            or member.concerns_koordra
            or member.claims is None
            or member.let_go
            or pod_index.is_gated(member.pod)
        )

    @property
    def ungated(self) -> tuple[Member, ...]:
        """Members that nothing holds and that nobody let go."""
        return tuple(
            member
            for member in self.members
            if not (member.is_committed or member.is_held or self.is_without_claims(member))
        )

    @property
    def urgency(self) -> Urgency:
        """Its place in the order of planning: its most urgent member's, with the priority of its group where
        that has one."""
        rank, created, name = min(urgency(member.pod) for member in self.members)
        priority = self.terms.disruption.priority
        return (rank if priority is None else -priority, created, name)


class GangIndex:
    """The gangs that concern koordra, by mark, followed through a cache: those of which a pod, a claim, a
    consumer of a claim, a pod group or an ungating has changed are gathered anew. Not thread-safe."""

    def __init__(self, cache: ClusterCache, ungating: UngateTracker) -> None:
        self.gangs: dict[GangRef, Gang] = {}
        self.cache = cache
        self.ungating = ungating
        self._refs: dict[str, GangRef] = {}
        self._pods: dict[GangRef, dict[str, Object]] = {}
        self._stale: set[GangRef] = set()
        cache.pod_index.on_touch.append(self._on_touch)
        for key, pod in cache.pods.items():
            self._on_pod(key, None, pod)
        cache.listen(PODS, self._on_pod)
        cache.listen(NAMESPACES, self._on_namespace)
        cache.listen(POD_GROUP, self._on_pod_group)

    def pod_of(self, uid: str) -> Object | None:
        """A pod that names a gang, also one that has finished."""
        ref = self._refs.get(uid)
        return None if ref is None else self._pods[ref].get(uid)

    def gather(self) -> list[GangRef]:
        """Bring `gangs` up to date; the marks of those that may have changed, or are gone."""
        self._stale |= {self._refs[uid] for uid in self.ungating.touched & self._refs.keys()}
        self.ungating.touched.clear()
        stale, self._stale = self._stale, set()
        for ref in stale:
            set_or_drop(self.gangs, ref, self._gang(ref, list(self._pods.get(ref, {}).values())))
        return sorted(stale, key=lambda ref: ref.key)

    def _on_pod(self, _key: str, before: Object | None, now: Object | None) -> None:
        for pod in filter(None, (before, now)):
            uid = objects.uid(pod)
            known = self._refs.pop(uid, None)
            if known is not None:
                self._stale.add(known)
                self._pods[known].pop(uid, None)
                if not self._pods[known]:
                    del self._pods[known]
            ref = gang_of(pod, self.cache.pod_groups) if pod is now else None
            if ref is not None and not self._is_native(pod):
                self._refs[uid] = ref
                self._pods.setdefault(ref, {})[uid] = pod
                self._stale.add(ref)

    def _on_touch(self, uid: str, before: PodEntry | None, now: PodEntry | None) -> None:
        if not self._refs:
            return
        touched = {uid}
        if before is None or now is None or before.pod is not now.pod:
            users = self.cache.pod_index.users
            keys = {key for entry in (before, now) if entry is not None for key in entry.keys}
            touched |= {objects.uid(pod) for key in keys for pod in users.get(key, ())}
        self._stale.update(self._refs[other] for other in touched & self._refs.keys())

    def _on_namespace(self, name: str, before: Object | None, now: Object | None) -> None:
        if _mode_of(before) != _mode_of(now):
            for key, pod in list(self.cache.pods.items()):
                if objects.namespace(pod) == name:
                    self._on_pod(key, pod, pod)

    def _on_pod_group(self, key: str, _before: Object | None, _now: Object | None) -> None:
        """With a group of Kubernetes, other pods may be together (CompositePodGroup)."""
        stale = {ref for ref in self._pods if _concerns(key, ref)}
        self._stale |= stale
        for ref in stale if key.startswith(claims_of.POD_GROUPS) else ():
            for pod in list(self._pods[ref].values()):
                if gang_of(pod, self.cache.pod_groups) != ref:
                    self._on_pod(objects.key(pod), pod, pod)

    def _gang(self, ref: GangRef, pods: list[Object]) -> Gang | None:
        living = [pod for pod in pods if pod_index.is_living(pod)]
        indexes = member_indexes(living)
        found = (self._member(pod, indexes.get(objects.uid(pod))) for pod in living)
        members = tuple(sorted(found, key=_order))
        if not members:
            return None
        if ref.source is not Source.KOORDRA and not any(member.concerns_koordra for member in members):
            return None
        ended = frozenset(ended_role(role_of_pod(pod)) for pod in pods if _ended_well(pod))
        terms = terms_of(ref, living, self.cache.pod_groups, ended=ended)
        if terms is None:
            return None
        return Gang(ref, terms, members, _done(pods, living), ended if terms.order else frozenset())

    def _member(self, pod: Object, index: MemberIndex | None) -> Member:
        entry = self.cache.pod_index.entries.get(objects.uid(pod))
        claims = PodClaims(pod, ()) if entry is None else entry.claims
        is_gated = pod_index.is_gated(pod)
        let_go = self.ungating.is_ungated(pod) if is_gated else COMMITTED in objects.annotations_of(pod)
        return Member(pod, claims, index, let_go, self.ungating.in_doubt(pod))

    def _is_native(self, pod: Object) -> bool:
        """Whether kube-scheduler allocates for the pod."""
        mode = _mode_of(self.cache.namespaces.get(objects.namespace(pod)))
        return not pod_index.is_gated(pod) and objects.is_native(pod, mode == names.MODE_NATIVE)


def _concerns(group: str, ref: GangRef) -> bool:
    """Whether the pod group of this key may be one that the gang's terms follow from."""
    parts = group.split("/")
    return parts[-2] == ref.namespace and (parts[-1] == ref.group or COMPOSITE in (ref.part, parts[-3]))


def _mode_of(namespace: Object | None) -> str | None:
    return None if namespace is None else objects.labels_of(namespace).get(names.MODE_LABEL)


def _order(member: Member) -> tuple[bool, tuple[MemberIndex, ...], Urgency]:
    """Whom nobody numbered comes last."""
    return (member.index is None, (member.index,) if member.index else (), urgency(member.pod))


def _done(pods: Iterable[Object], living: Iterable[Object]) -> int:
    """Members that have ended well, whether koordra let them go or not: the initializers of a TrainJob, which
    its group counts, or a launcher that came without its gate. Nobody makes them again, so the others would
    wait for ever."""
    jobs = {job for pod in living if (job := _job(pod))}
    return sum(_ended_well(pod) and _job(pod) in jobs for pod in pods)


def _ended_well(pod: Object) -> bool:
    return objects.status_of(pod).get("phase") == "Succeeded"


def _job(pod: Mapping[str, Any]) -> str:
    """uid of the JobSet, or else of the pod's controller."""
    owners = objects.metadata(pod).get("ownerReferences") or ()
    owner = next((str(entry.get("uid")) for entry in owners if entry.get("controller")), "")
    return objects.labels_of(pod).get(JOBSET_UID, owner)
