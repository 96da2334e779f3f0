"""A leader's loop over legacy pods: templates made again and collected, quotas counted, pods beyond them held
back.

Pods and classes are those of the term's caches (koordra.controller.cache.changes): the leader watches them
once for all that it does.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from koordra.api import objects
from koordra.api.kinds import DEVICE_CLASSES, PODS, RESOURCE_CLAIM_TEMPLATES, Kind
from koordra.api.objects import Fields, Object
from koordra.controller.cache.changes import Informers
from koordra.controller.cache.pod_index import PodClaims
from koordra.controller.legacy.held_back import HeldBack, waiting_by_namespace
from koordra.controller.legacy.held_seats import HeldSeats
from koordra.controller.legacy.quota import Gangs
from koordra.controller.legacy.settings import LegacySettings
from koordra.controller.legacy.templates import NotMade, Templates, lost_templates, unused
from koordra.controller.legacy.usage import QuotaUsage, QuotaWatch, legacy_entries
from koordra.controller.reconcile.reconcile_loop import run_passes
from koordra.controller.reporting.claim_events import QUOTA_EXCEEDED, ClaimEvent, cut
from koordra.errors import Conflict, NotFound
from koordra.kube.client import KubeClient
from koordra.kube.watch import WatchCache, start_watches
from koordra.logs import get_logger
from koordra.process.lifecycle import spawn

log = get_logger(__name__)

PERIOD: Final = 10.0
GATHER: Final = 0.25
SETTLE: Final = 2.0
"""Seconds for which a pod without its template is left to the watches: the template may be behind."""
REPORT_AGAIN: Final = 30.0
PATIENCE: Final = 30.0
"""Seconds for which pods wait without a word for what is to be read first."""
NOT_READ: Final = (
    "the bounds of the pod's namespace are not known yet: ResourceQuotas, pods or templates could not be read; "
    "the controller's log says why"
)
LOST: Final = "LegacyTemplateLost"


class LegacyController:
    """Makes templates again, deletes unused ones, counts quotas. `on_pod` follows the term's watch of
    pods, `on_hold` its DeviceHolds; `wake` is called when a quota has changed."""

    _caches: Informers

    def __init__(
        self,
        client: KubeClient,
        settings: LegacySettings,
        *,
        report: Callable[[ClaimEvent], None],
        may_write: Callable[[], bool],
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self._client = client
        self._settings = settings
        self._report = report
        self._may_write = may_write
        self._since = time.monotonic()
        self._changed = threading.Event()
        self._usage = QuotaUsage(settings.compat, clock=time.monotonic)
        self._seats = HeldSeats(self._usage.known)
        self._quotas = QuotaWatch(client, wake=wake)
        self._held_back = HeldBack(self._usage, self._seats, self._quotas.of, self._find)
        self._templates = WatchCache(client, RESOURCE_CLAIM_TEMPLATES, on_change=self._on_template)
        self._missed: dict[tuple[str, str], float] = {}
        self._over: dict[str, str] = {}

    def start(self, caches: Informers, stop: threading.Event) -> threading.Thread:
        """A leader's term, in a thread of its own. The caches are listed, and `on_pod` told of their pods."""
        self._caches = caches
        self._since = time.monotonic()
        return spawn(partial(self._run, stop), name="legacy-upkeep", until=stop)

    def _run(self, stop: threading.Event) -> None:
        for note in self._settings.compat.told:
            log.warning("legacy_setting_not_kept", what=str(note))
        self._quotas.start(stop)
        if start_watches([self._templates], stop):
            run_passes(self._pass, name="legacy-pods", gather=GATHER, changed=self._changed, stop=stop)

    def held(self, members: Sequence[PodClaims], gangs: Gangs) -> Mapping[str, str]:
        """Uid -> why a pod that waits for devices gets none for now: it stands beyond a quota. An empty text:
        pods, quotas or templates are not read yet. `gangs`: of members that start together, by uid, their
        gang and how many of them it can do without. Asked before each planning."""
        if not self._is_read():
            why = NOT_READ if time.monotonic() - self._since > PATIENCE else ""
            late = waiting_by_namespace(members).values()
            return {objects.uid(member.pod): why for listed in late for member in listed}
        return self._held_back(members, gangs)

    def _find(self, kind: Kind, key: str) -> Object | None:
        return self._templates.get(key) if kind is RESOURCE_CLAIM_TEMPLATES else self._caches.get(kind, key)

    def _is_read(self) -> bool:
        """Quotas and templates; what runs since before this leader's term was counted before it began."""
        return self._templates.wait_synced(0) and self._quotas.is_synced()

    def _pass(self) -> float:
        """Seconds until the next pass, if nothing changes."""
        pods = [pod for pod in self._caches.objects(PODS) if legacy_entries(pod)]
        templates = self._templates.objects()
        classes = {objects.name(one): one for one in self._caches.objects(DEVICE_CLASSES)}
        self._recreate(pods, {objects.key(one): one for one in templates}, classes)
        grace = self._settings.grace
        for template in unused([*pods, *self._seats.pods()], templates, now=time.time(), grace=grace):
            self._delete(template)
        self._report_quotas()
        return 0.5 if self._missed else min(PERIOD, max(grace / 4, 0.5))

    def _report_quotas(self) -> None:
        before, self._over = self._over, {}
        for quota in self._quotas.all():
            key, text = objects.key(quota), self._held_back.overdrawn(quota)
            if text and before.get(key) != text:
                self._report(ClaimEvent(QUOTA_EXCEEDED, cut(text), (quota,)))
            self._over[key] = text

    def _recreate(
        self, pods: list[Object], templates: Mapping[str, Object], classes: Mapping[str, Object]
    ) -> None:
        now, missing = time.monotonic(), set()
        for lost in lost_templates(pods, templates, classes, self._settings.compat):
            place = objects.uid(lost.pod), lost.name
            missing.add(place)
            if now - self._missed.setdefault(place, now) < SETTLE:
                continue
            self._missed[place] = now if lost.template else now + REPORT_AGAIN
            if why := self._make(lost.template) if lost.template else lost.why:
                self._report(ClaimEvent(LOST, cut(why), (lost.pod,)))
        self._missed = {place: since for place, since in self._missed.items() if place in missing}

    def _make(self, template: Object) -> str:
        """Why it could not be made."""
        if not self._may_write():
            return ""
        store = Templates(self._client, known=lambda _: None, now=time.time, grace=self._settings.grace)
        try:
            store.ensure(template)
        except NotMade as error:
            return str(error)
        log.info("legacy_template_made_again", template=objects.key(template))
        return ""

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
        if legacy_entries(pod):
            self._usage.on_pod(event, pod)
            self._changed.set()

    def on_hold(self, event: str, hold: Object, /) -> None:
        """DeviceHolds, as the leader has read and written them."""
        self._seats.on_hold(event, hold)
        self._changed.set()

    def charged(self, claims: Sequence[Fields]) -> Object:
        """As which a reservation's seat with these claims counts."""
        return self._held_back.charged(claims)

    def refusal(self, namespace: str, charged: Fields) -> str:
        """Why the namespace's quotas have no room for one more seat; empty where they have."""
        return self._held_back.refusal(namespace, charged) if self._is_read() else NOT_READ

    def _on_template(self, event: str, template: Object, /) -> None:
        self._usage.on_template(event, template)
        self._changed.set()
