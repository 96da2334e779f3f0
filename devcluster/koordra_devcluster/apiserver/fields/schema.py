"""Field tables of API types: strict decoding, merge keys and OpenAPI come from one compact notation.

    Type: field type, field! type, ...      `!` = required
    string int float bool any               JSON scalars; `any` is kept verbatim
    quantity time microtime                 normalised on the way in, as the real server prints them
    Name  []Name  {}Name                    object, list, map with string keys
    []Name<key>                             list merged by `key` in strategic merge patch and server-side
                                            apply
    []string<>                              list of scalars merged as a set
    []Name(k1,k2)                           list with map keys for server-side apply only

`decode` walks a value along its type. Unknown fields are collected, not raised: the caller refuses them
(fieldValidation=Strict), warns, or drops them. Fields behind feature gates that are off by default in 1.37
are dropped without a word, as the real server does. Empty lists and maps and nulls vanish, as with Go's
`omitempty`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from typing import Any, Final

from koordra.errors import InvalidInput, InvalidQuantity
from koordra.kube.validation.refusal import QUANTITY_TEXT
from koordra_devcluster.apiserver.fields.admin import ADMIN
from koordra_devcluster.apiserver.fields.core import CORE
from koordra_devcluster.apiserver.fields.quantities import canonical
from koordra_devcluster.apiserver.fields.resource import RESOURCE

GATED_OFF: Final = frozenset(
    {
        ("ExactDeviceRequest", "derivedAttributes"),
        ("DeviceSubRequest", "derivedAttributes"),
        ("ResourceSliceSpec", "partitionTypeAttribute"),
        ("ResourceSliceSpec", "skipNodeOperations"),
        ("DeviceRequestAllocationResult", "skipNodeOperations"),
        ("DeviceCounterConsumption", "compatibilityGroups"),
        ("Device", "nodeAllocatableResources"),
        ("DeviceAttribute", "bools"),
        ("DeviceAttribute", "ints"),
        ("DeviceAttribute", "strings"),
        ("DeviceAttribute", "versions"),
    }
)


@dataclass(frozen=True, slots=True)
class FieldType:
    """`base` is a scalar or a type name; `shape` one of "", "[]" and "{}"."""

    base: str
    shape: str = ""
    merge_key: str | None = None
    list_keys: tuple[str, ...] = ()
    required: bool = False


ObjectType = Mapping[str, FieldType]

_TYPE = re.compile(r"(?P<shape>\[\]|\{\})?(?P<base>\w+)(?:<(?P<merge>\w*)>|\((?P<keys>[\w,]+)\))?")


def parse(table: str) -> dict[str, ObjectType]:
    """The types of a table in the notation above."""
    types: dict[str, ObjectType] = {}
    for row in table.strip().replace("\n    ", " ").splitlines():
        name, _, fields = row.partition(": ")
        types[name] = dict(_parse_field(text) for text in fields.split(", "))
    return types


def _parse_field(text: str) -> tuple[str, FieldType]:
    name, _, notation = text.partition(" ")
    found = _TYPE.fullmatch(notation)
    if found is None:
        raise ValueError(f"field table: {text!r}")
    merge = found["merge"]
    keys = tuple(found["keys"].split(",")) if found["keys"] else ((merge,) if merge else ())
    return name.rstrip("!"), FieldType(
        found["base"], found["shape"] or "", merge_key=merge, list_keys=keys, required=name.endswith("!")
    )


@cache
def types() -> Mapping[str, ObjectType]:
    """Every type that the server knows."""
    return parse(CORE) | parse(RESOURCE) | parse(ADMIN)


class Undecodable(InvalidInput):
    """A value of the wrong JSON type; the server answers 400."""


@dataclass(slots=True)
class Decoder:
    """Decodes one object; `unknown` holds the paths of the fields that the type does not have."""

    kind: str
    unknown: list[str] = field(default_factory=list)

    def decode(self, type_name: str, value: Any) -> dict[str, Any]:
        """The object with known fields only, normalised. Raises Undecodable."""
        return self._object(type_name, value, "")

    def _object(self, type_name: str, value: Any, path: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self._mismatch(value, path, type_name)
        fields = types()[type_name]
        decoded: dict[str, Any] = {}
        for name, inner in value.items():
            here = f"{path}.{name}" if path else name
            known = fields.get(name)
            if known is None:
                self.unknown.append(here)
            elif inner is not None and (type_name, name) not in GATED_OFF:
                result = self._value(known, inner, here)
                if not (known.shape and len(result) == 0):
                    decoded[name] = result
        return decoded

    def _value(self, known: FieldType, value: Any, path: str) -> Any:
        if known.shape == "[]":
            if not isinstance(value, list):
                raise self._mismatch(value, path, "[]" + known.base)
            return [self._single(known.base, item, f"{path}[{index}]") for index, item in enumerate(value)]
        if known.shape == "{}":
            if not isinstance(value, dict):
                raise self._mismatch(value, path, "map[string]" + known.base)
            return {key: self._single(known.base, item, f"{path}.{key}") for key, item in value.items()}
        return self._single(known.base, value, path)

    def _single(self, base: str, value: Any, path: str) -> Any:
        scalar = _SCALARS.get(base)
        if scalar is None:
            return self._object(base, value, path)
        try:
            return scalar(value)
        except TypeError:
            raise self._mismatch(value, path, base) from None
        except InvalidQuantity as error:
            raise Undecodable(QUANTITY_TEXT) from error
        except InvalidInput as error:
            raise Undecodable(f"{self.kind}.{path}: {error.problem}") from error

    def _mismatch(self, value: Any, path: str, wanted: str) -> Undecodable:
        got = {
            bool: "bool",
            int: "number",
            float: "number",
            str: "string",
            list: "array",
            dict: "object",
        }.get(type(value), "null")
        where = f"{self.kind}.{path}" if path else self.kind
        return Undecodable(f"json: cannot unmarshal {got} into Go struct field {where} of type {wanted}")


def _typed(*accepted: type) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if type(value) not in accepted:
            raise TypeError
        return value

    return check


_RFC3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)")


def _instant(value: Any) -> datetime:
    if not isinstance(value, str):
        raise TypeError
    if _RFC3339.fullmatch(value) is None:
        raise InvalidInput(f'parsing time "{value}" as "2006-01-02T15:04:05Z07:00": cannot parse')
    try:
        return datetime.fromisoformat(value.upper()).astimezone(UTC)
    except ValueError as error:
        raise InvalidInput(f'parsing time "{value}": {error}') from error


def format_time(instant: datetime) -> str:
    """metav1.Time: whole seconds, UTC."""
    return instant.strftime("%Y-%m-%dT%H:%M:%SZ")


def format_microtime(instant: datetime) -> str:
    """metav1.MicroTime."""
    return instant.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _quantity(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise TypeError
    return canonical(str(value))


_SCALARS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "string": _typed(str),
    "int": _typed(int),
    "float": _typed(int, float),
    "bool": _typed(bool),
    "any": lambda value: value,
    "time": lambda value: format_time(_instant(value)),
    "microtime": lambda value: format_microtime(_instant(value)),
    "quantity": _quantity,
}
