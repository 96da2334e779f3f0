"""Kubernetes' functions over lists, and over strings that share a name with them, in CEL.

Elements are equal as in CEL: numbers by value, nothing else across types. Functions raise ValueError for what
is a run-time error in Kubernetes. Source: k8s.io/apiserver/pkg/cel/library/lists.go, cel-go's lists, sets and
two-variable extensions.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any, Final

from google.protobuf import duration_pb2, timestamp_pb2
from google.protobuf.message import Message

SPAN: Final[type[Any]] = type(duration_pb2.Duration().ToTimedelta())
MOMENT: Final[type[Any]] = type(timestamp_pb2.Timestamp().ToDatetime())
"""What durations and timestamps are to functions. Nobody here asks a clock."""

_COMPARABLE: Final = (int, float, str, bool, bytes, SPAN, MOMENT)
_SUMMABLE: Final = (int, float, SPAN)
_LARGEST: Final = 2**63


def plain(items: Any) -> list[Any]:
    return [_plain(item) for item in items]


def _plain(item: Any) -> Any:
    value = item.value() if hasattr(item, "plain_value") else item
    return bytes(value) if isinstance(value, bytearray) else value


def returned(value: Any) -> Any:
    """The value in a form that the CEL library takes back: times are messages on this way."""
    if isinstance(value, SPAN):
        span = duration_pb2.Duration()
        span.FromTimedelta(value)
        return span
    if isinstance(value, MOMENT):
        moment = timestamp_pb2.Timestamp()
        moment.FromDatetime(value)
        return moment
    if isinstance(value, list | tuple):
        return [returned(item) for item in plain(value)]
    if isinstance(value, Mapping):
        return {name: returned(item) for name, item in value.items()}
    return value


def equal(left: Any, right: Any) -> bool:
    """CEL's equality."""
    if isinstance(left, Message) or isinstance(right, Message):
        return type(left) is type(right) and bool(left == right)
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(equal, plain(left), plain(right)))
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return len(left) == len(right) and all(
            name in right and equal(value, right[name]) for name, value in left.items()
        )
    return isinstance(left, bool) == isinstance(right, bool) and bool(left == right)


def _of_one_kind(items: Any, kinds: tuple[type, ...]) -> list[Any]:
    found = plain(items)
    if found and not any(all(type(item) is kind for item in found) for kind in kinds):
        raise ValueError("no such overload: the elements are not all of one comparable type")
    return found


def extreme(name: str, choose: Callable[[list[Any]], Any]) -> Callable[[Any], Any]:
    def found(items: Any) -> Any:
        compared = _of_one_kind(items, _COMPARABLE)
        if not compared:
            raise ValueError(f"{name} called on empty list")
        return choose(compared)

    return found


def is_sorted(items: Any) -> bool:
    return all(one <= other for one, other in itertools.pairwise(_of_one_kind(items, _COMPARABLE)))


def total(items: Any) -> Any:
    added = _of_one_kind(items, _SUMMABLE)
    if added and isinstance(added[0], SPAN):
        return sum(added, SPAN())
    found = sum(added)
    if isinstance(found, int) and not -_LARGEST <= found < _LARGEST:
        raise ValueError("integer overflow")
    return found


def flattened(items: Any, depth: int = 1) -> list[Any]:
    if depth < 0:
        raise ValueError("level must be non-negative")
    found: list[Any] = []
    for item in plain(items):
        if isinstance(item, list | tuple) and depth:
            found += flattened(item, depth - 1)
        else:
            found.append(item)
    return found


def counted(number: int) -> list[int]:
    if number > 1_000_000:
        raise ValueError("operation cancelled: actual cost limit exceeded")
    return list(range(number))


def backwards(items: Any) -> list[Any]:
    return plain(items)[::-1]


def index_of(items: Any, wanted: Any) -> int:
    return next((at for at, item in enumerate(plain(items)) if equal(item, wanted)), -1)


def last_index_of(items: Any, wanted: Any) -> int:
    found = plain(items)
    return next((at for at in reversed(range(len(found))) if equal(found[at], wanted)), -1)


def text_index_of(text: str, wanted: str, offset: int = 0) -> int:
    if not wanted:
        return offset
    if offset < 0:
        raise ValueError(f"index out of range: {offset}")
    return text.find(wanted, offset)


def text_last_index_of(text: str, wanted: str, offset: int | None = None) -> int:
    if not wanted:
        return len(text) if offset is None else offset
    if offset is None:
        return text.rfind(wanted)
    if offset < 0:
        raise ValueError(f"index out of range: {offset}")
    return -1 if offset >= len(text) else text.rfind(wanted, 0, offset + len(wanted))


def merged(maps: Any) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for entries in plain(maps):
        if not isinstance(entries, Mapping):
            raise ValueError("no such overload: an entry is a map")
        for name, value in entries.items():
            if name in found:
                raise ValueError(f"insert failed: key {name} already exists")
            found[name] = value
    return found
