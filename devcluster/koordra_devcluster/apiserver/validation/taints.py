"""Taints of devices, in slices and by DeviceTaintRules."""

from __future__ import annotations

from typing import Any, Final

from koordra.api.objects import Object
from koordra.kube.validation import names
from koordra.kube.validation.classes import TOLERATED_EFFECTS
from koordra.kube.validation.field_errors import FieldErrors
from koordra_devcluster.apiserver.validation import forms

TAINT_EFFECTS: Final = (*TOLERATED_EFFECTS, "None")


def taint(errors: FieldErrors, path: str, found: Object) -> None:
    if not found.get("key"):
        errors.required(f"{path}.key")
    else:
        names.qualified_key(errors, f"{path}.key", found["key"])
    names.label_value(errors, f"{path}.value", found.get("value", ""))
    effect = found.get("effect")
    if not effect:
        errors.required(f"{path}.effect")
    elif effect not in TAINT_EFFECTS:
        errors.not_supported(f"{path}.effect", effect, TAINT_EFFECTS)


def taint_rule(errors: FieldErrors, obj: Object) -> None:
    spec: dict[str, Any] = obj.get("spec") or {}
    selector = spec.get("deviceSelector") or {}
    for field, check in (("driver", names.driver), ("pool", forms.pool), ("device", names.label)):
        if selector.get(field):
            check(errors, f"spec.deviceSelector.{field}", selector[field])
    taint(errors, "spec.taint", spec.get("taint") or {})
