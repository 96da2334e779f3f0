"""Tells the pods of a claim that uses more of a card than its share, and evicts them where the operator says
so (`--on-overuse evict`), through the Eviction API: budgets hold.

Evicted are no more than _MOST pods within _WITHIN seconds: the cause of so many is the node or the driver,
and would hit their successors too. The rest is evicted later, if it is over its share then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Final

from koordra.api import kinds, objects
from koordra.api.objects import Object
from koordra.errors import ApiError, Conflict, NotFound, one_by_one
from koordra.kube import KubeClient
from koordra.kubelet_plugin.claims.claim_record import ClaimRecord
from koordra.kubelet_plugin.isolation.limiter.overuse import Overuse
from koordra.kubelet_plugin.status.pod_events import warn_pods
from koordra.kubelet_plugin.wakeable import Pause, Wakeable
from koordra.logs import get_logger

log = get_logger(__name__)

REASON: Final = "OverLimit"
_MOST: Final = 5
_WITHIN: Final = 600.0
_RETRY: Final = 5.0


class OveruseReporter(Wakeable):
    """`overused` has the claims (by uid) that are over their share now."""

    def __init__(
        self,
        client: KubeClient,
        *,
        records: Callable[[], Iterable[ClaimRecord]],
        overused: Callable[[], Mapping[str, Overuse]],
        evict: bool,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        super().__init__()
        self._client = client
        self._records = records
        self._overused = overused
        self._evict = evict
        self._clock = clock
        self._now = now
        self._told: frozenset[str] = frozenset()
        self._evicted: dict[str, float] = {}

    failed = "overuse_not_reported"
    retry = Pause(0.0, _RETRY)

    def step(self) -> Pause:
        over = self._overused()
        self._told &= over.keys()
        with one_by_one() as one:
            for record in self._records() if over.keys() - self._told else ():
                found = over.get(record.ref.uid)
                if found is not None and record.ref.uid not in self._told:
                    with one():
                        if self._report(record, found):
                            self._told |= {record.ref.uid}
        return self.retry if over.keys() - self._told else Pause(0.0, None)

    def _report(self, record: ClaimRecord, found: Overuse) -> bool:
        """False if there is more to do. Raises ApiError."""
        log.warning("claim_over_limit", claim=str(record.ref), message=str(found), evict=self._evict)
        try:
            claim = self._client.get(kinds.RESOURCE_CLAIMS, record.ref.name, namespace=record.ref.namespace)
        except NotFound:
            return True
        if objects.uid(claim) != record.ref.uid:
            return True
        now = self._now().strftime("%Y-%m-%dT%H:%M:%SZ")
        warn_pods(self._client, claim, reason=REASON, message=str(found), now=now)
        pods = [
            (str(each.get("name")), str(each.get("uid")))
            for each in objects.status_of(claim).get("reservedFor") or ()
            if each.get("resource") == "pods" and not each.get("apiGroup")
        ]
        evicted = [self._evict_pod(objects.namespace(claim), *pod) for pod in pods] if self._evict else []
        return all(evicted)

    def _evict_pod(self, namespace: str, name: str, uid: str) -> bool:
        now = self._clock()
        self._evicted = {each: at for each, at in self._evicted.items() if now - at < _WITHIN}
        if uid in self._evicted:
            return True
        if len(self._evicted) >= _MOST:
            log.warning("pod_not_evicted", pod=f"{namespace}/{name}", reason="too many were, just before")
            return False
        body: Object = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": {"preconditions": {"uid": uid}},
        }
        try:
            self._client.create(kinds.PODS, body, namespace=namespace, name=name, subresource="eviction")
        except (NotFound, Conflict):
            return True  # gone, or another pod under its name
        except (
            ApiError
        ) as error:  # a budget allows none now, say; the claim's other pods are none of its business
            log.warning("pod_not_evicted", pod=f"{namespace}/{name}", reason=str(error))
            return False
        self._evicted[uid] = now
        log.warning("pod_evicted", pod=f"{namespace}/{name}", reason=REASON)
        return True
