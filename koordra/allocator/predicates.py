"""What kube-scheduler would refuse about a node, judged before devices are looked at, so that it seldom says
no later.

Only what is cheap and certain: readiness, cordon, taints, node name, node selector and required affinity, and
room for the pod's CPU, memory, other scalar resources and pod count. What is left out (ports, volumes,
inter-pod affinity, topology spread) the scheduler answers itself; that answer excludes the node for a while.

A PreferNoSchedule taint refuses nobody; `soft_taints` counts them, for who orders nodes.

Sources: kube-scheduler plugins NodeName, NodeUnschedulable, NodeAffinity, TaintToleration, NodeResourcesFit;
k8s.io/component-helpers nodeaffinity; pod requests as in KEP 753 (restartable init containers) and KEP 2837
(pod level).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Final, NamedTuple

from koordra.allocator.reasons import figure
from koordra.api import objects
from koordra.api.objects import Fields
from koordra.errors import InvalidQuantity
from koordra.quantity import parse

Amounts = Mapping[str, Decimal]
"""By resource, or by capacity."""

HOSTNAME: Final = "kubernetes.io/hostname"
REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_UNSCHEDULABLE_TAINT: Final = "node.kubernetes.io/unschedulable"
_ENCODER: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), default=str)


def selector_matches(selector: Fields, node: Fields) -> bool:
    """A core/v1 NodeSelector: any term; a term is all of its expressions and fields; an empty term matches
    nothing.

    So does one that cannot be read.
    """
    return any(_term_matches(term, node) for term in _mappings(selector.get("nodeSelectorTerms")) or ())


def _mappings(value: object) -> Sequence[Fields] | None:
    """A list of objects; None where it is something else."""
    if value is None:
        return ()
    if not isinstance(value, list | tuple) or not all(isinstance(entry, Mapping) for entry in value):
        return None
    return value


def _term_matches(term: Fields, node: Fields) -> bool:
    expressions, fields = _mappings(term.get("matchExpressions")), _mappings(term.get("matchFields"))
    if expressions is None or fields is None or not (expressions or fields):
        return False
    known = ((expressions, objects.labels_of(node)), (fields, {"metadata.name": objects.name(node)}))
    return all(requirement_matches(entry, values) for entries, values in known for entry in entries)


def requirement_matches(requirement: Fields, labels: Mapping[str, str]) -> bool:
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


def requests_of(pod: Fields) -> dict[str, Decimal]:
    """What the pod takes of a node: containers plus sidecars, or the largest init container, plus overhead,
    plus itself."""
    spec = objects.spec_of(pod)
    starting: dict[str, Decimal] = {}
    sidecars: dict[str, Decimal] = {}
    for container in spec.get("initContainers") or ():
        asked = total_of((sidecars, _requests(container)))
        starting = _larger(starting, asked)
        if container.get("restartPolicy") == "Always":
            sidecars = asked
    running = total_of((sidecars, *map(_requests, spec.get("containers") or ())))
    total = _larger(running, starting) | _requests(spec)
    return total_of((total, readable_amounts(spec.get("overhead")))) | {"pods": Decimal(1)}


def _requests(holder: Fields) -> dict[str, Decimal]:
    resources = holder.get("resources") or {}
    return readable_amounts(resources.get("limits")) | readable_amounts(resources.get("requests"))


def readable_amounts(raw: Fields | None) -> dict[str, Decimal]:
    found = {}
    for name, value in (raw or {}).items():
        try:
            found[name] = parse(value)
        except InvalidQuantity:
            # The API server would have refused it; offline the rest of the pod still counts.
            continue
    return found


def total_of(many: Iterable[Amounts]) -> dict[str, Decimal]:
    """Amounts by name, added up."""
    total: dict[str, Decimal] = {}
    for amounts in many:
        for name, amount in amounts.items():
            total[name] = total.get(name, Decimal(0)) + amount
    return total


def _larger(left: Amounts, right: Amounts) -> dict[str, Decimal]:
    return {name: max(left.get(name, Decimal(0)), right.get(name, Decimal(0))) for name in {**left, **right}}


def _required(spec: Fields) -> Fields | None:
    """The node affinity that is required of a pod."""
    affinity = spec.get("affinity")
    of_nodes = affinity.get("nodeAffinity") if isinstance(affinity, Mapping) else None
    found = of_nodes.get(REQUIRED) if isinstance(of_nodes, Mapping) else None
    return found if isinstance(found, Mapping) else None


def node_constraints_text(pod: Fields) -> str:
    """All that the pod says about nodes, as a text that is equal for equal words; empty for most pods."""
    spec = objects.spec_of(pod)
    constraints = [spec.get("nodeName"), spec.get("nodeSelector"), spec.get("tolerations"), _required(spec)]
    return _ENCODER.encode(constraints) if any(constraints) else ""


def chooses_nodes(pod: Fields) -> bool:
    """Whether the pod speaks of names or labels of nodes."""
    spec = objects.spec_of(pod)
    return bool(spec.get("nodeName") or spec.get("nodeSelector") or _required(spec))


class NamedNodes(NamedTuple):
    """Nodes that a pod names: by the label, or by name where it is empty. `said_by`: the pod's field."""

    label: str
    values: frozenset[str]
    said_by: str


