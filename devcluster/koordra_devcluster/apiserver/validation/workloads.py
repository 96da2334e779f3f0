"""Rules for Deployments, ReplicaSets, StatefulSets, Jobs, PriorityClasses and pod groups. Pure.

A selector that does not match its own template, a template that could never be a pod, a change of what may
not change: what a hand-written workload gets wrong most often, in the words of the real server.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from koordra.api.objects import Object
from koordra.kube.validation.field_errors import FieldErrors
from koordra_devcluster.apiserver.storage.selectors import label_selector_matches
from koordra_devcluster.apiserver.validation import pods

HIGHEST_PRIORITY: Final = 1_000_000_000
NOT_NEGATIVE: Final = "must be greater than or equal to 0"
IMMUTABLE: Final = "field is immutable"
_CHANGEABLE: Final = frozenset(
    {"replicas", "ordinals", "template", "updateStrategy", "revisionHistoryLimit",
     "persistentVolumeClaimRetentionPolicy", "minReadySeconds"}
)  # fmt: skip
_STATEFUL_TEXT: Final = (
    "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', "
    "'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden"
)


def deployment(errors: FieldErrors, obj: Object) -> None:
    spec = obj["spec"]
    _numbers(errors, spec, "replicas", "minReadySeconds", "revisionHistoryLimit", "progressDeadlineSeconds")
    _selector(errors, spec, "deployment")
    _template(errors, spec, restart=("Always",))
    if int(spec.get("progressDeadlineSeconds", 600)) <= int(spec.get("minReadySeconds", 0)):
        errors.invalid(
            "spec.progressDeadlineSeconds",
            spec["progressDeadlineSeconds"],
            "must be greater than minReadySeconds",
        )
    strategy = spec.get("strategy") or {}
    if strategy.get("type") not in ("Recreate", "RollingUpdate"):
        errors.not_supported(
            "spec.strategy",
            {"Type": strategy.get("type"), "RollingUpdate": strategy.get("rollingUpdate")},
            ("Recreate", "RollingUpdate"),
        )
    elif strategy["type"] == "Recreate" and strategy.get("rollingUpdate"):
        errors.forbidden(
            "spec.strategy.rollingUpdate", "may not be specified when strategy `type` is 'Recreate'"
        )
    elif strategy["type"] == "RollingUpdate":
        _rolling(errors, strategy.get("rollingUpdate") or {})


def _rolling(errors: FieldErrors, rolling: Mapping[str, Any]) -> None:
    path = "spec.strategy.rollingUpdate"
    nothing = True
    for field in ("maxUnavailable", "maxSurge"):
        value = rolling.get(field, 0)
        percentage = isinstance(value, str) and value.endswith("%") and value[:-1].isdigit()
        if isinstance(value, str) and not percentage:
            errors.invalid(
                f"{path}.{field}",
                value,
                "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', "
                "regex used for validation is '[0-9]+%')",
            )
        elif type(value) is int and value < 0:
            errors.invalid(f"{path}.{field}", value, NOT_NEGATIVE)
        nothing = nothing and value in (0, "0%")
    if nothing:
        errors.invalid(
            f"{path}.maxUnavailable", rolling.get("maxUnavailable", 0), "may not be 0 when `maxSurge` is 0"
        )


def replica_set(errors: FieldErrors, obj: Object) -> None:
    spec = obj["spec"]
    _numbers(errors, spec, "replicas", "minReadySeconds")
    _selector(errors, spec, "deployment")
    _template(errors, spec, restart=("Always",))


def stateful_set(errors: FieldErrors, obj: Object) -> None:
    spec = obj["spec"]
    _numbers(errors, spec, "replicas", "minReadySeconds", "revisionHistoryLimit")
    _selector(errors, spec, "statefulset")
    _template(errors, spec, restart=("Always",))
    if spec.get("podManagementPolicy") not in ("OrderedReady", "Parallel"):
        errors.invalid(
            "spec.podManagementPolicy",
            spec.get("podManagementPolicy"),
            "must be 'OrderedReady' or 'Parallel'",
        )
    strategy = spec.get("updateStrategy") or {}
    if strategy.get("type") not in ("OnDelete", "RollingUpdate"):
        shown = {"Type": strategy.get("type"), "RollingUpdate": strategy.get("rollingUpdate")}
        errors.invalid("spec.updateStrategy", shown, "must be 'RollingUpdate' or 'OnDelete'")


def selector_update(errors: FieldErrors, new: Object, old: Object) -> None:
    """Deployments and ReplicaSets: the selector stays."""
    if new["spec"].get("selector") != old["spec"].get("selector"):
        errors.invalid("spec.selector", new["spec"].get("selector"), IMMUTABLE)


def stateful_set_update(errors: FieldErrors, new: Object, old: Object) -> None:
    before, now = old["spec"], new["spec"]
    fields = before.keys() | now.keys()
    if any(before.get(field) != now.get(field) for field in fields - _CHANGEABLE):
        errors.forbidden("spec", _STATEFUL_TEXT)


def job(errors: FieldErrors, obj: Object) -> None:
    spec = obj["spec"]
    _numbers(errors, spec, "parallelism", "completions", "backoffLimit", "activeDeadlineSeconds",
             "ttlSecondsAfterFinished")  # fmt: skip
    if spec.get("completionMode") not in ("Indexed", "NonIndexed"):
        errors.not_supported("spec.completionMode", spec.get("completionMode"), ("Indexed", "NonIndexed"))
    if spec.get("completionMode") == "Indexed" and spec.get("completions") is None:
        errors.required("spec.completions", "when completion mode is Indexed")
    _selector(errors, spec, "job", empty_allowed=True)
    _template(errors, spec, restart=("OnFailure", "Never"))


def job_update(errors: FieldErrors, new: Object, old: Object) -> None:
    """The template may change while a suspended Job has not started; the rest never."""
    before, now = old["spec"], new["spec"]
    status = old.get("status") or {}
    resting = before.get("suspend") and not status.get("startTime")
    fixed = ["selector", "completionMode", *([] if resting else ["template"])]
    elastic = now.get("completionMode") == "Indexed" and now.get("completions") == now.get("parallelism")
    if before.get("completions") != now.get("completions") and not elastic:
        errors.invalid("spec.completions", now.get("completions"), IMMUTABLE)
    for field in fixed:
        if before.get(field) != now.get(field):
            errors.invalid(f"spec.{field}", now.get(field), IMMUTABLE)


def priority_class(errors: FieldErrors, obj: Object, *, builtin: bool) -> None:
    """`builtin`: one of the two that every cluster has."""
    if not builtin and obj["metadata"].get("name", "").startswith("system-"):
        errors.forbidden(
            "metadata.name",
            "priority class names with 'system-' prefix are reserved for system use only. "
            f"error: {obj['metadata']['name']} is not a known system priority class",
        )
    if not builtin and int(obj.get("value", 0)) > HIGHEST_PRIORITY:
        errors.forbidden("value", f"maximum allowed value of a user defined priority is {HIGHEST_PRIORITY}")
    if obj.get("preemptionPolicy") not in ("Never", "PreemptLowerPriority"):
        errors.not_supported(
            "preemptionPolicy", obj.get("preemptionPolicy"), ("Never", "PreemptLowerPriority")
        )


def priority_class_update(errors: FieldErrors, new: Object, old: Object) -> None:
    if new.get("value") != old.get("value"):
        errors.forbidden("value", "may not be changed in an update.")
    if new.get("preemptionPolicy") != old.get("preemptionPolicy"):
        errors.invalid("preemptionPolicy", new.get("preemptionPolicy"), IMMUTABLE)


def pod_group(errors: FieldErrors, spec: Mapping[str, Any], path: str = "spec") -> None:
    """Of a PodGroup or of one template of a Workload: one policy, a count that makes sense."""
    policy = spec.get("schedulingPolicy") or {}
    if len([field for field in ("basic", "gang") if field in policy]) != 1:
        errors.invalid(
            f"{path}.schedulingPolicy", "", "must specify one of: `basic`, `gang`"
        ) if not policy else errors.invalid(
            f"{path}.schedulingPolicy", "{basic, gang}", "must specify exactly one of: `basic`, `gang`"
        )
    count = (policy.get("gang") or {}).get("minCount")
    if "gang" in policy and not count:
        errors.required(f"{path}.schedulingPolicy.gang.minCount")
    elif count is not None and count < 0:
        errors.invalid(f"{path}.schedulingPolicy.gang.minCount", count, "must be greater than or equal to 1")


def workload(errors: FieldErrors, obj: Object) -> None:
    templates = obj["spec"].get("podGroupTemplates") or ()
    if not templates:
        errors.required("spec.podGroupTemplates")
    seen: set[str] = set()
    for index, template in enumerate(templates):
        path = f"spec.podGroupTemplates[{index}]"
        if template.get("name") in seen:
            errors.duplicate(path, template)
        seen.add(str(template.get("name")))
        pod_group(errors, template, path)


def spec_immutable(errors: FieldErrors, new: Object, old: Object) -> None:
    if new.get("spec") != old.get("spec"):
        errors.invalid("spec", new.get("spec"), IMMUTABLE)


def _numbers(errors: FieldErrors, spec: Mapping[str, Any], *fields: str) -> None:
    for field in fields:
        value = spec.get(field)
        if value is not None and value < 0:
            errors.invalid(f"spec.{field}", value, NOT_NEGATIVE)


def _selector(
    errors: FieldErrors, spec: Mapping[str, Any], what: str, *, empty_allowed: bool = False
) -> None:
    selector = spec.get("selector")
    if selector is None:
        errors.required("spec.selector")
    elif not selector and not empty_allowed:
        errors.invalid("spec.selector", {}, f"empty selector is invalid for {what}")
        return
    labels = (spec["template"].get("metadata") or {}).get("labels")
    if selector is None or not label_selector_matches(selector, labels or {}):
        errors.invalid("spec.template.metadata.labels", labels, "`selector` does not match template `labels`")


def _template(errors: FieldErrors, spec: Mapping[str, Any], *, restart: tuple[str, ...]) -> None:
    """The template is judged as the pod that it will be."""
    inner = FieldErrors()
    pods.pod(inner, {"spec": spec["template"]["spec"]})
    errors.found += [type(one)(f"spec.template.{one.field}", one.reason, one.body) for one in inner.found]
    found = spec["template"]["spec"].get("restartPolicy")
    if found == "Always" != restart[0]:
        listed = ", ".join(f'"{one}"' for one in restart)
        errors.required("spec.template.spec.restartPolicy", f"valid values: {listed}")
    elif found not in restart:
        errors.not_supported("spec.template.spec.restartPolicy", found, restart)
