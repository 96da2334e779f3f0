"""Changes of objects, from the threads that watch to the worker that decides."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from koordra.api import objects
from koordra.api.kinds import (
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    NAMESPACES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Kind,
)
from koordra.api.objects import Object

ORDER: Final = (
    NAMESPACES,
    NODES,
    RESOURCE_SLICES,
    DEVICE_TAINT_RULES,
    DEVICE_CLASSES,
    PERSISTENT_VOLUMES,
    PERSISTENT_VOLUME_CLAIMS,
    RESOURCE_CLAIMS,
    PODS,
)
"""Changes are applied in this order (other kinds first), so that a pod finds its claims and a claim its class."""
_RANK: Final = {kind: position for position, kind in enumerate(ORDER)}


@dataclass(frozen=True, slots=True)
class Cluster:
    """A full read: every object of the kinds that matter."""

    nodes: Sequence[Object] = ()
    slices: Sequence[Object] = ()
    classes: Sequence[Object] = ()
    taint_rules: Sequence[Object] = ()
    claims: Sequence[Object] = ()
    pods: Sequence[Object] = ()
    namespaces: Sequence[Object] = ()
    volume_claims: Sequence[Object] = ()
    volumes: Sequence[Object] = ()
    pod_groups: Sequence[Object] = ()


@dataclass(frozen=True, slots=True)
class Change:
    """An object's newest state; `obj` is None once it is gone."""

    kind: Kind
    key: str
    obj: Object | None


class Source(Protocol):
    """Where the worker gets its objects from."""

    def changes(self) -> Iterable[Change]:
        """What has changed since the last call; everything there is at the first."""
        ...

    def cluster(self) -> Cluster:
        """A full read: every object as it is now."""
        ...


class ChangeQueue:
    """Filled by any thread, emptied by one."""

    def __init__(self) -> None:
        self._queue: deque[Change] = deque()

    def observe(self, kind: Kind, event: str, obj: Object) -> None:
        """An event of a watch: ADDED, MODIFIED or DELETED."""
        self._queue.append(Change(kind, key_of(kind, obj), None if event == "DELETED" else obj))

    def changes(self) -> list[Change]:
        """Each object once, as it was last told of, in the order in which changes are applied."""
        latest: dict[tuple[Kind, str], Change] = {}
        while self._queue:
            change = self._queue.popleft()
            latest[change.kind, change.key] = change
        return sorted(latest.values(), key=lambda change: _RANK.get(change.kind, -1))


def key_of(kind: Kind, obj: Object) -> str:
    """`namespace/name`, or the name of a cluster-scoped object."""
    return objects.key(obj) if kind.namespaced else objects.name(obj)
