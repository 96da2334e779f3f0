"""One legacy pod that is being created: from the review to the answer; and what a replica of the webhook
follows for it.

    not koordra's business     no dialect's names, another vendor's, opted out, a static pod's mirror: as it
                               is
    native mode                plain cards and MIG by names that a DeviceClass has (extendedResourceName):
                               kube-scheduler makes the claim
    ElasticGPUClaims           references by annotation first (koordra.api.elastic.elastic_pods), then the
                               dialects
    rewritten                  claim in standard terms where the namespace is native; label of the dialect;
                               what was asked; default scheduler instead of one that is gone
    quota                      charged, or refused (403, in Kubernetes' words)
    template                   made sure of, or refused (403): never admitted with a template that says
                               something else
    gate, suitable nodes       as for every pod with claims of koordra's (webhook/handlers.py)

Asked a second time (reinvocation), a pod asks for nothing any more and comes back as it is. In a dry run the
answer is the same and nothing is made.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from koordra.api import objects
from koordra.api.classic.notes import Notes
from koordra.api.elastic import elastic_pods
from koordra.api.kinds import PODS, RESOURCE_CLAIM_TEMPLATES
from koordra.api.objects import Object
from koordra.compat.dialects import DIALECTS, dialect_named
from koordra.compat.rewrite import Rewritten, has_dialect, rewrite
from koordra.compat.settings import Settings
from koordra.controller.legacy.settings import IGNORE, OPT_OUT, LegacySettings
from koordra.controller.legacy.templates import NotMade, Templates, TemplateStore
from koordra.controller.legacy.translation import Translations
from koordra.controller.quota.bounds import Charge, bounded, refusal
from koordra.controller.quota.record import QuotaRecord
from koordra.controller.quota.usage import ADMITTED, QuotaUsage, counted_part, reviews
from koordra.controller.quota.webhook import NOT_READY, PATIENCE, QuotaWebhook, unavailable
from koordra.controller.webhook.handlers import admitted
from koordra.controller.webhook.lookups import KnownObjects, Lookups
from koordra.controller.webhook.review import AdmissionRequest, AdmissionResponse
from koordra.errors import ApiError, InvalidInput, InvalidManifest
from koordra.kube.client import KubeClient
from koordra.kube.watch import WatchCache
from koordra.metrics import Metrics, counter

MIRROR: Final = "kubernetes.io/config.mirror"
"""Annotation on the kubelet's copy of a static pod, which runs whatever is said here, and may not refer to
claims."""
PATHS: Final[Mapping[str, bool]] = {"/mutate/legacy": False, "/native/mutate/legacy": True}
"""Path -> whether the namespace is native."""

PODS_SEEN: Final = counter(
    "koordra_legacy_pods_total",
    "Pods of other GPU stacks that the webhook saw; planted: their template's name is taken by somebody else's "
    "content, not_made: it could not be made; refused ones are of no dialect",
    dialect=("", *(dialect.name for dialect in DIALECTS)),
    outcome=("rewritten", "dry_run", "refused", "over_quota", "planted", "not_made"),
)
TEMPLATES: Final = counter(
    "koordra_legacy_templates_total",
    "ResourceClaimTemplates for pods of other GPU stacks: made, or marked as still used",
    what=("made", "marked"),
)


@dataclass(frozen=True, slots=True)
class Admission:
    """`quotas` gives the ResourceQuotas of a namespace; `record`: what other replicas let in, for namespaces
    where no leader counts again. `count` gets (dialect, outcome)."""

    settings: Settings
    lookups: KnownObjects
    templates: TemplateStore
    usage: QuotaUsage
    quotas: Callable[[str], list[Object]]
    translations: Translations
    record: QuotaRecord | None = None
    count: Callable[[str, str], None] = lambda dialect, outcome: None

    def __call__(self, asked: AdmissionRequest, in_native: bool) -> AdmissionResponse:
        if asked.operation != "CREATE" or asked.kind != "Pod":
            return AdmissionResponse()
        pod = {**asked.object, "kind": "Pod", "apiVersion": "v1"}
        if objects.labels_of(pod).get(OPT_OUT) == IGNORE or MIRROR in objects.annotations_of(pod):
            return AdmissionResponse()
        notes = Notes(_called(pod))
        try:
            answer = self._answer(pod, asked, in_native=objects.is_native(pod, in_native), notes=notes)
        except InvalidInput as error:
            self.count("", "refused")
            answer = AdmissionResponse((error,))
        return replace(answer, warnings=(*answer.warnings, *map(str, notes.found)))

    def _answer(
        self, pod: Object, asked: AdmissionRequest, *, in_native: bool, notes: Notes
    ) -> AdmissionResponse:
        bound = elastic_pods.with_claims(pod)
        if bound.problems:
            return AdmissionResponse(bound.problems, warnings=bound.warnings)
        hidden = elastic_pods.without_annotations(bound.pod)
        found = Rewritten(hidden)
        if has_dialect(hidden, self.settings) and not (in_native and self._is_extended(hidden)):
            classes = self.lookups.classes() if in_native else None
            found = self.translations.of(hidden, notes, classes=classes)
            if found.problems:
                return AdmissionResponse(found.problems)
        if found.template is not None:
            answer = self._admitted(
                elastic_pods.with_annotations(found.pod, bound.pod), found, asked, in_native=in_native
            )
        else:
            answer = AdmissionResponse(
                object=admitted(bound.pod, self.lookups, native=in_native) if (bound.pod is not pod) else None
            )
        return replace(answer, warnings=bound.warnings)

    def _admitted(
        self, pod: Object, found: Rewritten, asked: AdmissionRequest, *, in_native: bool
    ) -> AdmissionResponse:
        assert found.template is not None
        template, namespace = found.template, objects.namespace(pod)
        try:
            pod, why = self._charged(pod, template, asked, in_native=in_native)
        except ApiError as error:
            return unavailable(InvalidManifest(f"the pod could not be charged to its quota: {error}"))
        if why:
            self.count(found.dialect, "over_quota")
            return _forbidden(pod, why)
        if not asked.is_dry_run:
            try:
                self.templates.ensure(template)
            except NotMade as error:
                self.usage.release(asked.uid, namespace)
                self.count(found.dialect, "planted" if error.planted else "not_made")
                return _forbidden(pod, str(error))
            if ADMITTED in objects.annotations_of(pod):  # the watch may show the pod before its template
                name = objects.name(template)
                self.usage.learn(name, self.usage.amounts_of(name, template["spec"]["spec"]))
        self.count(found.dialect, "dry_run" if asked.is_dry_run else "rewritten")
        return AdmissionResponse(object=admitted(pod, self.lookups, native=in_native, made=template))

    def _charged(
        self, pod: Object, template: Object, asked: AdmissionRequest, *, in_native: bool
    ) -> tuple[Object, str]:
        """The pod, and why it may not be admitted. It carries the review's uid where it was charged to a
        quota. Raises ApiError where that cannot be told to other replicas, and has to be."""
        name, namespace = objects.name(template), objects.namespace(pod)
        amounts = self.usage.amounts_of(name, template["spec"]["spec"])
        quotas = [
            quota
            for quota in self.quotas(namespace)
            if any(bound.name in amounts for bound in bounded(quota))
        ]
        if not quotas:
            return pod, ""
        self.usage.recall(namespace, template=self.templates.known, claim=self.lookups.for_review().claim)
        asking = Charge(pod, amounts)

        def refused() -> str:
            return refusal(quotas, asking, self.usage.counted)

        if in_native and self.record is not None and not asked.is_dry_run:
            why = self.record.admit(asked.uid, asking, refused)
        else:
            why = self.usage.reserve(asked.uid, asking, refused, keep=not asked.is_dry_run)
        annotations = {**objects.annotations_of(pod), ADMITTED: ",".join((*reviews(pod), asked.uid))}
        return {**pod, "metadata": {**pod["metadata"], "annotations": annotations}}, why

    def _is_extended(self, pod: Object) -> bool:
        """Whether kube-scheduler serves everything that the pod asks for by names of DeviceClasses."""
        served = {objects.spec_of(one).get("extendedResourceName") for one in self.lookups.classes().values()}
        if not any(served):
            return False
        try:
            found = rewrite(pod, self.settings, Notes(_called(pod)))
        except InvalidInput:
            return False
        dialect = dialect_named(found.dialect)
        return (
            bool(found.resources)
            and found.resources <= served
            and bool(dialect and dialect.extended_resources)
        )


def _called(pod: Object) -> str:
    """The pod in messages; one that gets its name later by what it begins with."""
    metadata = objects.metadata(pod)
    name = metadata.get("name") or f"{metadata.get('generateName') or ''}..."
    return f"Pod {objects.namespace(pod)}/{name}"


def _forbidden(pod: Object, why: str) -> AdmissionResponse:
    name = objects.name(pod) or objects.metadata(pod).get("generateName") or ""
    return AdmissionResponse(
        (InvalidManifest(f'pods "{name}" is forbidden: {why}'),), code=403, reason="Forbidden"
    )


class LegacyWebhook:
    """`Admission` with all that it needs, from watches that every replica follows, leader or not. `paths` are
    for the webhook's server."""

    def __init__(
        self,
        client: KubeClient,
        settings: LegacySettings,
        lookups: Lookups,
        quota: QuotaWebhook,
        *,
        metrics: Metrics,
    ) -> None:
        pods, made = metrics.counter(PODS_SEEN), metrics.counter(TEMPLATES)
        usage = quota.usage
        lookups.listen(RESOURCE_CLAIM_TEMPLATES, usage.on_template)
        self._pods = WatchCache(client, PODS, on_change=usage.on_pod, trim=counted_part)
        self._quota = quota
        self._admission = Admission(
            settings.compat,
            lookups,
            Templates(
                client,
                known=lookups.known_template,
                now=time.time,
                grace=settings.grace,
                count=lambda what: made.labels(what).inc(),
            ),
            usage,
            quota.quotas,
            Translations(settings.compat),
            record=quota.record,
            count=lambda dialect, outcome: pods.labels(dialect, outcome).inc(),
        )

    def paths(self) -> dict[str, Callable[[AdmissionRequest], AdmissionResponse]]:
        return {path: partial(self._answer, in_native=native) for path, native in PATHS.items()}

    def _answer(self, asked: AdmissionRequest, *, in_native: bool) -> AdmissionResponse:
        ends = time.monotonic() + PATIENCE
        while not self.is_synced():
            if time.monotonic() >= ends:
                return unavailable(NOT_READY)
            time.sleep(0.05)
        return self._admission(asked, in_native)

    def start(self, stop: threading.Event) -> None:
        self._pods.start(stop)

    def is_synced(self) -> bool:
        """Every pod of the first list is counted too, and not only listed: a quota would have room that is
        taken."""
        return self._pods.wait_synced(0) and self._quota.is_synced()
