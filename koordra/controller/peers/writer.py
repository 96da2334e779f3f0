"""Which pods get the annotations of annotations.py, and writing them.

A pod that came through the shim (annotation koordra.io/dialect), that is bound, and whose claims are all allocated. What
stands there and differs is replaced: a user's forgery too. A pod is looked at again when it, one of its claims or the
published devices have changed. One patch for a pod, conditional on its uid; what the API server refuses is logged once and not
tried again for that pod (a policy may reserve Koordinator's annotation for its scheduler).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from koordra.api import objects
from koordra.api.kinds import PODS, RESOURCE_SLICES
from koordra.api.objects import Object
from koordra.compat.dialect.allocation import Device
from koordra.controller import claims as claims_of
from koordra.controller.cache.changes import ChangeQueue
from koordra.controller.cache.cluster_cache import ClusterCache
from koordra.controller.cache.pod_index import PodEntry
from koordra.controller.peers.annotations import DIALECT, Devices, devices_of, wanted
from koordra.controller.reconcile_loop import Caches, start_reconcile_loop
from koordra.errors import ApiError, ApiUnreachable, Conflict, NotFound
from koordra.kube import KubeClient
from koordra.logs import get_logger

log = get_logger(__name__)

GATHER: Final = 0.1


class PeerAnnotations:
    """Follows a cache of its own. Not thread-safe."""

    def __init__(self, client: KubeClient, source: ChangeQueue, *, may_write: Callable[[], bool]) -> None:
        self._client = client
        self._source = source
        self._may_write = may_write
        self._cache = ClusterCache()
        self._devices: dict[str, Devices] = {}
        self._stale: set[str] = self._cache.pod_index.follow()
        self._cache.listen(RESOURCE_SLICES, self._on_slice)

    def _on_slice(self, _key: str, before: Object | None, now: Object | None) -> None:
        for entry in (before, now):
            pool = str((objects.spec_of(entry or {}).get("pool") or {}).get("name"))
            self._devices.pop(pool, None)
            for held in self._cache.claim_index.of_pool(pool):
                using = self._cache.pod_index.users.get(objects.key(held.claim), ())
                self._stale |= {objects.uid(pod) for pod in using}

    def sync(self) -> int:
        """One pass over the pods that have changed; how many were written. Raises ApiUnreachable."""
        self._cache.apply(self._source.changes())
        written = 0
        for uid in sorted(self._stale):
            entry = self._cache.pod_index.entries.get(uid)
            claims = self._claims(entry) if entry is not None and _is_served(entry.pod) else None
            if entry is not None and claims is not None:
                if not self._may_write():
                    break
                written += self._write(entry.pod, wanted(entry.pod, claims, self._devices_of(claims)))
            self._stale.discard(uid)
        return written

    def _claims(self, entry: PodEntry) -> list[Object] | None:
        """The pod's claims with devices of koordra's; None while one of its claims is not there or not allocated."""
        if len(entry.keys) < len(objects.pod_claim_names(entry.pod)):
            return None
        found = [self._cache.claims.get(key) for key in entry.keys]
        if any(claim is None or not claims_of.is_allocated(claim) for claim in found):
            return None
        return [claim for claim in found if claim is not None and claims_of.holds_koordra_devices(claim)]

    def _devices_of(self, claims: Sequence[Object]) -> Devices:
        devices: dict[tuple[str, str], Device] = {}
        for pool in {pool for claim in claims for pool in claims_of.pools(claim)}:
            if pool not in self._devices:
                self._devices[pool] = devices_of(self._cache.slice_index.of_pool(pool))
            devices.update(self._devices[pool])
        return devices

    def _write(self, pod: Object, annotations: Mapping[str, str]) -> bool:
        there = objects.annotations_of(pod)
        if all(there.get(key) == value for key, value in annotations.items()):
            return False
        body = {"metadata": {"uid": objects.uid(pod), "annotations": dict(annotations)}}
        try:
            self._client.patch(PODS, objects.name(pod), body, namespace=objects.namespace(pod))
        except (NotFound, Conflict):
            return False
        except ApiUnreachable:
            raise
        except ApiError as error:
            log.warning("peer_annotations_refused", pod=objects.key(pod), error=str(error))
            return False
        log.info("peer_annotations_written", pod=objects.key(pod), annotations=sorted(annotations))
        return True


def start_peer_annotations(
    client: KubeClient, writer: PeerAnnotations, *, changed: threading.Event, stop: threading.Event
) -> threading.Thread:
    """Passes until `stop`, in a thread of its own: after any change, and every half minute."""

    def reconcile(_caches: Caches) -> None:
        writer.sync()

    return start_reconcile_loop(
        client,
        reconcile,
        name="peer-annotations",
        kinds=(),
        crds=(),
        gather=GATHER,
        changed=changed,
        stop=stop,
    )


def _is_served(pod: Object) -> bool:
    return (
        DIALECT in objects.annotations_of(pod)
        and bool(objects.spec_of(pod).get("nodeName"))
        and not objects.pod_is_finished(pod)
        and not objects.is_deleting(pod)
    )
