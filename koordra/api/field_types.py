"""The types of the fields of objects, as tables, each value that is of another type, and each field that
there is not.

An API server checks this; a manifest file has not been through one, and a number where a text belongs would
be carried on unseen. A table has a line for each type.

    Type: field type, ...     types: text, whole, truth, amount (text or number), open (anything), Name,
                              []Name, {}Name
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

Types = Mapping[str, Mapping[str, str]]
"""Type -> field -> the field's type."""

_SCALARS: Final[Mapping[str, tuple[tuple[type, ...], str, str]]] = {
    "text": ((str,), "a text", "quote it"),
    "whole": ((int,), "a whole number", "write it without quotes"),
    "truth": ((bool,), "true or false", "write it without quotes"),
    "amount": ((str, int, float), "a quantity", "write it like 16Gi"),
}


def parse_types(table: str) -> Types:
    rows = (row.partition(": ") for row in table.strip().splitlines())
    return {
        name: {field: kind for field, _, kind in (part.partition(" ") for part in fields.split(", "))}
        for name, _, fields in rows
    }


def wrong_fields(value: Any, kind: str, types: Types, *, path: str = "") -> Iterator[tuple[str, str, str]]:
    """(path, problem, remedy) of every field whose value is not of its type. A null field is one that is not
    there; an entry of a list or map cannot be null."""
    if kind == "open":
        return
    if kind in _SCALARS:
        accepted, wanted, remedy = _SCALARS[kind]
        if not isinstance(value, accepted) or (isinstance(value, bool) and kind != "truth"):
            yield path, f"{_shown(value)} is not {wanted}", remedy
    elif kind.startswith("[]"):
        if not isinstance(value, list):
            yield path, f"{_shown(value)} is not a list", "write a list, each entry after a '-'"
            return
        for index, entry in enumerate(value):
            yield from wrong_fields(entry, kind[2:], types, path=f"{path}[{index}]")
    elif not isinstance(value, Mapping):
        yield path, f"{_shown(value)} is not an object", "write fields with their values"
    elif kind.startswith("{}"):
        for name, entry in value.items():
            yield from wrong_fields(name, "text", types, path=path)
            yield from wrong_fields(entry, kind[2:], types, path=f"{path}[{name}]")
    else:
        for name, inner in types.get(kind, {}).items():
            if value.get(name) is not None:
                yield from wrong_fields(value[name], inner, types, path=f"{path}.{name}" if path else name)


def unknown_fields(value: Any, kind: str, types: Types, *, path: str = "") -> Iterator[str]:
    """The path of every field that its type does not have. What is no type of the table, or a map of such, is
    not looked into."""
    shape, kind = kind[:2], kind.removeprefix("[]")
    if kind not in types:
        return
    if shape == "[]":
        for index, entry in enumerate(value if isinstance(value, list) else ()):
            yield from unknown_fields(entry, kind, types, path=f"{path}[{index}]")
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            here = f"{path}.{name}" if path else str(name)
            if name not in types[kind]:
                yield here
            else:
                yield from unknown_fields(inner, types[kind][name], types, path=here)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:36]} ..."
