"""When room may have come: a number that goes up whenever something changes for claims that wait."""

from __future__ import annotations

from koordra.api import objects
from koordra.api.objects import Object
from koordra.controller.claims import ClaimEntry
from koordra.placement.node_class import node_predicate_inputs


class CapacityEpoch:
    """Kept by the changes of a ClusterCache. Not thread-safe."""

    def __init__(self) -> None:
        self.epoch = 0
        self._changed_nodes: set[str] = set()

    def changed_nodes(self) -> list[str]:
        """Nodes whose scheduler-relevant fields have changed since the last call (not those that are new)."""
        found, self._changed_nodes = sorted(self._changed_nodes), set()
        return found

    def on_published(self, _key: str, before: Object | None, now: Object | None) -> None:
        self.epoch += before is None or now is None or _identity(before) != _identity(now)

    def on_node(self, name: str, before: Object | None, now: Object | None) -> None:
        if before is None or now is None:
            self.epoch += 1
        elif _predicate_inputs(before) != _predicate_inputs(now):
            self.epoch += 1
            self._changed_nodes.add(name)

    def on_claim(self, _key: str, before: ClaimEntry | None, now: ClaimEntry | None) -> None:
        """A claim that moved has left room behind."""
        if before is not None and before.is_allocated:
            self.epoch += now is None or (now.uid, now.is_allocated, now.devices) != (
                before.uid,
                True,
                before.devices,
            )


def _predicate_inputs(node: Object) -> object:
    """What the scheduler's predicates look at; heartbeats are left out."""
    return objects.labels_of(node), node_predicate_inputs(node)


def _identity(obj: Object) -> tuple[str, str]:
    return objects.uid(obj), objects.resource_version(obj)
