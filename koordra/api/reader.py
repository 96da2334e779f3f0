"""Reading one object of a manifest: its fields by name and type, with errors that name the object, the field
and the remedy.

    read = Reader.of(obj).inner("spec")
    read.text("driver"), read.whole("count"), [taint(each) for each in read.each("taints")]

A field that is absent, null or an empty text has its type's empty value, unless it is required. Paths are
made only for errors and for nested objects, since a cluster's slices hold millions of fields that are right.
"""

from __future__ import annotations

import marshal
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final

from koordra.api import objects
from koordra.api.objects import Fields
from koordra.effort import spend
from koordra.errors import InvalidInput, InvalidManifest, InvalidQuantity
from koordra.quantity import parse

LONGEST_CONTENT: Final = 16 << 10
"""Bytes. A published GPU has 2 to 4 KiB, a claim of the examples 1."""


class Reader:
    """`data` is the object itself, empty where it is absent; `field` where it stands in the manifest
    `object`."""

    __slots__ = ("data", "error", "field", "object")

    def __init__(
        self,
        data: object,
        *,
        object: str,
        field: str = "",
        error: Callable[..., InvalidInput] = InvalidManifest,
    ) -> None:
        self.object = object
        self.field = field
        self.error = error
        if data is not None and not isinstance(data, (dict, Mapping)):
            raise self.wrong("is not an object")
        self.data: Fields = {} if data is None else data

    @classmethod
    def of(cls, obj: Fields, *, error: Callable[..., InvalidInput] = InvalidManifest) -> Reader:
        return cls(obj, object=objects.describe(obj), error=error)

    @property
    def content(self) -> bytes:
        """Equal for data that is written alike, by which what was read can be kept.

        Empty where it is not plain JSON, or longer than what is worth keeping: a tenant writes claims of up
        to a megabyte.
        """
        try:
            content = marshal.dumps(self.data, 0)  # type: ignore[arg-type]
        except ValueError:
            return b""
        if len(content) <= LONGEST_CONTENT:
            return content
        spend(len(content) >> 10)
        return b""

    def place(self, name: str) -> str:
        dot = "." if self.field and name and not name.startswith("[") else ""
        return f"{self.field}{dot}{name}"

    def wrong(self, problem: str, remedy: str = "", *, at: str = "") -> InvalidInput:
        """The error to raise, about the field `at`, or about the object itself."""
        return self.error(problem, object=self.object, field=self.place(at), remedy=remedy)

    def _nested(self, data: object, name: str) -> Reader:
        return Reader(data, object=self.object, field=self.place(name), error=self.error)

    def over(self, data: Fields) -> Reader:
        """Of other data at the same place."""
        return Reader(data, object=self.object, field=self.field, error=self.error)

    def inner(self, name: str) -> Reader:
        return self._nested(self.data.get(name), name)

    def optional(self, name: str) -> Reader | None:
        """The object in a field, None where it is absent."""
        return None if self.data.get(name) is None else self.inner(name)

    def entries(self, name: str) -> Iterator[tuple[str, Reader]]:
        """The objects in a map, by key."""
        for key, value in self.inner(name).data.items():
            yield key, self._nested(value, f"{name}[{key}]")

    def each(self, name: str) -> Iterator[Reader]:
        for index, entry in enumerate(self.sequence(name)):
            yield self._nested(entry, f"{name}[{index}]")

    def sequence(self, name: str) -> Sequence[Any]:
        value = self.data.get(name)
        if value is None:
            return ()
        if not isinstance(value, list | tuple):
            raise self.wrong("is not a list", at=name)
        return value

    def text(self, name: str) -> str:
        return self._text(self.data.get(name), name, required=False)

    def required(self, name: str) -> str:
        """A text that is there."""
        return self._text(self.data.get(name), name, required=True)

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of texts, none of them empty."""
        return tuple(self._text(item, name, required=True) for item in self.sequence(name))

    def _text(self, value: object, name: str, *, required: bool) -> str:
        if value is None or value == "":
            if required:
                raise self.wrong("is missing", "write a name", at=name)
            return ""
        if not isinstance(value, str):
            raise self.wrong(f"{value!r} is not text", "quote it", at=name)
        return value

    def choice(
        self, name: str, allowed: Collection[str], *, problem: str = "is not allowed", remedy: str = ""
    ) -> str:
        """One of the words, or nothing where it is absent."""
        value = self.text(name)
        if value and value not in allowed:
            remedy = remedy or f"use one of {', '.join(allowed)}"
            raise self.wrong(f"{value!r} {problem}", remedy, at=name)
        return value

    def whole(self, name: str, *, default: int = 0) -> int:
        found = self.between(name)
        return default if found is None else found

    def between(self, name: str, low: int | None = None, high: int | None = None) -> int | None:
        """A whole number within bounds, None where it is absent."""
        value = self.data.get(name)
        if value is None:
            return None
        whole = isinstance(value, int) and not isinstance(value, bool)
        if not whole or (low is not None and value < low) or (high is not None and value > high):
            bounds = "" if low is None else f" from {low} up" if high is None else f" from {low} to {high}"
            remedy = "write one within the bounds" if bounds else ""
            raise self.wrong(f"{value!r} is not a whole number{bounds}", remedy, at=name)
        return int(value)

    def matching(self, name: str, pattern: re.Pattern[str], meaning: str) -> str | None:
        """A text of a form, None where it is absent."""
        value = self.data.get(name)
        if value is not None and (not isinstance(value, str) or not pattern.fullmatch(value)):
            raise self.wrong(f"{value!r} is not {meaning}", at=name)
        return value

    def flag(self, name: str) -> bool:
        value = self.data.get(name)
        if value is not None and not isinstance(value, bool):
            raise self.wrong(f"{value!r} is neither true nor false", at=name)
        return bool(value)

    def amount(self, name: str) -> Decimal:
        return self.quantity(self.data.get(name), at=name)

    def amount_or_none(self, name: str) -> Decimal | None:
        return None if self.data.get(name) is None else self.amount(name)

    def amounts(self, name: str) -> dict[str, Decimal]:
        return {
            key: self.quantity(value, at=f"{name}[{key}]") for key, value in self.inner(name).data.items()
        }

    def quantity(self, value: object, *, at: str) -> Decimal:
        try:
            return parse(value)
        except InvalidQuantity as error:
            raise self.wrong(error.problem, error.remedy, at=at) from error

    def only(
        self, *known: str, problem: str = "there is no such field", ignored: Collection[str] = ()
    ) -> None:
        """Raises for the first field that is not known."""
        for name in sorted(str(name) for name in self.data if name not in known and name not in ignored):
            raise self.wrong(problem, f"fields are {', '.join(known)}", at=name)


@lru_cache(maxsize=1024)
def snake_case(name: str) -> str:
    """The attribute for a field: `shareID` is `share_id`."""
    return re.sub(r"[A-Z]+", lambda capitals: f"_{capitals[0].lower()}", name)


def camel_case(name: str) -> str:
    """The field of an attribute: `share_id` is `shareId`."""
    return re.sub("_([a-z])", lambda part: part[1].upper(), name)
