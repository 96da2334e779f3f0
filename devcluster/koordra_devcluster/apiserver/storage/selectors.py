"""Label and field selectors: text to predicate.

Labels: `a=b, c!=d, e in (f,g), h notin (i), j, !k`. Fields: `path=value, path!=value` over the paths the real
server indexes for the kind; any other path is refused, so that a controller cannot come to depend on one that
a real cluster lacks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from koordra.api.objects import Object
from koordra_devcluster.apiserver.status import bad_request

Predicate = Callable[[Object], bool]

_COMMON: Final = frozenset({"metadata.name", "metadata.namespace"})
_EVENT_OBJECT: Final = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
FIELDS: Final[Mapping[str, frozenset[str]]] = {
    "pods": frozenset(
        {"spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName", "spec.hostNetwork",
         "status.phase", "status.podIP", "status.nominatedNodeName"}
    ),
    "nodes": frozenset({"spec.unschedulable"}),
    "namespaces": frozenset({"status.phase"}),
    "events": frozenset(
        {"reason", "type", "source", "reportingComponent"}
        | {f"involvedObject.{field}" for field in _EVENT_OBJECT}
        | {f"regarding.{field}" for field in _EVENT_OBJECT}
    ),
    "resourceslices.resource.k8s.io": frozenset({"spec.nodeName", "spec.driver"}),
}  # fmt: skip

_SET = re.compile(r"\s*(?P<key>[^\s,!=()]+)\s+(?P<operator>in|notin)\s+\((?P<values>[^)]*)\)\s*")
_EQUAL = re.compile(r"\s*(?P<key>[^\s,!=()]+)\s*(?P<operator>==|=|!=)\s*(?P<value>[^\s,()]*)\s*")
_EXISTS = re.compile(r"\s*(?P<not>!?)\s*(?P<key>[^\s,!=()]+)\s*")


def everything(_obj: Object) -> bool:
    return True


def both(first: Predicate, second: Predicate) -> Predicate:
    return lambda obj: first(obj) and second(obj)


def labels(text: str) -> Predicate:
    """Raises Refusal 400 for text that is not a label selector."""
    tests: list[Predicate] = []
    rest = text.strip()
    while rest:
        for pattern in (_SET, _EQUAL, _EXISTS):
            found = pattern.match(rest)
            if found is not None and (found.end() == len(rest) or rest[found.end()] == ","):
                tests.append(_label_test(found.groupdict()))
                rest = rest[found.end() + 1 :]
                break
        else:
            raise bad_request(f"unable to parse requirement: {text!r} is not a label selector")
    return lambda obj: all(test(obj) for test in tests)


def label_selector_matches(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """A LabelSelector object (matchLabels, matchExpressions); an empty one matches everything."""
    if any(labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    return all(_expression_matches(one, labels) for one in selector.get("matchExpressions") or ())


def _expression_matches(one: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    value, values = labels.get(one["key"]), one.get("values") or ()
    match one["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case _:
            return value is None


def _label_test(parts: Mapping[str, str]) -> Predicate:
    key, operator = parts["key"], parts.get("operator")
    if operator in ("in", "notin"):
        values = {value.strip() for value in parts["values"].split(",")}
        if operator == "in":
            return lambda obj: _labels(obj).get(key) in values
        return lambda obj: _labels(obj).get(key) not in values
    if operator == "!=":
        return lambda obj: _labels(obj).get(key) != parts["value"]
    if operator:
        return lambda obj: _labels(obj).get(key) == parts["value"]
    if parts["not"]:
        return lambda obj: key not in _labels(obj)
    return lambda obj: key in _labels(obj)


def _labels(obj: Object) -> Mapping[str, str]:
    return (obj.get("metadata") or {}).get("labels") or {}


def fields(resource: str, text: str) -> Predicate:
    """Raises Refusal 400 for a path that the kind does not index."""
    tests: list[tuple[list[str], bool, str]] = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        path, operator, value = _split(part)
        if path not in _COMMON | FIELDS.get(resource, frozenset()):
            raise bad_request(
                f'Unable to find "{resource}" that match label selector "", field selector "{text}": field label not supported: {path}'
            )
        if path == "source":
            path = "source.component"
        tests.append((path.split("."), operator != "!=", value))
    return lambda obj: all((_at(obj, path) == value) is wanted for path, wanted, value in tests)


def _split(part: str) -> tuple[str, str, str]:
    for operator in ("!=", "==", "="):
        path, found, value = part.partition(operator)
        if found:
            return path.strip(), operator, value.strip()
    raise bad_request(f"invalid field selector: {part!r}; can't understand requirement")


def _at(obj: Any, path: list[str]) -> str:
    for part in path:
        obj = obj.get(part) if isinstance(obj, dict) else None
    if obj is None:
        return "false" if path[-1] in ("unschedulable", "hostNetwork") else ""
    return str(obj).lower() if isinstance(obj, bool) else str(obj)
