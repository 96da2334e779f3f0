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
from koordra.api.kinds import DEVICE_CLASSES, PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS
from koordra.api.objects import Object
from koordra.controller.cache.changes import Informers
from koordra.controller.cache.pod_index import PodClaims, is_bound, is_living, may_be_planned
from koordra.controller.legacy.held_seats import Held, HeldSeats
from koordra.controller.legacy.quota import (
    Charge,
    CountOf,
    Gangs,
    beyond,
    bounded,
    in_scope,
    overdrawn,
    to_come,
)
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
    """Makes templates again, deletes unused ones, counts quotas. `on_pod` and `on_hold` follow the term's
    watches of pods and DeviceHolds; `wake` is called when a quota has changed."""

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
        by_namespace: dict[str, list[PodClaims]] = {}
        for member in members:
            if member.pending and legacy_entries(member.pod):
                by_namespace.setdefault(objects.namespace(member.pod), []).append(member)
        if not self._is_read():
            why = NOT_READ if time.monotonic() - self._since > PATIENCE else ""
            return {objects.uid(member.pod): why for listed in by_namespace.values() for member in listed}
        found: dict[str, str] = {}
        for namespace, waiting in by_namespace.items():
            quotas = [quota for quota in self._quotas.of(namespace) if bounded(quota)]
            if quotas:
                served = {
                    objects.name(one.pod)
                    for one in members
                    if objects.namespace(one.pod) == namespace and len(one.pending) < len(one.ours)
                }
                found |= self._beyond(namespace, quotas, waiting, served=served, gangs=gangs)
        return found

    def _is_read(self) -> bool:
        """Quotas and templates; what runs since before this leader's term was counted before it began."""
        return self._templates.wait_synced(0) and self._quotas.is_synced()

    def _beyond(
        self,
        namespace: str,
        quotas: Sequence[Object],
        waiting: Sequence[PodClaims],
        *,
        served: set[str],
        gangs: Gangs,
    ) -> dict[str, str]:
        self._usage.recall(
            namespace,
            template=self._templates.get,
            claim=lambda where, name: self._caches.get(RESOURCE_CLAIMS, f"{where}/{name}"),
        )
        late = {objects.uid(one.pod): "" for one in waiting if not self._usage.has_observed(one.pod)}
        held_seats, charges = self._held_seats(namespace), self._usage.charges(namespace)
        planned = {objects.name(one.pod): objects.uid(one.pod) for one in waiting if may_be_planned(one)}
        gang_of = {name: gangs[uid] for name, uid in planned.items() if uid in gangs}
        expected = to_come(charges, gang_of)
        beside = held_seats.charges | expected.charges
        if not any(overdrawn(quota, self._counting(beside)) for quota in quotas):
            return late
        charges, served = charges | beside, served | held_seats.back
        asking = planned.keys() | expected.charges.keys()
        others = charges.keys() - asking - served
        served |= {name for name in others if self._has_devices(f"{namespace}/{name}")}
        counted = {name: charge for name, charge in charges.items() if name in served | asking}
        held = beyond(quotas, counted, served=served, gangs=gang_of | expected.gangs)
        return late | {planned[name]: text for name, text in held.items() if name in planned}

    def _held_seats(self, namespace: str) -> Held:
        return self._seats.charges(namespace, self._usage.charges(namespace))

    def _counting(self, held_seats: Mapping[str, Charge]) -> CountOf:
        """With these beside the pods."""

        def counted(quota: Object, name: str) -> int:
            held = [one.amounts.get(name) or 0 for one in held_seats.values() if in_scope(quota, one.pod)]
            return self._usage.counted(quota, name) + sum(held)

        return counted

    def _has_devices(self, key: str) -> bool:
        """Of a pod of which no claim waits for devices. One without a node has none, for want of a claim or
        behind another gate. It may get there only when others of its namespace end (a quota on the class), so
        nobody is to wait for it."""
        pod = self._caches.get(PODS, key)
        return pod is None or is_bound(pod) or not is_living(pod)

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
            key, held_seats = objects.key(quota), self._held_seats(objects.namespace(quota))
            text = overdrawn(quota, self._counting(held_seats.charges))
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
        """Listener of the watch of DeviceHolds."""
        self._seats.on_hold(event, hold)
        self._changed.set()

    def _on_template(self, event: str, template: Object, /) -> None:
        self._usage.on_template(event, template)
        self._changed.set()
