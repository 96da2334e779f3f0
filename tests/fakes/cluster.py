"""A full read of a cluster, spelled by kind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields

from koordra.api.kinds import (
    DEVICE_CLASSES,
    DEVICE_HOLDS,
    DEVICE_TAINT_RULES,
    NAMESPACES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    RESERVATIONS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Kind,
)
from koordra.api.objects import Object
from koordra.controller.cache.changes import FABRIC, POD_GROUP, Table, key_of

_KINDS = (
    NODES,
    RESOURCE_SLICES,
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    RESOURCE_CLAIMS,
    PODS,
    NAMESPACES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    POD_GROUP,
    DEVICE_HOLDS,
    RESERVATIONS,
    FABRIC,
)


@dataclass(frozen=True)
class Cluster(Mapping[Kind, Table]):
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
    holds: Sequence[Object] = ()
    reservations: Sequence[Object] = ()
    fabrics: Sequence[Object] = ()

    def __getitem__(self, kind: Kind) -> Table:
        field = fields(self)[_KINDS.index(kind)]
        return {key_of(kind, obj): obj for obj in getattr(self, field.name)}

    def __iter__(self) -> Iterator[Kind]:
        return iter(_KINDS)

    def __len__(self) -> int:
        return len(_KINDS)
