"""A leader's loop over legacy pods: templates made again and collected, quotas counted, pods beyond them held back.

Pods and classes are those of the term's caches (koordra.controller.cache.changes): the leader watches them once for all that it does.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Container, Mapping, Sequence
from functools import partial
from typing import Final

from koordra.api import objects
from koordra.api.kinds import DEVICE_CLASSES, PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, Kind
from koordra.api.objects import Object
from koordra.controller.cache.pod_index import PodClaims, is_bound, is_living, may_be_planned
from koordra.controller.legacy.quota import PodCharge, beyond, bounded, overdrawn
from koordra.controller.legacy.settings import LegacySettings
from koordra.controller.legacy.templates import Lost, NotMade, Templates, lost_templates, unused
from koordra.controller.legacy.usage import QuotaWatch, Usage, legacy_templates
from koordra.controller.reconcile_loop import run_reconcile_loop
from koordra.controller.reporting.claim_events import ClaimEvent, cut
from koordra.errors import Conflict, NotFound
from koordra.kube import KubeClient
from koordra.logs import get_logger
from koordra.process import spawn
from koordra.watch import WatchCache

log = get_logger(__name__)

PERIOD: Final = 10.0
GATHER: Final = 0.25
SETTLE: Final = 2.0
"""Seconds for which a pod without its template is left to the watches: the template may be a moment behind."""
REPORT_AGAIN: Final = 30.0
PATIENCE: Final = 30.0
"""Seconds for which pods wait without a word for what is to be read first."""
NOT_READ: Final = (
    "the bounds of the pod's namespace are not known yet: ResourceQuotas, pods or templates could not be read; "
    "the controller's log says why"
)
LOST: Final = "LegacyTemplateLost"
QUOTA_EXCEEDED: Final = "QuotaExceeded"

Observe = Callable[[Kind], list[Object]]
"""The objects of a kind in the term's caches, which are listed."""
Find = Callable[[Kind, str], Object | None]
"""(kind, key) -> the object in the term's caches."""


