"""A leader's loop over legacy pods: templates made again and collected, quotas counted, pods beyond them held back.

Pods and classes are those of the term's caches (koordra.controller.caches): the leader watches them once for all that it does.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from koordra.api import objects
from koordra.api.kinds import DEVICE_CLASSES, PODS, RESOURCE_CLAIM_TEMPLATES, Kind
from koordra.api.objects import Object
from koordra.controller.happenings import Happening, cut
from koordra.controller.legacy import holds, upkeep
from koordra.controller.legacy.quota import bounded
from koordra.controller.legacy.quota_watch import QuotaWatch
from koordra.controller.legacy.settings import LegacySettings
from koordra.controller.legacy.templates import NotMade, Templates
from koordra.controller.legacy.usage import Usage, legacy_templates
from koordra.controller.snapshot import PodClaims
from koordra.errors import ApiError, Conflict, NotFound
from koordra.kube import KubeClient
from koordra.logs import get_logger
from koordra.process import spawn
from koordra.watch import WatchCache

log = get_logger(__name__)

PERIOD: Final = 10.0
GATHER: Final = 0.25
SETTLE: Final = 2.0
"""Seconds for which a pod without its template is left to the watches: the template may be a moment behind."""
TELL_AGAIN: Final = 30.0
LOST: Final = "LegacyTemplateLost"
QUOTA_EXCEEDED: Final = "QuotaExceeded"


class Keeper:
    """Makes templates again, deletes unused ones, counts quotas. Pods and classes are those of the term's caches: `on_pod` hears
    their watch, `run` gets them as they are. `wake` is called when a quota has changed."""

    def __init__(
        self,
        client: KubeClient,
        settings: LegacySettings,
        *,
        tell: Callable[[Happening], None],
        may_write: Callable[[], bool],
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self._client = client
        self._settings = settings
        self._tell = tell
        self._may_write = may_write
        self._changed = threading.Event()
        self._usage = Usage(settings.compat, clock=time.monotonic)
        self._quotas = QuotaWatch(client, wake=wake)
        self._templates = WatchCache(client, RESOURCE_CLAIM_TEMPLATES, on_change=self._on_template)
        self._missed: dict[tuple[str, str], float] = {}
        self._over: dict[str, str] = {}

    def start(self, observe: Callable[[Kind], list[Object]], stop: threading.Event) -> threading.Thread:
        """`run` in a thread of its own."""
        return spawn(lambda: self.run(observe, stop), name="legacy-upkeep")

    def run(self, observe: Callable[[Kind], list[Object]], stop: threading.Event) -> None:
        """A leader's term. `observe` gives the pods and the classes of caches that are listed."""
        spawn(partial(self._templates.run, stop), name="legacy-resourceclaimtemplates")
        self._quotas.start(stop)
        while not self._templates.wait_synced(0.2):
            if stop.is_set():
                return
        while not stop.is_set():
            self._changed.clear()
            pause = PERIOD
            try:
                pause = self._pass(observe)
            except ApiError as error:
                log.warning("legacy_pass_interrupted", error=str(error))
            except Exception:  # a pod that nobody thought of must not end the upkeep of all others
                log.exception("legacy_pass_failed")
            _wait(self._changed, stop, pause)
            stop.wait(GATHER)

    def held(self, members: Sequence[PodClaims]) -> Mapping[str, str]:
        """Uid -> why a pod that waits for devices gets none for now: it stands beyond a quota. An empty text: the pod, or the
        quotas, are not read yet. Asked before each planning."""
        found: dict[str, str] = {}
        by_namespace: dict[str, list[PodClaims]] = {}
        for member in members:
            if member.pending and any(legacy_templates(member.pod)):
                by_namespace.setdefault(objects.namespace(member.pod), []).append(member)
        for namespace, waiting in by_namespace.items():
            if not self._quotas.is_synced():
                found.update((objects.uid(member.pod), "") for member in waiting)
                continue
            quotas = [quota for quota in self._quotas.of(namespace) if bounded(quota)]
            if quotas:
                found.update(self._beyond(namespace, quotas, waiting))
        return found

    def _beyond(
        self, namespace: str, quotas: Sequence[Object], waiting: Sequence[PodClaims]
    ) -> dict[str, str]:
        claims = {objects.key(claim): claim for member in waiting for claim in member.ours}
        self._usage.recall(
            namespace,
            template=lambda where, name: self._templates.get(f"{where}/{name}"),
            claim=lambda where, name: claims.get(f"{where}/{name}"),
        )
        late = {objects.uid(one.pod): "" for one in waiting if not self._usage.has_heard(one.pod)}
        if not late and not any(upkeep.over(quotas, self._usage.counted)):
            return {}
        without = {objects.name(one.pod) for one in waiting if len(one.pending) == len(one.ours)}
        counted = [
            holds.Counted(
                name,
                charges,
                has_devices=name not in without,
                age=(str(charges[0].pod["metadata"].get("creationTimestamp") or ""), name),
            )
            for name, charges in self._usage.charges(namespace).items()
        ]
        names = holds.beyond(quotas, counted)
        uids = {objects.name(one.pod): objects.uid(one.pod) for one in waiting}
        return late | {uids[name]: text for name, text in names.items() if name in uids}

    def _pass(self, observe: Callable[[Kind], list[Object]]) -> float:
        """Seconds until it is worth looking again, if nothing changes."""
        pods = [pod for pod in observe(PODS) if any(legacy_templates(pod))]
        templates = self._templates.objects()
        classes = {objects.name(one): one for one in observe(DEVICE_CLASSES)}
        self._make_again(pods, {objects.key(one): one for one in templates}, classes)
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

    def _make_again(
        self, pods: list[Object], templates: Mapping[str, Object], classes: Mapping[str, Object]
    ) -> None:
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

    def on_pod(self, event: str, pod: Object, /) -> None:
        """Listener of the watch of pods."""
        if any(legacy_templates(pod)):
            self._usage.on_pod(event, pod)
            self._changed.set()

    def _on_template(self, event: str, template: Object, /) -> None:
        self._usage.on_template(event, template)
        self._changed.set()


def _wait(changed: threading.Event, stop: threading.Event, pause: float) -> None:
    ends = time.monotonic() + pause
    while not stop.is_set() and not changed.is_set() and (rest := ends - time.monotonic()) > 0:
        changed.wait(min(rest, 0.5))
