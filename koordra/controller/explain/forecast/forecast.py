"""What the controller does with a cluster, until nothing is left to do: its own passes over a copy.

    objects ─▶ ClusterCopy ─ changes ─▶ Reconciler ─ writes ─▶ ClusterCopy     until a pass writes nothing
                                            │
                                            └─▶ what was given to whom; why the others wait

What a leader keeps in memory is taken from where it shows: refusals by kube-scheduler from the Events about
pods, how long a group has waited from the age of its pods. A leader that took over lately counts the waiting
anew, so it may keep a node free later than is told here. Nobody else acts: pods that are evicted stay, those
that are let go are not bound.

Afterwards the copy is as the cluster was given, for questions about what there is. Why a group fits nowhere
is worked out for who asks, of the state to which the passes have led: what others were given counts as taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from typing import Final

from koordra.allocator.reasons import Cause, Reason, reason_of
from koordra.api import objects
from koordra.api.kinds import PODS, RESOURCE_CLAIMS
from koordra.api.objects import Fields, Object
from koordra.controller import claims as claims_of
from koordra.controller.allocation.waiting_reasons import GroupPlacement
from koordra.controller.cache.changes import KINDS, Tables
from koordra.controller.cache.groups import Group
from koordra.controller.claims import Owner
from koordra.controller.explain.answer import answer
from koordra.controller.explain.claims import nearness_of, published, waits_for
from koordra.controller.explain.forecast.cluster_copy import States
from koordra.controller.explain.forecast.intake import Intake, Terms
from koordra.controller.explain.forecast.stand_ins import stands_in
from koordra.controller.explain.leader_view import leader_view
from koordra.controller.explain.question import Question, Subject
from koordra.controller.explain.view import ClusterView, Planned
from koordra.controller.gangs.expected.job_reader import JobReader
from koordra.controller.gangs.expected.leader_first import Known, awaiting, lacking
from koordra.controller.gangs.membership import Gang
from koordra.controller.gangs.phase import statuses_of
from koordra.controller.gangs.seats.recorded import holds_by_gang, kept_of
from koordra.logs import imagined
from koordra.process.progress import step

HORIZON: Final = 30.0
"""Seconds that the controller looks ahead at most while it writes nothing: what it could not decide at once
it takes up again after a second, or ten."""
MOST_PASSES: Final = 500
_MOST_READS: Final = 200


class Forecast:
    """`view`: what questions are answered from, `planned`: what claims have been given, by key."""

    def __init__(self, taken: Intake, starving: Mapping[str, float] | None = None) -> None:
        """`starving`: groups and gangs, by key, that are known to fit nowhere, and for how many seconds."""
        self._taken, self._terms = taken, taken.terms
        self._copy, self._placer, self._reconciler = taken.copy, taken.placer, taken.reconciler
        self._why: dict[str, GroupPlacement | None] = {}
        self._recall(starving or {})
        with imagined():
            self._run()
        self._leader = leader_view(self._reconciler)
        statuses = self._reconciler.allocation.gangs.statuses
        self._lacking_gangs = [key for key, status in statuses.items() if status.plan]
        self._is_done = False
        self._done = self._exchange(dict(self._copy.written))

    def _recall(self, starving: Mapping[str, float]) -> None:
        """What a leader would remember."""
        allocation = self._reconciler.allocation
        for uid, nodes in self._terms.refused.items():
            for node, why in nodes.items():
                self._reconciler.node_backoff.exclude(uid, node, why=why, now=HORIZON)
        for key, seconds in starving.items():
            for kept in (allocation.reservations, allocation.gangs.reservation):
                kept.waits(key, now=-seconds)

    def _run(self) -> None:
        self._waiting = come_to_rest(self._taken)
        if self._taken.stand_ins:  # who is not there takes nothing from those who are, however long they wait
            self._taken.take(PODS, self._taken.stand_ins)
            self._waiting = {**come_to_rest(self._taken), **self._waiting}

    @cached_property
    def planned(self) -> Mapping[str, Planned]:
        found = {}
        for (kind, key), claim in self._done.items():
            allocation = claims_of.allocation(claim or {})
            if kind is not RESOURCE_CLAIMS or claim is None or allocation is None:
                continue
            if allocation != claims_of.allocation(self._copy.tables[kind][key]):
                given = objects.without(allocation, "allocationTimestamp")
                level = nearness_of(claim, published(self._leader, claims_of.pools(claim)))
                found[key] = Planned(claims_of.node_of(claim), level, self._placer.scores.get(key), given)
        return found

    @cached_property
    def lacking(self) -> Sequence[str]:
        """Claims, by key, that wait for koordra and are given nothing."""
        cache = self.view.cache
        with self.when_done():
            return [key for key, claim in sorted(cache.claims.items()) if _waits(claim, cache.classes)]

    def with_besides(self, besides: Tables) -> Forecast:
        """Of the same cluster, with these objects besides. Nothing more can be asked of this one."""
        self._taken.begin_again(besides)
        return foretold(self._taken)

    @property
    def given(self) -> Tables:
        """The objects as they were given."""
        return self._taken.copy.given()

    @property
    def terms(self) -> Terms:
        return self._terms

    @property
    def told(self) -> Mapping[str, Sequence[Reason]]:
        """Why claims wait, by key, as the passes tell it."""
        return self._taken.told

    @property
    def evicted(self) -> Sequence[str]:
        """Pods, by key, that are asked to end, so that others may start."""
        return self._copy.evicted

    def answer(self, question: Question) -> Object:
        """The answer's document, by the word for its kind. Raises NotFound."""
        if question.subject is Subject.GANG and question.key in self._lacking_gangs:
            with self.when_done():
                return answer(self._leader, question)
        return answer(self.view, question)

    @cached_property
    def view(self) -> ClusterView:
        """The cluster as it was given, with what is foretold of it."""
        cache, allocation = self._reconciler.cache, self._reconciler.allocation
        index = self._taken.gangs
        index.gather()
        holds, now = holds_by_gang(cache.holds.values()), self._terms.now.timestamp()
        jobs = JobReader(self._terms.read, lambda: 0.0, _MOST_READS)
        jobs.begin()

        def known(gang: Gang) -> Known:
            job = jobs.job_of(gang).job if lacking(gang) else None
            return Known(job, cache.classes, cache.pod_groups)

        gangs = {
            gang.key: awaiting(gang, kept_of(holds.get(gang.key, ())), now, known(gang))[0]
            for gang in index.gangs.values()
        }
        statuses = statuses_of(gangs, {}, gangs, nodes=cache.nodes, users=cache.pod_index.users)
        return ClusterView(
            cache,
            allocation.placer,
            self._waiting,
            gangs,
            statuses,
            allocation.excluded,
            self.why,
            allocation.queue.beyond_quota,
            self.planned,
            allocation.queue.quotas,
        )

    def why(self, key: str) -> GroupPlacement | None:
        """Why the claim waits; None where no decision is made about it by itself."""
        if key not in self._why:
            with self.when_done():
                self._why[key] = self._leader.forecast(key)
        return self._why[key]

    def reasons_of(self, key: str) -> GroupPlacement:
        """The same, with the words for claims that wait with their gang, or that nobody can allocate; never
        without any."""
        with self.when_done():
            told = self.why(key) or GroupPlacement(reasons={key: self._taken.told.get(key, ())})
            if told.reasons.get(key):
                return told
            text = waits_for(self.view, key) or "the controller has not come to it yet"
            return replace(told, reasons={**told.reasons, key: (reason_of(Cause.NODE_UNSUITABLE, text),)})

    @contextmanager
    def when_done(self) -> Iterator[None]:
        """As it is when the controller has nothing left to do."""
        assert self._taken.reconciler is self._reconciler, "of the same objects another forecast has begun"
        if self._is_done:
            yield
            return
        before = self._exchange(self._done)
        self._is_done = True
        try:
            yield
        finally:
            self._is_done = False
            self._exchange(before)

    def _exchange(self, states: States) -> States:
        before = self._copy.exchange(states)
        self._reconciler.cache.apply(self._copy.source.changes())
        self._placer.sync(self._reconciler.cache)
        return before

    @property
    def waits(self) -> Iterator[tuple[str, float]]:
        """Groups and gangs that fit nowhere, and for how many seconds their pods have waited."""
        for key, group in self._reconciler.allocation.queue.groups.items():
            yield key, _waited(group.pods, self._terms.now)
        for key in self._lacking_gangs:
            members = self._reconciler.allocation.gangs.all[key].members
            yield key, _waited([one.pod for one in members], self._terms.now)


