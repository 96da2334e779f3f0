"""The threads: what every replica of the webhook follows, and the loop of a leader's term."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from koordra.api import objects
from koordra.api.kinds import DEVICE_CLASSES, PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_QUOTAS
from koordra.api.objects import Object
from koordra.controller.happenings import Happening, cut
from koordra.controller.legacy import upkeep
from koordra.controller.legacy.admission import PATHS, Admission
from koordra.controller.legacy.settings import LegacySettings
from koordra.controller.legacy.templates import NotMade, Templates
from koordra.controller.legacy.usage import Usage
from koordra.controller.webhook.lookups import Watched
from koordra.controller.webhook.review import Answer, Asked
from koordra.errors import ApiError, Conflict, InvalidManifest, NotFound
from koordra.kube import KubeClient
from koordra.logs import get_logger
from koordra.metrics import Metrics
from koordra.process import spawn
from koordra.watch import WatchCache

log = get_logger(__name__)

PERIOD: Final = 10.0
GATHER: Final = 0.25
PATIENCE: Final = 2.0
"""Seconds for which a review waits for the first lists, when it comes before the replica is ready."""
NOT_READY: Final = InvalidManifest("pods and quotas are not read yet; try again")
SETTLE: Final = 2.0
"""Seconds for which a pod without its template is left to the watches: the template may be a moment behind."""
TELL_AGAIN: Final = 30.0
LOST: Final = "LegacyTemplateLost"
QUOTA_EXCEEDED: Final = "QuotaExceeded"


class LegacyWebhook:
    """Everything that answering needs, from watches. `paths` are for the webhook's server."""

    def __init__(
        self,
        client: KubeClient,
        settings: LegacySettings,
        lookups: Watched,
        *,
        metrics: Metrics,
        patience: float = PATIENCE,
    ) -> None:
        pods = metrics.counter(
            "koordra_legacy_pods", "Legacy pods admitted or refused.", ("dialect", "outcome")
        )
        made = metrics.counter("koordra_legacy_templates", "Templates made or marked as used.", ("what",))
        usage = Usage(settings.compat, clock=time.monotonic)
        lookups.listen(usage.on_template)
        self._patience = patience
        self._usage = usage
        self._pods = WatchCache(client, PODS, on_change=self._on_pod)
        self._heard = 0
        self._is_synced = False
        self._pause = threading.Event()
        self._quotas = QuotaWatch(client)
        templates = Templates(
            client,
            known=lookups.known_template,
            now=time.time,
            grace=settings.grace,
            told=lambda what: made.labels(what).inc(),
        )
        self._admission = Admission(
            settings.compat,
            lookups,
            templates,
            usage,
            self._quotas.of,
            count=lambda dialect, outcome: pods.labels(dialect, outcome).inc(),
        )

    def paths(self) -> Mapping[str, Callable[[Asked], Answer]]:
        return {path: partial(self._answer, in_native=native) for path, native in PATHS.items()}

    def _answer(self, asked: Asked, *, in_native: bool) -> Answer:
        ends = time.monotonic() + self._patience
        while not self.is_synced():
            if time.monotonic() >= ends:
                return Answer((NOT_READY,), code=503, reason="ServiceUnavailable")
            self._pause.wait(0.05)
        return self._admission(asked, in_native)

    def start(self, stop: threading.Event) -> None:
        spawn(lambda: self._pods.run(stop), name="legacy-watch-pods")
        self._quotas.start(stop)

    def is_synced(self) -> bool:
        """Every pod of the first list is counted too, and not only listed: a quota would have room that is taken."""
        if not self._is_synced:
            counted = self._pods.wait_synced(0) and self._heard >= len(self._pods.objects())
            self._is_synced = counted and self._quotas.is_synced()
        return self._is_synced

    def _on_pod(self, event: str, pod: Object, /) -> None:
        self._usage.on_pod(event, pod)
        self._heard += 1


class QuotaWatch:
    """ResourceQuotas by namespace. A server that does not have them has no quotas."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._cache = WatchCache(client, RESOURCE_QUOTAS, on_change=self._changed)
        self._lock = threading.Lock()
        self._by_namespace: dict[str, dict[str, Object]] = {}
        self._served = True
        self._heard = 0

    def start(self, stop: threading.Event) -> None:
        spawn(lambda: self._run(stop), name="legacy-watch-quotas")

    def is_synced(self) -> bool:
        return not self._served or (self._cache.wait_synced(0) and self._heard >= len(self._cache.objects()))

    def of(self, namespace: str) -> list[Object]:
        with self._lock:
            return list(self._by_namespace.get(namespace, {}).values())

    def all(self) -> list[Object]:
        return self._cache.objects()

    def _run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            try:
                self._client.list(RESOURCE_QUOTAS)
            except NotFound:
                if self._served:
                    log.info("resource_quotas_not_served", again_in=PERIOD * 6)
                self._served = False
                stop.wait(PERIOD * 6)
                continue
            except ApiError as error:
                log.warning("resource_quotas_not_read", error=str(error), again_in=PERIOD)
                stop.wait(PERIOD)
                continue
            self._served = True
            self._cache.run(stop)

    def _changed(self, event: str, quota: Object, /) -> None:
        with self._lock:
            found = self._by_namespace.setdefault(objects.namespace(quota), {})
            if event == "DELETED":
                found.pop(objects.name(quota), None)
            else:
                found[objects.name(quota)] = quota
        self._heard += 1


def start_legacy(
    client: KubeClient,
    settings: LegacySettings,
    *,
    tell: Callable[[Happening], None],
    may_write: Callable[[], bool],
    stop: threading.Event,
) -> threading.Thread:
    """A leader's upkeep in a thread of its own, until `stop`."""
    keeper = Keeper(client, settings, tell=tell, may_write=may_write)
    return spawn(lambda: keeper.run(stop), name="legacy-upkeep")