def named_nodes(pod: Fields) -> NamedNodes | None:
    """The nodes, one by one, of which one has to be the pod's; None where it says nothing of the kind.

    A DaemonSet says it by required affinity to the field `metadata.name`.
    """
    spec = objects.spec_of(pod)
    if spec.get("nodeName"):
        return NamedNodes("", frozenset({str(spec["nodeName"])}), "spec.nodeName")
    selector = spec.get("nodeSelector") or {}
    if HOSTNAME in selector:
        return NamedNodes(HOSTNAME, frozenset({str(selector[HOSTNAME])}), f"nodeSelector {HOSTNAME}")
    named: list[NamedNodes] = []
    for term in _mappings((_required(spec) or {}).get("nodeSelectorTerms")) or ():
        own = [
            NamedNodes(label, frozenset(map(str, one.get("values") or ())), "required node affinity")
            for field, label in (("matchFields", ""), ("matchExpressions", HOSTNAME))
            for one in _mappings(term.get(field)) or ()
            if one.get("operator") == "In" and one.get("key") == (label or "metadata.name")
        ]
        if not own:
            return None
        named.append(own[0])
    if len({one.label for one in named}) != 1:
        return None
    return named[0]._replace(values=frozenset().union(*(one.values for one in named)))


def labels_read(pods: Iterable[Fields]) -> frozenset[str]:
    """Labels of nodes that decide, without the one that is every node's own."""
    found: set[str] = set()
    for spec in map(objects.spec_of, pods):
        found |= set(map(str, spec.get("nodeSelector") or ()))
        for term in _mappings((_required(spec) or {}).get("nodeSelectorTerms")) or ():
            found |= {str(one.get("key")) for one in _mappings(term.get("matchExpressions")) or ()}
    return frozenset(found - {HOSTNAME})


class Unsuitable(NamedTuple):
    """Why a node is none for a pod: the clause that is the same for other nodes, and what the node has
    instead. `short`: which part of the whole is lacking, where it is a matter of amounts."""

    clause: str
    has: str = ""
    short: float | None = None

    def __str__(self) -> str:
        return f"{self.clause} {self.has}" if self.has else self.clause


def unsuitable(
    node: Fields, pod: Fields, *, taken: Amounts, asked: Amounts | None = None
) -> tuple[Unsuitable, ...]:
    """Every clause by which the scheduler would refuse the node for the pod. `taken` is what other pods ask
    there, `asked` what this one does (`requests_of`), where the caller knows it."""
    return tuple(_refusals(node, pod, taken, asked))


