"""What kube-scheduler would refuse about a node, judged before devices are looked at, so that it seldom says no later.

Only what is cheap and certain: readiness, cordon, taints, node name, node selector and required affinity, and room for
the pod's CPU, memory, other scalar resources and pod count. What is left out (ports, volumes, inter-pod affinity,
topology spread) the scheduler answers itself; that answer excludes the node for a while.

Sources: kube-scheduler plugins NodeName, NodeUnschedulable, NodeAffinity, TaintToleration, NodeResourcesFit;
k8s.io/component-helpers nodeaffinity; pod requests as in KEP 753 (restartable init containers) and KEP 2837 (pod level).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from functools import reduce
from typing import Any, Final

from koordra.allocator.reasons import figure
from koordra.api import objects
from koordra.errors import InvalidQuantity
from koordra.quantity import parse

_UNSCHEDULABLE_TAINT: Final = "node.kubernetes.io/unschedulable"


def selector_matches(selector: Mapping[str, Any], node: Mapping[str, Any]) -> bool:
    """A core/v1 NodeSelector: any term; a term is all of its expressions and fields; an empty term matches nothing.

    So does one that cannot be read.
    """
    return any(_term_matches(term, node) for term in _mappings(selector.get("nodeSelectorTerms")) or ())


def _mappings(value: object) -> Sequence[Mapping[str, Any]] | None:
    """A list of objects; None where it is something else."""
    if value is None:
        return ()
    if not isinstance(value, list | tuple) or not all(isinstance(entry, Mapping) for entry in value):
        return None
    return value


def _term_matches(term: Mapping[str, Any], node: Mapping[str, Any]) -> bool:
    expressions, fields = _mappings(term.get("matchExpressions")), _mappings(term.get("matchFields"))
    if expressions is None or fields is None or not (expressions or fields):
        return False
    known = ((expressions, objects.labels_of(node)), (fields, {"metadata.name": objects.name(node)}))
    return all(requirement_matches(entry, values) for entries, values in known for entry in entries)


def requirement_matches(requirement: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    value = labels.get(str(requirement.get("key")))
    values: Sequence[str] = requirement.get("values") or ()
    if not isinstance(values, list | tuple):
        return False
    match requirement.get("operator"):
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt" as operator:
            try:
                more = int(value or "") - int(values[0])
            except (ValueError, IndexError, TypeError):
                return False
            return more > 0 if operator == "Gt" else more < 0
    return False


def requests_of(pod: Mapping[str, Any]) -> dict[str, Decimal]:
    """What the pod takes of a node: containers plus sidecars, or the largest init container, plus overhead, plus itself."""
    spec = objects.spec_of(pod)
    starting: dict[str, Decimal] = {}
    sidecars: dict[str, Decimal] = {}
    for container in spec.get("initContainers") or ():
        asked = _sum(sidecars, _requests(container))
        starting = _larger(starting, asked)
        if container.get("restartPolicy") == "Always":
            sidecars = asked
    running = reduce(_sum, map(_requests, spec.get("containers") or ()), sidecars)
    total = _larger(running, starting) | _requests(spec)
    return _sum(total, _amounts(spec.get("overhead"))) | {"pods": Decimal(1)}


def _requests(holder: Mapping[str, Any]) -> dict[str, Decimal]:
    resources = holder.get("resources") or {}
    return _amounts(resources.get("limits")) | _amounts(resources.get("requests"))


def _amounts(raw: Mapping[str, Any] | None) -> dict[str, Decimal]:
    found = {}
    for name, value in (raw or {}).items():
        try:
            found[name] = parse(value)
        except InvalidQuantity:
            # The API server would have refused it; offline the rest of the pod still counts.
            continue
    return found


def _sum(left: Mapping[str, Decimal], right: Mapping[str, Decimal]) -> dict[str, Decimal]:
    return {name: left.get(name, Decimal(0)) + right.get(name, Decimal(0)) for name in {**left, **right}}


def _larger(left: Mapping[str, Decimal], right: Mapping[str, Decimal]) -> dict[str, Decimal]:
    return {name: max(left.get(name, Decimal(0)), right.get(name, Decimal(0))) for name in {**left, **right}}


def unsuitable(
    node: Mapping[str, Any], pod: Mapping[str, Any], *, taken: Mapping[str, Decimal]
) -> tuple[str, ...]:
    """Every clause by which the scheduler would refuse the node for the pod. `taken` is what other pods ask there."""
    return tuple(_refusals(node, pod, taken))


def _refusals(node: Mapping[str, Any], pod: Mapping[str, Any], taken: Mapping[str, Decimal]) -> Iterable[str]:
    spec, node_spec = objects.spec_of(pod), objects.spec_of(node)
    wanted = spec.get("nodeName")
    if wanted and wanted != objects.name(node):
        yield f"spec.nodeName: the pod is bound to {wanted}"
    tolerations = spec.get("tolerations") or ()
    if node_spec.get("unschedulable") and not tolerated(
        {"key": _UNSCHEDULABLE_TAINT, "effect": "NoSchedule"}, tolerations
    ):
        yield "spec.unschedulable: the node is cordoned"
    for taint in node_spec.get("taints") or ():
        if taint.get("effect") in ("NoSchedule", "NoExecute") and not tolerated(taint, tolerations):
            value = f"={taint['value']}" if taint.get("value") else ""
            yield f"taint {taint.get('key')}{value}:{taint.get('effect')} is not tolerated by the pod"
    for condition in objects.status_of(node).get("conditions") or ():
        if condition.get("type") == "Ready" and condition.get("status") != "True":
            yield f"condition Ready is {condition.get('status')}, required True"
    labels = objects.labels_of(node)
    for key, value in sorted((spec.get("nodeSelector") or {}).items()):
        if labels.get(key) != value:
            yield f"nodeSelector {key}: required {value}, node has {labels.get(key, 'no such label')}"
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is not None and not selector_matches(required, node):
        yield f"required node affinity: no term of {_terms_text(required)} matches"
    if not wanted:
        yield from _lacking(node, pod, taken)


def _lacking(node: Mapping[str, Any], pod: Mapping[str, Any], taken: Mapping[str, Decimal]) -> Iterable[str]:
    """A node that reports nothing allocatable (a bare manifest) is not judged by it."""
    allocatable = _amounts(objects.status_of(node).get("allocatable"))
    if not allocatable:
        return
    for name, asked in sorted(requests_of(pod).items()):
        total = allocatable.get(name, Decimal(0))
        free = total - taken.get(name, Decimal(0))
        if asked and asked > free:
            yield f"{name}: requested {figure(asked)}, free {figure(max(free, Decimal(0)))} of {figure(total)}"


def tolerated(taint: Mapping[str, Any], tolerations: Iterable[Mapping[str, Any]]) -> bool:
    return any(
        toleration.get("effect") in (None, "", taint.get("effect"))
        and toleration.get("key") in (None, "", taint.get("key"))
        and (
            toleration.get("operator") == "Exists"
            or (
                toleration.get("operator") in (None, "", "Equal")
                and toleration.get("value", "") == taint.get("value", "")
            )
        )
        for toleration in tolerations
    )


def _terms_text(selector: Mapping[str, Any]) -> str:
    terms = [
        " and ".join(
            f"{entry.get('key')} {entry.get('operator')} {','.join(map(str, entry.get('values') or ()))}".strip()
            for entry in (*(term.get("matchExpressions") or ()), *(term.get("matchFields") or ()))
        )
        for term in selector.get("nodeSelectorTerms") or ()
    ]
    return " or ".join(f"({term})" for term in terms) or "(nothing)"
