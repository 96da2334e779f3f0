"""What the server says when it says no: `Status` objects with reason, code and causes.

Texts follow k8s.io/apimachinery (`errors` and `util/validation/field`), because people and programs read
them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from koordra.api.kinds import Kind
from koordra.api.objects import Object
from koordra.errors import ApiError

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


class Refusal(ApiError):
    """An answer other than success, ready to be sent."""

    def __init__(self, code: int, reason: str, message: str, *, details: Object | None = None) -> None:
        super().__init__(message, code=code, reason=reason)
        self.details = details

    def to_status(self) -> Object:
        """The metav1.Status object."""
        status: Object = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
        }
        if self.details:
            status["details"] = self.details
        status["code"] = self.code
        return status


def not_found(kind: Kind, name: str) -> Refusal:
    return Refusal(
        404, "NotFound", f'{kind} "{name}" not found', details=_details(kind.group, kind.plural, name)
    )


def already_exists(kind: Kind, name: str) -> Refusal:
    return Refusal(
        409,
        "AlreadyExists",
        f'{kind} "{name}" already exists',
        details=_details(kind.group, kind.plural, name),
    )


def conflict(kind: Kind, name: str, why: str) -> Refusal:
    return Refusal(
        409,
        "Conflict",
        f'Operation cannot be fulfilled on {kind} "{name}": {why}',
        details=_details(kind.group, kind.plural, name),
    )


def modified(kind: Kind, name: str) -> Refusal:
    """The conflict that a stale resourceVersion gets."""
    return conflict(
        kind,
        name,
        "the object has been modified; please apply your changes to the latest version and try again",
    )


def invalid(kind: Kind, name: str, errors: Sequence[FieldError]) -> Refusal:
    """422 with one cause per broken rule."""
    listed = str(errors[0]) if len(errors) == 1 else f"[{', '.join(map(str, errors))}]"
    full = f"{kind.kind}.{kind.group}" if kind.group else kind.kind
    details = _details(kind.group, kind.kind, name)
    details["causes"] = [{"reason": one.reason, "message": one.body, "field": one.field} for one in errors]
    return Refusal(422, "Invalid", f'{full} "{name}" is invalid: {listed}', details=details)


def bad_request(message: str) -> Refusal:
    return Refusal(400, "BadRequest", message)


def forbidden(kind: Kind, name: str, why: str) -> Refusal:
    return Refusal(
        403,
        "Forbidden",
        f'{kind} "{name}" is forbidden: {why}',
        details=_details(kind.group, kind.plural, name),
    )


def expired(asked: int, oldest: int) -> Refusal:
    """410: the history does not reach back to `asked`."""
    return Refusal(410, "Expired", f"too old resource version: {asked} ({oldest})")


def _details(group: str, kind: str, name: str) -> Object:
    details: Object = {"name": name} if name else {}
    if group:
        details["group"] = group
    details["kind"] = kind
    return details
