"""Structural OpenAPI schemas of custom resources: pruning, defaults, validation, as the real server does
them.

    prune      fields that the schema does not have are dropped and collected;
               `x-kubernetes-preserve-unknown-fields` keeps them
    default    absent fields get `default`, from the outside in
    validate   type, required, enum, pattern, lengths, numbers, items, with the real server's words

`metadata`, `apiVersion` and `kind` at the top are the server's own. The parts of a schema that koordra's CRDs
do not use (`oneOf`, `x-kubernetes-validations` ...) are not evaluated here; the real server judges them.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from koordra.kube.validation.field_errors import FieldErrors

Schema = Mapping[str, Any]

_KEEP: Final = "x-kubernetes-preserve-unknown-fields"
_TOP: Final = frozenset({"apiVersion", "kind", "metadata"})
_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
}
_NAMES: Final = {
    dict: "object",
    list: "array",
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
}


def prune(schema: Schema, value: Any, *, unknown: list[str], path: str = "") -> Any:
    """The value without unknown fields, whose paths are added to `unknown`. Nulls vanish."""
    if isinstance(value, list):
        items = schema.get("items") or {_KEEP: True}
        return [prune(items, item, unknown=unknown, path=f"{path}[{n}]") for n, item in enumerate(value)]
    if not isinstance(value, dict):
        return value
    known, extra = schema.get("properties") or {}, schema.get("additionalProperties")
    kept: dict[str, Any] = {}
    for name, inner in value.items():
        here = f"{path}.{name}" if path else name
        if not path and name in _TOP:
            kept[name] = inner
        elif name in known:
            if inner is not None or known[name].get("nullable"):
                kept[name] = prune(known[name], inner, unknown=unknown, path=here)
        elif isinstance(extra, Mapping):
            kept[name] = prune(extra, inner, unknown=unknown, path=here)
        elif schema.get(_KEEP) or extra is True:
            kept[name] = inner
        else:
            unknown.append(here)
    return kept


def default(schema: Schema, value: Any) -> Any:
    """The value with the schema's defaults filled in; changed in place where it is an object or list."""
    if isinstance(value, dict):
        for name, inner in (schema.get("properties") or {}).items():
            if name not in value and "default" in inner:
                value[name] = copy.deepcopy(inner["default"])
            if name in value:
                default(inner, value[name])
    elif isinstance(value, list):
        for item in value:
            default(schema.get("items") or {}, item)
    return value


def validate(errors: FieldErrors, schema: Schema, value: Any, *, path: str = "") -> None:
    """Adds a field error for everything that the schema does not allow."""
    wanted = schema.get("type")
    if wanted is not None and not _has_type(wanted, value):
        got = _NAMES.get(type(value), "null")
        errors.type_invalid(path or "<nil>", value, f'{path} in body must be of type {wanted}: "{got}"')
        return
    if "enum" in schema and value not in schema["enum"]:
        errors.not_supported(path, value, [str(one) for one in schema["enum"]])
    if isinstance(value, dict):
        _object(errors, schema, value, path)
    elif isinstance(value, list):
        _array(errors, schema, value, path)
    elif isinstance(value, str):
        _text(errors, schema, value, path)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        low, high = schema.get("minimum"), schema.get("maximum")
        if low is not None and value < low:
            errors.invalid(path, value, f"{path} in body should be greater than or equal to {low}")
        if high is not None and value > high:
            errors.invalid(path, value, f"{path} in body should be less than or equal to {high}")


def _object(errors: FieldErrors, schema: Schema, value: dict[str, Any], path: str) -> None:
    for name in schema.get("required") or ():
        if name not in value:
            errors.required(f"{path}.{name}" if path else name)
    known, extra = schema.get("properties") or {}, schema.get("additionalProperties")
    for name, inner in value.items():
        if not path and name in _TOP:
            continue
        rule = known.get(name, extra if isinstance(extra, Mapping) else None)
        if rule is not None:
            validate(errors, rule, inner, path=f"{path}.{name}" if path else name)


def _array(errors: FieldErrors, schema: Schema, value: list[Any], path: str) -> None:
    least, most = schema.get("minItems"), schema.get("maxItems")
    if least is not None and len(value) < least:
        errors.invalid(path, len(value), f"{path} in body should have at least {least} items")
    if most is not None and len(value) > most:
        errors.too_many(path, len(value), most)
    for index, item in enumerate(value):
        validate(errors, schema.get("items") or {}, item, path=f"{path}[{index}]")
    keys = schema.get("x-kubernetes-list-map-keys") or ()
    seen: list[Any] = []
    for index, item in enumerate(value if keys else ()):
        identity = {key: item.get(key) for key in keys if isinstance(item, dict)}
        if identity in seen:
            errors.duplicate(f"{path}[{index}]", identity)
        seen.append(identity)


def _text(errors: FieldErrors, schema: Schema, value: str, path: str) -> None:
    least, most, pattern = schema.get("minLength"), schema.get("maxLength"), schema.get("pattern")
    if least is not None and len(value) < least:
        errors.invalid(path, value, f"{path} in body should be at least {least} chars long")
    if most is not None and len(value) > most:
        errors.too_long(path, most)
    if pattern is not None and re.search(pattern, value) is None:
        errors.invalid(path, value, f"{path} in body should match '{pattern}'")
    if schema.get("format") == "date-time":
        try:
            datetime.fromisoformat(value)
        except ValueError:
            errors.invalid(path, value, f"{path} in body must be of type date-time")


def _has_type(wanted: str, value: Any) -> bool:
    accepted = _TYPES.get(wanted, (object,))
    return isinstance(value, accepted) and (wanted == "boolean" or not isinstance(value, bool))
