"""Node selectors, taints and tolerations of nodes and pods, leases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from koordra.api.objects import Object
from koordra.kube.validation import names
from koordra.kube.validation.field_errors import FieldErrors
from koordra_devcluster.apiserver.validation import forms

NODE_TAINT_EFFECTS: Final = ("NoExecute", "NoSchedule", "PreferNoSchedule")


def node_selector(errors: FieldErrors, path: str, selector: Object, *, exactly_one: bool = False) -> None:
    """A NodeSelector; `exactly_one` term where a ResourceSlice has it."""
    terms = selector.get("nodeSelectorTerms") or ()
    if not terms:
        errors.required(f"{path}.nodeSelectorTerms", "must have at least one node selector term")
    elif exactly_one and len(terms) != 1:
        errors.invalid(f"{path}.nodeSelectorTerms", len(terms), "must have exactly one node selector term")
    for index, term in enumerate(terms):
        here = f"{path}.nodeSelectorTerms[{index}]"
        for position, requirement in enumerate(term.get("matchExpressions") or ()):
            _expression(errors, f"{here}.matchExpressions[{position}]", requirement)
        for position, requirement in enumerate(term.get("matchFields") or ()):
            _field(errors, f"{here}.matchFields[{position}]", requirement)


def _expression(errors: FieldErrors, path: str, requirement: Object) -> None:
    operator, values = requirement.get("operator"), requirement.get("values") or ()
    if operator in ("In", "NotIn"):
        if not values:
            errors.required(f"{path}.values", "must be specified when `operator` is 'In' or 'NotIn'")
    elif operator in ("Exists", "DoesNotExist"):
        if values:
            errors.forbidden(
                f"{path}.values", "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
            )
    elif operator in ("Gt", "Lt"):
        if len(values) != 1:
            errors.required(
                f"{path}.values", "must be specified single value when `operator` is 'Lt' or 'Gt'"
            )
    else:
        errors.invalid(f"{path}.operator", operator, "not a valid selector operator")
    names.qualified_key(errors, f"{path}.key", requirement.get("key", ""))


def _field(errors: FieldErrors, path: str, requirement: Object) -> None:
    if requirement.get("operator") not in ("In", "NotIn"):
        errors.invalid(f"{path}.operator", requirement.get("operator"), "not a valid selector operator")
    elif len(requirement.get("values") or ()) != 1:
        errors.required(
            f"{path}.values",
            "must be only one value when `operator` is 'In' or 'NotIn' for node field selector",
        )
    if requirement.get("key") != "metadata.name":
        errors.invalid(f"{path}.key", requirement.get("key"), "not a valid field selector key")


def tolerations(errors: FieldErrors, path: str, found: Sequence[Object]) -> None:
    for index, toleration in enumerate(found):
        here = f"{path}[{index}]"
        operator = toleration.get("operator") or "Equal"
        if operator not in ("Equal", "Exists"):
            errors.not_supported(f"{here}.operator", operator, ("Equal", "Exists"))
        if not toleration.get("key") and operator != "Exists":
            errors.invalid(
                f"{here}.operator",
                operator,
                'operator must be Exists when `key` is empty, which means "match all values and all keys"',
            )
        effect = toleration.get("effect")
        if effect and effect not in NODE_TAINT_EFFECTS:
            errors.not_supported(f"{here}.effect", effect, NODE_TAINT_EFFECTS)


def node(errors: FieldErrors, obj: Object) -> None:
    seen: set[tuple[str, str]] = set()
    for index, taint in enumerate((obj.get("spec") or {}).get("taints") or ()):
        here = f"spec.taints[{index}]"
        names.qualified_key(errors, f"{here}.key", taint.get("key", ""))
        if taint.get("effect") not in NODE_TAINT_EFFECTS:
            errors.not_supported(f"{here}.effect", taint.get("effect"), NODE_TAINT_EFFECTS)
        identity = (taint.get("key", ""), taint.get("effect", ""))
        if identity in seen:
            errors.duplicate(here, f"{identity[0]}:{identity[1]}")
        seen.add(identity)
    for resources in ("capacity", "allocatable"):
        for name, value in ((obj.get("status") or {}).get(resources) or {}).items():
            forms.amount(errors, f"status.{resources}.{name}", value)


def lease(errors: FieldErrors, obj: Object) -> None:
    spec = obj.get("spec") or {}
    duration, transitions = spec.get("leaseDurationSeconds"), spec.get("leaseTransitions")
    if duration is not None and duration <= 0:
        errors.invalid("spec.leaseDurationSeconds", duration, "must be greater than 0")
    if transitions is not None and transitions < 0:
        errors.invalid("spec.leaseTransitions", transitions, "must be greater than or equal to 0")
