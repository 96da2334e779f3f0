"""Claims under a quota, as they are created: charged, or refused in Kubernetes' words (403).

Who makes them does not matter: users, kube-controller-manager for a pod's template (it tries again, and the
pod has the Event FailedResourceClaimCreation with the words), kube-scheduler for extended resources (the pod
stays unscheduled and says so). A validating webhook sees the uid that the claim will have, by which it is
known until the watch shows it. Nothing is decided where no quota of the namespace bounds koordra's names, and
soon nothing is asked there (scope).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

from koordra.api import objects
from koordra.api.kinds import DEVICE_CLASSES, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, RESOURCE_SLICES
from koordra.api.objects import Object
from koordra.compat.quota_charges import dialect_of
from koordra.compat.settings import Settings
from koordra.controller.quota.bounds import Charge, refusal
from koordra.controller.quota.claim_usage import ClaimUsage
from koordra.controller.quota.claims import with_percent_bounds
from koordra.controller.quota.published import PublishedDevices
from koordra.controller.quota.record import QuotaRecord
from koordra.controller.quota.unreviewed import Unreviewed
from koordra.controller.quota.usage import MALFORMED, QuotaUsage
from koordra.controller.quota.watch import QuotaWatch, bounds_claims
from koordra.controller.webhook.lookups import Lookups
from koordra.controller.webhook.review import AdmissionRequest, AdmissionResponse
from koordra.errors import ApiError, InvalidManifest
from koordra.kube.client import KubeClient
from koordra.kube.watch import WatchCache

PATH: Final = "/validate/quota"
PATIENCE: Final = 2.0
"""Seconds for which a review waits for the first lists, when it comes before the replica is ready."""
NOT_READY: Final = InvalidManifest("claims, pods and quotas are not read yet; try again")


class ClaimQuota:
    """The decision. `quotas` of a namespace; `record` None: nobody else admits (a forecast); `unreviewed`:
    claims of a namespace that came without a review and that the watch has not shown yet, by uid, each with
    the seconds for which it counts at the most."""

    def __init__(
        self,
        usage: QuotaUsage,
        claims: ClaimUsage,
        quotas: Callable[[str], list[Object]],
        record: QuotaRecord | None,
        unreviewed: Callable[[str], Mapping[str, tuple[float, Charge]]] = lambda namespace: {},
    ) -> None:
        self._usage = usage
        self._claims = claims
        self._quotas = quotas
        self._record = record
        self._unreviewed = unreviewed

    def __call__(self, asked: AdmissionRequest) -> AdmissionResponse:
        if asked.operation != "CREATE" or asked.kind != RESOURCE_CLAIMS.kind:
            return AdmissionResponse()
        quotas = list(filter(bounds_claims, self._quotas(asked.namespace)))
        charge = self._claims.charge(asked.object) if quotas else None
        if charge is None:
            return AdmissionResponse()
        uid = objects.uid(asked.object) or asked.uid

        def refused() -> str:
            return refusal(quotas, charge, self._usage.counted)

        if self._record is None or asked.is_dry_run:
            return _answer(asked, self._usage.reserve(uid, charge, refused, keep=not asked.is_dry_run))
        try:
            self._usage.admitted_elsewhere(asked.namespace, self._unreviewed(asked.namespace))
            return _answer(asked, self._record.admit(uid, charge, refused))
        except ApiError as error:
            return unavailable(InvalidManifest(f"the claim could not be charged to its quota: {error}"))


def _answer(asked: AdmissionRequest, why: str) -> AdmissionResponse:
    if not why:
        return AdmissionResponse()
    metadata = objects.metadata(asked.object)
    name = objects.name(asked.object) or metadata.get("generateName") or ""
    problem = InvalidManifest(f'resourceclaims "{name}" is forbidden: {why}')
    return AdmissionResponse((problem,), code=403, reason="Forbidden")


def unavailable(problem: InvalidManifest) -> AdmissionResponse:
    """Nothing is admitted uncounted; whoever asks tries again."""
    return AdmissionResponse((problem,), code=503, reason="ServiceUnavailable")


class QuotaWebhook:
    """`ClaimQuota` with all that it needs, from watches that every replica follows, leader or not. `legacy`:
    how pods of other stacks are counted."""

    def __init__(
        self, client: KubeClient, lookups: Lookups, legacy: Settings | None, *, namespace: str
    ) -> None:
        self.usage = QuotaUsage(legacy or Settings(), clock=time.monotonic)
        self.published = PublishedDevices()
        claims = ClaimUsage(self.usage, self.published)
        lookups.listen(RESOURCE_CLAIMS, claims.on_claim)
        lookups.listen(DEVICE_CLASSES, claims.on_class)
        self._slices = WatchCache(
            client, RESOURCE_SLICES, on_change=self.published.on_slice, trim=self.published.kept
        )
        self._watch = QuotaWatch(client)
        self._lookups = lookups
        self.quotas = self._watch.of
        self.record = QuotaRecord(client, namespace, self.usage, time.time)
        unreviewed = Unreviewed(client, claims, self._watch.term, clock=time.monotonic)
        self._decide = ClaimQuota(self.usage, claims, self.quotas, self.record, unreviewed.read)

    def with_percent_bounds(self, obj: Object) -> Object:
        """Of templates. Not of those that rewritten pods have, whose names are digests of their content."""
        if obj.get("kind") != RESOURCE_CLAIM_TEMPLATES.kind or dialect_of(objects.name(obj)):
            return obj
        try:
            return with_percent_bounds(obj, self._lookups.classes(), self.published.largest)
        except MALFORMED:
            return obj

    def paths(self) -> dict[str, Callable[[AdmissionRequest], AdmissionResponse]]:
        return {PATH: self._answer}

    def _answer(self, asked: AdmissionRequest) -> AdmissionResponse:
        ends = time.monotonic() + PATIENCE
        while not (self.is_synced() and self._lookups.is_synced()):
            if time.monotonic() >= ends:
                return unavailable(NOT_READY)
            time.sleep(0.05)
        return self._decide(asked)

    def start(self, stop: threading.Event) -> None:
        self._slices.start(stop)
        self._watch.start(stop)

    def is_synced(self) -> bool:
        return self._slices.wait_synced(0) and self._watch.is_synced()
