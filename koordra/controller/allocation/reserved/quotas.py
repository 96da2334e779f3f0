"""What the passes of a leader ask about the namespaces' ResourceQuotas (controller/quota answers)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from koordra.api.objects import Fields, Object
from koordra.controller.cache.pod_index import PodClaims

Gangs = Mapping[str, tuple[str, int, int]]
"""Pod -> the gang that it starts with, how many of its members may be held without holding all, and how many
that come later ask as this one."""


class Quotas(Protocol):
    def is_awaited(self) -> bool:
        """Whether they are being read, so that no pod gets devices yet; nobody is to go before the pods."""

    def is_bounding(self) -> bool:
        """Whether any quota may hold anybody back; nothing else is asked where none may."""

    def held(self, members: Sequence[PodClaims], gangs: Gangs) -> Mapping[str, str]:
        """Uid -> why a pod that waits for devices gets none for now; an empty text: what it depends on is not
        read yet. `gangs`: of members that start together, by uid, their gang and how many of them it can do
        without."""

    def use(self, namespace: str) -> str:
        """How far each line of the namespace's quotas is used; empty where none bounds devices."""

    def used(self) -> Mapping[tuple[str, str, str], float]:
        """How far each line of each quota is used, by namespace, quota and line; 1: all of it."""

    def on_hold(self, event: str, hold: Object, /) -> None:
        """A DeviceHold is new, another, or (`DELETED`) gone."""

    def charged(self, claims: Sequence[Fields]) -> Object:
        """As which a seat with these claims counts, of a DeviceHold's `chargedAs`."""

    def refusal(self, namespace: str, charged: Fields) -> str:
        """Why there is no room for one more; empty where there is."""


class NoQuotas:
    def is_awaited(self) -> bool:
        return False

    def is_bounding(self) -> bool:
        return False

    def held(self, members: Sequence[PodClaims], gangs: Gangs) -> Mapping[str, str]:
        del members, gangs
        return {}

    def use(self, namespace: str) -> str:
        del namespace
        return ""

    def used(self) -> Mapping[tuple[str, str, str], float]:
        return {}

    def on_hold(self, event: str, hold: Object, /) -> None:
        del event, hold

    def charged(self, claims: Sequence[Fields]) -> Object:
        del claims
        return {}

    def refusal(self, namespace: str, charged: Fields) -> str:
        del namespace, charged
        return ""


NO_QUOTAS: Final = NoQuotas()
