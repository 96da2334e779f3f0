"""What the server fills in of Deployments, ReplicaSets, StatefulSets, Jobs and PriorityClasses. Pure."""

from __future__ import annotations

from typing import Final

from koordra.api.objects import Object
from koordra_devcluster.apiserver.fields import pod_defaults

BATCH: Final = "batch.kubernetes.io/"


def _template(spec: Object) -> None:
    pod_defaults.fill(spec.setdefault("template", {}).setdefault("spec", {}))


def _fill(obj: Object, **values: object) -> Object:
    spec: Object = obj.setdefault("spec", {})
    for field, value in values.items():
        spec.setdefault(field, value)
    return spec


def deployment(obj: Object) -> None:
    spec = _fill(obj, replicas=1, progressDeadlineSeconds=600, revisionHistoryLimit=10)
    strategy = spec.setdefault("strategy", {})
    if strategy.setdefault("type", "RollingUpdate") == "RollingUpdate":
        rolling = strategy.setdefault("rollingUpdate", {})
        rolling.setdefault("maxSurge", "25%")
        rolling.setdefault("maxUnavailable", "25%")
    _template(spec)


def replica_set(obj: Object) -> None:
    _template(_fill(obj, replicas=1))


def stateful_set(obj: Object) -> None:
    spec = _fill(obj, replicas=1, revisionHistoryLimit=10, podManagementPolicy="OrderedReady")
    strategy = spec.setdefault("updateStrategy", {})
    if strategy.setdefault("type", "RollingUpdate") == "RollingUpdate":
        strategy.setdefault("rollingUpdate", {}).setdefault("partition", 0)
    retention = spec.setdefault("persistentVolumeClaimRetentionPolicy", {})
    for when in ("whenDeleted", "whenScaled"):
        retention.setdefault(when, "Retain")
    _template(spec)


def job(obj: Object) -> None:
    spec: Object = obj.setdefault("spec", {})
    if spec.get("completions") is None and spec.get("parallelism") is None:
        spec["completions"] = 1
    _fill(
        obj, parallelism=1, backoffLimit=6, completionMode="NonIndexed", suspend=False, manualSelector=False
    )
    spec.setdefault(
        "podReplacementPolicy", "Failed" if spec.get("podFailurePolicy") else "TerminatingOrFailed"
    )
    _template(spec)


def own_selector(obj: Object) -> None:
    """A new Job selects its pods by its own uid, which only the server knows."""
    spec, head = obj["spec"], obj["metadata"]
    if spec.get("manualSelector"):
        return
    own = {f"{BATCH}controller-uid": head["uid"], f"{BATCH}job-name": head["name"]}
    own |= {"controller-uid": head["uid"], "job-name": head["name"]}
    labels = spec["template"].setdefault("metadata", {}).setdefault("labels", {})
    labels |= own
    selector = spec.setdefault("selector", {}).setdefault("matchLabels", {})
    selector[f"{BATCH}controller-uid"] = head["uid"]
    if not head.get("labels"):
        head["labels"] = dict(labels)


def priority_class(obj: Object) -> None:
    obj.setdefault("preemptionPolicy", "PreemptLowerPriority")
