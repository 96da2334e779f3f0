"""The loop of a reconciler beside the main one, for a leader's term: watches of its kinds, a pass after any change.

A pass runs also every half minute, and after a failure when a growing pause is over. Where the CRDs are not installed there is
nothing to do; they are looked for again, at last every half minute.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from koordra.api.kinds import Kind
from koordra.api.objects import Object
from koordra.errors import ApiError
from koordra.kube import KubeClient
from koordra.logs import get_logger
from koordra.process import spawn
from koordra.watch import WatchCache

log = get_logger(__name__)

Caches = Mapping[Kind, WatchCache]

PERIOD: Final = 30.0
FIRST_BACKOFF: Final = 0.2


def start_reconcile_loop(
    client: KubeClient,
    reconcile: Callable[[Caches], float | None],
    *,
    name: str,
    kinds: Sequence[Kind],
    crds: Sequence[Kind],
    gather: float,
    stop: threading.Event,
    changed: threading.Event | None = None,
) -> threading.Thread:
    run = partial(run_reconcile_loop, name=name, kinds=kinds, crds=crds, gather=gather, stop=stop)
    return spawn(lambda: run(client, reconcile, changed=changed or threading.Event()), name=name)


def run_reconcile_loop(
    client: KubeClient,
    reconcile: Callable[[Caches], float | None],
    *,
    name: str,
    kinds: Sequence[Kind],
    crds: Sequence[Kind],
    gather: float,
    changed: threading.Event,
    stop: threading.Event,
) -> None:
    """Until `stop`. `changed` is also set by others who want a pass; changes of `gather` seconds share one. A pass may return the
    seconds until the next one, if nothing changes."""
    if not _wait_for_crds(client, crds, name=name, stop=stop):
        return

    def wake(_event: str, _obj: Object, /) -> None:
        changed.set()

    caches = {kind: WatchCache(client, kind, on_change=wake) for kind in kinds}
    for kind, cache in caches.items():
        spawn(partial(cache.run, stop), name=f"watch-{kind.plural}")
    for cache in caches.values():
        while not cache.wait_synced(0.5):
            if stop.is_set():
                return
    backoff = FIRST_BACKOFF
    while not stop.is_set():
        changed.clear()
        try:
            pause = reconcile(caches)
        except ApiError as error:
            log.warning("reconcile_interrupted", reconciler=name, error=str(error), again_in=backoff)
        except Exception:  # a defect in one pass must not end what users of these kinds rely on
            log.exception("reconcile_failed", reconciler=name, again_in=backoff)
        else:
            backoff = FIRST_BACKOFF
            wait_for_change(changed, stop, PERIOD if pause is None else pause)
            stop.wait(gather)
            continue
        stop.wait(backoff)
        backoff = min(backoff * 2, PERIOD)


def wait_for_change(changed: threading.Event, stop: threading.Event, pause: float | None) -> None:
    """Until something changed, `pause` seconds are over, or the term ends (looked at twice a second)."""
    ends = None if pause is None else time.monotonic() + pause
    while not stop.is_set() and not changed.is_set():
        rest = 0.5 if ends is None else min(0.5, ends - time.monotonic())
        if rest <= 0:
            return
        changed.wait(rest)


def _wait_for_crds(client: KubeClient, crds: Sequence[Kind], *, name: str, stop: threading.Event) -> bool:
    reported, pause = False, 1.0
    while not stop.is_set():
        try:
            for kind in crds:
                client.list(kind)
        except ApiError as error:
            if not reported:
                log.info("kinds_not_served", reconciler=name, error=str(error))
                reported = True
            stop.wait(pause)
            pause = min(pause * 2, PERIOD)
        else:
            return True
    return False