class Keeper:
    """Makes templates again, deletes unused ones, counts quotas."""

    def __init__(
        self,
        client: KubeClient,
        settings: LegacySettings,
        *,
        tell: Callable[[Happening], None],
        may_write: Callable[[], bool],
    ) -> None:
        self._client = client
        self._settings = settings
        self._tell = tell
        self._may_write = may_write
        self._changed = threading.Event()
        self._usage = Usage(settings.compat, clock=time.monotonic)
        self._quotas = QuotaWatch(client)
        self._caches = {
            PODS: WatchCache(client, PODS, on_change=self._on_pod),
            RESOURCE_CLAIM_TEMPLATES: WatchCache(
                client, RESOURCE_CLAIM_TEMPLATES, on_change=self._on_template
            ),
            DEVICE_CLASSES: WatchCache(client, DEVICE_CLASSES),
        }
        self._missed: dict[tuple[str, str], float] = {}
        self._over: dict[str, str] = {}

    def run(self, stop: threading.Event) -> None:
        for kind, cache in self._caches.items():
            spawn(partial(cache.run, stop), name=f"legacy-{kind.plural}")
        self._quotas.start(stop)
        while not all(cache.wait_synced(0.2) for cache in self._caches.values()):
            if stop.is_set():
                return
        while not stop.is_set():
            self._changed.clear()
            pause = PERIOD
            try:
                pause = self._pass()
            except ApiError as error:
                log.warning("legacy_pass_interrupted", error=str(error))
            except Exception:  # a pod that nobody thought of must not end the upkeep of all others
                log.exception("legacy_pass_failed")
            _wait(self._changed, stop, pause)
            stop.wait(GATHER)

    def _pass(self) -> float:
        """Seconds until it is worth looking again, if nothing changes."""
        pods = self._caches[PODS].objects()
        templates = self._caches[RESOURCE_CLAIM_TEMPLATES].objects()
        self._make_again(pods, {objects.key(one): one for one in templates})
        grace = self._settings.grace
        for template in upkeep.unused(pods, templates, now=time.time(), grace=grace):
            self._delete(template)
        self._tell_quotas()
        return 0.5 if self._missed else min(PERIOD, max(grace / 4, 0.5))

    def _tell_quotas(self) -> None:
        found = {
            objects.key(over.quota): over for over in upkeep.over(self._quotas.all(), self._usage.counted)
        }
        for key, over in found.items():
            if self._over.get(key) != over.text:
                self._tell(Happening(QUOTA_EXCEEDED, cut(over.text), (over.quota,)))
        self._over = {key: over.text for key, over in found.items()}

    def _make_again(self, pods: list[Object], templates: Mapping[str, Object]) -> None:
        classes = {objects.name(one): one for one in self._caches[DEVICE_CLASSES].objects()}
        now, missing = time.monotonic(), set()
        for lost in upkeep.lost(pods, templates, classes, self._settings.compat):
            place = objects.uid(lost.pod), lost.name
            missing.add(place)
            if now - self._missed.setdefault(place, now) < SETTLE:
                continue
            self._missed[place] = now
            if lost.template is None:
                self._missed[place] += TELL_AGAIN
                self._tell(Happening(LOST, cut(lost.why), (lost.pod,)))
            else:
                self._make(lost)
        self._missed = {place: since for place, since in self._missed.items() if place in missing}

    def _make(self, lost: upkeep.Lost) -> None:
        assert lost.template is not None
        if not self._may_write():
            return
        store = Templates(self._client, known=lambda *_: None, now=time.time, grace=self._settings.grace)
        try:
            store.ensure(lost.template)
        except NotMade as error:
            self._tell(Happening(LOST, cut(str(error)), (lost.pod,)))
        else:
            log.info("legacy_template_made_again", template=objects.key(lost.template))

    def _delete(self, template: Object) -> None:
        if not self._may_write():
            return
        try:
            self._client.delete(
                RESOURCE_CLAIM_TEMPLATES,
                objects.name(template),
                namespace=objects.namespace(template),
                uid=objects.uid(template),
                resource_version=objects.resource_version(template),
            )
        except (Conflict, NotFound):
            return  # somebody uses it again, or was quicker
        log.info("legacy_template_deleted", template=objects.key(template))

    def _on_pod(self, event: str, pod: Object, /) -> None:
        self._usage.on_pod(event, pod)
        self._changed.set()

    def _on_template(self, event: str, template: Object, /) -> None:
        self._usage.on_template(event, template)
        self._changed.set()


def _wait(changed: threading.Event, stop: threading.Event, pause: float) -> None:
    ends = time.monotonic() + pause
    while not stop.is_set() and not changed.is_set() and (rest := ends - time.monotonic()) > 0:
        changed.wait(min(rest, 0.5))
