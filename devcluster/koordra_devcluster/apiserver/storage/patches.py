"""The four kinds of patch: JSON patch, merge patch, strategic merge patch, and server-side apply in its
simplest reading.

Strategic merge uses the merge keys of `schema.py`; `$patch: delete|replace`, `$deleteFromPrimitiveList/x` and
`$setElementOrder/x` (accepted, order is kept as found) are understood. Server-side apply merges what the
manifest says into the object and remembers no field owners, so a field left out of a later apply stays: this
double tracks no managedFields.

All functions are pure: they return a new document and raise Refusal for a patch that cannot be applied.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Final

from koordra_devcluster.apiserver.fields.schema import FieldType, types
from koordra_devcluster.apiserver.status import Refusal, bad_request

JSON_PATCH: Final = "application/json-patch+json"
MERGE_PATCH: Final = "application/merge-patch+json"
STRATEGIC_MERGE_PATCH: Final = "application/strategic-merge-patch+json"
APPLY_PATCH: Final = "application/apply-patch+yaml"
CONTENT_TYPES: Final = (JSON_PATCH, MERGE_PATCH, STRATEGIC_MERGE_PATCH, APPLY_PATCH)


def apply(content_type: str, document: Any, patch: Any, type_name: str) -> Any:
    """`document` with `patch` applied, by the patch's content type."""
    if content_type == JSON_PATCH:
        return json_patch(document, patch)
    if not isinstance(patch, dict):
        raise bad_request("error decoding patch: a patch of this type is a JSON object")
    if content_type == MERGE_PATCH:
        return merge_patch(document, patch)
    if content_type == STRATEGIC_MERGE_PATCH:
        return strategic_merge(document, patch, type_name)
    if content_type == APPLY_PATCH:
        return strategic_merge(document, patch, type_name, apply_keys=True)
    raise Refusal(
        415,
        "UnsupportedMediaType",
        "the body of the request was in an unknown format - accepted media types include: "
        + ", ".join(CONTENT_TYPES),
    )


