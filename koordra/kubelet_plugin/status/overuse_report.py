"""Tells the pods of a claim that has more of a card than its share, of its memory (OverLimit) or of its time
(OverTime), and asks for their eviction for more memory where the operator says so (`--on-overuse evict`): the
controller evicts (koordra/evictions.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime

from koordra.api import kinds, objects
from koordra.errors import NotFound, one_by_one
from koordra.evictions import OF_PLUGIN, EvictionRequest, EvictionRequests
from koordra.kube.client import KubeClient
from koordra.kubelet_plugin.claims.claim_record import ClaimRecord
from koordra.kubelet_plugin.isolation.limiter.overtime import OverTime
from koordra.kubelet_plugin.isolation.limiter.overuse import Overuse
from koordra.kubelet_plugin.settings import Settings
from koordra.kubelet_plugin.status.pod_events import warn_pods
from koordra.logs import get_logger
from koordra.process.wakeable import Pause, Wakeable

log = get_logger(__name__)


def wanted_evictions(client: KubeClient, settings: Settings) -> EvictionRequests | None:
    """Where evictions are asked for; None where the operator wants none."""
    if settings.on_overuse != "evict":
        return None
    return EvictionRequests(client, OF_PLUGIN, node=settings.node, namespace=settings.namespace)


class OveruseReporter(Wakeable):
    """`overused` has the claims (by uid) that are over their share now; `evictions`: where their end is asked
    for, if it is."""

    def __init__(
        self,
        client: KubeClient,
        *,
        records: Callable[[], Iterable[ClaimRecord]],
        overused: Callable[[], Mapping[str, Overuse | OverTime]],
        evictions: EvictionRequests | None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        super().__init__()
        self._client = client
        self._records = records
        self._overused = overused
        self._evictions = evictions
        self._now = now
        self._told: dict[tuple[str, str], tuple[EvictionRequest, ...]] = {}
        """Claims whose pods know it, with the reason, and what is to be asked for."""

    failed = "overuse_not_reported"

    def step(self) -> Pause | None:
        over = {(uid, found.reason): found for uid, found in self._overused().items()}
        self._told = {key: requests for key, requests in self._told.items() if key in over}
        with one_by_one() as one:
            for record in self._records() if over.keys() - self._told else ():
                for key in [key for key in over.keys() - self._told if key[0] == record.ref.uid]:
                    with one():
                        self._told[key] = self._report(record, over[key])
            with one():
                if self._evictions is not None:
                    self._evictions.want(request for requests in self._told.values() for request in requests)
        return None if over.keys() - self._told.keys() else Pause(0.0, None)

    def _report(self, record: ClaimRecord, found: Overuse | OverTime) -> tuple[EvictionRequest, ...]:
        """The requests for its pods. Raises ApiError."""
        log.warning("claim_over_share", claim=str(record.ref), reason=found.reason, message=str(found))
        try:
            claim = self._client.get(kinds.RESOURCE_CLAIMS, record.ref.name, namespace=record.ref.namespace)
        except NotFound:
            return ()
        if objects.uid(claim) != record.ref.uid:
            return ()
        now = self._now().strftime("%Y-%m-%dT%H:%M:%SZ")
        warn_pods(self._client, claim, reason=found.reason, message=str(found), now=now)
        return tuple(
            EvictionRequest(record.ref.namespace, str(each.get("name")), str(each.get("uid")), found.reason)
            for each in objects.status_of(claim).get("reservedFor") or ()
            if found.evicts and each.get("resource") == "pods" and not each.get("apiGroup")
        )
