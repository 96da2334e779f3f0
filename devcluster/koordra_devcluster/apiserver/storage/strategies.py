"""Per kind: what the server fills in, what a writer may touch, and which rules it checks.

    create   defaults, status cleared (kinds with a status of their own get it), validation
    update   status kept from the stored object, validation against it
    status   everything but status kept from the stored object, validation against it

Objects given to these functions are decoded and belong to the caller; they are changed in place.
"""

from __future__ import annotations

import base64
import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from koordra.api.objects import Object
from koordra.kube.validation import classes, requests
from koordra.kube.validation.classes import CompileCel
from koordra.kube.validation.field_errors import FieldErrors
from koordra.kube.validation.refusal import default_requests
from koordra_devcluster.apiserver.fields import pod_defaults, workload_defaults
from koordra_devcluster.apiserver.fields.schema import format_time
from koordra_devcluster.apiserver.resources import GENERIC_WORKLOAD
from koordra_devcluster.apiserver.validation import (
    definitions,
    nodes,
    pods,
    slices,
    status,
    taints,
    workloads,
)


@dataclass(frozen=True, slots=True)
class Rules:
    """Where a strategy gets the time, the CEL compiler and the feature gates that are on from."""

    now: datetime
    compile_cel: CompileCel
    gates: frozenset[str] = frozenset()


Prepare = Callable[[Object, Rules], None]
Compare = Callable[[FieldErrors, Object, Object, Rules], None]
Check = Callable[[FieldErrors, Object, Rules], None]


def _nothing(_obj: Object, _rules: Rules) -> None:
    return


def _accept(_errors: FieldErrors, _obj: Object, _rules: Rules) -> None:
    return


def _accept_update(_errors: FieldErrors, _new: Object, _old: Object, _rules: Rules) -> None:
    return


@dataclass(frozen=True, slots=True)
class Strategy:
    """`default` runs on every write, `prepare` on creation only. `keeps_status`: a creation may bring a
    status.

    `has_generation`: metadata.generation counts changes of the spec (claims, nodes and leases have none in
    the real server).
    """

    default: Prepare = _nothing
    prepare: Prepare = _nothing
    validate: Check = _accept
    validate_update: Compare = _accept_update
    validate_status: Compare = _accept_update
    has_status: bool = False
    keeps_status: bool = False
    label_names: bool = False
    has_generation: bool = False


def _default_requests(obj: Object, rules: Rules) -> None:
    obj.setdefault("spec", {})
    default_requests(obj)
    _default_status_tolerations(obj, rules)


def _default_status_tolerations(obj: Object, _rules: Rules) -> None:
    allocation = (obj.get("status") or {}).get("allocation") or {}
    for result in (allocation.get("devices") or {}).get("results") or ():
        for toleration in result.get("tolerations") or ():
            toleration.setdefault("operator", "Equal")


def _default_slice(obj: Object, rules: Rules) -> None:
    for device in (obj.get("spec") or {}).get("devices") or ():
        _default_taints(device.get("taints") or (), rules)


def _default_taint_rule(obj: Object, rules: Rules) -> None:
    taint = (obj.get("spec") or {}).get("taint")
    if taint:
        _default_taints([taint], rules)


def _default_taints(taints: list[Object] | tuple[()], rules: Rules) -> None:
    for taint in taints:
        if taint.get("effect") != "None":
            taint.setdefault("timeAdded", format_time(rules.now))


