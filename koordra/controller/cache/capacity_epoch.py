"""When is it worth deciding again for a claim that waits? When something that could make room has changed.

The `epoch` goes up when a slice, class, taint rule or volume is not the same any more, when a node's scheduling face
changed (labels, taints, cordon, allocatable, readiness; not its heartbeats), when a claim lost its devices,
and when a pod left a node. It does not go up when devices are given out: what did not fit before does not fit
after. So a claim that waits costs nothing while others are placed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from koordra.api import objects
from koordra.api.objects import Object
from koordra.controller.cache.pod_claims import is_bound
from koordra.controller.claims import ClaimEntry


class CapacityEpoch:
    """Kept by the changes of a ClusterCache. Not thread-safe."""

    def __init__(self) -> None:
        self.epoch = 0
        self._changed_nodes: set[str] = set()

    def changed_nodes(self) -> list[str]:
        """Nodes whose scheduling face has changed since the last call (not those that are new)."""
        found, self._changed_nodes = sorted(self._changed_nodes), set()
        return found

    def on_published(self, _key: str, before: Object | None, now: Object | None) -> None:
        if before is None or now is None or _identity(before) != _identity(now):
            self.epoch += 1

    def on_node(self, name: str, before: Object | None, now: Object | None) -> None:
        if before is None or now is None:
            self.epoch += 1
        elif before is not now and scheduling_face(before) != scheduling_face(now):
            self.epoch += 1
            self._changed_nodes.add(name)

    def on_claim(self, _key: str, before: ClaimEntry | None, now: ClaimEntry | None) -> None:
        """A claim that moved has left room behind."""
        if before is not None and before.is_allocated and before is not now:
            stays = now is not None and now.is_allocated and now.uid == before.uid
            if now is None or not stays or now.devices != before.devices:
                self.epoch += 1

    def on_pod(self, _key: str, before: Object | None, now: Object | None) -> None:
        if before is None or before is now or not _takes_room(before):
            return
        if now is None or objects.uid(before) != objects.uid(now) or not _takes_room(now):
            self.epoch += 1


def scheduling_face(node: Mapping[str, Any]) -> object:
    """What the scheduler's predicates look at; heartbeats are left out."""
    spec, status = objects.spec_of(node), objects.status_of(node)
    ready = [entry.get("status") for entry in status.get("conditions") or () if entry.get("type") == "Ready"]
    return (
        objects.labels_of(node),
        spec.get("unschedulable"),
        spec.get("taints"),
        status.get("allocatable") or {},
        ready,
    )


def _identity(obj: Object) -> tuple[str, str]:
    return objects.uid(obj), objects.resource_version(obj)


def _takes_room(pod: Object) -> bool:
    return is_bound(pod) and not objects.pod_is_finished(pod)