def _refusals(node: Fields, pod: Fields, taken: Amounts, asked: Amounts | None) -> Iterable[Unsuitable]:
    spec, node_spec = objects.spec_of(pod), objects.spec_of(node)
    wanted = spec.get("nodeName")
    if wanted and wanted != objects.name(node):
        yield Unsuitable(f"spec.nodeName: the pod is bound to {wanted}")
    tolerations = spec.get("tolerations") or ()
    if node_spec.get("unschedulable") and not tolerated(
        {"key": _UNSCHEDULABLE_TAINT, "effect": "NoSchedule"}, tolerations
    ):
        yield Unsuitable("spec.unschedulable: the node is cordoned")
    yield from untolerated_taints(node, spec)
    for condition in objects.status_of(node).get("conditions") or ():
        if condition.get("type") == "Ready" and condition.get("status") != "True":
            yield Unsuitable("condition Ready: required True, the node has", str(condition.get("status")))
    yield from unmet_affinity(node, spec)
    if not wanted:
        yield from _lacking(node, requests_of(pod) if asked is None else asked, taken)


def untolerated_taints(node: Fields, spec: Fields) -> Iterable[Unsuitable]:
    """Of a pod with this spec."""
    for taint in objects.spec_of(node).get("taints") or ():
        is_effective = taint.get("effect") in ("NoSchedule", "NoExecute")
        if is_effective and not tolerated(taint, spec.get("tolerations") or ()):
            value = f"={taint['value']}" if taint.get("value") else ""
            yield Unsuitable(
                f"taint {taint.get('key')}{value}:{taint.get('effect')} is not tolerated by the pod"
            )


def soft_taints(node: Fields, pods: Iterable[Fields]) -> int:
    """PreferNoSchedule taints of the node that some pod does not tolerate; all of them without pods."""
    soft = [
        one for one in objects.spec_of(node).get("taints") or () if one.get("effect") == "PreferNoSchedule"
    ]
    if not soft:
        return 0
    said = [objects.spec_of(pod).get("tolerations") or () for pod in pods] or [()]
    return sum(not all(tolerated(taint, own) for own in said) for taint in soft)


def unmet_affinity(node: Fields, spec: Fields) -> Iterable[Unsuitable]:
    """What a pod with this spec demands of the labels of its node."""
    labels = objects.labels_of(node)
    for key, value in sorted((spec.get("nodeSelector") or {}).items()):
        if labels.get(key) != value:
            yield Unsuitable(
                f"nodeSelector {key}: required {value}, the node has", labels.get(key, "no such label")
            )
    required = _required(spec)
    if required is not None and not selector_matches(required, node):
        yield Unsuitable(f"required node affinity: no term of {_terms_text(required)} matches")


def _lacking(node: Fields, asked_of: Amounts, taken: Amounts) -> Iterable[Unsuitable]:
    """A node that reports nothing allocatable (a bare manifest) is not judged by it."""
    allocatable = readable_amounts(objects.status_of(node).get("allocatable"))
    if not allocatable:
        return
    for name, asked in sorted(asked_of.items()):
        total = allocatable.get(name, Decimal(0))
        free = total - taken.get(name, Decimal(0))
        if asked and asked > free:
            left = max(free, Decimal(0))
            has = f"free {figure(left)} of {figure(total)}" if total else "the node has none"
            yield Unsuitable(f"{name}: requested {figure(asked)},", has, float((asked - left) / asked))


def tolerated(taint: Fields, tolerations: Iterable[Fields]) -> bool:
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


def _terms_text(selector: Fields) -> str:
    terms = [
        " and ".join(
            f"{entry.get('key')} {entry.get('operator')} {','.join(map(str, entry.get('values') or ()))}".strip()
            for entry in (*(term.get("matchExpressions") or ()), *(term.get("matchFields") or ()))
        )
        for term in selector.get("nodeSelectorTerms") or ()
    ]
    return " or ".join(f"({term})" for term in terms) or "(nothing)"
