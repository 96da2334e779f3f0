"""One pass from what is observed to what is written. One worker calls it; everything it decides is decided by
pure modules.

    1. end doubts            repeat allocations whose outcome is unknown
    2. take answers          the scheduler's noes: give the pod's devices back, exclude the node
    3. free the useless      all consumers are gone, or a pod's claims are pinned to different nodes
    4. plan                  groups that wait, most urgent first, each against all writes so far
    5. lift gates            of pods whose claims are all allocated

A pass looks at the whole state, not at the event that woke it, so that no lost or reordered event matters;
what makes it cheap is that a waiting group is planned again only when its *basis* changed: the inventory's
epoch, its own pods and claims, or the nodes it is kept off. `reconcile` ends early with ApiUnreachable when
the API server does not answer or the lease runs out; the caller waits and calls again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from koordra.allocator.reasons import Cause, Reason
from koordra.api import objects
from koordra.api.objects import Object
from koordra.controller import claims as claims_of
from koordra.controller import happenings, snapshot
from koordra.controller.announcements import Announcements
from koordra.controller.assumed import AssumedWrites
from koordra.controller.exclusions import Exclusions
from koordra.controller.grants import Grants, Refusal
from koordra.controller.happenings import Witness
from koordra.controller.inventory import InventoryWatch
from koordra.controller.planning import Decision, Planner, decide, orphans, torn_apart, unplannable
from koordra.controller.snapshot import Cluster, Group, PodClaims
from koordra.controller.writes import Outcome, Writer, Written
from koordra.errors import ApiUnreachable
from koordra.logs import get_logger

log = get_logger(__name__)

CONFLICT_PAUSE: Final = 0.02
LONGEST_CONFLICT_PAUSE: Final = 1.0
REFUSED_PAUSE: Final = 60.0
UNDECIDED_PAUSE: Final = 10.0
_Basis = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class _Considered:
    """A group was planned on this basis without success; `until` ends that even if nothing changes."""

    basis: _Basis
    until: float | None = None


class Reconciler:
    """Joint allocation for one cluster.

    `observe` returns the caches as they are; `clock` is monotonic; `witnesses` hear what happens.
    """

    def __init__(
        self,
        observe: Callable[[], Cluster],
        writer: Writer,
        *,
        planner: Planner,
        clock: Callable[[], float],
        witnesses: Sequence[Witness] = (),
    ) -> None:
        self._observe = observe
        self._writer = writer
        self._planner = planner
        self._clock = clock
        self._announce = Announcements(witnesses, clock=clock)
        self._assumed = AssumedWrites()
        self._exclusions = Exclusions()
        self._inventory = InventoryWatch()
        self._grants = Grants(refusals=self._exclusions.refusals)
        self._considered: dict[str, _Considered] = {}
        self._lifted: set[str] = set()
        self._conflicts = 0
        self._wake_at: float | None = None
        self._seen = Cluster()

    def reconcile(self) -> float | None:
        """One pass. Returns the seconds after which another is due even if nothing changes, None for never.

        Raises ApiUnreachable.
        """
        conflicts, self._wake_at = self._conflicts, None
        self._seen = self._observe()
        self._end_doubts()
        self._take_answers(self._cluster())
        self._free_the_useless(self._cluster())
        cluster = self._plan(self._cluster())
        self._lift_gates(cluster)
        self._forget_the_gone(cluster)
        if self._conflicts == conflicts:
            self._conflicts = 0
        self._wake(self._exclusions.next_expiry(self._clock()))
        self._wake(self._announce.catch_up())
        return None if self._wake_at is None else max(0.0, self._wake_at - self._clock())

    def _cluster(self) -> Cluster:
        """The caches as they were when the pass began, with our own writes laid over."""
        return replace(self._seen, claims=self._assumed.laid_over(self._seen.claims))

    # 1. doubts

    def _end_doubts(self) -> None:
        self._cluster()
        for doubt in self._assumed.doubts():
            written = self._settled(self._writer.allocate_protected(doubt.claim, doubt.allocation))
            if written.outcome in {Outcome.DROPPED, Outcome.REFUSED}:
                written = self._settled(self._writer.read_again(doubt.claim))
            if written.obj is not None:
                self._assumed.assume(written.obj)
            elif written.outcome is Outcome.GONE:
                self._assumed.forget(objects.uid(doubt.claim))
            log.info("doubt_ended", claim=objects.key(doubt.claim), outcome=written.outcome.value)

    # 2. the scheduler's answers

    def _take_answers(self, cluster: Cluster) -> None:
        refusals, look_again = self._grants.read(snapshot.pods_with_claims(cluster), now=self._clock())
        self._wake(look_again)
        for refusal in refusals:
            self._accept_no(refusal, cluster)

    def _accept_no(self, refusal: Refusal, cluster: Cluster) -> None:
        """Give back first: if that cannot be written now, the same no is found again in the next pass."""
        pod, node, why = refusal.member.pod, refusal.node, refusal.answer.why
        for held in refusal.member.ours:
            if claims_of.node_of(held) == node and not claims_of.reserved_for(held):
                refused = f"kube-scheduler refused {node} for pod {objects.name(pod)}"
                self._give_back(held, cluster, why=refused)
        self._grants.settle(refusal)
        now = self._clock()
        excluded = self._exclusions.exclude(objects.uid(pod), node, why=why, now=now)
        how, pause = refusal.answer.reading.value, excluded.until - now
        log.info("allocation_refused", pod=objects.key(pod), node=node, how=how, why=why)
        self._announce.tell(
            happenings.allocation_refused(pod, refusal.claim, node=node, why=why, pause=pause)
        )

    def _give_back(self, claim: Object, cluster: Cluster, *, why: str) -> None:
        """Free an unreserved claim. Whatever keeps that from happening is looked at again in the next
        pass."""
        if claims_of.is_immediate(claim):
            return
        written = self._settled(self._writer.give_back(claim))
        self._grants.drop(claim)
        if written.ok:
            users = claims_of.consumers(cluster.pods).get(objects.key(claim), [])
            log.info("claim_given_back", claim=objects.key(claim), why=why)
            self._announce.tell(happenings.given_back(claim, users, why=why))
        elif written.outcome is Outcome.REFUSED:
            log.error("give_back_refused", claim=objects.key(claim), error=written.message)
            self._wake(self._clock() + REFUSED_PAUSE)

    # 3. allocations nobody can use

    def _free_the_useless(self, cluster: Cluster) -> None:
        for claim in orphans(cluster):
            self._give_back(claim, cluster, why="no pod uses it any more")
        for member in snapshot.pods_with_claims(cluster):
            for claim in torn_apart(member):
                why = f"the claims of pod {objects.name(member.pod)} are on different nodes"
                self._give_back(claim, cluster, why=why)

    # 4. planning

    def _plan(self, cluster: Cluster) -> Cluster:
        now = self._clock()
        change = self._inventory.look(cluster)
        for node in change.nodes:
            self._exclusions.retry_node(node, now)
        slices = snapshot.joint_slices(cluster.slices)
        members = list(snapshot.pods_with_claims(cluster))
        self._tell_unplannable(members, cluster)
        considered: dict[str, _Considered] = {}
        for group in snapshot.groups(members):
            exclude = {objects.key(pod): self._exclusions.active(objects.uid(pod), now) for pod in group.pods}
            basis = _basis(group, change.epoch, exclude)
            before = self._considered.get(group.key)
            if before is not None and before.basis == basis and (before.until is None or before.until > now):
                considered[group.key] = before
                self._wake(before.until)
                continue
            self._considered.pop(group.key, None)
            decision = decide(group, cluster, slices=slices, planner=self._planner, exclude=exclude)
            cluster, pause = self._carry_out(group, decision, cluster)
            if pause is not None:
                until = None if pause < 0 else now + pause
                self._considered[group.key] = considered[group.key] = _Considered(basis, until)
                self._wake(until)
        self._considered = considered
        return cluster

    def _carry_out(self, group: Group, decision: Decision, cluster: Cluster) -> tuple[Cluster, float | None]:
        """Write the decision. Returns the cluster after it and for how long the group need not be planned
        again: None not at all, negative until its basis changes, otherwise seconds at most."""
        if decision.broken:
            log.error("allocator_defect", pod=objects.key(group.pods[0]), traceback=decision.broken)
        for held in decision.give_back:
            self._give_back(held, cluster, why="the pod's other claims cannot be placed beside it")
        if decision.give_back:
            self._wake(self._clock())
        if not decision.allocations:
            for claim in group.pending:
                self._announce.waiting(
                    claim, _users(group, claim), decision.reasons.get(objects.key(claim), ())
                )
            if decision.give_back:
                return cluster, None
            return cluster, UNDECIDED_PAUSE if decision.undecided else -1.0
        for key in sorted(decision.allocations):
            claim = cluster.claims_by_key[key]
            written = self._settled(self._writer.allocate(claim, decision.allocations[key]))
            if not written.ok or written.obj is None:
                return cluster, self._not_written(group, claim, written)
            cluster = cluster.with_claim(written.obj)
            self._inventory.given_out(written.obj)
            pods = _users(group, claim)
            self._grants.remember(written.obj, pods, now=self._clock())
            log.info("claim_allocated", claim=key, node=claims_of.node_of(written.obj))
            self._announce.allocated(written.obj, pods, level=decision.levels.get(key))
        return cluster, None

    def _not_written(self, group: Group, claim: Object, written: Written) -> float | None:
        log.info(
            "allocation_not_written",
            claim=objects.key(claim),
            outcome=written.outcome.value,
            message=written.message,
        )
        if written.outcome is Outcome.DROPPED:
            reason = Reason(None, None, None, Cause.FEATURE_DISABLED.value, written.message)
            self._announce.waiting(claim, _users(group, claim), (reason,))
            return REFUSED_PAUSE
        if written.outcome is Outcome.REFUSED:
            self._announce.tell(
                happenings.write_refused(claim, _users(group, claim), message=written.message)
            )
            return REFUSED_PAUSE
        if written.outcome is Outcome.GONE:
            return CONFLICT_PAUSE * 50
        return None

    # 5. gates

    def _lift_gates(self, cluster: Cluster) -> None:
        gated = {
            objects.uid(pod): pod
            for pod in cluster.pods
            if snapshot.is_gated(pod) and snapshot.is_living(pod)
        }
        self._lifted &= gated.keys()
        for uid, pod in sorted(gated.items(), key=lambda entry: objects.key(entry[1])):
            member = snapshot.claims_of_pod(pod, cluster)
            if uid in self._lifted or member is None or member.pending or member.refused:
                continue
            written = self._settled(self._writer.lift_gate(pod))
            if written.ok:
                self._lifted.add(uid)
                log.info("gate_lifted", pod=objects.key(pod))
            elif written.outcome is Outcome.REFUSED:
                log.warning("gate_not_lifted", pod=objects.key(pod), error=written.message)
                self._wake(self._clock() + LONGEST_CONFLICT_PAUSE)

    # shared by all steps

    def _settled(self, written: Written) -> Written:
        """Take over what a write has shown of its claim; raise where the pass cannot go on."""
        if written.outcome is Outcome.IN_DOUBT and written.obj is not None and written.sent is not None:
            self._assumed.doubt(written.obj, written.sent)
        if written.outcome in {Outcome.IN_DOUBT, Outcome.UNREACHABLE, Outcome.FENCED}:
            raise ApiUnreachable(written.message)
        if written.outcome is Outcome.CONFLICT:
            self._conflicts += 1
            self._wake(self._clock() + min(CONFLICT_PAUSE * 2.0**self._conflicts, LONGEST_CONFLICT_PAUSE))
        if written.obj is not None and written.obj.get("kind") == "ResourceClaim":
            self._assumed.assume(written.obj)
        return written

    def _forget_the_gone(self, cluster: Cluster) -> None:
        self._exclusions.retain(objects.uid(pod) for pod in cluster.pods)
        self._announce.retain(objects.uid(claim) for claim in cluster.claims)

    def _wake(self, at: float | None) -> None:
        if at is not None and (self._wake_at is None or at < self._wake_at):
            self._wake_at = at

    def _tell_unplannable(self, members: Iterable[PodClaims], cluster: Cluster) -> None:
        for member in members:
            for key, reasons in unplannable(member, cluster.classes_by_name).items():
                self._announce.waiting(cluster.claims_by_key[key], (member.pod,), reasons)


def _users(group: Group, claim: Object) -> tuple[Object, ...]:
    """The group's pods that use a claim."""
    uid = objects.uid(claim)
    return tuple(
        member.pod for member in group.members if uid in {objects.uid(entry) for entry in member.ours}
    )


def _basis(group: Group, epoch: int, exclude: Mapping[str, Mapping[str, str]]) -> _Basis:
    """What a plan for this group depends on; specs of claims cannot change."""
    pods = tuple(
        (
            objects.uid(member.pod),
            objects.metadata(member.pod).get("generation"),
            tuple(snapshot.gates(member.pod)),
            objects.spec_of(member.pod).get("nodeName"),
            tuple((objects.uid(claim), claims_of.node_of(claim)) for claim in (*member.ours, *member.others)),
        )
        for member in group.members
    )
    kept_off = tuple((pod, tuple(nodes)) for pod, nodes in exclude.items())
    return (epoch, pods, kept_off)
