"""Kubernetes' named formats in CEL: `format.dns1123Label().validate("a.b")` is none, or what is wrong with
it.

Messages are Kubernetes' own, since an expression can read them. Source:
k8s.io/apiserver/pkg/cel/library/format.go, apimachinery's validation and kube-openapi's strfmt.
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Callable
from typing import Final

from koordra.cel.functions.urls import is_url

_Check = Callable[[str], list[str]]
"""What is wrong with a text; nothing where it has the format."""

_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN: Final = rf"{_LABEL}(\.{_LABEL})*"
_LABEL_1035: Final = "[a-z]([-a-z0-9]*[a-z0-9])?"
_NAME: Final = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_ENDS: Final = "must start and end with an alphanumeric character"


def _matches(pattern: str, text: str) -> bool:
    return re.fullmatch(pattern, text, re.ASCII) is not None


def _regex_error(message: str, pattern: str, *examples: str) -> str:
    shown = " or ".join(f"'{example}', " for example in examples)
    return f"{message} (e.g. {shown}regex used for validation is '{pattern}')"


def _too_long(text: str, most: int) -> list[str]:
    return [f"must be no more than {most} characters"] if len(text.encode()) > most else []


def _of_pattern(pattern: str, most: int, why: str, *examples: str) -> _Check:
    def check(text: str) -> list[str]:
        found = _too_long(text, most)
        return found if _matches(pattern, text) else [*found, _regex_error(why, pattern, *examples)]

    return check


_dns_subdomain = _of_pattern(
    _SUBDOMAIN,
    253,
    f"a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and {_ENDS}",
    "example.com",
)
_dns_1035_label = _of_pattern(
    _LABEL_1035,
    63,
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic "
    "character, and end with an alphanumeric character",
    "my-name",
    "abc-123",
)
_label_value = _of_pattern(
    f"({_NAME})?",
    63,
    f"a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and {_ENDS}",
    "MyValue",
    "my_value",
    "12345",
)


def _dns_label(text: str) -> list[str]:
    if _matches(_SUBDOMAIN, text) and not _matches(_LABEL, text):
        return [*_too_long(text, 63), "must not contain dots"]
    why = f"a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and {_ENDS}"
    return _of_pattern(_LABEL, 63, why, "my-name", "123-abc")(text)


def _qualified_name(text: str) -> list[str]:
    why = f"must consist of alphanumeric characters, '-', '_' or '.', and {_ENDS}"
    pattern, examples = _NAME, ("MyName", "my.name", "123-abc")
    prefix, slash, name = text.rpartition("/")
    found: list[str] = []
    if slash:
        if "/" in prefix:
            error = _regex_error(why, pattern, *examples)
            form = "with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            return [f"a valid label key {error} {form}"]
        if not prefix:
            found.append("prefix part must be non-empty")
        found += [f"prefix part {each}" for each in (_dns_subdomain(prefix) if prefix else ())]
    if not name:
        found.append("name part must be non-empty")
    found += [f"name part {each}" for each in _too_long(name, 63)]
    if not _matches(pattern, name):
        found.append(f"name part {_regex_error(why, pattern, *examples)}")
    return found


def _prefix(check: _Check) -> _Check:
    """For the beginning of a generated name, which may end in a dash."""

    def checked(text: str) -> list[str]:
        return check(f"{text[:-2]}a" if len(text) > 1 and text.endswith("-") else text)

    return checked


def _simple(message: str, holds: Callable[[str], bool]) -> _Check:
    return lambda text: [] if holds(text) else [message]


def _is_date(text: str) -> bool:
    if not _matches(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text):
        return False
    year, month, day = map(int, text.split("-"))
    return 1 <= month <= 12 and 1 <= day <= calendar.monthrange(year, month)[1]


def _is_datetime(text: str) -> bool:
    date, mark, rest = text.lower().partition("t")
    found = re.fullmatch(
        r"([0-9]{2}):([0-9]{2}):([0-9]{2})(.[0-9]+)?(z|([+-][0-9]{2}:[0-9]{2}))", rest.split("t")[0], re.ASCII
    )
    if not mark or not _is_date(date) or found is None:
        return False
    hour, minute, second = found.group(1, 2, 3)
    return hour <= "23" and minute <= "59" and second <= "59"


_BASE64: Final = "[A-Za-z0-9+/]"
_HEX: Final = "[0-9A-Fa-f]"

FORMATS: Final[dict[str, _Check]] = {
    "dns1123Label": _dns_label,
    "dns1123Subdomain": _dns_subdomain,
    "dns1035Label": _dns_1035_label,
    "qualifiedName": _qualified_name,
    "dns1123LabelPrefix": _prefix(_dns_label),
    "dns1123SubdomainPrefix": _prefix(_dns_subdomain),
    "dns1035LabelPrefix": _prefix(_dns_1035_label),
    "labelValue": _label_value,
    "uri": _simple("invalid URI", is_url),
    "uuid": _simple(
        "does not match the UUID format",
        lambda text: _matches(f"{_HEX}{{8}}(-?{_HEX}{{4}}){{3}}-?{_HEX}{{12}}", text),
    ),
    "byte": _simple(
        "invalid base64",
        lambda text: _matches(
            rf"(?:{_BASE64}{{4}})*(?:{_BASE64}{{2}}==|{_BASE64}{{3}}=|{_BASE64}{{4}})", text
        ),
    ),
    "date": _simple("invalid date", _is_date),
    "datetime": _simple("invalid datetime", _is_datetime),
}