class LegacyController:
    """Makes templates again, deletes unused ones, counts quotas. `on_pod` follows the term's watch of pods; `wake` is called when a
    quota has changed."""

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
        self._wake = wake
        self._find: Find = lambda _kind, _key: None
        self._observe: Observe = lambda _kind: []
        self._observed_pods = 0
        self._is_counted = False
        self._was_read = False
        self._unread_since: float | None = None
        self._changed = threading.Event()
        self._usage = Usage(settings.compat, clock=time.monotonic)
        self._quotas = QuotaWatch(client, wake=wake)
        self._templates = WatchCache(client, RESOURCE_CLAIM_TEMPLATES, on_change=self._on_template)
        self._missed: dict[tuple[str, str], float] = {}
        self._over: dict[str, str] = {}

    def start(self, observe: Observe, stop: threading.Event, *, find: Find) -> threading.Thread:
        """A leader's term, in a thread of its own."""
        self._observe, self._find = observe, find
        return spawn(partial(self._run, stop), name="legacy-upkeep")

    def _run(self, stop: threading.Event) -> None:
        spawn(partial(self._templates.run, stop), name="legacy-resourceclaimtemplates")
        self._quotas.start(stop)
        while not self._templates.wait_synced(0.2):
            if stop.is_set():
                return
        run_reconcile_loop(
            self._client,
            lambda _: self._pass(),
            name="legacy-pods",
            kinds=(),
            crds=(),
            gather=GATHER,
            changed=self._changed,
            stop=stop,
        )

    def held(
        self, members: Sequence[PodClaims], gangs: Mapping[str, tuple[str, int]] | None = None
    ) -> Mapping[str, str]:
        """Uid -> why a pod that waits for devices gets none for now: it stands beyond a quota. An empty text: pods, quotas or
        templates are not read yet. `gangs`: of members that start together, by uid, their gang and how many of them it can do
        without. Asked before each planning."""
        found: dict[str, str] = {}
        by_namespace: dict[str, list[PodClaims]] = {}
        for member in members:
            if member.pending and any(legacy_templates(member.pod)):
                by_namespace.setdefault(objects.namespace(member.pod), []).append(member)
        for namespace, waiting in by_namespace.items():
            if not self._is_read():
                found.update((objects.uid(member.pod), self._not_read()) for member in waiting)
                continue
            quotas = [quota for quota in self._quotas.of(namespace) if bounded(quota)]
            if quotas:
                here = [member for member in members if objects.namespace(member.pod) == namespace]
                served = {objects.name(one.pod) for one in here if len(one.pending) < len(one.ours)}
                found.update(self._beyond(namespace, quotas, waiting, served=served, gangs=gangs or {}))
        return found

    def _not_read(self) -> str:
        if self._unread_since is None:
            self._unread_since = time.monotonic()
        return NOT_READ if time.monotonic() - self._unread_since > PATIENCE else ""

    def _is_read(self) -> bool:
        """Quotas, and every pod of the first list with the templates: what runs since before this leader's term is counted too."""
        if not self._is_counted:
            counted = self._observed_pods >= len(self._observe(PODS))
            self._is_counted = counted and self._templates.wait_synced(0)
        return self._is_counted and self._quotas.is_synced()

    def _beyond(
        self,
        namespace: str,
        quotas: Sequence[Object],
        waiting: Sequence[PodClaims],
        *,
        served: Container[str],
        gangs: Mapping[str, tuple[str, int]],
    ) -> dict[str, str]:
        claims = {objects.key(claim): claim for member in waiting for claim in member.ours}
        self._usage.recall(
            namespace,
            template=lambda where, name: self._templates.get(f"{where}/{name}"),
            claim=lambda where, name: (
                claims.get(f"{where}/{name}") or self._find(RESOURCE_CLAIMS, f"{where}/{name}")
            ),
        )
        late = {objects.uid(one.pod): "" for one in waiting if not self._usage.has_observed(one.pod)}
        if not late and not any(overdrawn(quota, self._usage.counted) for quota in quotas):
            return {}
        planned = {objects.name(one.pod): objects.uid(one.pod) for one in waiting if may_be_planned(one)}
        counted = []
        for name, charge in self._usage.charges(namespace).items():
            has_devices = name in served or (name not in planned and self._has_devices(f"{namespace}/{name}"))
            if has_devices or name in planned:
                gang, spare = gangs.get(planned.get(name, ""), ("", 0))
                age = str(charge.pod["metadata"].get("creationTimestamp") or ""), name
                counted.append(PodCharge(name, charge, has_devices, age, gang, spare))
        return late | {planned[name]: text for name, text in beyond(quotas, counted).items()}

    def _has_devices(self, key: str) -> bool:
        """Of a pod of which no claim waits for devices. One without a node has none, for want of a claim or behind another
        gate. It may get there only when others of its namespace end (a quota on the class), so nobody is to wait for it."""
        pod = self._find(PODS, key)
        return pod is None or is_bound(pod) or not is_living(pod)

    def _pass(self) -> float:
        """Seconds until the next pass, if nothing changes."""
        if not self._was_read and self._is_read():
            self._was_read = True
            self._wake()  # nothing has changed where there are no quotas
        pods = [pod for pod in self._observe(PODS) if any(legacy_templates(pod))]
        templates = self._templates.objects()
        classes = {objects.name(one): one for one in self._observe(DEVICE_CLASSES)}
        self._recreate(pods, {objects.key(one): one for one in templates}, classes)
        grace = self._settings.grace
        for template in unused(pods, templates, now=time.time(), grace=grace):
            self._delete(template)
        self._report_quotas()
        if not self._was_read:
            return GATHER
        return 0.5 if self._missed else min(PERIOD, max(grace / 4, 0.5))

    def _report_quotas(self) -> None:
        before, self._over = self._over, {}
        for quota in self._quotas.all():
            key, text = objects.key(quota), overdrawn(quota, self._usage.counted)
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
            self._missed[place] = now
            if lost.template is None:
                self._missed[place] += REPORT_AGAIN
                self._report(ClaimEvent(LOST, cut(lost.why), (lost.pod,)))
            else:
                self._make(lost)
        self._missed = {place: since for place, since in self._missed.items() if place in missing}

    def _make(self, lost: Lost) -> None:
        if lost.template is None or not self._may_write():
            return
        store = Templates(self._client, known=lambda *_: None, now=time.time, grace=self._settings.grace)
        try:
            store.ensure(lost.template)
        except NotMade as error:
            self._report(ClaimEvent(LOST, cut(str(error)), (lost.pod,)))
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
        try:
            if any(legacy_templates(pod)):
                self._usage.on_pod(event, pod)
                self._changed.set()
        finally:
            self._observed_pods += 1

    def _on_template(self, event: str, template: Object, /) -> None:
        self._usage.on_template(event, template)
        self._changed.set()
