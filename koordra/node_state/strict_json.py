"""Frozen dataclasses as JSON documents, read strictly: exactly the known fields, each of its type.

A `Codec` reads and writes one type of value. `record` makes that of a dataclass from a table of its
fields, by their names in the document; a field is the attribute of that name (`shareID` is `share_id`),
unless the table names another. Reading raises ValueError naming the field: `devices[0].uuid: expected str,
found int`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final, Generic, TypeVar

from koordra.api.reader import snake_case
from koordra.topology.location import DeviceNode

T = TypeVar("T")
Pairs = tuple[tuple[str, str], ...]
"""An object whose values are strings, or a list of pairs: variables, amounts, routes."""
Word = TypeVar("Word", bound=StrEnum)


@dataclass(frozen=True, slots=True)
class Codec(Generic[T]):
    """`read` gets the JSON value and where it stands in the document; `lacking` is the value of a field that
    a document may lack (`later`)."""

    read: Callable[[Any, str], T]
    write: Callable[[T], Any] = lambda value: value
    lacking: tuple[T, ...] = ()


Table = Mapping[str, Codec[Any] | tuple[str, Codec[Any]]]
"""Name in the document -> the field's codec, with the attribute where that has another name."""


def typed(item: Any, kind: type[T], where: str) -> T:
    if not isinstance(item, kind) or (kind is int and isinstance(item, bool)):
        raise ValueError(f"{where}: expected {kind.__name__}, found {type(item).__name__}")
    return item


def plain(kind: type[T], valid: Callable[[T], bool] = lambda _: True, otherwise: str = "") -> Codec[T]:
    """JSON's own type; a value that is not valid is refused with the text `otherwise`."""

    def read(item: Any, where: str) -> T:
        if not valid(typed(item, kind, where)):
            raise ValueError(f"{where}: {otherwise.format(item)}")
        return item  # type: ignore[no-any-return]

    return Codec(read)


STRING: Final = plain(str)
TEXT: Final = plain(str, bool, "empty")
BOOLEAN: Final = plain(bool)
INTEGER: Final = plain(int)


def one_of(words: frozenset[str]) -> Codec[str]:
    return plain(str, words.__contains__, f"{{!r}} is none of {', '.join(sorted(words))}")


def word(kind: type[Word]) -> Codec[Word]:
    words = one_of(frozenset(kind))
    return Codec(lambda item, where: kind(words.read(item, where)), lambda value: value.value)


def optional(codec: Codec[T]) -> Codec[T | None]:
    return Codec(
        lambda item, where: None if item is None else codec.read(item, where),
        lambda value: None if value is None else codec.write(value),
    )


def later(codec: Codec[T], lacking: T) -> Codec[T]:
    """A field that documents of an earlier koordra do not have; these stand for `lacking`. It is not written
    where it has that value, so that the earlier koordra reads what does not use it."""
    return replace(codec, lacking=(lacking,))


def listed(codec: Codec[T]) -> Codec[tuple[T, ...]]:
    return Codec(
        lambda item, where: tuple(
            codec.read(each, f"{where}[{index}]") for index, each in enumerate(typed(item, list, where))
        ),
        lambda values: [codec.write(value) for value in values],
    )


def _pair(item: Any, where: str) -> tuple[str, str]:
    first, second = listed(STRING).read(item, where)
    return first, second


PAIR: Final = Codec(_pair, list)


def mapping(codec: Codec[T]) -> Codec[tuple[tuple[str, T], ...]]:
    """An object of any names; a tuple of pairs in Python."""
    return Codec(
        lambda item, where: tuple(
            (name, codec.read(value, f"{where}[{name}]")) for name, value in typed(item, dict, where).items()
        ),
        lambda pairs: {name: codec.write(value) for name, value in pairs},
    )


def record(made: Callable[..., T], table: Table, *, schema: str | None = None) -> Codec[T]:
    """The codec of a dataclass. A document's own record has its schema as the first field."""
    fields = {
        name: codec if isinstance(codec, tuple) else (snake_case(name), codec)
        for name, codec in table.items()
    }
    head = {} if schema is None else {"schema": schema}

    def read(item: Any, where: str) -> T:
        found = typed(item, dict, where or "record")
        for name in sorted(found.keys() ^ {*head, *fields}):
            if name in found:
                raise ValueError(f"{where or 'record'}.{name}: not a field of this schema")
            if name in head or not fields[name][1].lacking:
                raise ValueError(f"{where or 'record'}.{name}: missing")
        if head and found["schema"] != schema:
            raise ValueError(f"schema: {found['schema']!r}, expected {schema!r}")
        place = f"{where}." if where else ""
        return made(
            **{
                attribute: codec.read(found[name], place + name) if name in found else codec.lacking[0]
                for name, (attribute, codec) in fields.items()
            }
        )

    return Codec(
        read,
        lambda value: (
            head
            | {
                name: codec.write(getattr(value, attribute))
                for name, (attribute, codec) in fields.items()
                if getattr(value, attribute) not in codec.lacking
            }
        ),
    )


def document(
    made: Callable[..., T], schema: str, table: Table
) -> tuple[Callable[[T], bytes], Callable[[bytes], T]]:
    """The encoder and the decoder of a file that holds one record."""
    codec = record(made, table, schema=schema)
    return lambda value: encode(codec.write(value)), lambda data: codec.read(load(data), "")


def encode(item: Mapping[str, Any]) -> bytes:
    return json.dumps(item, indent=1).encode() + b"\n"


def load(data: bytes) -> Any:
    try:
        return json.loads(data)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


DEVICE_NODES: Final = listed(
    record(
        DeviceNode,
        {
            "path": plain(str, lambda path: path.startswith("/"), "{!r} is not absolute"),
            "type": one_of(frozenset({"c", "b"})),
            "major": INTEGER,
            "minor": INTEGER,
        },
    )
)
