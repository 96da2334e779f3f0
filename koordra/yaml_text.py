"""YAML as Kubernetes reads it, from whoever wrote it.

Dates, `12:30` and `=` are texts, as in JSON. Refused is what would cost more than it says: levels that a
parser written in C follows until its stack ends, and aliases that stand for more than the text, or for
themselves.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

import yaml

from koordra.errors import InvalidManifest
from koordra.nesting import LEVELS

_SAFE: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_COLONS: Final = re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?$")
"""`12:30`, a number to base 60 for YAML 1.1 and a text for Kubernetes."""
_COMPACT: Final = re.compile(r"(?:[-?][ \t]+){N}".replace("N", str(LEVELS)))
"""`- - - x`: one level each."""
_NOT_JSON: Final = re.compile(r"\.(?:nan|inf)|!", re.IGNORECASE)
"""Part of every text that may stand for a number without digits, a set or bytes."""
_TAB: Final = re.compile(r"^ *\t", re.MULTILINE)
_FEW: Final = 10_000


class _Loader(_SAFE):  # type: ignore[misc]
    yaml_implicit_resolvers: Final = {
        first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith((":timestamp", ":value"))]
        for first, resolvers in _SAFE.yaml_implicit_resolvers.items()
    }


for _first in "+-0123456789":
    _Loader.yaml_implicit_resolvers[_first].insert(0, ("tag:yaml.org,2002:str", _COLONS))


def read_yaml(text: str, *, source: str) -> list[Any]:
    """Every document of the text. Raises InvalidManifest that names `source`."""
    try:
        if _may_be_deep(text) and _is_deep(text):
            raise InvalidManifest(
                f"is nested more than {LEVELS} levels", object=source, remedy="write it with fewer"
            )
        found = list(yaml.load_all(text, Loader=_Loader))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        told = " ".join(str(error).replace('in "<unicode string>", ', "at ").split())
        remedy = "indent with blanks, not with tabs" if _TAB.search(text) else ""
        raise InvalidManifest(f"is not YAML: {told}", object=source, remedy=remedy) from error
    if "&" in text:
        _check_aliases(found, len(text), source)
    if _NOT_JSON.search(text):
        try:
            json.dumps(found, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise InvalidManifest(
                f"cannot be JSON: {error}", object=source, remedy="use plain YAML values"
            ) from error
    return found


def read_document(text: str, *, source: str) -> Any:
    """The text's one document, None where it has none. Raises InvalidManifest likewise."""
    found = read_yaml(text, source=source)
    if len(found) > 1:
        raise InvalidManifest(
            f"has {len(found)} documents", object=source, remedy="write one, without a line ---"
        )
    return found[0] if found else None


def _may_be_deep(text: str) -> bool:
    return (
        max(text.count("["), text.count("{")) > LEVELS
        or " " * LEVELS in text
        or _COMPACT.search(text) is not None
    )


def _is_deep(text: str) -> bool:
    level = 0
    for event in yaml.parse(text, Loader=_SAFE):
        level += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if level > LEVELS:
            return True
    return False


def _check_aliases(documents: list[Any], length: int, source: str) -> None:
    sizes: dict[int, int] = {}

    def size(value: object) -> int:
        """Values in it, with those of aliases as often as they are named."""
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
        if inner is None:
            return 1
        if id(value) not in sizes:
            sizes[id(value)] = 0
            sizes[id(value)] = 1 + sum(map(size, inner))
        elif not sizes[id(value)]:
            raise InvalidManifest(
                "has an alias within what it stands for", object=source, remedy="write it out"
            )
        return sizes[id(value)]

    if size(documents) > max(_FEW, 10 * length):
        raise InvalidManifest("has aliases that stand for too much", object=source, remedy="write it out")
