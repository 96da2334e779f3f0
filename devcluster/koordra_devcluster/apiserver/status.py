"""What the server says when it says no: `Status` objects with reason, code and causes.

Texts follow k8s.io/apimachinery (`errors` and `util/validation/field`), because people and programs read
them.
"""

from __future__ import annotations

from collections.abc import Sequence

from koordra.api.kinds import Kind
from koordra.api.objects import Object
from koordra.errors import ApiError
from koordra.kube.validation.field_errors import FieldError, in_one_sentence


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
    details = _details(kind.group, kind.kind, name)
    details["causes"] = [{"reason": one.reason, "message": one.body, "field": one.field} for one in errors]
    return Refusal(422, "Invalid", in_one_sentence(kind, name, errors), details=details)


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
