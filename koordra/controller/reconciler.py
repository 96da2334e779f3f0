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

A pass goes by the state that changes have led to, not by the event that woke it: each step acts on an index of the objects that
concern it (cache/), and on what is due by the clock. Now and then everything is read anew, so that no lost event matters for long.
`reconcile` ends early with ApiUnreachable when the API server does not answer or the lease runs out; the caller
waits and calls again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from koordra.allocator.predicates import unsuitable
from koordra.allocator.reasons import Cause, Reason
from koordra.api import objects
from koordra.api.kinds import NODES, PODS, RESOURCE_CLAIMS
from koordra.api.objects import Object
from koordra.controller import claims as claims_of
from koordra.controller import happenings
from koordra.controller.answers import pod_scheduled
from koordra.controller.cache.changes import Source
from koordra.controller.cache.pod_index import split_across_nodes
from koordra.controller.exclusions import Exclusions
from koordra.controller.figures import Figures
from koordra.controller.gangs.course import Entries
from koordra.controller.gangs.planning import Place
from koordra.controller.grants import Refusal
from koordra.controller.happenings import Witness
from koordra.controller.leftovers import Learned
from koordra.controller.lookout import Lookout
from koordra.controller.peers.foreign import NO_GPUS
from koordra.controller.placing import Placing, Quota
from koordra.controller.reservations import STARVES_AFTER
from koordra.controller.site_answers import Planner
from koordra.controller.sites import Inventory
from koordra.controller.stages import Stages
from koordra.controller.working import LONGEST_CONFLICT_PAUSE, Working
from koordra.controller.writes import Outcome, Writer
from koordra.logs import get_logger
from koordra.placement import read_inventory as read_of_allocator

log = get_logger(__name__)

ReadInventory = Callable[[Sequence[Object]], Inventory]


class Reconciler:
    """Joint allocation for one cluster.

    `source` has the objects that are watched; `clock` is monotonic; `witnesses` hear what happens.
    """

    def __init__(
        self,
        source: Source,
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
        quota: Quota | None = None,
    ) -> None:
        self._exclusions = Exclusions()
        self._working = Working(
            source, writer, clock=clock, witnesses=witnesses, refusals=self._exclusions.refusals
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
        self.cache = cache = self._working.cache
        self.audit = self._working.audit
        self._lookout = Lookout(cache)
        cache.listen(PODS, self._on_pod)
        cache.listen(RESOURCE_CLAIMS, self._on_claim)
        cache.listen(NODES, self._on_node)
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
        self.placing.offers.leftovers.retain(working.cache.claims.values())
        working.wake(self._exclusions.next_expiry(working.clock()))
        return working.end()

    # 1. doubts

    def _end_doubts(self) -> None:
        working = self._working
        for doubt in working.cache.assumed.doubts():
            written = working.settled(working.writer.allocate_protected(doubt.claim, doubt.allocation))
            if written.outcome in {Outcome.DROPPED, Outcome.REFUSED}:
                written = working.settled(working.writer.read_again(doubt.claim))
            if written.obj is not None:
                working.cache.assume(written.obj)
            elif written.outcome is Outcome.GONE:
                working.cache.lose(doubt.claim)
            log.info("doubt_ended", claim=objects.key(doubt.claim), outcome=written.outcome.value)

    # 2. the scheduler's answers

    def _take_answers(self) -> None:
        working = self._working
        refusals, look_again = working.grants.read(now=working.clock())
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
        for claim in working.cache.claim_index.orphans():
            working.give_back(claim, why="no pod can use it any more")
        pods = working.cache.pod_index
        for member in pods.members(pods.split):
            for claim in split_across_nodes(member):
                why = f"the claims of pod {objects.name(member.pod)} are on different nodes"
                working.give_back(claim, why=why)

    # 5. gates

    def _lift_gates(self) -> None:
        working = self._working
        pods = working.cache.pod_index
        self._lifted &= pods.complete
        waiting = [
            pods.entries[uid].pod for uid in pods.complete - self._lifted if not self.placing.gangs.has(uid)
        ]
        for pod in sorted(waiting, key=objects.key):
            written = working.settled(working.writer.lift_gate(pod))
            if written.ok:
                self._lifted.add(objects.uid(pod))
                log.info("gate_lifted", pod=objects.key(pod))
            elif written.outcome is Outcome.REFUSED:
                log.warning("gate_not_lifted", pod=objects.key(pod), error=written.message)
                working.wake(working.clock() + LONGEST_CONFLICT_PAUSE)

    # 6. consumers of shared claims that have no place beside the others

    def _tell_the_stuck(self) -> None:
        working = self._working
        pods = working.cache.pod_index
        for member in pods.members(pods.unschedulable):
            pod = member.pod
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
        for happening in self._lookout.look(now=working.clock(), also=self.placing.foreign.alarms()):
            working.announce.tell(happening)
        for node, seen in self._lookout.quarantines():
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
        cache = self._working.cache
        figures.count_claims(
            waiting=self.placing.waiting,
            allocated=len(cache.claim_index.held),
            in_doubt=len(self._working.cache.assumed.doubts()),
        )
        figures.count_differences(self.audit.differences)
        figures.planned(self.placing.took)
        figures.refused_nodes.set(self.placing.foreign.refused)
        figures.count_gangs(self.placing.gangs.counts())

    def _on_pod(self, _key: str, before: Object | None, now: Object | None) -> None:
        if before is not None and (now is None or objects.uid(now) != objects.uid(before)):
            self._exclusions.forget(objects.uid(before))
            self._working.announce.forget(objects.uid(before))

    def _on_claim(self, _key: str, before: Object | None, now: Object | None) -> None:
        if before is not None and (now is None or objects.uid(now) != objects.uid(before)):
            self._working.announce.forget(objects.uid(before))

    def _on_node(self, _name: str, before: Object | None, now: Object | None) -> None:
        if before is not None and (now is None or objects.uid(now) != objects.uid(before)):
            self._noted.pop(objects.uid(before), None)
