"""A leader's loop over legacy pods: templates made again and collected.

Pods and classes are those of the term's caches (koordra.controller.cache.changes), templates those of its
count of quotas: the leader watches them once for all that it does.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from koordra.api import objects
from koordra.api.kinds import DEVICE_CLASSES, PODS, RESOURCE_CLAIM_TEMPLATES
from koordra.api.objects import Object
from koordra.controller.cache.changes import Informers
from koordra.controller.legacy.settings import LegacySettings
from koordra.controller.legacy.templates import NotMade, Templates, lost_templates, unused
from koordra.controller.quota.controller import QuotaController
from koordra.controller.quota.usage import legacy_entries
from koordra.controller.reconcile.reconcile_loop import run_passes
from koordra.controller.reporting.claim_events import ClaimEvent, cut
from koordra.errors import Conflict, NotFound
from koordra.logs import get_logger
from koordra.process.lifecycle import spawn

log = get_logger(__name__)

PERIOD: Final = 10.0
GATHER: Final = 0.25
SETTLE: Final = 2.0
"""Seconds for which a pod without its template is left to the watches: the template may be behind."""
REPORT_AGAIN: Final = 30.0
LOST: Final = "LegacyTemplateLost"
"""the template that a legacy pod was admitted with is gone and cannot be made again"""


class LegacyController:
    """Makes templates again, deletes unused ones."""

    _caches: Informers

    def __init__(
        self,
        quotas: QuotaController,
        settings: LegacySettings,
        report: Callable[[ClaimEvent], None],
        may_write: Callable[[], bool],
    ) -> None:
        self._client = quotas.client
        self._settings = settings
        self._quotas = quotas
        self._report = report
        self._may_write = may_write
        self._changed = threading.Event()
        self._missed: dict[tuple[str, str], float] = {}
        quotas.wakes(self._changed)

    def start(self, caches: Informers, stop: threading.Event) -> threading.Thread:
        """A leader's term, in a thread of its own. The caches are listed, and the quotas started."""
        self._caches = caches
        return spawn(partial(self._run, stop), name="legacy-upkeep", until=stop)

    def _run(self, stop: threading.Event) -> None:
        for note in self._settings.compat.told:
            log.warning("legacy_setting_not_kept", what=str(note))
        while not self._quotas.templates.wait_synced(1.0):
            if stop.is_set():
                return
        run_passes(self._pass, name="legacy-pods", gather=GATHER, changed=self._changed, stop=stop)

    def _pass(self) -> float:
        """Seconds until the next pass, if nothing changes."""
        pods = [pod for pod in self._caches.objects(PODS) if legacy_entries(pod)]
        templates = self._quotas.templates.objects()
        classes = {objects.name(one): one for one in self._caches.objects(DEVICE_CLASSES)}
        self._recreate(pods, {objects.key(one): one for one in templates}, classes)
        grace = self._settings.grace
        for template in unused([*pods, *self._quotas.seats.pods()], templates, now=time.time(), grace=grace):
            self._delete(template)
        return 0.5 if self._missed else min(PERIOD, max(grace / 4, 0.5))

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
