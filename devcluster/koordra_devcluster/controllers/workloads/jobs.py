"""Jobs: pods until enough of them have succeeded, each counted exactly once.

A pod carries the finalizer batch.kubernetes.io/job-tracking, so that it cannot vanish uncounted:

    pod ended ─> its uid is noted in status.uncountedTerminatedPods ─> its finalizer goes ─> it is counted,
                 the uid goes

Indexed Jobs make one pod per index (annotation, label, JOB_COMPLETION_INDEX, host name `<job>-<index>`) until
each index has succeeded once. Failed pods are made again after 10 s, 20 s, ...; more than backoffLimit of
them end the Job. An ended Job deletes what still runs, and says Complete or Failed once nothing runs any more
(before that: SuccessCriteriaMet, FailureTarget). A pod that is being deleted counts as failed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from koordra.api import kinds
from koordra.api.objects import (
    Object,
    annotations_of,
    is_deleting,
    labels_of,
    metadata,
    name,
    namespace,
    pod_is_finished,
    spec_of,
    status_of,
    uid,
)
from koordra.errors import NotFound
from koordra.kube.client import KubeClient
from koordra_devcluster.apiserver.resources import JOBS
from koordra_devcluster.controllers.workloads import conditions, indexes
from koordra_devcluster.controllers.workloads import pods as pod_rules
from koordra_devcluster.controllers.workloads.owning import Ownership

TRACKING: Final = "batch.kubernetes.io/job-tracking"
INDEX: Final = "batch.kubernetes.io/job-completion-index"
FIRST_BACKOFF: Final = 10.0
LONGEST_BACKOFF: Final = 600.0


@dataclass(slots=True)
class _Count:
    """What a look at the Job found. `ended`: type, reason and message of the condition that ends it."""

    pods: list[Object]
    succeeded: int
    failed: int
    completed: set[int]
    uncounted: dict[str, list[str]]
    ended: tuple[str, str, str] | None = None

    @property
    def active(self) -> list[Object]:
        return [pod for pod in self.pods if pod_rules.is_active(pod)]

    def all_failed(self) -> int:
        return self.failed + len(self.uncounted["failed"])

    def all_succeeded(self) -> int:
        return self.succeeded + len(self.uncounted["succeeded"])


class Jobs:
    """`first_backoff`: seconds before the pod after the first failed one."""

    def __init__(self, client: KubeClient, *, first_backoff: float = FIRST_BACKOFF) -> None:
        self._own = Ownership(client, "job-controller")
        self._client = client
        self._first_backoff = first_backoff

    def sync(self, key: str) -> float | None:
        job = self._own.fresh(JOBS, key)
        if job is None:
            self._release_orphans(key)
            return None
        ended = _end_of(job)
        pods = self._own.owned(kinds.PODS, job)
        if ended is not None:
            self._untrack(pods)
            return self._expire(job)
        seen = self._count(job, pods)
        seen.ended = self._judge(job, seen)
        again = None if is_deleting(job) else self._act(job, seen)
        self._write_status(job, seen)
        counted = {*seen.uncounted["succeeded"], *seen.uncounted["failed"]}
        self._untrack([pod for pod in pods if uid(pod) in counted])
        return 0.0 if counted else again

    # --- counting ---

    def _count(self, job: Object, pods: list[Object]) -> _Count:
        """Uids whose pod lost its finalizer become counts; pods that ended since become uids."""
        status = status_of(job)
        tracked = {uid(pod) for pod in pods if TRACKING in (metadata(pod).get("finalizers") or ())}
        noted: Mapping[str, Any] = status.get("uncountedTerminatedPods") or {}
        counts = {"succeeded": int(status.get("succeeded", 0)), "failed": int(status.get("failed", 0))}
        uncounted: dict[str, list[str]] = {}
        for way in counts:
            uids: Sequence[str] = noted.get(way) or ()
            uncounted[way] = [one for one in uids if one in tracked]
            counts[way] += len(uids) - len(uncounted[way])
        known = {one for uids in uncounted.values() for one in uids}
        completed = indexes.parse(str(status.get("completedIndexes", "")))
        for pod in pods:
            if uid(pod) not in tracked or uid(pod) in known:
                continue
            if pod_rules.phase(pod) == "Succeeded":
                uncounted["succeeded"].append(uid(pod))
                completed |= {index} if (index := _index(pod)) is not None else set()
            elif pod_rules.phase(pod) == "Failed" or is_deleting(pod):
                uncounted["failed"].append(uid(pod))
        return _Count(pods, counts["succeeded"], counts["failed"], completed, uncounted)

    def _judge(self, job: Object, seen: _Count) -> tuple[str, str, str] | None:
        """What ends the Job now, or has been said to end it already."""
        found = status_of(job).get("conditions") or ()
        for type_, final in (("SuccessCriteriaMet", "Complete"), ("FailureTarget", "Failed")):
            earlier = conditions.found(found, type_)
            if earlier.get("status") == "True":
                return final, str(earlier.get("reason", "")), str(earlier.get("message", ""))
        spec = spec_of(job)
        if seen.all_failed() > int(spec.get("backoffLimit", 6)):
            return "Failed", "BackoffLimitExceeded", "Job has reached the specified backoff limit"
        limit = spec.get("activeDeadlineSeconds")
        if limit is not None and not spec.get("suspend") and self._running_for(job) >= float(limit):
            return "Failed", "DeadlineExceeded", "Job was active longer than specified deadline"
        completions = spec.get("completions")
        if _is_indexed(job):
            done = len([one for one in seen.completed if one < int(completions or 0)]) >= int(
                completions or 0
            )
        elif completions is None:
            done = seen.all_succeeded() > 0 and not seen.active
        else:
            done = seen.all_succeeded() >= int(completions)
        return (
            ("Complete", "CompletionsReached", "Reached expected number of succeeded pods") if done else None
        )

    def _running_for(self, job: Object) -> float:
        started = status_of(job).get("startTime")
        if not started:
            return 0.0
        return (self._own.now() - datetime.fromisoformat(str(started))).total_seconds()

    # --- pods ---

    def _act(self, job: Object, seen: _Count) -> float | None:
        """Makes and removes pods; seconds until there is more to do."""
        active = seen.active
        if seen.ended is not None or spec_of(job).get("suspend"):
            for pod in active:
                self._own.delete_pod(job, pod)
            return None
        wanted = self._wanted(job, seen)
        for pod in pod_rules.first_to_go(active, self._own.now())[: max(0, len(active) - wanted)]:
            self._own.delete_pod(job, pod)
        waits = [self._until_deadline(job)]
        if len(active) < wanted:
            wait = self._until_retry(seen)
            if wait > 0:
                waits.append(wait)
            else:
                seen.pods += self._create(job, seen, wanted - len(active))
        known = [wait for wait in waits if wait is not None]
        return min(known) if known else None

    def _wanted(self, job: Object, seen: _Count) -> int:
        """How many pods should be active."""
        parallelism, completions = int(spec_of(job).get("parallelism", 1)), spec_of(job).get("completions")
        if completions is None:
            return len(seen.active) if seen.all_succeeded() else parallelism
        done = len(seen.completed) if _is_indexed(job) else seen.all_succeeded()
        return max(0, min(parallelism, int(completions) - done))

    def _until_retry(self, seen: _Count) -> float:
        """Seconds that a new pod has to wait for the failed ones before it."""
        failed = seen.all_failed()
        ends = [_ended_at(pod) for pod in seen.pods if pod_rules.phase(pod) == "Failed"]
        if not failed or not ends:
            return 0.0
        pause = min(self._first_backoff * 2.0 ** min(failed - 1, 20), LONGEST_BACKOFF)
        return max(0.0, pause - (self._own.now() - max(ends)).total_seconds())

    def _until_deadline(self, job: Object) -> float | None:
        limit = spec_of(job).get("activeDeadlineSeconds")
        return None if limit is None else max(0.1, float(limit) - self._running_for(job))

    def _create(self, job: Object, seen: _Count, count: int) -> list[Object]:
        template = spec_of(job)["template"]
        if not _is_indexed(job):
            made = [pod_rules.pod_from(template, job, finalizers=(TRACKING,)) for _ in range(count)]
        else:
            busy = {index for pod in seen.active if (index := _index(pod)) is not None}
            free = indexes.lowest_free(
                seen.completed | busy, count, int(spec_of(job).get("completions") or 0)
            )
            made = [_indexed_pod(template, job, index) for index in free]
        return [self._own.create_pod(job, pod) for pod in made]

    def _untrack(self, pods: Sequence[Object]) -> None:
        for pod in pods:
            kept = [one for one in metadata(pod).get("finalizers") or () if one != TRACKING]
            if kept == list(metadata(pod).get("finalizers") or ()):
                continue
            patch = {"metadata": {"uid": uid(pod), "finalizers": kept or None}}
            try:
                self._client.patch(kinds.PODS, name(pod), patch, namespace=namespace(pod))
            except NotFound:
                continue

    def _release_orphans(self, key: str) -> None:
        """The Job is gone: its pods must not wait for someone to count them."""
        place, _, job_name = key.partition("/")
        for pod in self._client.list(kinds.PODS, namespace=place)[0]:
            owner = pod_rules.controller_of(pod) or {}
            if owner.get("kind") == "Job" and owner.get("name") == job_name:
                self._untrack([pod])

    def _expire(self, job: Object) -> float | None:
        """ttlSecondsAfterFinished: the Job goes, and with it its pods."""
        lifetime = spec_of(job).get("ttlSecondsAfterFinished")
        if lifetime is None or is_deleting(job):
            return None
        end = _end_of(job) or {}
        since = datetime.fromisoformat(str(end.get("lastTransitionTime")))
        left = float(lifetime) - (self._own.now() - since).total_seconds()
        if left > 0:
            return left
        with suppress(NotFound):
            self._client.delete(JOBS, name(job), namespace=namespace(job), uid=uid(job))
        return None

    # --- status ---

    def _write_status(self, job: Object, seen: _Count) -> None:
        before, now = status_of(job), self._own.timestamp()
        suspended = bool(spec_of(job).get("suspend"))
        started = None if suspended else before.get("startTime") or now
        found = self._conditions(job, seen, suspended=suspended)
        active = [pod for pod in seen.active if seen.ended is None and not suspended]
        wanted: Object = {
            "active": len(active),
            "succeeded": len(seen.completed) if _is_indexed(job) else seen.succeeded,
            "failed": seen.failed,
            "completedIndexes": indexes.text(seen.completed),
        }
        wanted = {field: value for field, value in wanted.items() if value}
        wanted["ready"] = sum(map(pod_rules.is_ready, active))
        wanted["terminating"] = sum(is_deleting(pod) and not pod_is_finished(pod) for pod in seen.pods)
        wanted["uncountedTerminatedPods"] = {way: uids for way, uids in seen.uncounted.items() if uids}
        wanted |= {"conditions": found} if found else {}
        wanted |= {"startTime": started} if started else {}
        if conditions.is_true(found, "Complete"):
            wanted["completionTime"] = now
        self._own.write_status(JOBS, job, wanted)

    def _conditions(self, job: Object, seen: _Count, *, suspended: bool) -> list[Object]:
        now = self._own.timestamp()
        found: list[Object] = list(status_of(job).get("conditions") or ())
        if suspended or conditions.found(found, "Suspended"):
            told = ("JobSuspended", "Job suspended") if suspended else ("JobResumed", "Job resumed")
            before = conditions.is_true(found, "Suspended")
            found = _set(found, "Suspended", "True" if suspended else "False", told=told, now=now)
            if before is not suspended:
                self._own.recorder.event(job, told[0].removeprefix("Job"), told[1])
        if seen.ended is None:
            return found
        final, reason, message = seen.ended
        first = "SuccessCriteriaMet" if final == "Complete" else "FailureTarget"
        found = _set(found, first, "True", told=(reason, message), now=now)
        waiting = any(seen.uncounted.values()) or any(not pod_is_finished(pod) for pod in seen.pods)
        if not waiting:
            found = _set(found, final, "True", told=(reason, message), now=now)
            told = ("Completed", "Job completed") if final == "Complete" else (reason, message)
            self._own.recorder.event(job, *told, warning=final == "Failed")
        return found


def _set(found: list[Object], type_: str, status: str, *, told: tuple[str, str], now: str) -> list[Object]:
    return conditions.replaced(
        found, type_, status, reason=told[0], message=told[1], now=now, updated="lastProbeTime"
    )


def _end_of(job: Object) -> Mapping[str, Any] | None:
    """The condition that says that the Job is over."""
    for type_ in ("Complete", "Failed"):
        found = conditions.found(status_of(job).get("conditions") or (), type_)
        if found.get("status") == "True":
            return found
    return None


def _is_indexed(job: Object) -> bool:
    return spec_of(job).get("completionMode") == "Indexed"


def _index(pod: Object) -> int | None:
    text = annotations_of(pod).get(INDEX) or labels_of(pod).get(INDEX) or ""
    return int(text) if text.isdigit() else None


def _indexed_pod(template: Object, job: Object, index: int) -> Object:
    """The pod of one index, which it learns in four ways."""
    known = {INDEX: str(index)}
    pod = pod_rules.pod_from(template, job, labels=known, annotations=known, finalizers=(TRACKING,))
    pod["metadata"]["generateName"] = f"{name(job)}-{index}-"
    pod["spec"]["hostname"] = f"{name(job)}-{index}"
    source = {"fieldRef": {"apiVersion": "v1", "fieldPath": f"metadata.labels['{INDEX}']"}}
    for group in ("initContainers", "containers"):
        for container in pod["spec"].get(group) or ():
            env: list[Object] = container.setdefault("env", [])
            if not any(one.get("name") == "JOB_COMPLETION_INDEX" for one in env):
                env.append({"name": "JOB_COMPLETION_INDEX", "valueFrom": source})
    return pod


def _ended_at(pod: Object) -> datetime:
    """When the last container ended; of a pod that never had one, when it was marked or made."""
    ends = [
        ended
        for one in status_of(pod).get("containerStatuses") or ()
        if (ended := ((one.get("state") or {}).get("terminated") or {}).get("finishedAt"))
    ]
    known = ends or [metadata(pod).get("deletionTimestamp") or metadata(pod)["creationTimestamp"]]
    return max(datetime.fromisoformat(str(one)) for one in known)