def _prepare_namespace(obj: Object, _rules: Rules) -> None:
    obj["spec"] = {"finalizers": ["kubernetes"]}
    obj["status"] = {"phase": "Active"}
    obj["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = obj["metadata"]["name"]


def _default_pod(obj: Object, rules: Rules) -> None:
    spec = obj.setdefault("spec", {})
    pod_defaults.fill(spec)
    spec.setdefault("enableServiceLinks", True)
    pod_defaults.requests_from_limits(spec)
    if GENERIC_WORKLOAD not in rules.gates:
        spec.pop("schedulingGroup", None)


def _prepare_pod(obj: Object, rules: Rules) -> None:
    spec = obj["spec"]
    account = spec.get("serviceAccountName") or spec.get("serviceAccount") or "default"
    spec["serviceAccountName"] = spec["serviceAccount"] = account
    spec.setdefault("priority", 0)
    spec.setdefault("preemptionPolicy", "PreemptLowerPriority")
    tolerations = spec.setdefault("tolerations", [])
    for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"):
        if not any(
            one.get("key") in (key, None, "") and one.get("effect") in ("NoExecute", None, "")
            for one in tolerations
        ):
            tolerations.append(
                {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
            )
    obj["status"] = {"phase": "Pending", "qosClass": _quality_of_service(spec)}
    if spec.get("schedulingGates"):
        obj["status"]["conditions"] = [
            {
                "type": "PodScheduled",
                "status": "False",
                "reason": "SchedulingGated",
                "message": "Scheduling is blocked due to non-empty scheduling gates",
                "observedGeneration": 1,
                "lastTransitionTime": format_time(rules.now),
            }
        ]


def _quality_of_service(spec: Object) -> str:
    containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    resources = [container.get("resources") or {} for container in containers]
    amounts = [(one.get("limits") or {}, one.get("requests") or {}) for one in resources]
    if all(
        {"cpu", "memory"} <= limits.keys()
        and all(limits[name] == requested.get(name) for name in ("cpu", "memory"))
        for limits, requested in amounts
    ):
        return "Guaranteed"
    named = {name for limits, requested in amounts for name in (*limits, *requested)}
    return "Burstable" if named & {"cpu", "memory"} else "BestEffort"


def _claim_update(errors: FieldErrors, new: Object, old: Object, _rules: Rules) -> None:
    if new.get("spec") != old.get("spec"):
        errors.invalid("spec", new.get("spec"), "field is immutable")


def _template_update(errors: FieldErrors, new: Object, old: Object, _rules: Rules) -> None:
    if new.get("spec") != old.get("spec"):
        errors.invalid("spec", new.get("spec"), "field is immutable")


def _default_secret(obj: Object, _rules: Rules) -> None:
    for name, text in (obj.pop("stringData", None) or {}).items():
        obj.setdefault("data", {})[name] = base64.b64encode(text.encode()).decode()
    obj.setdefault("type", "Opaque")


def _default_service(obj: Object, _rules: Rules) -> None:
    obj.setdefault("spec", {}).setdefault("type", "ClusterIP")


def _default_webhooks(obj: Object, _rules: Rules) -> None:
    for webhook in obj.get("webhooks") or ():
        webhook.setdefault("failurePolicy", "Fail")
        webhook.setdefault("matchPolicy", "Equivalent")
        webhook.setdefault("timeoutSeconds", 10)
        webhook.setdefault("namespaceSelector", {})
        webhook.setdefault("objectSelector", {})


def _workload(
    fill: Callable[[Object], None],
    check: Callable[[FieldErrors, Object], None],
    compare: Callable[[FieldErrors, Object, Object], None],
) -> Strategy:
    def validate_update(errors: FieldErrors, new: Object, old: Object, _rules: Rules) -> None:
        check(errors, new)
        compare(errors, new, old)

    return Strategy(
        default=lambda obj, _: fill(obj),
        validate=lambda errors, obj, _: check(errors, obj),
        validate_update=validate_update,
        has_status=True,
        has_generation=True,
    )


PRIORITIES: Final = {"system-node-critical": 2000001000, "system-cluster-critical": 2000000000}
"""The priority classes that every cluster has."""

STRATEGIES: Final[Mapping[str, Strategy]] = {
    "namespaces": Strategy(prepare=_prepare_namespace, has_status=True, keeps_status=True, label_names=True),
    "nodes": Strategy(
        validate=lambda errors, obj, _: nodes.node(errors, obj),
        validate_update=lambda errors, new, _old, _: nodes.node(errors, new),
        validate_status=lambda errors, new, _old, _: nodes.node(errors, new),
        has_status=True,
        keeps_status=True,
    ),
    "pods": Strategy(
        default=_default_pod,
        prepare=_prepare_pod,
        validate=lambda errors, obj, _: pods.pod(errors, obj),
        validate_update=lambda errors, new, old, _: pods.pod_update(errors, new, old),
        validate_status=lambda errors, new, old, _: pods.pod_status(errors, new, old),
        has_status=True,
        keeps_status=True,
        has_generation=True,
    ),
    "leases.coordination.k8s.io": Strategy(
        validate=lambda errors, obj, _: nodes.lease(errors, obj),
        validate_update=lambda errors, new, _old, _: nodes.lease(errors, new),
    ),
    "secrets": Strategy(default=_default_secret),
    "services": Strategy(default=_default_service),
    "persistentvolumes": Strategy(has_status=True, keeps_status=True),
    "persistentvolumeclaims": Strategy(has_status=True, keeps_status=True),
    "resourcequotas": Strategy(has_status=True),
    "deployments.apps": _workload(
        workload_defaults.deployment, workloads.deployment, workloads.selector_update
    ),
    "replicasets.apps": _workload(
        workload_defaults.replica_set, workloads.replica_set, workloads.selector_update
    ),
    "statefulsets.apps": _workload(
        workload_defaults.stateful_set, workloads.stateful_set, workloads.stateful_set_update
    ),
    "daemonsets.apps": Strategy(has_status=True, has_generation=True),
    "jobs.batch": replace(
        _workload(workload_defaults.job, workloads.job, workloads.job_update),
        prepare=lambda obj, _: workload_defaults.own_selector(obj),
    ),
    "priorityclasses.scheduling.k8s.io": Strategy(
        default=lambda obj, _: workload_defaults.priority_class(obj),
        validate=lambda errors, obj, _: workloads.priority_class(
            errors, obj, builtin=obj["metadata"].get("name") in PRIORITIES
        ),
        validate_update=lambda errors, new, old, _: workloads.priority_class_update(errors, new, old),
        has_generation=True,
    ),
    "workloads.scheduling.k8s.io": Strategy(
        validate=lambda errors, obj, _: workloads.workload(errors, obj),
        validate_update=lambda errors, new, old, _: workloads.spec_immutable(errors, new, old),
        has_generation=True,
    ),
    "podgroups.scheduling.k8s.io": Strategy(
        validate=lambda errors, obj, _: workloads.pod_group(errors, obj["spec"]),
        validate_update=lambda errors, new, old, _: workloads.spec_immutable(errors, new, old),
        has_status=True,
        has_generation=True,
    ),
    "poddisruptionbudgets.policy": Strategy(has_status=True, has_generation=True),
    "validatingadmissionpolicies.admissionregistration.k8s.io": Strategy(
        has_status=True, has_generation=True
    ),
    "validatingadmissionpolicybindings.admissionregistration.k8s.io": Strategy(has_generation=True),
    "mutatingwebhookconfigurations.admissionregistration.k8s.io": Strategy(
        default=_default_webhooks,
        validate=lambda errors, obj, _: definitions.check_webhooks(errors, obj),
        validate_update=lambda errors, new, _old, _: definitions.check_webhooks(errors, new),
        has_generation=True,
    ),
    "validatingwebhookconfigurations.admissionregistration.k8s.io": Strategy(
        default=_default_webhooks,
        validate=lambda errors, obj, _: definitions.check_webhooks(errors, obj),
        validate_update=lambda errors, new, _old, _: definitions.check_webhooks(errors, new),
        has_generation=True,
    ),
    "customresourcedefinitions.apiextensions.k8s.io": Strategy(
        default=lambda obj, _: definitions.default_definition(obj),
        prepare=lambda obj, rules: definitions.accepted(obj, rules.now),
        validate=lambda errors, obj, _: definitions.check_definition(errors, obj),
        validate_update=lambda errors, new, _old, _: definitions.check_definition(errors, new),
        has_status=True,
        has_generation=True,
    ),
    "resourceslices.resource.k8s.io": Strategy(
        default=_default_slice,
        has_generation=True,
        validate=lambda errors, obj, _: slices.resource_slice(errors, obj),
        validate_update=lambda errors, new, old, _: slices.resource_slice_update(errors, new, old),
    ),
    "resourceclaims.resource.k8s.io": Strategy(
        default=_default_requests,
        validate=lambda errors, obj, rules: requests.claim_spec(
            errors, obj.get("spec") or {}, "spec", rules.compile_cel
        ),
        validate_update=_claim_update,
        validate_status=lambda errors, new, old, _: status.claim_status(errors, new, old),
        has_status=True,
    ),
    "resourceclaimtemplates.resource.k8s.io": Strategy(
        default=_default_requests,
        validate=lambda errors, obj, rules: requests.template(errors, obj, rules.compile_cel),
        validate_update=_template_update,
    ),
    "deviceclasses.resource.k8s.io": Strategy(
        has_generation=True,
        validate=lambda errors, obj, rules: classes.device_class(errors, obj, rules.compile_cel),
        validate_update=lambda errors, new, _old, rules: classes.device_class(errors, new, rules.compile_cel),
    ),
    "devicetaintrules.resource.k8s.io": Strategy(
        default=_default_taint_rule,
        has_generation=True,
        validate=lambda errors, obj, _: taints.taint_rule(errors, obj),
        validate_update=lambda errors, new, _old, _: taints.taint_rule(errors, new),
        has_status=True,
    ),
}


def strategy(resource: str) -> Strategy:
    """Of `resourceclaims.resource.k8s.io` and so on; kinds without rules of their own get the plain one."""
    return STRATEGIES.get(resource, Strategy())


def duplicate(obj: Object) -> Object:
    """A copy that may be changed."""
    return copy.deepcopy(obj)
