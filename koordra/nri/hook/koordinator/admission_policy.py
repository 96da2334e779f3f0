"""The admission policy without which Koordinator mode does not start.

The annotation `device-allocated` decides what a container may open, and any author of a pod can write
annotations. So a ValidatingAdmissionPolicy lets only the configured scheduler's ServiceAccount set, change or
remove it: on pods, on bindings (whose annotations the API server copies to the pod), and on every subresource
through which metadata can be written. deploy/kustomize/nri/koordinator ships it; `unprotected`
compares the cluster's objects with the rule, and says what is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from koordra.api.kinds import Kind
from koordra.api.objects import Object
from koordra.errors import Forbidden, KoordraError, NotFound
from koordra.kube.client import KubeClient
from koordra.nri.hook.koordinator.annotation import ANNOTATION

POLICIES: Final = Kind(
    "admissionregistration.k8s.io",
    "v1",
    "validatingadmissionpolicies",
    "ValidatingAdmissionPolicy",
    namespaced=False,
)
BINDINGS: Final = Kind(
    "admissionregistration.k8s.io",
    "v1",
    "validatingadmissionpolicybindings",
    "ValidatingAdmissionPolicyBinding",
    namespaced=False,
)
NAME: Final = "koordinator-device-allocated.koordra.io"
DEFAULT_SCHEDULER: Final = "system:serviceaccount:koordinator-system:koord-scheduler"
RESOURCES: Final = (
    "pods",
    "pods/binding",
    "pods/ephemeralcontainers",
    "pods/resize",
    "pods/status",
    "bindings",
)


def expression(scheduler: str) -> str:
    """The rule in CEL: the annotation is as it was, or the scheduler writes."""
    return (
        f'request.userInfo.username == "{scheduler}" || '
        f'{_value("object")} == (oldObject == null ? "" : {_value("oldObject")})'
    )


def _value(thing: str) -> str:
    annotations = f"{thing}.metadata.annotations"
    return f'(has({annotations}) && "{ANNOTATION}" in {annotations} ? {annotations}["{ANNOTATION}"] : "")'


def unprotected(found_policy: Object | None, found_binding: Object | None, *, scheduler: str) -> str | None:
    """Why these objects do not protect the annotation; None when they do."""
    if found_policy is None:
        return f"there is no ValidatingAdmissionPolicy {NAME}"
    if found_binding is None:
        return f"there is no ValidatingAdmissionPolicyBinding {NAME}"
    there = found_policy.get("spec") or {}
    if there.get("failurePolicy", "Fail") != "Fail":
        return "its failurePolicy is not Fail"
    for field in ("paramKind", "matchConditions", "variables"):
        if there.get(field):
            return f"it has {field}, which koordra's does not"
    rules = [_squeezed(each.get("expression")) for each in there.get("validations") or ()]
    if rules != [_squeezed(expression(scheduler))]:
        return f"its expression is not the one that lets only {scheduler} set the annotation"
    constraints = there.get("matchConstraints") or {}
    exceptions = ("namespaceSelector", "objectSelector", "excludeResourceRules")
    if any(_selects(constraints.get(field)) for field in exceptions):
        return "it does not match every pod"
    missing = set(RESOURCES) - _covered(constraints)
    if missing:
        return f"it does not match {', '.join(sorted(missing))}"
    spec = found_binding.get("spec") or {}
    if spec.get("policyName") != NAME or "Deny" not in (spec.get("validationActions") or ()):
        return "its binding does not deny"
    if any(
        _selects(value) for value in (spec.get("matchResources") or {}).values() if not isinstance(value, str)
    ):
        return "its binding does not match every pod"
    return None


def _covered(constraints: Mapping[str, Any]) -> set[str]:
    """The resources of core/v1 that are matched when made and when changed."""
    found: set[str] = set()
    for rule in constraints.get("resourceRules") or ():
        operations = set(rule.get("operations") or ())
        if (
            "" in (rule.get("apiGroups") or ())
            and "v1" in (rule.get("apiVersions") or ())
            and ({"CREATE", "UPDATE"} <= operations or "*" in operations)
            and (rule.get("scope") or "*") != "Cluster"
            and not rule.get("resourceNames")
        ):
            found.update(rule.get("resources") or ())
    return found


def _selects(selector: Any) -> bool:
    """Whether a selector, or a list of rules, leaves anything out; empty ones match everything."""
    if isinstance(selector, Mapping):
        return bool(selector.get("matchLabels") or selector.get("matchExpressions"))
    return bool(selector)


def _squeezed(text: Any) -> str:
    return "".join(str(text).split())


def require(client: KubeClient, *, scheduler: str) -> None:
    """Raises KoordraError, saying what to apply, unless the cluster protects the annotation."""
    found: list[Object | None] = []
    for kind in (POLICIES, BINDINGS):
        try:
            found.append(client.get(kind, NAME))
        except NotFound:
            found.append(None)
        except Forbidden as error:
            raise KoordraError(
                f"Koordinator mode: {kind} cannot be read, so nobody knows who may set the annotation: {error}"
            ) from error
    why = unprotected(found[0], found[1], scheduler=scheduler)
    if why is not None:
        raise KoordraError(
            f"Koordinator mode does not start: {why}; apply deploy/kustomize/nri/koordinator, with the scheduler's "
            "ServiceAccount where it is another than Koordinator's own (koordra nri --koordinator-scheduler)"
        )
