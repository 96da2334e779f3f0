"""Which nodes a selector means and which taints a pod tolerates."""

from __future__ import annotations

from collections.abc import Iterable

from koordra.api.objects import Object, labels_of, name, spec_of


def matches(selector: Object | None, node: Object) -> bool:
    """A NodeSelector (terms are alternatives); None matches every node, a selector without terms none."""
    if selector is None:
        return True
    return any(_term_matches(term, node) for term in selector.get("nodeSelectorTerms") or ())


def _term_matches(term: Object, node: Object) -> bool:
    expressions, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    if not expressions and not fields:
        return False
    known = labels_of(node)
    return all(_matches(one, known.get(one.get("key", ""))) for one in expressions) and all(
        _matches(one, name(node) if one.get("key") == "metadata.name" else None) for one in fields
    )


def _matches(requirement: Object, value: str | None) -> bool:
    values: list[str] = requirement.get("values") or []
    match requirement.get("operator"):
        case "In":
            return value is not None and value in values
        case "NotIn":
            return value is None or value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt":
            return value is not None and _integer(value) > _integer(values[0])
        case "Lt":
            return value is not None and _integer(value) < _integer(values[0])
    return False


def _integer(text: str) -> float:
    try:
        return int(text)
    except ValueError:
        return float("nan")


def selected_by_pod(pod: Object, node: Object) -> bool:
    """spec.nodeSelector and required node affinity."""
    wanted = spec_of(pod).get("nodeSelector") or {}
    if any(labels_of(node).get(key) != value for key, value in wanted.items()):
        return False
    affinity = (spec_of(pod).get("affinity") or {}).get("nodeAffinity") or {}
    return matches(affinity.get("requiredDuringSchedulingIgnoredDuringExecution"), node)


def untolerated(pod: Object, node: Object) -> Object | None:
    """The first taint that keeps the pod off the node."""
    tolerations = spec_of(pod).get("tolerations") or ()
    for taint in spec_of(node).get("taints") or ():
        if taint.get("effect") in ("NoSchedule", "NoExecute") and not tolerated(taint, tolerations):
            return dict(taint)
    return None


def tolerated(taint: Object, tolerations: Iterable[Object]) -> bool:
    return any(_tolerates(one, taint) for one in tolerations)


def _tolerates(toleration: Object, taint: Object) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint.get("effect"):
        return False
    if toleration.get("key") and toleration["key"] != taint.get("key"):
        return False
    if toleration.get("operator") == "Exists":
        return True
    return bool(toleration.get("key")) and toleration.get("value", "") == taint.get("value", "")
