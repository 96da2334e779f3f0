"""Whether a pod may be evicted now, by its PodDisruptionBudgets (Kubernetes, pkg/registry/core/pod/storage/
eviction.go). Pure. How many pods a budget lets go stands in its status (controllers/workloads/budgets.py)."""

from __future__ import annotations

from collections.abc import Sequence

from koordra.api.objects import Object, is_deleting, labels_of, metadata, name, spec_of, status_of
from koordra_devcluster.apiserver.status import Refusal
from koordra_devcluster.apiserver.storage.selectors import label_selector_matches

TWO_BUDGETS = (
    "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
)
VIOLATED = "Cannot evict pod as it would violate the pod's disruption budget."


def covers(budget: Object, pod: Object) -> bool:
    selector = spec_of(budget).get("selector")
    return selector is not None and label_selector_matches(selector, labels_of(pod))


def budget_to_charge(pod: Object, budgets: Sequence[Object]) -> Object | None:
    """The budget of the pod's namespace that its eviction takes one disruption from. Raises Refusal."""
    if is_deleting(pod) or status_of(pod).get("phase") != "Running":
        return None
    found = [budget for budget in budgets if covers(budget, pod)]
    if len(found) > 1:
        raise Refusal(500, "", TWO_BUDGETS)
    if not found:
        return None
    (budget,) = found
    status = status_of(budget)
    healthy, desired = int(status.get("currentHealthy") or 0), int(status.get("desiredHealthy") or 0)
    conditions = status_of(pod).get("conditions") or ()
    if not any(each["type"] == "Ready" and each["status"] == "True" for each in conditions) and (
        spec_of(budget).get("unhealthyPodEvictionPolicy") == "AlwaysAllow" or healthy >= desired > 0
    ):
        return None
    if int(status.get("observedGeneration") or 0) < int(metadata(budget).get("generation") or 0):
        raise _violated(f"The disruption budget {name(budget)} is still being processed by the server.")
    if int(status.get("disruptionsAllowed") or 0) <= 0:
        raise _violated(
            f"The disruption budget {name(budget)} needs {desired} healthy pods and has {healthy} currently"
        )
    return budget


def charged(budget: Object) -> Object:
    """The budget with one disruption less."""
    status = status_of(budget)
    return {**budget, "status": {**status, "disruptionsAllowed": int(status["disruptionsAllowed"]) - 1}}


def _violated(why: str) -> Refusal:
    details = {"causes": [{"reason": "DisruptionBudget", "message": why}]}
    return Refusal(429, "TooManyRequests", VIOLATED, details=details)
