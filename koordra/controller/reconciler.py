"""One pass from what is observed to what is written. One worker calls it; everything it decides is decided by
pure modules.

    1. end doubts            repeat allocations whose outcome is unknown
    2. take answers          the scheduler's noes: give the pod's devices back, exclude the node
    3. free the useless      all consumers are gone, or a pod's claims are pinned to different nodes
       and of the gangs      what a cut-off pass has left of one (gangs/)
    4. plan                  groups that wait, most urgent first, each against all writes so far (placing.py)
    5. lift gates            of pods whose claims are all allocated, of gangs as a whole
    6. tell the stuck        pods that a shared claim pins to a node they cannot use
    7. look out              for what nobody should do: foreign writers, classes, drivers (lookout.py)

A pass looks at the whole state, not at the event that woke it, so that no lost or reordered event matters.
`reconcile` ends early with ApiUnreachable when the API server does not answer or the lease runs out; the caller
waits and calls again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from koordra.allocator.predicates import unsuitable
from koordra.allocator.reasons import Cause, Reason
from koordra.api import objects
from koordra.api.objects import Object
from koordra.controller import claims as claims_of
from koordra.controller import happenings, snapshot
from koordra.controller.answers import pod_scheduled
from koordra.controller.exclusions import Exclusions
from koordra.controller.figures import Figures
from koordra.controller.gangs.course import Entries
from koordra.controller.gangs.planning import Place
from koordra.controller.grants import Refusal
from koordra.controller.happenings import Witness
from koordra.controller.leftovers import Learned
from koordra.controller.lookout import Lookout
from koordra.controller.peers.foreign import NO_GPUS
from koordra.controller.placing import Placing, Quota, nobody_held
from koordra.controller.planning import orphans, torn_apart
from koordra.controller.reservations import STARVES_AFTER
from koordra.controller.site_answers import Planner
from koordra.controller.sites import Inventory
from koordra.controller.snapshot import Cluster
from koordra.controller.stages import Stages
from koordra.controller.working import LONGEST_CONFLICT_PAUSE, Working
from koordra.controller.writes import Outcome, Writer
from koordra.logs import get_logger
from koordra.placement import read_inventory as read_of_allocator

log = get_logger(__name__)

ReadInventory = Callable[[Sequence[Object]], Inventory]


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
        read_inventory: ReadInventory = read_of_allocator,
        starves_after: float = STARVES_AFTER,
        preemption: bool = False,
        place_gang: Place | None = None,
        gang_entries: Entries | None = None,
        learned: Learned | None = None,
        stages: Stages | None = None,
        quota: Quota = nobody_held,
    ) -> None:
        self._exclusions = Exclusions()
        self._working = Working(
            observe, writer, clock=clock, witnesses=witnesses, refusals=self._exclusions.refusals
        )
        self.placing = Placing(
            self._working,
            self._exclusions,
            planner=planner,
            read_inventory=read_inventory,
            starves_after=starves_after,
            preemption=preemption,
            place_gang=place_gang,
            gang_entries=gang_entries,
            learned=learned,
            stages=stages,
            quota=quota,
        )
        self._stages = stages
        self._lookout = Lookout()
        self._lifted: set[str] = set()
        self._noted: dict[str, str | None] = {}

    def reconcile(self) -> float | None:
        """One pass. Returns the seconds after which another is due even if nothing changes, None for never.

        Raises ApiUnreachable.
        """
        working = self._working
        if self._stages is not None:
            self._stages.pass_begins()
        working.begin()
        self._end_doubts()
        self._take_answers()
        self._free_the_useless()
        self.placing.gangs.look()
        self.placing.plan()
        self._lift_gates()
        self.placing.gangs.lift()
        self._tell_the_stuck()
        self._look_out()
        self._forget_the_gone()
        working.wake(self._exclusions.next_expiry(working.clock()))
        return working.end()

    # 1. doubts

    def _end_doubts(self) -> None:
        working = self._working
        for doubt in working.assumed.doubts():
            written = working.settled(working.writer.allocate_protected(doubt.claim, doubt.allocation))
            if written.outcome in {Outcome.DROPPED, Outcome.REFUSED}:
                written = working.settled(working.writer.read_again(doubt.claim))
            if written.obj is not None:
                working.take_over(written.obj)
            elif written.outcome is Outcome.GONE:
                working.lose(doubt.claim)
            log.info("doubt_ended", claim=objects.key(doubt.claim), outcome=written.outcome.value)

    # 2. the scheduler's answers

    def _take_answers(self) -> None:
        working = self._working
        refusals, look_again = working.grants.read(working.pods().open, now=working.clock())
        working.wake(look_again)
        for refusal in refusals:
            self._accept_no(refusal)

    def _accept_no(self, refusal: Refusal) -> None:
        """Give back first: if that cannot be written now, the same no is found again in the next pass."""
        working, pod, node, why = self._working, refusal.member.pod, refusal.node, refusal.answer.why
        for held in refusal.member.ours:
            if claims_of.node_of(held) == node and not claims_of.reserved_for(held):
                working.give_back(held, why=f"kube-scheduler refused {node} for pod {objects.name(pod)}")
        working.grants.settle(refusal)
        now = working.clock()
        excluded = self._exclusions.exclude(objects.uid(pod), node, why=why, now=now)
        how, pause = refusal.answer.reading.value, excluded.until - now
        log.info("allocation_refused", pod=objects.key(pod), node=node, how=how, why=why)
        working.announce.tell(
            happenings.allocation_refused(pod, refusal.claim, node=node, why=why, pause=pause)
        )

    # 3. allocations nobody can use

    def _free_the_useless(self) -> None:
        working = self._working
        for claim in orphans(working.cluster, working.pods()):
            working.give_back(claim, why="no pod can use it any more")
        for member in working.pods().open:
            for claim in torn_apart(member):
                why = f"the claims of pod {objects.name(member.pod)} are on different nodes"
                working.give_back(claim, why=why)

    # 5. gates

    def _lift_gates(self) -> None:
        working = self._working
        gated = {
            objects.uid(pod): pod
            for pod in working.cluster.pods
            if (pod.get("spec") or {}).get("schedulingGates")
            and snapshot.is_gated(pod)
            and snapshot.is_living(pod)
        }
        self._lifted &= gated.keys()
        for uid, pod in sorted(gated.items(), key=lambda entry: objects.key(entry[1])):
            member = snapshot.claims_of_pod(pod, working.cluster)
            if uid in self._lifted or member is None or member.pending or member.refused:
                continue
            if self.placing.gangs.has(uid):
                continue
            written = working.settled(working.writer.lift_gate(pod))
            if written.ok:
                self._lifted.add(uid)
                log.info("gate_lifted", pod=objects.key(pod))
            elif written.outcome is Outcome.REFUSED:
                log.warning("gate_not_lifted", pod=objects.key(pod), error=written.message)
                working.wake(working.clock() + LONGEST_CONFLICT_PAUSE)

    # 6. consumers of shared claims that have no place beside the others

    def _tell_the_stuck(self) -> None:
        working = self._working
        for member in working.pods().open:
            pod = member.pod
            if member.pending or snapshot.is_bound(pod) or not pod_scheduled(pod).is_unschedulable:
                continue
            for claim in member.ours:
                node = claims_of.node_of(claim)
                others = set(claims_of.reserved_for(claim)) - {objects.uid(pod)}
                if node is not None and others:
                    working.announce.stuck(claim, pod, (self._why_stuck(pod, node),))

    def _why_stuck(self, pod: Object, node: str) -> Reason:
        site = self.placing.offers.sites.by_name.get(node)
        load = {} if site is None else site.load
        found = [] if site is None else list(unsuitable(site.node, pod, taken=load))
        said = "; ".join(found) or pod_scheduled(pod).message or "the scheduler does not place it there"
        text = (
            f"pod {objects.key(pod)} has to run on node {node}, where other pods use the claim, and cannot: {said}; "
            "make room there, or give the pod a claim of its own"
        )
        return Reason(node, None, None, Cause.SHARED_CLAIM_PINNED.value, text)

    # 7. looking out

    def _look_out(self) -> None:
        working = self._working
        for happening in self._lookout.look(
            working.cluster, now=working.clock(), also=self.placing.foreign.alarms()
        ):
            working.announce.tell(happening)
        for node, seen in self._lookout.quarantines(working.cluster):
            written = working.writer.see_quarantine(node, seen)
            if written.outcome is Outcome.REFUSED:
                log.error("quarantine_not_confirmed", node=objects.name(node), error=written.message)
                working.wake(working.clock() + LONGEST_CONFLICT_PAUSE)
            else:
                working.settled(written)
        self._note_refused_nodes()

    def _note_refused_nodes(self) -> None:
        """Each text once: a write that was refused is not tried again before something else is to be said."""
        working = self._working
        for node, text in self.placing.foreign.notes():
            if self._noted.get(objects.uid(node), "") == text:
                continue
            written = working.writer.note(node, NO_GPUS, text)
            if written.outcome is Outcome.REFUSED:
                log.warning("node_not_noted", node=objects.name(node), error=written.message)
            else:
                working.settled(written)
            self._noted[objects.uid(node)] = text

    def count(self, figures: Figures) -> None:
        """How things stand after a pass."""
        cluster = self._working.cluster
        figures.count_claims(
            waiting=self.placing.waiting,
            allocated=sum(1 for claim in cluster.claims if claims_of.holds_koordra_devices(claim)),
            in_doubt=len(self._working.assumed.doubts()),
        )
        figures.planned(self.placing.took)
        figures.refused_nodes.set(self.placing.foreign.refused)
        figures.count_gangs(self.placing.gangs.counts())

    def _forget_the_gone(self) -> None:
        cluster = self._working.cluster
        self._exclusions.retain(objects.uid(pod) for pod in cluster.pods)
        self._working.announce.retain(objects.uid(obj) for obj in (*cluster.claims, *cluster.pods))
        self.placing.offers.leftovers.retain(cluster.claims)
