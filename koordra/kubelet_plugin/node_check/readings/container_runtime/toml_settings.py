"""TOML files of a container runtime, with the line of every setting.

The standard library's parser knows no lines. Its answer is therefore joined with a second walk over the text,
statement by statement: a header or an assignment is as many lines as it takes until the parser accepts them
(arrays and texts may go over several), and the parser itself says which key a statement is of.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from koordra.kubelet_plugin.node_check.readings.host_files import HostFiles
from koordra.kubelet_plugin.node_check.readings.setting import Setting

Key = tuple[str, ...]
_MOST_LINES: Final = 200
"""Lines of one statement; of a longer one the line is not known."""


Settings = Mapping[Key, Setting]
"""Every value that is no table, by its whole key."""


@dataclass(frozen=True, slots=True)
class TomlFile:
    """`error` says why the file has no settings."""

    path: str
    settings: Settings = field(default_factory=dict)
    error: str = ""


def read_toml(root: HostFiles, path: str) -> TomlFile | None:
    """The file at that path below the root; None where there is none."""
    if not root.is_file(path):
        return None
    text, where = root.words(path), f"/{path.lstrip('/')}"
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        return TomlFile(where, error=str(error) or "it is nested too deeply")
    lines = dict(_lines(text))
    return TomlFile(
        where,
        {key: Setting(value, _at(where, lines, key)) for key, value in _values(document)},
    )


def _at(where: str, lines: Mapping[Key, int], key: Key) -> str:
    """The line of the key, or of the inline table that it is in."""
    known = (lines.get(key[:length]) for length in range(len(key), 0, -1))
    line = next(filter(None, known), None)
    return f"{where}:{line}" if line else where


def _values(document: Mapping[str, Any]) -> Iterator[tuple[Key, Any]]:
    waiting: list[tuple[Key, Any]] = [((), document)]
    while waiting:
        key, value = waiting.pop()
        if isinstance(value, dict):
            waiting += (((*key, name), inner) for name, inner in value.items())
        else:
            yield key, value


def _lines(text: str) -> Iterator[tuple[Key, int]]:
    """The key of every assignment, and its line; of the text of a whole TOML file."""
    lines, at = text.splitlines(), 0
    header: Key = ()
    while at < len(lines):
        stripped = lines[at].strip()
        if not stripped or stripped.startswith("#"):
            at += 1
            continue
        length, found = _statement(lines, at)
        if stripped.startswith("["):
            header = _only_key(found)
        elif found:
            yield (*header, *_only_key(found)), at + 1
        at += length


def _statement(lines: list[str], start: int) -> tuple[int, dict[str, Any]]:
    """How many lines the statement has, and what it says on its own; nothing for one that is too long."""
    for end in range(start + 1, min(len(lines), start + _MOST_LINES) + 1):
        try:
            return end - start, tomllib.loads("\n".join(lines[start:end]))
        except (ValueError, RecursionError):
            continue
    return 1, {}


def _only_key(document: dict[str, Any]) -> Key:
    """The dotted key of a document with one statement. An inline table's own keys belong to its value, but
    for the caller that looks for the longest known beginning of a key they do no harm."""
    key: list[str] = []
    inner: Any = document
    while isinstance(inner, dict) and len(inner) == 1:
        name, inner = next(iter(inner.items()))
        key.append(name)
        if isinstance(inner, list) and inner and isinstance(inner[0], dict):
            break
    return tuple(key)
