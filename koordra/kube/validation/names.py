"""Forms of names in the Kubernetes API: labels, subdomains, qualified names, drivers, attributes."""

from __future__ import annotations

import re
from typing import Any, Final

from koordra.kube.validation.field_errors import FieldErrors

_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_QUALIFIED: Final = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

LABEL_TEXT: Final = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an"
    " alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
SUBDOMAIN_TEXT: Final = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end"
    " with an alphanumeric character (e.g. 'example.com', regex used for validation is"
    " '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
QUALIFIED_TEXT: Final = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric"
    " character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is"
    " '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
LABEL_VALUE_TEXT: Final = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end"
    " with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is"
    " '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
IDENTIFIER_TEXT: Final = (
    "a valid C identifier must start with alphabetic character or '_', followed by a string of alphanumeric characters or '_'"
    " (e.g. 'my_name',  or 'MY_NAME',  or 'MyName', regex used for validation is '[A-Za-z_][A-Za-z0-9_]*')"
)


def is_label(text: str) -> bool:
    return len(text) <= 63 and _LABEL.fullmatch(text) is not None


def is_subdomain(text: str, limit: int = 253) -> bool:
    return len(text) <= limit and _SUBDOMAIN.fullmatch(text) is not None


def label(errors: FieldErrors, path: str, value: Any) -> None:
    """A DNS label: device, request, counter and counter-set names."""
    if not value:
        errors.required(path)
    elif len(value) > 63:
        errors.invalid(path, value, "must be no more than 63 characters")
    elif not is_label(value):
        errors.invalid(path, value, LABEL_TEXT)


def request(errors: FieldErrors, path: str, value: Any) -> None:
    """The name of a request or an alternative; an empty one is a wrong one."""
    if not value:
        errors.invalid(path, "", LABEL_TEXT)
    else:
        label(errors, path, value)


def subdomain(errors: FieldErrors, path: str, value: Any, limit: int = 253) -> None:
    if not value:
        errors.required(path)
    elif len(value) > limit:
        errors.too_long(path, limit)
    elif not is_subdomain(value, limit):
        errors.invalid(path, value, SUBDOMAIN_TEXT)


def driver(errors: FieldErrors, path: str, value: Any) -> None:
    """A DRA driver name: a lower-case DNS subdomain of at most 63 characters."""
    subdomain(errors, path, value, 63)


def qualified_key(errors: FieldErrors, path: str, value: str) -> None:
    """A label or annotation key, a taint key, a condition type: optional domain and name."""
    prefix, slash, name = value.rpartition("/")
    if slash and not is_subdomain(prefix):
        errors.invalid(path, value, "prefix part " + (SUBDOMAIN_TEXT if prefix else "must be non-empty"))
    if not name:
        errors.invalid(path, value, "name part must be non-empty")
    elif len(name) > 63:
        errors.invalid(path, value, "name part must be no more than 63 characters")
    elif _QUALIFIED.fullmatch(name) is None:
        errors.invalid(path, value, QUALIFIED_TEXT)


def label_value(errors: FieldErrors, path: str, value: str) -> None:
    if len(value) > 63:
        errors.invalid(path, value, "must be no more than 63 characters")
    elif value and _QUALIFIED.fullmatch(value) is None:
        errors.invalid(path, value, LABEL_VALUE_TEXT)


def attribute_name(errors: FieldErrors, path: str, value: str, *, domain_required: bool = False) -> None:
    """An attribute or capacity name: optional domain of at most 63 characters and a C identifier of at most
    32."""
    if not value:
        errors.required(path, "name required")
        return
    domain, slash, name = value.partition("/")
    if not slash:
        if domain_required:
            errors.invalid(
                path, value, "a fully qualified name must be a domain and a name separated by a slash"
            )
            return
        domain, name = "", value
    elif not is_subdomain(domain, 63):
        errors.invalid(path, domain, SUBDOMAIN_TEXT if domain else "the domain must not be empty")
    if len(name) > 32:
        errors.too_long(path, 32)
    elif _IDENTIFIER.fullmatch(name) is None:
        errors.invalid(path, name, IDENTIFIER_TEXT)


def extended_resource(errors: FieldErrors, path: str, value: str) -> None:
    """Of somebody's domain, as pods ask for it and quotas name it."""
    of_quotas = FieldErrors()
    qualified_key(of_quotas, path, f"requests.{value}")
    is_native = "/" not in value or "kubernetes.io/" in value
    if is_native or value.startswith("requests.") or of_quotas.found:
        errors.invalid(path, value, "must be a valid extended resource name")