def merge_patch(document: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = dict(document) if isinstance(document, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge_patch(result.get(key), value)
    return result


def json_patch(document: Any, operations: Any) -> Any:
    """RFC 6902. A failed `test` and a missing path are 422, a malformed patch is 400."""
    if not isinstance(operations, list) or not all(isinstance(one, dict) for one in operations):
        raise bad_request("error decoding patch: a JSON patch is a list of operations")
    result = copy.deepcopy(document)
    for operation in operations:
        result = _operate(result, operation)
    return result


def _operate(document: Any, operation: dict[str, Any]) -> Any:
    name, path = operation.get("op"), _pointer(operation.get("path"))
    if name in ("add", "replace", "test") and "value" not in operation:
        raise bad_request(f"error decoding patch: {name} {operation.get('path')}: value is missing")
    if name == "add":
        return _add(document, path, copy.deepcopy(operation["value"]))
    if name == "remove":
        return _remove(document, path)
    if name == "replace":
        _find(document, path)
        return _replace(document, path, copy.deepcopy(operation["value"]))
    if name in ("move", "copy"):
        source = _pointer(operation.get("from"))
        value = copy.deepcopy(_find(document, source))
        return _add(_remove(document, source) if name == "move" else document, path, value)
    if name == "test":
        if _find(document, path) != operation["value"]:
            raise _unprocessable(f"testing value {operation.get('path')} failed")
        return document
    raise bad_request(f"error decoding patch: unknown operation {name!r}")


def _unprocessable(problem: str) -> Refusal:
    return Refusal(
        422, "Invalid", f"the server rejected our request due to an error in our request: {problem}"
    )


def _pointer(text: Any) -> list[str]:
    if not isinstance(text, str) or (text and not text.startswith("/")):
        raise bad_request(f"error decoding patch: {text!r} is not a JSON pointer")
    return [part.replace("~1", "/").replace("~0", "~") for part in text.split("/")[1:]]


def _index(container: list[Any], part: str, *, end: bool = False) -> int:
    if end and part == "-":
        return len(container)
    if not part.isdigit() or int(part) >= len(container) + end:
        raise _unprocessable(f"index {part!r} is out of range")
    return int(part)


def _find(document: Any, path: Sequence[str]) -> Any:
    for part in path:
        if isinstance(document, list):
            document = document[_index(document, part)]
        elif isinstance(document, dict) and part in document:
            document = document[part]
        else:
            raise _unprocessable(f"path /{'/'.join(path)} does not exist")
    return document


def _add(document: Any, path: Sequence[str], value: Any) -> Any:
    if not path:
        return value
    container = _find(document, path[:-1])
    if isinstance(container, list):
        container.insert(_index(container, path[-1], end=True), value)
    elif isinstance(container, dict):
        container[path[-1]] = value
    else:
        raise _unprocessable(f"path /{'/'.join(path)} does not exist")
    return document


def _replace(document: Any, path: Sequence[str], value: Any) -> Any:
    if not path:
        return value
    container = _find(document, path[:-1])
    container[_index(container, path[-1]) if isinstance(container, list) else path[-1]] = value
    return document


def _remove(document: Any, path: Sequence[str]) -> Any:
    if not path:
        raise bad_request("error decoding patch: the whole document cannot be removed")
    _find(document, path)
    container = _find(document, path[:-1])
    del container[_index(container, path[-1]) if isinstance(container, list) else path[-1]]
    return document


def strategic_merge(document: Any, patch: dict[str, Any], type_name: str, *, apply_keys: bool = False) -> Any:
    """Strategic merge patch of an object of a known type; `apply_keys` merges lists by all their map keys
    (apply)."""
    if patch.get("$patch") == "replace":
        return {key: value for key, value in patch.items() if key != "$patch"}
    result = dict(document) if isinstance(document, dict) else {}
    fields = types().get(type_name, {})
    for key, value in patch.items():
        if key.startswith("$"):
            _directive(result, key, value)
        elif value is None:
            result.pop(key, None)
        else:
            result[key] = _merge_field(result.get(key), value, fields.get(key), apply_keys=apply_keys)
    return result


def _directive(result: dict[str, Any], key: str, value: Any) -> None:
    name, _, field = key.partition("/")
    if name == "$deleteFromPrimitiveList" and isinstance(result.get(field), list):
        result[field] = [item for item in result[field] if item not in value]
    elif name == "$retainKeys":
        for extra in [present for present in result if present not in value]:
            del result[extra]


def _merge_field(current: Any, value: Any, known: FieldType | None, *, apply_keys: bool) -> Any:
    if known is None or known.base == "any":
        return merge_patch(current, value)
    if known.shape == "[]":
        return _merge_list(current, value, known, apply_keys=apply_keys)
    if known.shape == "{}":
        return _merge_map(current, value, known, apply_keys=apply_keys)
    if isinstance(value, dict) and known.base in types():
        return strategic_merge(current, value, known.base, apply_keys=apply_keys)
    return copy.deepcopy(value)


def _merge_map(current: Any, value: Any, known: FieldType, *, apply_keys: bool) -> Any:
    if not isinstance(value, dict):
        return copy.deepcopy(value)
    result = dict(current) if isinstance(current, dict) else {}
    for key, inner in value.items():
        if inner is None:
            result.pop(key, None)
        elif isinstance(inner, dict) and known.base in types():
            result[key] = strategic_merge(result.get(key), inner, known.base, apply_keys=apply_keys)
        else:
            result[key] = inner
    return result


def _merge_list(current: Any, value: Any, known: FieldType, *, apply_keys: bool) -> Any:
    if not isinstance(value, list) or (known.merge_key is None and not (apply_keys and known.list_keys)):
        return copy.deepcopy(value)
    existing = list(current) if isinstance(current, list) else []
    if known.merge_key == "":
        return existing + [item for item in value if item not in existing]
    if any(isinstance(item, dict) and item.get("$patch") == "replace" for item in value):
        return [item for item in value if item.get("$patch") != "replace"]
    keys = known.list_keys
    for item in value:
        if not isinstance(item, dict):
            raise bad_request(f"error decoding patch: items of a list merged by {keys} are objects")
        identity = tuple(item.get(key) for key in keys)
        position = next(
            (at for at, one in enumerate(existing) if tuple(one.get(key) for key in keys) == identity), None
        )
        if item.get("$patch") == "delete":
            if position is not None:
                del existing[position]
        elif position is None:
            existing.append(strategic_merge({}, item, known.base, apply_keys=apply_keys))
        else:
            existing[position] = strategic_merge(existing[position], item, known.base, apply_keys=apply_keys)
    return existing
