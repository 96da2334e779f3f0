"""What the replicas of the webhook have let in within the last minute, so that two of them never let in the
last one twice.

    claim (or pod of a native namespace) under a quota
        ──> read the ConfigMap `koordra-quota` of koordra's namespace
        ──> count what it says beside what the watch shows
        ──> write oneself into it, on condition that nobody has written since; else from the beginning
        ──> admitted

    data: {team: '{"<uid>": {"at": 1764.. , "amounts": {...}, "pod": {...}}}'}

Nobody is let in without having read everybody who was let in before him: that makes the bound exact over any
number of replicas, as Kubernetes' own ResourceQuota is by writing its status. An entry counts until the watch
shows the object, and KEPT seconds at the most (it was not stored); a replica whose watch lags by more than
that may count too little. Who cannot read or write the record lets nobody in.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from koordra.api import objects
from koordra.api.objects import Fields, Object
from koordra.api.resource_class import CONFIG_MAPS
from koordra.compat.quota_charges import charged_as
from koordra.controller.quota.bounds import Charge
from koordra.controller.quota.usage import RESERVED_FOR, QuotaUsage
from koordra.errors import ApiError, Conflict, NotFound
from koordra.kube.client import KubeClient

NAME: Final = "koordra-quota"
KEPT: Final = RESERVED_FOR
TRIES: Final = 16
MOST_BYTES: Final = 512 << 10
"""Of one namespace's entries; a ConfigMap is at most 1 MiB."""
NOT_INSTALLED: Final = (
    "ConfigMap {}/{} does not exist, which holds who was admitted last; apply deploy/kustomize/controller"
)
BUSY: Final = "too many are admitted to namespace {} at once; try again"


@dataclass(frozen=True, slots=True)
class QuotaRecord:
    """`now`: seconds of the wall clock, which replicas share within seconds."""

    client: KubeClient
    namespace: str
    usage: QuotaUsage
    now: Callable[[], float]
    _writing: threading.Lock = field(default_factory=threading.Lock)

    def admit(self, uid: str, asking: Charge, refused: Callable[[], str]) -> str:
        """Charge it, or say why not. Raises ApiError where the record cannot be read or written, or others
        write all the time."""
        place = objects.namespace(asking.pod)
        with self._writing:
            for _ in range(TRIES):
                found = self._read()
                data = objects.fields(found.get("data"))
                self.usage.admitted_elsewhere(place, self._lasting(str(data.get(place) or "")))
                if why := self.usage.reserve(uid, asking, refused):
                    return why
                try:
                    self._write(found, self._with(data, place, uid, asking))
                except Conflict:
                    self.usage.release(uid, place)
                    continue
                except ApiError:
                    self.usage.release(uid, place)
                    raise
                return ""
        raise ApiError(BUSY.format(place))

    def _read(self) -> Object:
        try:
            return self.client.get(CONFIG_MAPS, NAME, namespace=self.namespace)
        except NotFound as error:
            raise ApiError(NOT_INSTALLED.format(self.namespace, NAME)) from error

    def _write(self, found: Object, data: Mapping[str, str | None]) -> None:
        version = objects.resource_version(found)
        body = {"metadata": {"resourceVersion": version}, "data": data}
        self.client.patch(CONFIG_MAPS, NAME, body, namespace=self.namespace)

    def _with(self, data: Fields, place: str, uid: str, asking: Charge) -> dict[str, str | None]:
        """What changes: the entry is added, and those that are over go, in all namespaces."""
        new = {
            "at": self.now(),
            "amounts": {name: amount for name, amount in asking.amounts.items() if amount},
            "pod": charged_as(asking.pod),
        }
        changed: dict[str, str | None] = {}
        for namespace in {*data, place}:
            before = _entries(str(data.get(namespace) or ""))
            left = {one: entry for one, entry in before.items() if self._lasts(entry) > 0}
            if namespace == place:
                left[uid] = new
            if left != before or namespace == place:
                changed[namespace] = json.dumps(left, separators=(",", ":")) if left else None
        if len(changed[place] or "") > MOST_BYTES:
            raise ApiError(BUSY.format(place))
        return changed

    def _lasts(self, entry: Fields) -> float:
        """Seconds for which it counts still; a clock that runs ahead does not make it last."""
        return min(KEPT, float(entry["at"]) + KEPT - self.now())

    def _lasting(self, written: str) -> dict[str, tuple[float, Charge]]:
        return {
            uid: (lasts, Charge({"metadata": {}, "spec": entry["pod"]}, entry["amounts"]))
            for uid, entry in _entries(written).items()
            if (lasts := self._lasts(entry)) > 0
        }


def _entries(written: str) -> dict[str, dict[str, Any]]:
    """Empty for what nobody of koordra's wrote."""
    try:
        found = json.loads(written or "{}")
    except ValueError:
        return {}
    whole = isinstance(found, dict) and all(
        isinstance(one, dict)
        and isinstance(one.get("at"), int | float)
        and isinstance(one.get("amounts"), dict)
        and isinstance(one.get("pod"), dict)
        for one in found.values()
    )
    return found if whole else {}
