"""The scheduling loop: queue with backoff, one cycle at a time, PreBind, binding.

    pod without node ──> gated? ──> claims there? ──> filters ─┬─> no node: PostFilter, condition, event, wait
                                                               │   for a change
                                                               └─> node: reserve claims (PreBind) ──> bind

An unschedulable pod is tried again when something that could help it changes (its claims, a node, a pod that
leaves), but not before its backoff (1 s, doubling to 10 s) is over. A cycle that ends in an error is retried
by backoff alone.

PreBind enters the pod into reservedFor and sets allocationTimestamp where the allocator forgot it: the API
server then says "field is immutable", and the pod stays Pending with that error, exactly as with the real
one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from koordra.api import kinds
from koordra.api.objects import (
    Object,
    is_deleting,
    key,
    metadata,
    name,
    pod_claim_names,
    pod_is_finished,
    spec_of,
    status_of,
    uid,
)
from koordra.errors import ApiError, ApiUnreachable, Conflict, NotFound
from koordra.kube.client import KubeClient
from koordra.logs import get_logger
from koordra.process import lifecycle
from koordra_devcluster.apiserver.fields.schema import format_time
from koordra_devcluster.controllers.claims import STRATEGIC_MERGE_PATCH
from koordra_devcluster.controllers.group_claims import consumer
from koordra_devcluster.controllers.informers import Informers
from koordra_devcluster.controllers.recorder import Recorder
from koordra_devcluster.controllers.workqueue import WorkQueue
from koordra_devcluster.scheduler import claims as dynamic_resources
from koordra_devcluster.scheduler import filters

log = get_logger(__name__)

SCHEDULER_NAME: Final = "default-scheduler"
PLAYED: Final = (SCHEDULER_NAME, "volcano", "kai-scheduler")
"""Schedulers of others are played by this one: what they have in common is that they follow an allocation."""
WATCHED: Final = (kinds.PODS, kinds.NODES, kinds.RESOURCE_CLAIMS, kinds.DEVICE_CLASSES)
FLUSH_PERIOD: Final = 60.0
BIND_ATTEMPTS: Final = 5


@dataclass(slots=True)
class _Tried:
    """A pod's last attempt; `failed` cycles come back by backoff, refused ones by events."""

    uid: str
    attempts: int
    at: float


@dataclass(frozen=True, slots=True)
class _Failure:
    """What a cycle that did not bind the pod says about it."""

    reason: str
    message: str


