"""The groups of pods that wait, as a pass would find them."""

from __future__ import annotations

from collections.abc import Iterable

from koordra.api import objects
from koordra.api.objects import Object
from koordra.controller.cache.cluster_cache import ClusterCache
from koordra.controller.cache.groups import Group, GroupIndex
from koordra.controller.cache.pod_index import PodClaims, may_be_planned


def groups(members: Iterable[PodClaims], *, immediate: Iterable[Object] = ()) -> list[Group]:
    """Joined where they share an unallocated claim, the most urgent first."""
    index = GroupIndex()
    for member in members:
        index.update(objects.uid(member.pod), member if may_be_planned(member) else None)
    index.settle({objects.key(claim): claim for claim in immediate})
    return sorted(index.groups.values(), key=lambda group: group.urgency)


def groups_of(cache: ClusterCache) -> list[Group]:
    """Of all pods of a cluster."""
    return groups(cache.pod_index.members(cache.pod_index.entries))
