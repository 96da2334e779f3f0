"""The leader's count: who stands beyond a quota, which quotas are gone beyond, and of which namespaces claims
are reviewed. `on_pod`, `on_claim`, `on_class` and `on_slice` follow the term's watches, `on_hold` its
DeviceHolds.

Only what rewritten pods are charged needs their templates, which are watched where there are such pods
(`legacy`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from koordra.api import objects
from koordra.api.kinds import RESOURCE_CLAIM_TEMPLATES, Kind
from koordra.api.objects import Fields, Object
from koordra.compat.settings import Settings
from koordra.controller.allocation.reserved.quotas import Gangs
from koordra.controller.cache.changes import Informers
from koordra.controller.cache.pod_index import PodClaims
from koordra.controller.quota.claim_usage import ClaimUsage
from koordra.controller.quota.held_back import HeldBack, waiting_by_namespace
from koordra.controller.quota.held_seats import HeldSeats
from koordra.controller.quota.published import PublishedDevices
from koordra.controller.quota.scope import ReviewScope
from koordra.controller.quota.usage import QuotaUsage, legacy_entries
from koordra.controller.quota.watch import QuotaWatch
from koordra.controller.reconcile.reconcile_loop import run_passes
from koordra.controller.reporting.claim_events import QUOTA_EXCEEDED, ClaimEvent, cut
from koordra.kube.client import KubeClient
from koordra.kube.watch import WatchCache, start_watches
from koordra.process.lifecycle import spawn

PERIOD: Final = 10.0
GATHER: Final = 0.25
PATIENCE: Final = 30.0
"""Seconds for which pods wait without a word for what is to be read first."""
NOT_READ: Final = (
    "the bounds of the pod's namespace are not known yet: ResourceQuotas, pods or templates could not be read; "
    "the controller's log says why"
)


class QuotaController:
    """quotas.Quotas of one term. `wake` is called when a quota has changed."""

    _caches: Informers

    def __init__(
        self,
        client: KubeClient,
        legacy: Settings | None,
        *,
        report: Callable[[ClaimEvent], None],
        may_write: Callable[[], bool],
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self.client = client
        self._report = report
        self._since = time.monotonic()
        self._changed = threading.Event()
        self.usage = QuotaUsage(legacy or Settings(), clock=time.monotonic)
        self.seats = HeldSeats(self.usage.known)
        self.templates = WatchCache(client, RESOURCE_CLAIM_TEMPLATES, on_change=self._on_template)
        """Of rewritten pods; empty where there are none."""
        self._has_templates = legacy is not None
        self._published = PublishedDevices()
        self._claims = ClaimUsage(self.usage, self._published)
        self._quotas = QuotaWatch(client, wake=self._quota_changed)
        self._scope = ReviewScope(client, may_write)
        self._wake = wake
        self._held_back = HeldBack(self.usage, self.seats, self._quotas.of, self._find, self._claims.amounts)
        self._over: dict[str, str] = {}
        self._used: dict[tuple[str, str, str], float] = {}
        self._listeners: list[threading.Event] = [self._changed]

    def start(self, caches: Informers, stop: threading.Event) -> threading.Thread:
        """A leader's term, in a thread of its own. The caches are listed, and the listeners told of all."""
        self._caches = caches
        self._since = time.monotonic()
        return spawn(partial(self._run, stop), name="quotas", until=stop)

    def _run(self, stop: threading.Event) -> None:
        self._quotas.start(stop)
        if not self._has_templates or start_watches([self.templates], stop):
            run_passes(self._pass, name="quotas", gather=GATHER, changed=self._changed, stop=stop)

    def wakes(self, changed: threading.Event) -> None:
        """Set the event too whenever a rewritten pod, a template or a hold has changed."""
        self._listeners.append(changed)

    def _quota_changed(self) -> None:
        self._changed.set()
        self._wake()

    def _pass(self) -> float:
        """Seconds until the next pass, if nothing changes."""
        if self._quotas.is_synced():
            self._scope.follow(self._quotas.terms)
            self._claims.recount()
            before, self._over = self._over, {}
            used: dict[tuple[str, str, str], float] = {}
            for quota in self._quotas.all():
                key, text = objects.key(quota), self._held_back.overdrawn(quota)
                if text and before.get(key) != text:
                    self._report(ClaimEvent(QUOTA_EXCEEDED, cut(text), (quota,)))
                self._over[key] = text
                for line, ratio in self._held_back.ratios(quota).items():
                    used[objects.namespace(quota), objects.name(quota), line] = ratio
            self._used = used
        return PERIOD

    # quotas.Quotas

    def is_awaited(self) -> bool:
        return not self._is_read() and not self._is_late()

    def is_bounding(self) -> bool:
        return not self._is_read() or self._quotas.is_bounding

    def held(self, members: Sequence[PodClaims], gangs: Gangs) -> Mapping[str, str]:
        if not self._is_read():
            why = NOT_READ if self._is_late() else ""
            late = waiting_by_namespace(members).values()
            return {objects.uid(member.pod): why for listed in late for member in listed}
        self._claims.recount()
        return self._held_back.held(members, gangs)

    def use(self, namespace: str) -> str:
        return self._held_back.use(namespace) if self._is_read() else ""

    def used(self) -> Mapping[tuple[str, str, str], float]:
        return self._used

    def on_hold(self, event: str, hold: Object, /) -> None:
        """DeviceHolds, as the leader has read and written them."""
        self._held_back.on_hold(event, hold)
        self._has_changed()

    def charged(self, claims: Sequence[Fields]) -> Object:
        return self._held_back.charged(claims)

    def refusal(self, namespace: str, charged: Fields) -> str:
        if not self._is_read():
            return NOT_READ
        self._claims.recount()
        return self._held_back.refusal(namespace, charged)

    def _is_read(self) -> bool:
        """Quotas and templates; what runs since before this leader's term was counted before it began."""
        return self._quotas.is_synced() and (not self._has_templates or self.templates.wait_synced(0))

    def _is_late(self) -> bool:
        return time.monotonic() - self._since > PATIENCE

    def _find(self, kind: Kind, key: str) -> Object | None:
        return self.templates.get(key) if kind is RESOURCE_CLAIM_TEMPLATES else self._caches.get(kind, key)

    # what is watched

    def on_pod(self, event: str, pod: Object, /) -> None:
        if self._has_templates and legacy_entries(pod):
            self.usage.on_pod(event, pod)
            self._has_changed()

    def on_claim(self, event: str, claim: Object, /) -> None:
        self._claims.on_claim(event, claim)

    def on_class(self, event: str, found: Object, /) -> None:
        self._claims.on_class(event, found)

    def on_slice(self, event: str, found: Object, /) -> None:
        self._published.on_slice(event, found)

    def _on_template(self, event: str, template: Object, /) -> None:
        self.usage.on_template(event, template)
        self._has_changed()

    def _has_changed(self) -> None:
        for event in self._listeners:
            event.set()
