"""The macros of Kubernetes' CEL that bind variables, by name and number of arguments. Source: cel-go's parser and extensions."""

from __future__ import annotations

from typing import Final

from koordra.cel.syntax import Node

_VARIABLES: Final = {
    **{(name, 2): 1 for name in ("all", "exists", "exists_one", "existsOne", "map", "filter", "sortBy")},
    **{(name, 2): 1 for name in ("optMap", "optFlatMap")},
    ("map", 3): 1,
    **{(name, 3): 2 for name in ("all", "exists", "exists_one", "existsOne")},
    **{(name, n): 2 for name in ("transformList", "transformMap", "transformMapEntry") for n in (3, 4)},
}


def variables_of(node: Node) -> tuple[str, ...]:
    """The variables that a method binds in its further arguments; none where it is no macro."""
    if node.kind != "method":
        return ()
    names = node.parts[1 : 1 + _VARIABLES.get((node.text, len(node.parts) - 1), 0)]
    texts = tuple(name.text for name in names if name.kind == "name" and not name.text.startswith("."))
    return texts if len(set(texts)) == len(names) else ()


def is_bind(node: Node) -> bool:
    """`cel.bind(name, value, expression)`"""
    bind = node.kind == "method" and node.text == "bind" and len(node.parts) == 4
    return bind and (node.parts[0].kind, node.parts[0].text) == ("name", "cel")
