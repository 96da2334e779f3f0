"""About which namespaces the API server asks the quota's webhooks: those that have quotas on koordra's names.

Both webhooks come as they are shipped: every namespace is asked about, and without koordra no claim of its
classes is let in anywhere. The leader narrows them, by `namespaceSelector`, and follows the quotas. Whoever
applies the manifests again widens them until the leader's next look. What it may write is what carries the
bundle of the webhook's certificates too: configurations called `koordra`.

    ResourceQuota with one of koordra's names ──> the leader's watch ──> its namespace is in the selector
        ──> the API servers read that ──> the namespace's next claim is reviewed (unreviewed)
    the last one gone                         ──> the namespace is out of it
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from koordra.api import objects
from koordra.api.objects import Object
from koordra.controller.webhook.cert_rotation import CONFIGURATIONS, NAME
from koordra.errors import ApiError, Conflict, Invalid, NotFound
from koordra.kube.client import KubeClient
from koordra.logs import get_logger

log = get_logger(__name__)

WEBHOOKS: Final = ("quota.koordra.io", "others.quota.koordra.io")
KEY: Final = "kubernetes.io/metadata.name"
"""The label that the API server gives every namespace."""
SPARED: Final = ("kube-system", "koordra-system")
MOST: Final = 4096
"""Namespaces that are named; with more of them every one is asked about, so that the object stays small."""
LOOK_EVERY: Final = 10.0


def selector(namespaces: Iterable[str]) -> Object:
    """Of namespaces with these names; of all, where there are too many."""
    found = sorted(set(namespaces) - set(SPARED))
    if not found:
        return {"matchExpressions": [{"key": KEY, "operator": "DoesNotExist"}]}
    if len(found) > MOST:
        return {"matchExpressions": [{"key": KEY, "operator": "NotIn", "values": list(SPARED)}]}
    return {"matchExpressions": [{"key": KEY, "operator": "In", "values": found}]}


def steps(configuration: Object, wanted: Object) -> list[Object]:
    """JSON patch; empty where the configuration is so already."""
    found = [
        {"op": "replace", "path": f"/webhooks/{index}/namespaceSelector", "value": wanted}
        for index, entry in enumerate(configuration.get("webhooks") or ())
        if entry.get("name") in WEBHOOKS and entry.get("namespaceSelector") != wanted
    ]
    unchanged = {
        "op": "test",
        "path": "/metadata/resourceVersion",
        "value": objects.resource_version(configuration),
    }
    return [unchanged, *found] if found else []


@dataclass(slots=True)
class ReviewScope:
    """The leader's."""

    client: KubeClient
    may_write: Callable[[], bool]
    clock: Callable[[], float] = time.monotonic
    _last: tuple[Any, float] = field(default=(None, 0.0))
    """What was last seen to be so, and when."""

    def follow(self, namespaces: Iterable[str]) -> None:
        wanted = selector(namespaces)
        before, at = self._last
        if wanted == before and self.clock() < at + LOOK_EVERY:
            return
        try:
            if self._write(wanted):
                self._last = wanted, self.clock()
        except NotFound:  # no webhook is installed
            self._last = wanted, self.clock()
        except (Conflict, Invalid):  # somebody else was quicker: a failed `test` is a 422
            self._last = None, 0.0
        except ApiError as error:
            log.warning("quota_scope_not_written", error=str(error))

    def _write(self, wanted: Object) -> bool:
        kind = CONFIGURATIONS[1]
        patch = steps(self.client.get(kind, NAME), wanted)
        if patch and not self.may_write():
            return False
        if patch:
            self.client.patch(kind, NAME, patch, content_type="application/json-patch+json")
            log.info("quota_scope", webhooks=len(patch) - 1, selector=wanted["matchExpressions"][0])
        return True
