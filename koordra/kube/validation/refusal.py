"""Why a server would not store a new object."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import Any, Final

from koordra import quantity
from koordra.api import objects
from koordra.api.kinds import DEVICE_CLASSES, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, Kind
from koordra.api.objects import Fields, Object
from koordra.errors import InvalidQuantity
from koordra.kube.validation import classes, fields, metadata, requests
from koordra.kube.validation.classes import CompileCel
from koordra.kube.validation.field_errors import FieldErrors, in_one_sentence

ADMIN_ACCESS_LABEL: Final = "resource.kubernetes.io/admin-access"


def refusal(kind: Kind, obj: Fields, namespace: Fields, compile_cel: CompileCel) -> str:
    """`namespace`: the object of the one that it is for; empty where it was stored. Other kinds than
    DeviceClasses, templates and claims are not judged. What has another form than the fields have (a text for
    a list) is left to whoever reads it."""
    found, errors = deepcopy(dict(obj)), FieldErrors()
    if kind not in (DEVICE_CLASSES, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS):
        return ""
    try:
        if kind != DEVICE_CLASSES:
            default_requests(found)
        if problem := _quantity_problem(found) or _unknown_fields(kind, obj):
            version = str(found.get("apiVersion") or kind.version).rpartition("/")[2]
            return f'{kind.kind} in version "{version}" cannot be handled as a {kind.kind}: {problem}'
        if path := admin_access(kind, found, namespace):
            errors.forbidden(path, NEEDS_LABEL)
            return in_one_sentence(kind, objects.name(found), errors.found)
        metadata.validate(errors, found.get("metadata") or {})
        if kind == DEVICE_CLASSES:
            classes.device_class(errors, found, compile_cel)
        elif kind == RESOURCE_CLAIM_TEMPLATES:
            requests.template(errors, found, compile_cel)
        else:
            requests.claim_spec(errors, found.get("spec") or {}, "spec", compile_cel)
    except (AttributeError, TypeError, KeyError):
        return ""
    return in_one_sentence(kind, objects.name(found), errors.found) if errors.found else ""


QUANTITY_TEXT: Final = (
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
)
NEEDS_LABEL: Final = (
    f"admin access to devices requires the `{ADMIN_ACCESS_LABEL}: true` label on the containing namespace"
)


def default_requests(obj: Object) -> None:
    """What the server fills in where a claim or a template says nothing."""
    for body in _bodies(obj):
        if not body.get("allocationMode"):
            body["allocationMode"] = "ExactCount"
        if body["allocationMode"] == "ExactCount" and not body.get("count"):
            body["count"] = 1
        for toleration in body.get("tolerations") or ():
            toleration.setdefault("operator", "Equal")


def admin_access(kind: Kind, obj: Fields, namespace: Fields) -> str:
    """The field that asks for admin access, in a namespace that does not allow it; empty for none."""
    if objects.labels_of(namespace).get(ADMIN_ACCESS_LABEL) == "true":
        return ""
    if kind not in (RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS):
        return ""
    for index, request in enumerate(_requests(obj)):
        if (request.get("exactly") or {}).get("adminAccess"):
            return f"spec.devices.requests[{index}].adminAccess"  # of templates, too
    return ""


def _quantity_problem(obj: Fields) -> str:
    for body in _bodies(obj):
        for value in ((body.get("capacity") or {}).get("requests") or {}).values():
            try:
                quantity.parse(str(value))
            except InvalidQuantity:
                return QUANTITY_TEXT
    return ""


def _unknown_fields(kind: Kind, obj: Fields) -> str:
    """As they are told to who asks for strict decoding, as kubectl does."""
    found = ", ".join([f'unknown field "{path}"' for path in fields.unknown(kind, obj)])
    return f"strict decoding error: {found}" if found else ""


def _bodies(obj: Fields) -> Iterator[dict[str, Any]]:
    """What `exactly` and alternatives have in common."""
    for request in _requests(obj):
        if request.get("exactly") is not None:
            yield request["exactly"]
        yield from request.get("firstAvailable") or ()


def _requests(obj: Fields) -> Sequence[Object]:
    spec = obj.get("spec") or {}
    claim = spec.get("spec") or {} if obj.get("kind") == RESOURCE_CLAIM_TEMPLATES.kind else spec
    return (claim.get("devices") or {}).get("requests") or ()
