"""The reconciler of TrainingJobs, in the leader's term: one pass over all of them after any change.

    status    first: what is to be remembered of what is done next, and the state
    delete    pods that are not to be there
    make      the Service, then pods that are missing

A pass decides by what the caches show. A cache that is behind makes nothing worse: the status is written as
that version of the job, a pod is deleted by its uid, and a pod that was made already has the name of the one
that would be made. One job's refusal does not stop the others.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final

from koordra.api import objects
from koordra.api.kinds import DEVICE_HOLDS, PODS, RESOURCE_CLAIMS, SERVICES, TRAINING_JOBS
from koordra.api.objects import Object
from koordra.controller.allocation.reserved.quotas import Quotas
from koordra.controller.allocation.writes import Writer
from koordra.controller.autoscale.quotas import QuotasAsTheyAre
from koordra.controller.cache.changes import Tables
from koordra.controller.explain.forecast.intake import Terms
from koordra.controller.gangs.declared.annotations import LEAVES
from koordra.controller.reconcile.reconcile_loop import Caches, ReconcileLoop
from koordra.controller.reporting.claim_events import ClaimEvent, EventSink, cut
from koordra.controller.resource_class.reconcile import write_status
from koordra.controller.settings import Settings
from koordra.controller.training import pods, rendezvous
from koordra.controller.training.decisions import Decision, NewPod, decide, is_settled
from koordra.controller.training.members import OVERDUE, Member, Phase, kept_for, members_of, owner_uid
from koordra.controller.training.moves import Mover
from koordra.controller.training.standing import Standing
from koordra.controller.training.training_job import (
    State,
    TrainingJob,
    memory_fields,
    read_job,
    read_memory,
    text_of,
)
from koordra.errors import Conflict, Forbidden, Invalid, InvalidManifest, NotFound
from koordra.kube.client import KubeClient
from koordra.logs import get_logger
from koordra.topology.network_topology import DISCOVERED

log = get_logger(__name__)

AGAIN: Final = timedelta(seconds=15)
"""After which what the API server refused is tried once more."""
MOST_MADE: Final = 64
"""Pods of one elastic job that one pass makes; the next goes on."""


@dataclass(slots=True)
class TrainingReconciler:
    """`now`: the wall clock; `clock`: monotonic. `mover` says which replicas are to move, None: none ever is.
    Raises ApiUnreachable."""

    client: KubeClient
    now: Callable[[], datetime]
    clock: Callable[[], float]
    may_write: Callable[[], bool]
    report: Callable[[ClaimEvent], None] = lambda claim_event: None
    mover: Mover | None = None
    _since: dict[str, dict[str, float]] = field(default_factory=dict)
    """By uid of a job, and by what waits: since when."""
    _refused: dict[str, str] = field(default_factory=dict)
    """By uid of a job: why the API server refuses its objects."""
    _told: dict[str, str] = field(default_factory=dict)

    def reconcile(self, jobs: Sequence[Object], cluster: Tables) -> float | None:
        """The seconds until the next look, None where nothing but a change matters."""
        by_job: dict[str, list[Object]] = {objects.uid(obj): [] for obj in jobs}
        for pod in cluster[PODS].values():
            if (maker := owner_uid(pod)) in by_job:
                by_job[maker].append(pod)
        looks = [
            look
            for obj in jobs
            if not objects.is_deleting(obj)
            for look in (self._one(obj, by_job[objects.uid(obj)], cluster),)
            if look is not None
        ]
        for known in (self._since, self._refused, self._told):
            for uid in known.keys() - by_job.keys():
                del known[uid]
        return max(0.2, min((look - self.now()).total_seconds() for look in looks)) if looks else None

    def _one(self, obj: Object, own: Iterable[Object], cluster: Tables) -> datetime | None:
        uid = objects.uid(obj)
        try:
            job, memory = read_job(obj), read_memory(obj)
        except InvalidManifest as error:
            self._tell(obj, "InvalidTrainingJob", str(error))
            return None
        members = members_of(job, own, cluster[RESOURCE_CLAIMS])
        since = self._waits(job, members)
        decision = decide(job, members, memory, now=self.now(), since=since)
        if self.mover is not None and is_settled(decision) and self.may_write():
            decision = self.mover.with_move(job, members, decision, cluster)
        if not self.may_write():
            return decision.look
        leaving = {one.uid for one in members if one.leaves and since[_leaves(one)] < OVERDUE.total_seconds()}
        kept = kept_for(leaving, cluster[DEVICE_HOLDS])
        try:
            self._status(obj, job, decision)
            self._delete(job, decision, kept)
            self._make(job, decision.make, cluster[PODS])
            self._refused.pop(uid, None)
        except (Conflict, NotFound) as error:
            log.info("training_job_changed_meanwhile", job=objects.key(obj), error=str(error))
        except (Invalid, Forbidden) as error:
            if self._refused.get(uid) != error.message:
                log.error("training_job_refused", job=objects.key(obj), error=str(error))
            self._refused[uid] = error.message
            self._tell(obj, "RefusedByServer", f"the API server refuses its pods: {error.message}")
            again = self.now() + AGAIN
            return again if decision.look is None else min(again, decision.look)
        look = self.now() + OVERDUE if kept else None
        return min(filter(None, (decision.look, look)), default=None)

    def _waits(self, job: TrainingJob, members: Sequence[Member]) -> dict[str, float]:
        """For how long what waits has been seen to: counted anew after a change of leader."""
        waiting = {
            one.uid for one in members if one.is_ended or (one.has_started and one.phase is Phase.PLACED)
        }
        clock, known = self.clock(), self._since.get(job.uid, {})
        waiting |= {_leaves(one) for one in members if one.leaves}
        self._since[job.uid] = {key: known.get(key, clock) for key in waiting}
        return {key: clock - began for key, began in self._since[job.uid].items()}

    def _status(self, obj: Object, job: TrainingJob, decision: Decision) -> None:
        standing, uid = decision.standing, objects.uid(obj)
        fields = {
            "state": standing.state.value,
            "replicas": standing.placed,
            "running": standing.running,
            "range": f"{job.least}-{job.most}",
            **memory_fields(decision.memory),
        }
        before = objects.status_of(obj)
        if standing.state.is_final:
            fields["completionTime"] = before.get("completionTime") or text_of(self.now())
        warning = rendezvous.warning(job.template) if job.framework.is_elastic else ""
        refused = self._refused.get(uid, "")
        found = conditions(standing, released=decision.released, warning=warning, refused=refused)
        if standing.state.is_final and before.get("state") == standing.state.value:
            found = list(before.get("conditions") or found)  # the words of the end stay
        write_status(self.client, TRAINING_JOBS, obj, found, now=text_of(self.now()), fields=fields)
        if before.get("state") != standing.state.value:
            reason = f"Training{standing.state.value}"
            self._tell(obj, reason, standing.why, warning=standing.state is State.FAILED)
            log.info("training_job_state", job=objects.key(obj), state=standing.state.value)

    def _tell(self, obj: Object, reason: str, message: str, *, warning: bool = True) -> None:
        uid = objects.uid(obj)
        if self._told.get(uid) != f"{reason} {message}":
            self._told[uid] = f"{reason} {message}"
            self.report(ClaimEvent(reason, cut(message), (obj,), warning=warning))

    def _delete(self, job: TrainingJob, decision: Decision, kept: Collection[str]) -> None:
        """`kept`: uids of pods of which the gang has not written yet that they go."""
        place, told = job.namespace, f"{job.namespace}/{job.name}"
        for going in decision.delete.values():
            member = going.member
            if not self.may_write():
                return
            try:
                if going.frees and member.has_started and not member.leaves:
                    marks = {"uid": member.uid, "annotations": {LEAVES: "true"}}
                    self.client.patch(PODS, member.name, {"metadata": marks}, namespace=place)
                    continue
                if going.frees and member.uid in kept:
                    continue
                self.client.delete(PODS, member.name, namespace=place, uid=member.uid)
            except (NotFound, Conflict):
                continue  # it is gone, or another one by now
            log.info("training_pod_deleted", job=told, pod=member.name, why=going.why)

    def _make(self, job: TrainingJob, make: Sequence[NewPod], there: Mapping[str, Object]) -> None:
        """Raises Invalid where somebody else has the name."""
        if make and self.may_write():
            self._make_service(job)
        for new in make[:MOST_MADE] if job.framework.is_elastic else make:
            if not self.may_write():
                return
            body = pods.pod(job, new)
            try:
                self.client.create(PODS, body, namespace=job.namespace)
            except Conflict as error:
                if error.reason != "AlreadyExists":
                    raise
                found = there.get(f"{job.namespace}/{objects.name(body)}")
                if found is not None and owner_uid(found) != job.uid:
                    raise _taken(found) from error
                continue  # it was made, and the cache does not show it yet
            log.info("training_pod_made", job=f"{job.namespace}/{job.name}", pod=objects.name(body))

    def _make_service(self, job: TrainingJob) -> None:
        """Raises Invalid where somebody else has the name."""
        try:
            self.client.create(SERVICES, pods.service(job), namespace=job.namespace)
        except Conflict as error:
            found = self.client.get(SERVICES, job.name, namespace=job.namespace)
            if owner_uid(found) != job.uid:
                raise _taken(found) from error


def _leaves(member: Member) -> str:
    return f"{member.uid} leaves"


def _taken(found: Object) -> Invalid:
    what = f"{found.get('kind')} {objects.name(found)}"
    return Invalid(f"there is a {what} that is not this job's; delete it, or give the job another name")


def conditions(standing: Standing, *, released: str, warning: str, refused: str) -> list[Object]:
    """Those that hold or do not, and Progress, which says in a word how far the job is."""
    state, trouble = standing.state, "; ".join(filter(None, (refused, warning)))
    holds = (
        ("Complete", state is State.COMPLETE, standing.reason, standing.why),
        ("Failed", state is State.FAILED, standing.reason, standing.why),
        ("Short", standing.is_short, standing.reason, standing.why),
        ("Released", bool(released), "DidNotComeUp", released),
        ("Trouble", bool(trouble), "RefusedByServer" if refused else "NotTranslated", trouble),
    )
    found = [
        {"type": kind, "status": "True", "reason": reason, "message": cut(message)}
        if is_so
        else {"type": kind, "status": "False", "reason": "No", "message": ""}
        for kind, is_so, reason, message in holds
    ]
    ended = "True" if state.is_final else "False"
    return [
        *found,
        {"type": "Progress", "status": ended, "reason": standing.reason, "message": cut(standing.why)},
    ]


GATHER: Final = 0.25


def start_training(
    client: KubeClient,
    settings: Settings,
    *,
    observe: Callable[[], Tables],
    writer: Writer,
    quotas: Quotas,
    report: EventSink,
    changed: threading.Event,
    stop: threading.Event,
) -> None:
    """Until `stop`, in its own thread, where the operator wants it. `observe`: the term's caches; `changed`
    is set when they change."""
    if not settings.training_jobs:
        return
    now, levels = partial(datetime.now, UTC), settings.levels

    def terms() -> Terms:
        return Terms(
            now(),
            quotas=QuotasAsTheyAre(quotas),
            starves_after=settings.starves_after,
            levels=levels,
            scoring=settings.scoring,
            read=writer.find,
        )

    mover = Mover(now, time.monotonic, terms, levels or DISCOVERED)
    reconciler = TrainingReconciler(client, now, time.monotonic, writer.may_write, report, mover)

    def reconcile(caches: Caches) -> float | None:
        return reconciler.reconcile(caches[TRAINING_JOBS].objects(), observe())

    ReconcileLoop(
        client,
        reconcile,
        name="training-jobs",
        kinds=(TRAINING_JOBS,),
        crds=(TRAINING_JOBS,),
        gather=GATHER,
        changed=changed,
        stop=stop,
    ).start()
