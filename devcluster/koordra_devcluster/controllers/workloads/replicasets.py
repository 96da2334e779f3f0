"""ReplicaSets: as many active pods as spec.replicas says.

Too few: the missing ones are made at once. Too many: those that lose least go (pods.first_to_go). The status
counts pods that are there, ready, available (ready for minReadySeconds) and going away.
"""

from __future__ import annotations

from koordra.api import kinds
from koordra.api.objects import Object, is_deleting, metadata, pod_is_finished, spec_of, status_of
from koordra.errors import ApiError
from koordra.kube.client import KubeClient
from koordra_devcluster.apiserver.resources import REPLICA_SETS
from koordra_devcluster.controllers.workloads import pods as pod_rules
from koordra_devcluster.controllers.workloads.conditions import replaced
from koordra_devcluster.controllers.workloads.owning import Ownership


class ReplicaSets:
    """`sync(key)` brings one ReplicaSet's pods to its spec; it returns the seconds after which to look
    again."""

    def __init__(self, client: KubeClient) -> None:
        self._own = Ownership(client, "replicaset-controller")

    def sync(self, key: str) -> float | None:
        replica_set = self._own.fresh(REPLICA_SETS, key)
        if replica_set is None:
            return None
        pods = self._own.owned(kinds.PODS, replica_set)
        problem: ApiError | None = None
        if not is_deleting(replica_set):
            try:
                pods = self._scale(replica_set, pods)
            except ApiError as error:
                problem = error
        again = self._write_status(replica_set, pods, problem)
        if problem is not None:
            raise problem
        return again

    def _scale(self, replica_set: Object, pods: list[Object]) -> list[Object]:
        active = [pod for pod in pods if pod_rules.is_active(pod)]
        missing = int(spec_of(replica_set).get("replicas", 1)) - len(active)
        if missing >= 0:
            template = spec_of(replica_set)["template"]
            return pods + [
                self._own.create_pod(replica_set, pod_rules.pod_from(template, replica_set))
                for _ in range(missing)
            ]
        gone = pod_rules.first_to_go(active, self._own.now())[:-missing]
        for pod in gone:
            self._own.delete_pod(replica_set, pod)
        return [pod for pod in pods if pod not in gone]

    def _write_status(
        self, replica_set: Object, pods: list[Object], problem: ApiError | None
    ) -> float | None:
        min_ready = int(spec_of(replica_set).get("minReadySeconds", 0))
        active = [pod for pod in pods if pod_rules.is_active(pod)]
        waits = [pod_rules.available_in(pod, min_ready, self._own.now()) for pod in active]
        template_labels = metadata(spec_of(replica_set)["template"]).get("labels") or {}
        counts = {
            "replicas": len(active),
            "fullyLabeledReplicas": sum(pod_rules.has_labels(pod, template_labels) for pod in active),
            "readyReplicas": sum(wait is not None for wait in waits),
            "availableReplicas": sum(wait == 0 for wait in waits),
            "terminatingReplicas": sum(is_deleting(pod) and not pod_is_finished(pod) for pod in pods),
            "observedGeneration": metadata(replica_set).get("generation", 1),
        }
        always = ("replicas", "terminatingReplicas", "observedGeneration")
        wanted: Object = {field: count for field, count in counts.items() if count or field in always}
        conditions = replaced(
            status_of(replica_set).get("conditions") or (),
            "ReplicaFailure",
            "True" if problem else None,
            reason="FailedCreate",
            message=problem.message if problem else "",
            now=self._own.timestamp(),
        )
        if conditions:
            wanted["conditions"] = conditions
        self._own.write_status(REPLICA_SETS, replica_set, wanted)
        pending = [wait for wait in waits if wait]
        return min(pending) if pending else None
