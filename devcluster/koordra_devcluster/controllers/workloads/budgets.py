"""PodDisruptionBudgets: how many of the pods that they cover may go now.

The pods that are there count as those that should be, where kube-controller-manager asks the pods' owners how
many they want.
"""

from __future__ import annotations

from koordra.api import kinds
from koordra.api.objects import Fields, is_deleting, metadata, namespace, pod_is_finished, spec_of
from koordra.kube.client import KubeClient
from koordra_devcluster.apiserver.storage.eviction import covers
from koordra_devcluster.controllers.workloads.owning import Ownership
from koordra_devcluster.controllers.workloads.pods import is_ready
from koordra_devcluster.controllers.workloads.rollout import share


class DisruptionBudgets:
    """`sync(key)` brings the status of one budget up to date."""

    def __init__(self, client: KubeClient) -> None:
        self._own = Ownership(client, "disruption-controller")

    def sync(self, key: str) -> None:
        budget = self._own.fresh(kinds.POD_DISRUPTION_BUDGETS, key)
        if budget is None:
            return
        pods, _ = self._own.client.list(kinds.PODS, namespace=namespace(budget))
        mine = [pod for pod in pods if covers(budget, pod) and not pod_is_finished(pod)]
        healthy = sum(is_ready(pod) and not is_deleting(pod) for pod in mine)
        desired = desired_healthy(spec_of(budget), len(mine))
        wanted = {
            "currentHealthy": healthy,
            "desiredHealthy": desired,
            "expectedPods": len(mine),
            "disruptionsAllowed": max(0, healthy - desired) if mine else 0,
            "observedGeneration": metadata(budget)["generation"],
        }
        self._own.write_status(kinds.POD_DISRUPTION_BUDGETS, budget, wanted)


def desired_healthy(spec: Fields, expected: int) -> int:
    """Of so many pods; shares are rounded up."""
    if "maxUnavailable" in spec:
        return max(0, expected - share(spec["maxUnavailable"], expected, up=True))
    return share(spec.get("minAvailable", 1), expected, up=True)