def _waits(claim: Object, classes: Mapping[str, Object]) -> bool:
    if claims_of.is_allocated(claim) or objects.is_deleting(claim):
        return False
    return claims_of.owner(claim, classes) is not Owner.FOREIGN


def come_to_rest(taken: Intake) -> dict[str, Group]:
    """Passes until nothing is left to do. Returns what the first of them found waiting."""
    reconciler, horizon = taken.reconciler, taken.clock + HORIZON
    waiting: dict[str, Group] = {}
    for number in range(MOST_PASSES):
        step()
        version = taken.copy.version
        pause = reconciler.reconcile()
        if number == 0:
            waiting = dict(reconciler.allocation.queue.groups)
        if taken.copy.version == version:
            if pause is None or taken.clock + pause > horizon:
                break
            taken.clock += pause
    return waiting


def forecast(cluster: Tables, terms: Terms) -> Forecast:
    return foretold(taken_in(cluster, terms))


def foretold(taken: Intake) -> Forecast:
    """Who has waited for long without a place has nodes kept free by now: that is known of the others only
    once it is known who that is."""
    found = Forecast(taken)
    starves_after = taken.terms.starves_after
    starving = {key: seconds for key, seconds in found.waits if seconds >= starves_after > 0}
    if starving and found.planned:
        taken.begin_again(taken.besides)
        return Forecast(taken, starving)
    return found


def taken_in(cluster: Tables, terms: Terms) -> Intake:
    """Before the first pass."""
    taken = Intake(terms)
    for kind in KINDS:
        there = [*cluster.get(kind, {}).values()]
        if kind == PODS:
            taken.stand_ins = [*filter(stands_in, there)]
            there = [pod for pod in there if not stands_in(pod)]
        taken.take(kind, there)
    return taken


def _waited(pods: Sequence[Fields], now: datetime) -> float:
    """Seconds since the last of the pods was made; 0 where nobody says when."""
    made = [objects.metadata(pod).get("creationTimestamp") for pod in pods]
    known = [datetime.fromisoformat(str(one)) for one in made if one]
    return (now - max(known)).total_seconds() if known else 0.0
