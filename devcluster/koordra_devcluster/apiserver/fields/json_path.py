"""The JSONPath of printer columns: `.metadata.name`, `.a[0].b`,
`.status.conditions[?(@.type=="Ready")].status`."""

from __future__ import annotations

import re
from typing import Any, Final

_STEP: Final = re.compile(
    r"""\.(?P<field>[A-Za-z_][\w-]*)"""
    r"""|\[\?\(@\.(?P<key>[\w.-]+)\s*==\s*["'](?P<value>[^"']*)["']\)\]"""
    r"""|\[(?P<index>\d+)\]"""
    r"""|\['(?P<quoted>[^']+)'\]"""
)


def first(path: str, obj: Any) -> Any:
    """The first value at the path; None where there is none, or where the path is of a kind not known
    here."""
    position, found = 0, [obj]
    while position < len(path):
        step = _STEP.match(path, position)
        if step is None:
            return None
        position = step.end()
        found = [inner for value in found for inner in _step(step, value)]
    return found[0] if found else None


def _step(step: re.Match[str], value: Any) -> list[Any]:
    name = step["field"] or step["quoted"]
    if name is not None:
        return [value[name]] if isinstance(value, dict) and name in value else []
    if not isinstance(value, list):
        return []
    if step["index"] is not None:
        return value[int(step["index"]) :][:1]
    return [item for item in value if isinstance(item, dict) and str(item.get(step["key"])) == step["value"]]
