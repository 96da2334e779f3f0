"""Forms of pools, UUIDs, versions and quantities in the Kubernetes API; those of names are koordra's own."""

from __future__ import annotations

import re
from typing import Any, Final

from koordra import quantity
from koordra.errors import InvalidQuantity
from koordra.kube.validation.field_errors import FieldErrors
from koordra.kube.validation.names import SUBDOMAIN_TEXT, is_subdomain

_UUID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_SEMVER: Final = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)"
    r"(-(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)(\.(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*)?"
    r"(\+[0-9a-zA-Z-]+(\.[0-9a-zA-Z-]+)*)?",
    re.ASCII,
)


def is_uuid(text: str) -> bool:
    return _UUID.fullmatch(text) is not None


def is_semver(text: str) -> bool:
    return _SEMVER.fullmatch(text) is not None


def pool(errors: FieldErrors, path: str, value: Any) -> None:
    """A pool name: DNS subdomains separated by slashes, at most 253 characters."""
    if not value:
        errors.required(path)
    elif len(value) > 253:
        errors.too_long(path, 253)
    elif not all(is_subdomain(part) for part in value.split("/")):
        errors.invalid(path, value, SUBDOMAIN_TEXT)


def amount(errors: FieldErrors, path: str, value: Any) -> None:
    """A capacity: a quantity that is not negative."""
    try:
        if quantity.parse(value) < 0:
            errors.invalid(path, value, "must be greater than or equal to 0")
    except InvalidQuantity as error:
        errors.invalid(path, value, error.problem)