class Scheduler:
    """Over shared informers (kinds: WATCHED). `first_backoff` and `longest_backoff` in seconds."""

    def __init__(
        self,
        client: KubeClient,
        informers: Informers,
        *,
        first_backoff: float = 1.0,
        longest_backoff: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._informers = informers
        self._recorder = Recorder(client, SCHEDULER_NAME)
        self._first, self._longest, self._clock = first_backoff, longest_backoff, clock
        self._queue = WorkQueue("scheduler", self._schedule)
        self._tried: dict[str, _Tried] = {}
        self._assumed: dict[str, Object] = {}
        informers.listen(kinds.PODS, self._pod_changed)
        informers.listen(kinds.NODES, self._node_changed)
        informers.listen(kinds.RESOURCE_CLAIMS, self._claim_changed)
        informers.listen(kinds.DEVICE_CLASSES, self._class_changed)

    def start(self, stop: threading.Event) -> None:
        lifecycle.spawn(lambda: self._queue.run(stop), name="scheduler")
        lifecycle.spawn(lambda: self._flush(stop), name="scheduler-flush")

    # --- what wakes the loop ---

    def _flush(self, stop: threading.Event) -> None:
        while not stop.wait(FLUSH_PERIOD):
            self._retry_all()

    def _pod_changed(self, event: str, pod: Object, /) -> None:
        if event == "DELETED":
            self._tried.pop(key(pod), None)
            self._assumed.pop(uid(pod), None)
            self._retry_all()
        elif spec_of(pod).get("nodeName"):
            self._assumed.pop(uid(pod), None)
            if pod_is_finished(pod):
                self._retry_all()
        elif self._concerns_scheduling(event, pod):
            self._enqueue(pod)

    def _concerns_scheduling(self, event: str, pod: Object) -> bool:
        """Updates that only echo our own condition must not wake the pod again."""
        tried = self._tried.get(key(pod))
        if event == "ADDED" or tried is None or tried.uid != uid(pod):
            return True
        scheduled = _condition(pod)
        return bool(scheduled.get("observedGeneration") != metadata(pod).get("generation"))

    def _node_changed(self, _event: str, _node: Object, /) -> None:
        self._retry_all()

    def _class_changed(self, _event: str, _class: Object, /) -> None:
        self._retry_all()

    def _claim_changed(self, event: str, claim: Object, /) -> None:
        if event == "DELETED" or not dynamic_resources.is_allocated(claim):
            self._retry_all()
            return
        for pod in self._informers.objects(kinds.PODS):
            same_place = metadata(pod)["namespace"] == metadata(claim)["namespace"]
            if same_place and name(claim) in pod_claim_names(pod).values():
                self._enqueue(pod)

    def _retry_all(self) -> None:
        for pod in self._informers.objects(kinds.PODS):
            self._enqueue(pod)

    def _enqueue(self, pod: Object) -> None:
        if (
            spec_of(pod).get("nodeName")
            or is_deleting(pod)
            or spec_of(pod).get("schedulerName") not in PLAYED
        ):
            return
        self._queue.add(key(pod), after=self._backoff_left(pod))

    def _backoff_left(self, pod: Object) -> float:
        tried = self._tried.get(key(pod))
        if tried is None or tried.uid != uid(pod):
            return 0.0
        backoff = min(self._first * 2.0 ** min(tried.attempts - 1, 20), self._longest)
        return max(0.0, tried.at + backoff - self._clock())

    # --- one cycle ---

    def _schedule(self, pod_key: str) -> float | None:
        pod = self._informers.get(kinds.PODS, pod_key)
        if pod is None or is_deleting(pod) or pod_is_finished(pod):
            return None
        if spec_of(pod).get("nodeName") or uid(pod) in self._assumed or spec_of(pod).get("schedulingGates"):
            return None
        left = self._backoff_left(pod)
        if left > 0:
            return left
        claims = dynamic_resources.of_pod(pod, self._claim)
        if isinstance(claims, dynamic_resources.Waiting):
            log.debug("pod_not_ready", pod=pod_key, reason=claims.reason)
            return None
        self._note_attempt(pod)
        failure = self._cycle(pod, claims)
        if failure is None:
            self._tried.pop(pod_key, None)
            return None
        self._report(pod, failure)
        return self._backoff_left(pod) if failure.reason == "SchedulerError" else None

    def _note_attempt(self, pod: Object) -> None:
        tried = self._tried.get(key(pod))
        attempts = tried.attempts if tried is not None and tried.uid == uid(pod) else 0
        self._tried[key(pod)] = _Tried(uid(pod), attempts + 1, self._clock())

    def _cycle(self, pod: Object, claims: list[Object]) -> _Failure | None:
        nodes = self._informers.objects(kinds.NODES)
        unknown = dynamic_resources.unknown_class(
            claims, lambda wanted: self._informers.get(kinds.DEVICE_CLASSES, wanted) is not None
        )
        if unknown is not None:
            total = len(nodes)
            outcome = filters.Outcome(reasons={name(node): [unknown] for node in nodes})
            return _Failure(
                "Unschedulable", f"0/{total} nodes are available: {unknown}. {outcome.preemption()}"
            )
        if not nodes:
            return _Failure("Unschedulable", "no nodes available to schedule pods")
        outcome = filters.run(pod, nodes, self._pods_by_node(), claims)
        if not outcome.feasible:
            return self._post_filter(pod, claims, outcome)
        return self._bind(pod, claims, outcome.feasible[0])

    def _pods_by_node(self) -> dict[str, list[Object]]:
        placed: dict[str, list[Object]] = {}
        pods = {uid(pod): pod for pod in self._informers.objects(kinds.PODS)} | self._assumed
        for pod in pods.values():
            if spec_of(pod).get("nodeName"):
                placed.setdefault(spec_of(pod)["nodeName"], []).append(pod)
        return placed

    def _claim(self, namespace: str, claim_name: str) -> Object | None:
        return self._informers.get(kinds.RESOURCE_CLAIMS, f"{namespace}/{claim_name}")

    def _post_filter(self, pod: Object, claims: list[Object], outcome: filters.Outcome) -> _Failure:
        note = "still not schedulable" if claims else "no new claims to deallocate"
        erased = dynamic_resources.to_erase(outcome.unavailable, pod)
        if erased is not None:
            try:
                self._client.update(kinds.RESOURCE_CLAIMS, {**erased, "status": {}}, subresource="status")
                note = "deallocation of ResourceClaim completed"
                log.info("claim_deallocated", claim=key(erased), pod=key(pod))
            except (Conflict, NotFound) as error:
                return _Failure(
                    "SchedulerError", f'running PostFilter plugin "DynamicResources": {error.message}'
                )
        return _Failure("Unschedulable", f"{outcome.message()} {note}, {outcome.preemption()}")

    # --- PreBind and binding ---

    def _bind(self, pod: Object, claims: list[Object], node: Object) -> _Failure | None:
        self._assumed[uid(pod)] = {**pod, "spec": {**spec_of(pod), "nodeName": name(node)}}
        reserved: list[Object] = []
        try:
            for claim in claims:
                self._reserve(pod, claim)
                reserved.append(claim)
            self._assign(pod, name(node))
        except ApiUnreachable:
            self._assumed.pop(uid(pod), None)
            raise
        except ApiError as error:
            self._assumed.pop(uid(pod), None)
            self._unreserve(pod, reserved)
            return _Failure("SchedulerError", f'running PreBind plugin "DynamicResources": {error.message}')
        self._recorder.event(pod, "Scheduled", f"Successfully assigned {key(pod)} to {name(node)}")
        log.info("pod_bound", pod=key(pod), node=name(node))
        return None

    def _assign(self, pod: Object, node: str) -> None:
        """POST pods/<name>/binding."""
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name(pod), "namespace": metadata(pod)["namespace"], "uid": uid(pod)},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        self._client.create(
            kinds.PODS, body, namespace=metadata(pod)["namespace"], name=name(pod), subresource="binding"
        )

    def _reserve(self, pod: Object, claim: Object) -> None:
        """bindClaim: the pod into reservedFor, trying again with a fresh copy after a conflict."""
        for attempt in range(BIND_ATTEMPTS):
            if is_deleting(claim):
                raise Conflict(f"claim {name(claim)} got deleted in the meantime")
            allocation = status_of(claim).get("allocation")
            if allocation is None:
                raise Conflict(f"claim {name(claim)} got deallocated in the meantime")
            if dynamic_resources.is_reserved(claim, pod):
                return
            wanted = {
                **status_of(claim),
                "allocation": {"allocationTimestamp": format_time(datetime.now(UTC)), **allocation},
                "reservedFor": [
                    *(status_of(claim).get("reservedFor") or ()),
                    consumer(claim, pod),
                ],
            }
            try:
                self._client.update(kinds.RESOURCE_CLAIMS, {**claim, "status": wanted}, subresource="status")
                return
            except Conflict:
                if attempt == BIND_ATTEMPTS - 1:
                    raise
                claim = self._client.get(
                    kinds.RESOURCE_CLAIMS, name(claim), namespace=metadata(claim)["namespace"]
                )

    def _unreserve(self, pod: Object, claims: list[Object]) -> None:
        for stale in claims:
            try:
                claim = self._client.get(
                    kinds.RESOURCE_CLAIMS, name(stale), namespace=metadata(stale)["namespace"]
                )
                kept = [
                    one for one in status_of(claim).get("reservedFor") or () if one.get("uid") != uid(pod)
                ]
                self._client.update(
                    kinds.RESOURCE_CLAIMS,
                    {**claim, "status": {**status_of(claim), "reservedFor": kept}},
                    subresource="status",
                )
            except ApiError as error:
                log.warning("unreserve_failed", claim=key(stale), pod=key(pod), error=str(error))

    # --- telling ---

    def _report(self, pod: Object, failure: _Failure) -> None:
        self._recorder.event(pod, "FailedScheduling", failure.message, warning=True)
        current = _condition(pod)
        wanted: Object = {
            "type": "PodScheduled",
            "status": "False",
            "reason": failure.reason,
            "message": failure.message,
            "observedGeneration": metadata(pod).get("generation", 1),
        }
        if all(current.get(field) == value for field, value in wanted.items()):
            return
        if current.get("status") != "False":
            wanted["lastTransitionTime"] = format_time(datetime.now(UTC))
        body = {"metadata": {"uid": uid(pod)}, "status": {"conditions": [wanted]}}
        try:
            self._client.patch(
                kinds.PODS,
                name(pod),
                body,
                namespace=metadata(pod)["namespace"],
                subresource="status",
                content_type=STRATEGIC_MERGE_PATCH,
            )
        except (NotFound, Conflict) as error:
            log.debug("condition_not_written", pod=key(pod), error=str(error))


def _condition(pod: Object) -> Object:
    return next(
        (dict(one) for one in status_of(pod).get("conditions") or () if one.get("type") == "PodScheduled"), {}
    )
