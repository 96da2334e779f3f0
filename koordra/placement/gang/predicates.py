"""What node predicates refuse: selectors, affinity, taints, cordons, nodes that are not ready.

Thousands of nodes wear few faces. A face is what the predicates of this gang's pods read of a node: the labels they name, the taints,
the cordon, readiness; the name only where a pod asks for one. Every face is judged once.

Two things are not judged here. Room for CPU, memory and the like is a matter of how many members come (`kinds.py`). And nodes that a
member is kept off or pinned to are named one by one, so they are added to what the face says.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from koordra.allocator.predicates import unsuitable
from koordra.api import objects
from koordra.placement.gang.member_classes import MemberClass
from koordra.placement.gang.types import GangNode, Member


@dataclass(slots=True)
class Predicates:
    """What the node predicates refuse, judged once per face of a node (room is judged elsewhere)."""

    classes: Sequence[MemberClass]
    labels: frozenset[str] = frozenset()
    by_name: bool = False
    known: dict[Hashable, list[tuple[str, ...]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        pods = [pod for one in self.classes for pod in one.members[0].pods]
        self.labels = frozenset(label for pod in pods for label in _labels_read(objects.spec_of(pod)))
        self.by_name = any(
            "matchFields" in str(pod.get("spec")) or objects.spec_of(pod).get("nodeName") for pod in pods
        )

    def of(self, name: str, node: GangNode) -> list[tuple[str, ...]]:
        spec = objects.spec_of(node.node)
        labels = objects.labels_of(node.node)
        conditions = objects.status_of(node.node).get("conditions") or ()
        ready = [entry for entry in conditions if entry.get("type") == "Ready"] if conditions else []
        face = (
            tuple((label, labels.get(label)) for label in self.labels) if self.labels else (),
            bool(spec.get("unschedulable")),
            str(spec["taints"]) if spec.get("taints") else "",
            tuple(str(entry.get("status")) for entry in ready) if ready else (),
            name if self.by_name else "",
        )
        found = self.known.get(face)
        if found is None:
            bare = {**node.node, "status": {"conditions": ready}}
            found = self.known[face] = [
                tuple(text for pod in one.members[0].pods for text in unsuitable(bare, pod, taken={}))
                for one in self.classes
            ]
        if not any(one.members[0].kept_off or one.members[0].pinned is not None for one in self.classes):
            return found
        return [
            (*texts, *_kept_off(name, one.members[0])) for texts, one in zip(found, self.classes, strict=True)
        ]


def _kept_off(name: str, member: Member) -> Iterator[str]:
    if name in member.kept_off:
        yield member.kept_off[name].detail
    if member.pinned is not None and name not in member.pinned:
        yield f"other claims of the pod are allocated on {', '.join(sorted(member.pinned)) or 'no node'}"


def _labels_read(spec: Mapping[str, Any]) -> Iterator[str]:
    yield from spec.get("nodeSelector") or {}
    required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    ) or {}
    for term in required.get("nodeSelectorTerms") or ():
        for entry in term.get("matchExpressions") or ():
            yield str(entry.get("key"))
