"""When is it worth planning again for a claim that waits? When something that could make room has changed.

The `epoch` goes up when a slice, class or taint rule is not the same any more, when a node's scheduling face
changed (labels, taints, cordon, allocatable, readiness; not its heartbeats), when a claim lost its devices,
and when a pod left a node. It does not go up when devices are given out: what did not fit before does not fit
after. So a claim that waits costs nothing while others are placed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from koordra.api import objects
from koordra.api.objects import Object
from koordra.controller import claims as claims_of
from koordra.controller.snapshot import Cluster, is_bound


@dataclass(frozen=True, slots=True)
class Change:
    """`nodes`: those whose scheduling face changed since the last look (not those that are new)."""

    epoch: int
    nodes: tuple[str, ...] = ()


class InventoryWatch:
    """Compares the cluster with what it was at the last look. Not thread-safe."""

    def __init__(self) -> None:
        self._epoch = 0
        self._published: frozenset[tuple[str, str]] = frozenset()
        self._faces: dict[str, tuple[str, str]] = {}
        self._held: set[tuple[str, str]] = set()
        self._known: dict[str, tuple[Object, tuple[str, str]]] = {}
        self._bound: frozenset[str] = frozenset()

    def look(self, cluster: Cluster) -> Change:
        """The epoch now, and the nodes that changed."""
        published = frozenset(
            (objects.uid(entry), objects.resource_version(entry))
            for group in (cluster.slices, cluster.classes, cluster.taint_rules, cluster.volumes)
            for entry in group
        )
        faces = {objects.name(node): self._face(node) for node in cluster.nodes}
        held = set(self._holdings(cluster.claims))
        bound = frozenset(
            objects.uid(pod) for pod in cluster.pods if is_bound(pod) and not objects.pod_is_finished(pod)
        )
        changed = tuple(
            node for node, (_, face) in faces.items() if node in self._faces and self._faces[node][1] != face
        )
        made_room = (
            published != self._published
            or changed
            or faces.keys() != self._faces.keys()
            or self._held - held
            or self._bound - bound
        )
        if made_room:
            self._epoch += 1
        self._published, self._faces, self._held, self._bound = published, faces, held, bound
        return Change(self._epoch, changed)

    def given_out(self, claim: Mapping[str, Any]) -> None:
        """An allocation was written since the last look: its end will make room, even if it comes before the
        next look."""
        self._held.add(_holding(claim))

    def _holdings(self, claims: Iterable[Object]) -> list[tuple[str, str]]:
        """What each allocated claim holds; of a claim that is the same value as before it is known."""
        known: dict[str, tuple[Object, tuple[str, str]]] = {}
        for claim in claims:
            if (claim.get("status") or {}).get("allocation"):
                uid = objects.uid(claim)
                before = self._known.get(uid)
                same = before is not None and before[0] is claim
                known[uid] = before if before is not None and same else (claim, _holding(claim))
        self._known = known
        return [holding for _, holding in known.values()]

    def _face(self, node: Mapping[str, Any]) -> tuple[str, str]:
        """(version, what the scheduler looks at); taken from the last look while the version is the same."""
        version = objects.resource_version(node)
        before = self._faces.get(objects.name(node))
        if before is not None and version and before[0] == version:
            return before
        spec, status = objects.spec_of(node), objects.status_of(node)
        ready = [
            entry.get("status") for entry in status.get("conditions") or () if entry.get("type") == "Ready"
        ]
        face = (
            sorted(objects.labels_of(node).items()),
            spec.get("unschedulable"),
            spec.get("taints"),
            sorted((status.get("allocatable") or {}).items()),
            ready,
        )
        return version, repr(face)


def _holding(claim: Mapping[str, Any]) -> tuple[str, str]:
    """An allocation's identity: the claim and what it holds; a claim that moved has left room behind."""
    held = sorted(
        f"{result.get('driver')}/{result.get('pool')}/{result.get('device')}/{result.get('shareID', '')}"
        for result in claims_of.results(claim)
    )
    return objects.uid(claim), " ".join(held)
