"""Classic named-resources selectors in the words of v1.

A v1alpha2 selector reads `attributes.<type>["<name>"]`, where the name is a DNS subdomain of the driver's own choice. In v1
a device has typed attributes and capacities under a domain, so the type goes and the name finds a domain:

    attributes.string["model"]               device.attributes["<driver>"].model
    attributes.quantity["memory"]            device.capacity["<driver>"].memory         amounts are capacities now
    attributes.version["driver.example.com"] device.attributes["example.com"].driver    the rest of the name is the domain
    attributes.stringslice["modes"]          device.attributes["<driver>"].modes        list attributes: a gate that is off

What cannot be named in v1 (a hyphen in the identifier, longer than 32) is refused. Text inside string literals stays.
"""

from __future__ import annotations

import re
from typing import Final

from koordra.api.classic.notes import Notes

_PLACES: Final = {
    "quantity": "capacity",
    "bool": "attributes",
    "int": "attributes",
    "string": "attributes",
    "version": "attributes",
    "intslice": "attributes",
    "stringslice": "attributes",
}
_LISTS: Final = frozenset({"intslice", "stringslice"})
_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}")
_TOKEN: Final = re.compile(
    r"""(?P<read>(?<![\w.])attributes\s*\.\s*(?P<type>\w+)\s*\[\s*(?P<quote>["'])(?P<name>[^"']*)(?P=quote)\s*\])"""
    r"""|(?P<text>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')"""
    r"""|(?P<bare>(?<![\w.])attributes(?!\w))"""
)


def rewritten(expression: str, *, driver: str, notes: Notes, field: str) -> str:
    """The v1 form of a classic selector. Raises Refused, naming what has no v1 form."""

    def replace(found: re.Match[str]) -> str:
        if found["text"]:
            return found["text"]
        if found["bare"]:
            raise notes.refuse(
                field,
                f"attributes is read as a whole in {expression!r}",
                'read single attributes: attributes.string["name"]',
            )
        return _read(found["type"], found["name"], driver=driver, notes=notes, field=field)

    return _TOKEN.sub(replace, expression)


def _read(kind: str, name: str, *, driver: str, notes: Notes, field: str) -> str:
    place = _PLACES.get(kind)
    if place is None:
        raise notes.refuse(field, f"attributes.{kind} is no type", f"types are {', '.join(_PLACES)}")
    identifier, _, rest = name.partition(".")
    if not _IDENTIFIER.fullmatch(identifier):
        raise notes.refuse(
            field,
            f"attribute {name!r} has no name in v1",
            "find the name the driver publishes now: a C identifier of at most 32 characters",
        )
    if kind in _LISTS:
        notes.warn(
            field,
            f"attribute {name!r} is a list",
            "list attributes need the feature gate DRAListTypeAttributes; else read a scalar the driver publishes",
        )
    domain = rest or driver
    if rest:
        notes.warn(
            field,
            f"attribute {name!r} is taken for {identifier!r} in the domain {rest!r}",
            "check it against the driver's ResourceSlices",
        )
    return f'device.{place}["{domain}"].{identifier}'
