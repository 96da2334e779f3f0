"""Whether pods that are of use only together may be evicted together.

The eviction API asks the budgets of one pod at a time: of four members of a gang it lets two go, and says no
to the third. So all of them are asked for before the first one is evicted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from koordra.api import objects
from koordra.api.kinds import POD_DISRUPTION_BUDGETS
from koordra.api.objects import Object
from koordra.controller.allocation.label_selectors import label_selector_matches
from koordra.controller.allocation.writes import Api
from koordra.errors import ApiError, ApiUnreachable


def refused_together(pods: Sequence[Object], api: Api) -> str:
    """Why these pods may not all be evicted now; empty where nothing is in the way. A single one is asked for
    by its eviction. Raises ApiUnreachable."""
    if len(pods) == 1:
        return ""
    for namespace in sorted({objects.namespace(pod) for pod in pods}):
        try:
            budgets, _ = api.list(POD_DISRUPTION_BUDGETS, namespace=namespace)
        except ApiUnreachable:
            raise
        except ApiError as error:
            return f"the disruption budgets of namespace {namespace} cannot be read: {error.message}"
        mine = [pod for pod in pods if objects.namespace(pod) == namespace]
        if why := refusing_budget(mine, [one for one in budgets if objects.namespace(one) == namespace]):
            return why
    return ""


def refusing_budget(pods: Sequence[Object], budgets: Iterable[Mapping[str, Any]]) -> str:
    """Which budget does not let all of these pods of one namespace go at once; empty where none is in the
    way. Budgets do not count pods that do not run, nor, if they say so, those that are not ready, and a pod
    with two budgets is never evicted (Kubernetes, eviction.go: canIgnorePDB, unhealthyPodEvictionPolicy,
    "more than one PodDisruptionBudget")."""
    running = [pod for pod in pods if objects.status_of(pod).get("phase") == "Running"]
    first: dict[str, str] = {}
    for budget in sorted(budgets, key=objects.name):
        spec, name = objects.spec_of(budget), objects.name(budget)
        selector, counts_all = spec.get("selector"), spec.get("unhealthyPodEvictionPolicy") != "AlwaysAllow"
        if selector is None:
            continue
        covered = [pod for pod in running if label_selector_matches(selector, objects.labels_of(pod))]
        needed = sum(counts_all or objects.pod_is_ready(pod) for pod in covered)
        allowed = objects.status_of(budget).get("disruptionsAllowed") or 0
        if needed > allowed:
            return (
                f"{len(pods)} pods end together, and PodDisruptionBudget {name} covers {needed} of "
                f"them and lets {allowed} go now"
            )
        for key in map(objects.key, covered):
            if first.setdefault(key, name) != name:
                return f"pod {key} has two PodDisruptionBudgets, {first[key]} and {name}: Kubernetes evicts no such pod"
    return ""
