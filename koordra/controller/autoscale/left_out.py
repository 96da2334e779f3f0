"""Groups of nodes that are left out for a while because they did not deliver, and whom the last nodes that
came were for: kept in the ConfigMap `koordra-autoscale`, so that a new leader knows it.

    failures 1, 2, 3 ...    left out for one minute, two, four ... an hour at most

It is installed empty and only ever patched, one entry a group. What cannot be read counts as nothing: then a
group is asked once more than it would be.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Final

from koordra.api.resource_class import CONFIG_MAPS
from koordra.controller.cache.placeholders import NAMESPACE
from koordra.errors import NotFound
from koordra.kube.client import KubeClient
from koordra.logs import get_logger

log = get_logger(__name__)

NAME: Final = "koordra-autoscale"
FIRST: Final = 60.0
LONGEST: Final = 3600.0
MOST_SERVED: Final = 64
LONGEST_WHY: Final = 256


@dataclass(frozen=True, slots=True)
class Standing:
    """Of a group: `until` when it is left out, in Unix seconds, and `why`. `served`: uids of the claims for
    which nodes came last, at `came`."""

    failures: int = 0
    until: float = 0.0
    why: str = ""
    served: tuple[str, ...] = ()
    came: float = 0.0

    def is_left_out(self, now: datetime) -> bool:
        return now.timestamp() < self.until

    def failed(self, why: str, now: datetime) -> Standing:
        """What failed longer ago than an hour does not count any more."""
        before = self.failures if now.timestamp() - self.until < LONGEST else 0
        until = now.timestamp() + min(LONGEST, FIRST * 2 ** min(before, 16))
        return replace(self, failures=before + 1, until=until, why=why[:LONGEST_WHY], served=())

    def delivered(self, claims: tuple[str, ...], now: datetime) -> Standing:
        return replace(self, served=(*self.served, *claims)[-MOST_SERVED:], came=now.timestamp())

    def is_well(self) -> Standing:
        return replace(self, failures=0, until=0.0, why="")


@dataclass(slots=True)
class Standings:
    """Written through. Raises ApiError but for what is not there."""

    client: KubeClient
    may_write: Callable[[], bool]
    _known: dict[str, Standing] = field(default_factory=dict)
    _is_read: bool = False

    def of(self, group: str) -> Standing:
        if not self._is_read:
            self._known = self._read()
            self._is_read = True
        return self._known.get(group, Standing())

    def put(self, group: str, standing: Standing) -> None:
        if standing == self.of(group) or not self.may_write():
            return
        body = {"data": {group: json.dumps(asdict(standing), separators=(",", ":"))}}
        try:
            self.client.patch(CONFIG_MAPS, NAME, body, namespace=NAMESPACE)
        except NotFound as error:
            log.warning("autoscale_standing_not_kept", configmap=f"{NAMESPACE}/{NAME}", error=str(error))
        self._known[group] = standing

    def _read(self) -> dict[str, Standing]:
        try:
            data = self.client.get(CONFIG_MAPS, NAME, namespace=NAMESPACE).get("data") or {}
        except NotFound:
            return {}
        return {group: _standing(group, text) for group, text in data.items()}


def _standing(group: str, text: str) -> Standing:
    try:
        found = json.loads(text)
        return Standing(
            int(found["failures"]),
            float(found["until"]),
            str(found["why"]),
            tuple(map(str, found["served"])),
            float(found["came"]),
        )
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        log.warning("autoscale_standing_unreadable", group=group, error=str(error))
        return Standing()
