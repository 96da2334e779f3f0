"""The loop: watches of Elastic GPU's kinds beside the term's own caches; a pass after any change, and every half minute.

Passes look at all slices and claims, so changes are gathered for a while. Where the CRDs are not installed there is nothing
to do; they are looked for again, at last every half minute.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Final

from koordra.api.elastic.elastic_gpu import ELASTIC_CLAIMS, ELASTIC_CLASSES, ELASTIC_GPUS, GPUS
from koordra.api.kinds import Kind
from koordra.api.objects import Object
from koordra.controller.cache.changes import Cluster
from koordra.controller.elastic.reconcile import ElasticReconciler, Seen
from koordra.controller.reporting.claim_events import ClaimEvent
from koordra.errors import ApiError
from koordra.kube import KubeClient
from koordra.logs import get_logger
from koordra.process import spawn
from koordra.watch import WatchCache

log = get_logger(__name__)

PERIOD: Final = 30.0
FIRST_BACKOFF: Final = 0.2
GATHER: Final = 0.25
KINDS: Final = (ELASTIC_CLASSES, ELASTIC_CLAIMS, ELASTIC_GPUS, GPUS)


def start_elastic(
    client: KubeClient,
    *,
    observe: Callable[[], Cluster],
    changed: threading.Event,
    now: Callable[[], str],
    may_write: Callable[[], bool],
    tell: Callable[[ClaimEvent], None],
    stop: threading.Event,
) -> threading.Thread:
    """`run_elastic` in a thread of its own. `observe`: the term's caches; `changed` is set when they change."""
    reconciler = ElasticReconciler(client, now=now, may_write=may_write, tell=tell)
    return spawn(
        lambda: run_elastic(client, reconciler, observe=observe, changed=changed, stop=stop),
        name="elastic-gpu",
    )


def run_elastic(
    client: KubeClient,
    reconciler: ElasticReconciler,
    *,
    observe: Callable[[], Cluster],
    changed: threading.Event,
    stop: threading.Event,
) -> None:
    """Until `stop`: one leader's term."""
    if not _wait_for_crds(client, stop):
        return

    def wake(_event: str, _obj: Object, /) -> None:
        changed.set()

    caches = {kind: WatchCache(client, kind, on_change=wake) for kind in KINDS}
    for kind, cache in caches.items():
        spawn(_follow(cache, stop), name=f"watch-{kind.plural}")
    for cache in caches.values():
        while not cache.wait_synced(0.5):
            if stop.is_set():
                return
    backoff = FIRST_BACKOFF
    while not stop.is_set():
        changed.clear()
        try:
            reconciler.reconcile(_seen(caches, observe()))
            backoff = FIRST_BACKOFF
        except ApiError as error:
            log.warning("elastic_pass_interrupted", error=str(error), again_in=backoff)
            stop.wait(backoff)
            backoff = min(backoff * 2, PERIOD)
            continue
        except Exception:  # a defect here must not end what Elastic GPU's users rely on
            log.exception("elastic_pass_failed", again_in=backoff)
            stop.wait(backoff)
            backoff = min(backoff * 2, PERIOD)
            continue
        _wait(changed, stop)
        stop.wait(GATHER)


def _seen(caches: Mapping[Kind, WatchCache], cluster: Cluster) -> Seen:
    return Seen(
        classes=caches[ELASTIC_CLASSES].objects(),
        claims=caches[ELASTIC_CLAIMS].objects(),
        bindings=caches[ELASTIC_GPUS].objects(),
        gpus=caches[GPUS].objects(),
        device_classes=cluster.classes,
        resource_claims=cluster.claims,
        slices=cluster.slices,
        pods=cluster.pods,
    )


def _wait(changed: threading.Event, stop: threading.Event) -> None:
    """Until something changed, the period is over, or the term ends (looked at twice a second)."""
    for _ in range(int(PERIOD * 2)):
        if stop.is_set() or changed.wait(0.5):
            return


def _wait_for_crds(client: KubeClient, stop: threading.Event) -> bool:
    told, pause = False, 1.0
    while not stop.is_set():
        try:
            for kind in KINDS:
                client.list(kind)
        except ApiError as error:
            if not told:
                log.info("elastic_gpu_not_served", error=str(error))
                told = True
            stop.wait(pause)
            pause = min(pause * 2, PERIOD)
        else:
            return True
    return False


def _follow(cache: WatchCache, stop: threading.Event) -> Callable[[], None]:
    return lambda: cache.run(stop)
