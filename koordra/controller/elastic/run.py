"""Elastic GPU's reconciler in the leader's term: watches of its kinds beside the term's own caches.

Passes look at all slices and claims, so changes are gathered for a while.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from koordra.api.elastic.elastic_gpu import ELASTIC_CLAIMS, ELASTIC_CLASSES, ELASTIC_GPUS, GPUS
from koordra.controller.cache.changes import Cluster
from koordra.controller.elastic.reconcile import ElasticReconciler, Seen
from koordra.controller.reconcile_loop import Caches, start_reconcile_loop
from koordra.controller.reporting.claim_events import ClaimEvent
from koordra.kube import KubeClient

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
    """Until `stop`, in a thread of its own. `observe`: the term's caches; `changed` is set when they change."""
    reconciler = ElasticReconciler(client, now=now, may_write=may_write, tell=tell)

    def reconcile(caches: Caches) -> None:
        cluster = observe()
        reconciler.reconcile(
            Seen(
                classes=caches[ELASTIC_CLASSES].objects(),
                claims=caches[ELASTIC_CLAIMS].objects(),
                bindings=caches[ELASTIC_GPUS].objects(),
                gpus=caches[GPUS].objects(),
                device_classes=cluster.classes,
                resource_claims=cluster.claims,
                slices=cluster.slices,
                pods=cluster.pods,
            )
        )

    return start_reconcile_loop(
        client,
        reconcile,
        name="elastic-gpu",
        kinds=KINDS,
        crds=KINDS,
        gather=GATHER,
        changed=changed,
        stop=stop,
    )
