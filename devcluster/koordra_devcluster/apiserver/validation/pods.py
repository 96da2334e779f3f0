"""Pods: what a new one needs, and the little that may change later.

Of a pod's spec only these change: container images, activeDeadlineSeconds, terminationGracePeriodSeconds (1
-> lower), added tolerations, and, while gated, scheduling gates (removed, never added) with node selectors
narrowed. spec.nodeName is set by the binding subresource alone. spec.resourceClaims never changes.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, Final

from koordra import quantity
from koordra.api.objects import Object
from koordra.errors import InvalidQuantity
from koordra.kube.validation import names
from koordra.kube.validation.field_errors import FieldErrors
from koordra_devcluster.apiserver.validation import forms, nodes

MUTABLE_TEXT: Final = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)


def pod(errors: FieldErrors, obj: Object) -> None:
    """A new pod."""
    spec = obj.get("spec") or {}
    if not spec.get("containers"):
        errors.required("spec.containers")
    claims = _resource_claims(errors, spec)
    seen: set[str] = set()
    for group in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(group) or ()):
            path = f"spec.{group}[{index}]"
            names.label(errors, f"{path}.name", container.get("name"))
            if container.get("name") in seen:
                errors.duplicate(f"{path}.name", container.get("name"))
            seen.add(container.get("name", ""))
            _container(errors, path, container, claims)
    if spec.get("restartPolicy") not in ("Always", "OnFailure", "Never"):
        errors.not_supported(
            "spec.restartPolicy", spec.get("restartPolicy"), ("Always", "OnFailure", "Never")
        )
    nodes.tolerations(errors, "spec.tolerations", spec.get("tolerations") or ())
    required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )
    if required is not None:
        nodes.node_selector(
            errors, "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution", required
        )
    _gates(errors, spec)


def pod_update(errors: FieldErrors, new: Object, old: Object) -> None:
    """An update of the main resource: compares the specs after putting back what may change."""
    now, before = new["spec"], old["spec"]
    allowed = copy.deepcopy(now)
    for group in ("containers", "initContainers"):
        for mine, theirs in zip(allowed.get(group) or (), before.get(group) or (), strict=False):
            if mine.get("name") == theirs.get("name"):
                _restore(mine, theirs, ("image",))
    _restore(allowed, before, ("activeDeadlineSeconds", "terminationGracePeriodSeconds", "schedulingGates"))
    if (before.get("tolerations") or []) == (now.get("tolerations") or [])[
        : len(before.get("tolerations") or [])
    ]:
        _restore(allowed, before, ("tolerations",))
    gates, gated = _gate_names(now), _gate_names(before)
    if gates - gated:
        errors.forbidden(
            "spec.schedulingGates",
            f"only deletion is allowed, but found new scheduling gate '{sorted(gates - gated)[0]}'",
        )
    if gated:
        _narrowed(errors, now, before)
        _restore(allowed, before, ("nodeSelector", "affinity"))
    if now.get("resourceClaims") != before.get("resourceClaims"):
        errors.invalid("spec.resourceClaims", now.get("resourceClaims"), "field is immutable")
    elif allowed != before:
        errors.forbidden("spec", MUTABLE_TEXT)


def pod_status(errors: FieldErrors, new: Object, _old: Object) -> None:
    claims = {claim.get("name") for claim in (new.get("spec") or {}).get("resourceClaims") or ()}
    for index, entry in enumerate((new.get("status") or {}).get("resourceClaimStatuses") or ()):
        path = f"status.resourceClaimStatuses[{index}]"
        if entry.get("name") not in claims:
            errors.invalid(
                f"{path}.name", entry.get("name"), "must match the name of an entry in `spec.resourceClaims`"
            )
        if entry.get("resourceClaimName"):
            names.subdomain(errors, f"{path}.resourceClaimName", entry["resourceClaimName"])


def _resource_claims(errors: FieldErrors, spec: Object) -> set[str]:
    known: set[str] = set()
    for index, claim in enumerate(spec.get("resourceClaims") or ()):
        path = f"spec.resourceClaims[{index}]"
        names.label(errors, f"{path}.name", claim.get("name"))
        if claim.get("name") in known:
            errors.duplicate(f"{path}.name", claim.get("name"))
        known.add(claim.get("name", ""))
        given = [field for field in ("resourceClaimName", "resourceClaimTemplateName") if claim.get(field)]
        if not given:
            errors.required(path, "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`")
        elif len(given) == 2:
            errors.invalid(
                path,
                claim.get("name"),
                "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified",
            )
        for field in given:
            names.subdomain(errors, f"{path}.{field}", claim[field])
    return known


def _container(errors: FieldErrors, path: str, container: Object, claims: set[str]) -> None:
    if not container.get("image"):
        errors.required(f"{path}.image")
    for index, variable in enumerate(container.get("env") or ()):
        if not variable.get("name"):
            errors.required(f"{path}.env[{index}].name")
    resources = container.get("resources") or {}
    for kind in ("limits", "requests"):
        for name, value in (resources.get(kind) or {}).items():
            forms.amount(errors, f"{path}.resources.{kind}[{name}]", value)
    _requests_within_limits(errors, path, resources)
    used: set[tuple[str, str]] = set()
    for index, reference in enumerate(resources.get("claims") or ()):
        here = f"{path}.resources.claims[{index}]"
        name, request = reference.get("name", ""), reference.get("request", "")
        if name not in claims:
            errors.invalid(
                f"{here}.name",
                name,
                "must be one of the names in pod.spec.resourceClaims which is " + ", ".join(sorted(claims)),
            )
        if (name, request) in used or (request and (name, "") in used):
            errors.duplicate(here, f"{name}/{request}" if request else name)
        used.add((name, request))
        if request:
            names.label(errors, f"{here}.request", request)


def _requests_within_limits(errors: FieldErrors, path: str, resources: Object) -> None:
    limits = resources.get("limits") or {}
    for name, value in (resources.get("requests") or {}).items():
        try:
            if name in limits and quantity.parse(value) > quantity.parse(limits[name]):
                errors.invalid(
                    f"{path}.resources.requests",
                    value,
                    f"must be less than or equal to {name} limit of {limits[name]}",
                )
        except InvalidQuantity:
            continue


def _gates(errors: FieldErrors, spec: Object) -> None:
    seen: set[str] = set()
    for index, gate in enumerate(spec.get("schedulingGates") or ()):
        path = f"spec.schedulingGates[{index}]"
        names.qualified_key(errors, path, gate.get("name", ""))
        if gate.get("name") in seen:
            errors.duplicate(path, gate.get("name"))
        seen.add(gate.get("name", ""))
    if seen and spec.get("nodeName"):
        errors.forbidden("spec.nodeName", "cannot be set until all schedulingGates have been cleared")


def _gate_names(spec: Object) -> set[str]:
    return {gate.get("name", "") for gate in spec.get("schedulingGates") or ()}


def _narrowed(errors: FieldErrors, now: Object, before: Object) -> None:
    """While gated, a node selector may only be made stricter; affinity may be set where there was none."""
    if not _contains(now.get("nodeSelector") or {}, before.get("nodeSelector") or {}):
        errors.invalid(
            "spec.nodeSelector",
            now.get("nodeSelector"),
            "only additions to spec.nodeSelector are allowed (no mutations or deletions)",
        )
    old = (before.get("affinity") or {}).get("nodeAffinity") or {}
    new = (now.get("affinity") or {}).get("nodeAffinity") or {}
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    if not old.get(required):
        return
    wide = old[required].get("nodeSelectorTerms") or ()
    narrow = (new.get(required) or {}).get("nodeSelectorTerms") or ()
    if len(narrow) != len(wide) or not all(
        _extends(mine.get(part) or (), theirs.get(part) or ())
        for mine, theirs in zip(narrow, wide, strict=True)
        for part in ("matchExpressions", "matchFields")
    ):
        errors.invalid(
            f"spec.affinity.nodeAffinity.{required}.nodeSelectorTerms",
            "",
            "only additions are allowed (no mutations or deletions)",
        )


def _contains(larger: Object, smaller: Object) -> bool:
    return all(larger.get(key) == value for key, value in smaller.items())


def _extends(longer: Iterable[Any], shorter: Iterable[Any]) -> bool:
    short = list(shorter)
    return list(longer)[: len(short)] == short


def _restore(target: Object, source: Object, fields: Iterable[str]) -> None:
    for field in fields:
        if field in source:
            target[field] = source[field]
        else:
            target.pop(field, None)
