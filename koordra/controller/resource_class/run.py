"""The loop: watches of ResourceClasses, their parameters and DeviceClasses; any change, and every half minute, is a pass.

The half minute is for ConfigMaps, which are read one by one and not watched: koordra may read those of its own namespace
only. Where the CRD is not installed there is nothing to do; it is looked for again every half minute.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from koordra.api import objects
from koordra.api.kinds import DEVICE_CLASSES, Kind
from koordra.api.objects import Object
from koordra.api.resource_class import CLASS_PARAMETERS, RESOURCE_CLASSES
from koordra.cel.selectors import admission_error
from koordra.controller.resource_class.reconcile import ClassReconciler
from koordra.errors import ApiError
from koordra.kube import KubeClient
from koordra.logs import get_logger
from koordra.process import spawn
from koordra.watch import WatchCache

log = get_logger(__name__)

PERIOD: Final = 30.0
FIRST_BACKOFF: Final = 0.2
GATHER: Final = 0.05


def start_classes(
    client: KubeClient,
    *,
    own_namespace: str,
    now: Callable[[], str],
    may_write: Callable[[], bool],
    stop: threading.Event,
) -> threading.Thread:
    """`run_classes` in a thread of its own."""
    return spawn(
        lambda: run_classes(client, own_namespace=own_namespace, now=now, may_write=may_write, stop=stop),
        name="resource-classes",
    )


def run_classes(
    client: KubeClient,
    *,
    own_namespace: str,
    now: Callable[[], str],
    may_write: Callable[[], bool],
    stop: threading.Event,
) -> None:
    """Until `stop`: one leader's term. Returns at once only when told to stop."""
    if not _wait_for_crd(client, stop):
        return
    changed = threading.Event()

    def wake(_event: str, _obj: Object, /) -> None:
        changed.set()

    kinds: tuple[Kind, ...] = (RESOURCE_CLASSES, CLASS_PARAMETERS, DEVICE_CLASSES)
    caches = {kind: WatchCache(client, kind, on_change=wake) for kind in kinds}
    for kind, cache in caches.items():
        spawn(_follow(cache, stop), name=f"watch-{kind.plural}")
    for cache in caches.values():
        while not cache.wait_synced(0.5):
            if stop.is_set():
                return
    reconciler = ClassReconciler(
        client,
        own_namespace=own_namespace,
        now=now,
        may_write=may_write,
        selector_problem=admission_error,
    )
    backoff = FIRST_BACKOFF
    while not stop.is_set():
        changed.clear()
        try:
            reconciler.reconcile(
                caches[RESOURCE_CLASSES].objects(),
                {objects.name(obj): obj for obj in caches[DEVICE_CLASSES].objects()},
                {objects.key(obj): obj for obj in caches[CLASS_PARAMETERS].objects()},
            )
            backoff = FIRST_BACKOFF
        except ApiError as error:
            log.warning("class_pass_interrupted", error=str(error), again_in=backoff)
            stop.wait(backoff)
            backoff = min(backoff * 2, PERIOD)
            continue
        _wait(changed, stop, PERIOD)
        stop.wait(GATHER)


def _wait(changed: threading.Event, stop: threading.Event, period: float) -> None:
    """Until something changed, the period is over, or the term ends (looked at twice a second)."""
    for _ in range(int(period * 2)):
        if stop.is_set() or changed.wait(0.5):
            return


def _wait_for_crd(client: KubeClient, stop: threading.Event) -> bool:
    told = False
    while not stop.is_set():
        try:
            client.list(RESOURCE_CLASSES)
            client.list(CLASS_PARAMETERS)
        except ApiError as error:
            if not told:
                log.info("resource_classes_not_served", error=str(error), again_in=PERIOD)
                told = True
            stop.wait(PERIOD)
        else:
            return True
    return False


def _follow(cache: WatchCache, stop: threading.Event) -> Callable[[], None]:
    return lambda: cache.run(stop)
