"""A leader's quotas in a forecast beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from koordra.api.objects import Fields, Object
from koordra.controller.allocation.reserved.quotas import Gangs, Quotas
from koordra.controller.cache.pod_index import PodClaims


@dataclass(frozen=True, slots=True)
class QuotasAsTheyAre:
    """What is held in a forecast is held nowhere: it does not count in the quotas, which others go by."""

    quotas: Quotas

    def is_awaited(self) -> bool:
        return self.quotas.is_awaited()

    def is_bounding(self) -> bool:
        return self.quotas.is_bounding()

    def held(self, members: Sequence[PodClaims], gangs: Gangs) -> Mapping[str, str]:
        return self.quotas.held(members, gangs)

    def use(self, namespace: str) -> str:
        return self.quotas.use(namespace)

    def used(self) -> Mapping[tuple[str, str, str], float]:
        return self.quotas.used()

    def on_hold(self, event: str, hold: Object, /) -> None:
        pass

    def charged(self, claims: Sequence[Fields]) -> Object:
        return self.quotas.charged(claims)

    def refusal(self, namespace: str, charged: Fields) -> str:
        return self.quotas.refusal(namespace, charged)
