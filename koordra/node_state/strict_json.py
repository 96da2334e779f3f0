"""Decoding of JSON documents with exactly the known fields. Every function raises ValueError naming the
field."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

from koordra.topology.machine import DeviceNode

Value = TypeVar("Value")


def encode(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, indent=1).encode() + b"\n"


def load(data: bytes) -> Any:
    try:
        return json.loads(data)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def fields(item: Any, where: str, expected: str) -> Mapping[str, Any]:
    """A JSON object with exactly the expected fields (their names, separated by blanks)."""
    found: dict[str, Any] = typed(item, dict, where)
    for name in sorted(found.keys() ^ set(expected.split())):
        raise ValueError(f"{where}.{name}: {'not a field of this schema' if name in found else 'missing'}")
    return found


def typed(item: Any, kind: type[Value], where: str) -> Value:
    if not isinstance(item, kind) or (kind is int and isinstance(item, bool)):
        raise ValueError(f"{where}: expected {kind.__name__}, found {type(item).__name__}")
    return item


def text(item: Any, where: str) -> str:
    """Text that is not empty."""
    if not typed(item, str, where):
        raise ValueError(f"{where}: empty")
    return str(item)


def optional(item: Any, kind: type[Value], where: str) -> Value | None:
    return None if item is None else typed(item, kind, where)


def items(item: Any, where: str) -> list[Any]:
    return typed(item, list, where)


def texts(item: Any, where: str) -> tuple[str, ...]:
    return tuple(text(each, where) for each in items(item, where))


def one_of(item: Any, allowed: frozenset[str], where: str) -> str:
    if typed(item, str, where) not in allowed:
        raise ValueError(f"{where}: {item!r} is none of {', '.join(sorted(allowed))}")
    return str(item)


def same(item: Any, expected: str, where: str) -> None:
    if item != expected:
        raise ValueError(f"{where}: {item!r}, expected {expected!r}")


_NODE_TYPES = frozenset({"c", "b"})


def device_nodes(item: Any, where: str) -> tuple[DeviceNode, ...]:
    """A list of `{"path", "type", "major", "minor"}` with absolute paths."""
    nodes = []
    for each in items(item, where):
        entry = fields(each, where, "path type major minor")
        path = text(entry["path"], f"{where}.path")
        if not path.startswith("/"):
            raise ValueError(f"{where}.path: {path!r} is not absolute")
        nodes.append(
            DeviceNode(
                path=path,
                major=typed(entry["major"], int, f"{where}.major"),
                minor=typed(entry["minor"], int, f"{where}.minor"),
                type=one_of(entry["type"], _NODE_TYPES, f"{where}.type"),
            )
        )
    return tuple(nodes)
