"""What is wrong with the fields of an object, in the words of k8s.io/apimachinery (util/validation/field),
because people and programs read them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from koordra.api.kinds import Kind

_BODIES: Final = {
    "FieldValueRequired": "Required value",
    "FieldValueInvalid": "Invalid value",
    "FieldValueTypeInvalid": "Invalid value",
    "FieldValueDuplicate": "Duplicate value",
    "FieldValueNotSupported": "Unsupported value",
    "FieldValueForbidden": "Forbidden",
    "FieldValueTooLong": "Too long",
    "FieldValueTooMany": "Too many",
    "FieldValueNotFound": "Not found",
}


@dataclass(frozen=True, slots=True)
class FieldError:
    """One broken rule: `spec.devices.requests[0].name: Required value`."""

    field: str
    reason: str
    body: str

    def __str__(self) -> str:
        return f"{self.field}: {self.body}"


@dataclass(slots=True)
class FieldErrors:
    """Collects field errors, so that one answer names everything that is wrong."""

    found: list[FieldError] = field(default_factory=list)

    def required(self, path: str, detail: str = "") -> None:
        self._add(path, "FieldValueRequired", detail)

    def invalid(self, path: str, value: Any, detail: str) -> None:
        self._add(path, "FieldValueInvalid", f"{_show(value)}: {detail}")

    def type_invalid(self, path: str, value: Any, detail: str) -> None:
        """What an OpenAPI schema says of a value of the wrong type."""
        self._add(path, "FieldValueTypeInvalid", f"{_show(value)}: {detail}")

    def duplicate(self, path: str, value: Any) -> None:
        self._add(path, "FieldValueDuplicate", _show(value))

    def not_supported(self, path: str, value: Any, supported: Iterable[str]) -> None:
        listed = ", ".join(f'"{one}"' for one in sorted(supported))
        self._add(path, "FieldValueNotSupported", f"{_show(value)}: supported values: {listed}")

    def forbidden(self, path: str, detail: str) -> None:
        self._add(path, "FieldValueForbidden", detail)

    def too_long(self, path: str, limit: int) -> None:
        self._add(path, "FieldValueTooLong", f"may not be more than {limit} bytes")

    def too_many(self, path: str, actual: int, limit: int) -> None:
        self._add(path, "FieldValueTooMany", f"{actual}: must have at most {limit} items")

    def _add(self, path: str, reason: str, detail: str) -> None:
        body = f"{_BODIES[reason]}: {detail}" if detail else _BODIES[reason]
        self.found.append(FieldError(path, reason, body))


def _show(value: Any) -> str:
    if value is None or isinstance(value, str | dict | list):
        return json.dumps(value, separators=(",", ":"))
    return str(value).lower()


def in_one_sentence(kind: Kind, name: str, errors: Sequence[FieldError]) -> str:
    listed = str(errors[0]) if len(errors) == 1 else f"[{', '.join(map(str, errors))}]"
    full = f"{kind.kind}.{kind.group}" if kind.group else kind.kind
    return f'{full} "{name}" is invalid: {listed}'
