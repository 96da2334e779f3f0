"""DeviceClasses, and the parts that they share with claims: selectors, configuration; tolerations."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Final

from koordra.api.objects import Object
from koordra.kube.validation import names
from koordra.kube.validation.field_errors import FieldErrors

CompileCel = Callable[[str], "str | None"]
"""Answers why a CEL device expression does not compile, or None where it does."""

MAX_PARAMETERS: Final = 10 * 1024
MAX_EXPRESSION: Final = 10 * 1024
MAX_SELECTORS: Final = 32
MAX_TOLERATIONS: Final = 16
MAX_CONFIG: Final = 32
TOLERATED_EFFECTS: Final = ("NoSchedule", "NoExecute")


def selectors(errors: FieldErrors, path: str, found: Sequence[Object], compile_cel: CompileCel) -> None:
    if len(found) > MAX_SELECTORS:
        errors.too_many(path, len(found), MAX_SELECTORS)
    for index, selector in enumerate(found):
        here = f"{path}[{index}].cel"
        if "cel" not in selector:
            errors.required(here)
            continue
        expression = selector["cel"].get("expression", "")
        if len(expression.encode()) > MAX_EXPRESSION:
            errors.too_long(f"{here}.expression", MAX_EXPRESSION)
        elif (problem := compile_cel(expression)) is not None:
            errors.invalid(f"{here}.expression", expression, f"compilation failed: {problem}")


def opaque(errors: FieldErrors, path: str, configuration: Object) -> None:
    """`opaque` is the only form of device configuration: a driver and a JSON object of at most 10 KiB."""
    found = configuration.get("opaque")
    if found is None:
        errors.required(f"{path}.opaque")
        return
    names.driver(errors, f"{path}.opaque.driver", found.get("driver"))
    parameters = found.get("parameters")
    if parameters is None:
        errors.required(f"{path}.opaque.parameters")
    elif not isinstance(parameters, dict):
        errors.invalid(f"{path}.opaque.parameters", parameters, "must be a valid JSON object")
    elif len(json.dumps(parameters, separators=(",", ":"), ensure_ascii=False).encode()) > MAX_PARAMETERS:
        errors.too_long(f"{path}.opaque.parameters", MAX_PARAMETERS)


def tolerations(errors: FieldErrors, path: str, found: Sequence[Object]) -> None:
    """Unlike a pod's, a toleration without a key need not be `Exists`: 1.36.2 takes `{}`."""
    if len(found) > MAX_TOLERATIONS:
        errors.too_many(path, len(found), MAX_TOLERATIONS)
    for index, toleration in enumerate(found):
        here = f"{path}[{index}]"
        key, operator = toleration.get("key", ""), toleration.get("operator", "Equal")
        if key:
            names.qualified_key(errors, f"{here}.key", key)
        if operator == "Exists":
            if toleration.get("value"):
                errors.invalid(f"{here}.value", toleration["value"], "must be empty for operator `Exists`")
        elif operator == "Equal":
            names.label_value(errors, f"{here}.value", toleration.get("value", ""))
        else:
            errors.not_supported(f"{here}.operator", operator, ("Equal", "Exists"))
        effect = toleration.get("effect")
        if effect and effect not in TOLERATED_EFFECTS:
            errors.not_supported(f"{here}.effect", effect, TOLERATED_EFFECTS)


def device_class(errors: FieldErrors, obj: Object, compile_cel: CompileCel) -> None:
    spec = obj.get("spec") or {}
    selectors(errors, "spec.selectors", spec.get("selectors") or (), compile_cel)
    config = spec.get("config") or ()
    if len(config) > MAX_CONFIG:
        errors.too_many("spec.config", len(config), MAX_CONFIG)
    for index, configuration in enumerate(config):
        opaque(errors, f"spec.config[{index}]", configuration)
    if resource := spec.get("extendedResourceName"):
        names.extended_resource(errors, "spec.extendedResourceName", resource)
