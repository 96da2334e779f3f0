"""What nodes are told apart by: cells, and what of a node stands in one.

A cell is what the devices' selectors (`admitted`) and the predicates of nodes (`allocator.predicates`) can read of its nodes, as far as
any request has read it. It holds one judgement for all of them.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from koordra.allocator.predicates import unsuitable
from koordra.api import objects
from koordra.api.devices import NO_EXECUTE, NO_SCHEDULE
from koordra.placement.node_filter.device_admission import Published
from koordra.placement.node_filter.pod_terms import Pod

KEEPING_OUT: Final = (NO_SCHEDULE, NO_EXECUTE)
_OF_KUBERNETES: Final = "node.kubernetes.io/"


@dataclass(frozen=True, slots=True, eq=False)
class Cell:
    """`node` is what the predicates read of these nodes; `lasting` the same without what passes.

    Without `devices` it is the crowd: nodes of more sorts than there are cells, of which nothing more is told.
    """

    model: str
    gpus: int
    nics: int
    devices: Published | None
    node: Mapping[str, Any]
    lasting: Mapping[str, Any]


def seen_of(node: Mapping[str, Any], labels: frozenset[str]) -> Hashable:
    """What pods' words can tell nodes apart by, if these labels are read."""
    spec, own = objects.spec_of(node), objects.labels_of(node)
    taints = spec.get("taints")
    return (
        tuple([(key, own.get(key)) for key in sorted(labels)]) if labels else (),
        tuple([_taint(one) for one in taints if one.get("effect") in KEEPING_OUT]) if taints else (),
        bool(spec.get("unschedulable")),
        _ready(node),
    )


def _taint(taint: Mapping[str, Any]) -> Hashable:
    return taint.get("key"), taint.get("value"), taint.get("effect")


def _ready(node: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(
        [
            entry.get("status")
            for entry in objects.status_of(node).get("conditions") or ()
            if entry.get("type") == "Ready"
        ]
    )


def bare(node: Mapping[str, Any], labels: frozenset[str]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """What the predicates read of the node, without its own name and room; all of it, and what lasts."""
    spec, own = objects.spec_of(node), objects.labels_of(node)
    taints = list(spec.get("taints") or ())
    lasting = [one for one in taints if not str(one.get("key")).startswith(_OF_KUBERNETES)]
    metadata = {"metadata": {"labels": {key: own[key] for key in labels if key in own}}}
    conditions = [{"type": "Ready", "status": status} for status in _ready(node)]
    now = {"taints": taints, "unschedulable": bool(spec.get("unschedulable"))}
    return (
        {**metadata, "spec": now, "status": {"conditions": conditions}},
        {**metadata, "spec": {"taints": lasting}},
    )


def suits(node: Mapping[str, Any], pods: Sequence[Pod]) -> bool:
    return not any(unsuitable(node, pod, taken={}) for pod in pods)
