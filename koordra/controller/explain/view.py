"""What questions are answered from: the objects, the engine over them, and what keeps pods off nodes. The
leader's, between two passes, or that of a forecast."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from koordra.api import objects
from koordra.api.objects import Fields, Object
from koordra.controller.allocation.placer import Placer
from koordra.controller.allocation.reserved.quotas import NO_QUOTAS, Quotas
from koordra.controller.allocation.waiting_reasons import GroupPlacement
from koordra.controller.cache.cluster_cache import ClusterCache
from koordra.controller.cache.groups import Group
from koordra.controller.cache.placeholders import Ask, ask_of, is_ask
from koordra.controller.gangs.membership import Gang
from koordra.controller.gangs.phase import GangStatus
from koordra.placement.decide import Excluded


@dataclass(frozen=True, slots=True)
class Planned:
    """What a claim that waits is given by a forecast: an AllocationResult without allocationTimestamp.
    `score` and `level` as GroupPlacement has them; without a score where it was placed with its gang."""

    node: str | None
    level: str | None
    score: int | None
    allocation: Fields


@dataclass(frozen=True)
class ClusterView:
    """`waiting` by the groups' keys; `gangs` and `statuses` by theirs. `excluded`: nodes that a group is kept
    off. `forecast`: what the next pass decides about a claim that waits with its pod, by its key; None where
    it decides nothing. `beyond_quota`: why pods get no devices, by uid. `planned`: claims, by key, that a
    forecast has given devices."""

    cache: ClusterCache
    placer: Placer
    waiting: Mapping[str, Group]
    gangs: Mapping[str, Gang]
    statuses: Mapping[str, GangStatus]
    excluded: Callable[[Group], Excluded]
    forecast: Callable[[str], GroupPlacement | None]
    beyond_quota: Mapping[str, str]
    planned: Mapping[str, Planned] = field(default_factory=dict)
    quotas: Quotas = NO_QUOTAS

    @cached_property
    def asks(self) -> list[Ask]:
        """New nodes that are asked for."""
        return [ask_of(pod) for key, pod in self.cache.pods.items() if is_ask(key)]

    def gang_of(self, pod: Object) -> Gang | None:
        """The gang that the pod is in, if koordra places it."""
        uid = objects.uid(pod)
        return next((g for g in self.gangs.values() if any(one.uid == uid for one in g.members)), None)
