"""One pod that is being created: from the review to the answer.

    not koordra's business     no dialect's names, another vendor's, opted out, a static pod's mirror: as it is
    native mode                plain cards and MIG by names that a DeviceClass has (extendedResourceName): kube-scheduler makes the claim
    ElasticGPUClaims           references by annotation first (koordra.api.elastic.elastic_pods), then the dialects
    rewritten                  claim in standard terms where the namespace is native; label of the dialect; what was asked; default
                               scheduler instead of one that is gone
    quota                      charged, or refused (403, in Kubernetes' words)
    template                   made sure of, or refused (403): never admitted with a template that says something else
    gate, suitable nodes       as for every pod with claims of koordra's (webhook/handlers.py)

AdmissionRequest a second time (reinvocation), a pod asks for nothing any more and comes back as it is. In a dry run the answer is the same
and nothing is made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from koordra.api import objects
from koordra.api.classic.notes import Notes
from koordra.api.elastic import elastic_pods
from koordra.api.objects import Object
from koordra.compat.dialects import dialect_named
from koordra.compat.rewrite import Rewritten, has_dialect, rewrite
from koordra.compat.settings import Settings
from koordra.controller.legacy.quota import Charge, bounded, refusal
from koordra.controller.legacy.settings import IGNORE, OPT_OUT
from koordra.controller.legacy.templates import NotMade, Templates
from koordra.controller.legacy.translation import Translations
from koordra.controller.legacy.usage import ADMITTED, Usage, tokens
from koordra.controller.webhook import handlers
from koordra.controller.webhook.handlers import is_native
from koordra.controller.webhook.lookups import Lookups
from koordra.controller.webhook.review import AdmissionRequest, Answer
from koordra.errors import InvalidInput, InvalidManifest

MIRROR: Final = "kubernetes.io/config.mirror"
"""Annotation on the kubelet's copy of a static pod, which runs whatever is said here, and may not refer to claims."""
PATHS: Final[Mapping[str, bool]] = {"/mutate/legacy": False, "/native/mutate/legacy": True}
"""Path -> whether the namespace is native."""


@dataclass(frozen=True, slots=True)
class Admission:
    """`quotas` gives the ResourceQuotas of a namespace. `count` gets (dialect, outcome)."""

    settings: Settings
    lookups: Lookups
    templates: Templates
    usage: Usage
    quotas: Callable[[str], list[Object]]
    translations: Translations
    count: Callable[[str, str], None] = lambda dialect, outcome: None

    def __call__(self, asked: AdmissionRequest, in_native: bool) -> Answer:
        if asked.operation != "CREATE" or asked.kind != "Pod":
            return Answer()
        pod = {**asked.object, "kind": "Pod", "apiVersion": "v1"}
        if objects.labels_of(pod).get(OPT_OUT) == IGNORE or MIRROR in objects.annotations_of(pod):
            return Answer()
        notes = Notes(_called(pod))
        try:
            answer = self._answer(pod, asked, in_native=is_native(pod, in_native), notes=notes)
        except InvalidInput as error:
            self.count("", "refused")
            answer = Answer((error,))
        warnings = tuple(str(note) for note in notes.found)
        return Answer(
            answer.problems, answer.object, (*answer.warnings, *warnings), answer.code, answer.reason
        )

    def _answer(self, pod: Object, asked: AdmissionRequest, *, in_native: bool, notes: Notes) -> Answer:
        bound = elastic_pods.with_claims(pod)
        if bound.problems:
            return Answer(bound.problems, warnings=bound.warnings)
        hidden = elastic_pods.without_annotations(bound.pod)
        if not has_dialect(hidden, self.settings) or (in_native and self._is_extended(hidden)):
            if bound.pod is pod:
                return Answer()
            return Answer(
                object=handlers.admitted(bound.pod, self.lookups, native=in_native), warnings=bound.warnings
            )
        made = self.translations.of(hidden, notes, classes=self.lookups.classes() if in_native else None)
        if made.problems:
            return Answer(made.problems)
        found = made.found
        if found.template is None:
            changed = bound.pod is not pod
            placed = handlers.admitted(bound.pod, self.lookups, native=in_native) if changed else None
            return Answer(object=placed, warnings=bound.warnings)
        shown = elastic_pods.with_annotations(found.pod, bound.pod)
        return self._admitted(shown, found, asked, in_native=in_native, warnings=bound.warnings)

    def _admitted(
        self,
        pod: Object,
        found: Rewritten,
        asked: AdmissionRequest,
        *,
        in_native: bool,
        warnings: tuple[str, ...],
    ) -> Answer:
        assert found.template is not None
        template, namespace = found.template, objects.namespace(pod)
        pod, why = self._charged(pod, template, asked)
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
        self.count(found.dialect, "dry_run" if asked.is_dry_run else "rewritten")
        placed = handlers.admitted(pod, self.lookups, native=in_native, made=template)
        return Answer(object=placed, warnings=warnings)

    def _charged(self, pod: Object, template: Object, asked: AdmissionRequest) -> tuple[Object, str]:
        """The pod, and why it may not be admitted. It carries the review's uid where it was charged to a quota."""
        name, namespace = objects.name(template), objects.namespace(pod)
        amounts = self.usage.amounts_of(name, template["spec"]["spec"])
        quotas = [
            quota
            for quota in self.quotas(namespace)
            if any(name in amounts for name, _ in bounded(quota).values())
        ]
        if not quotas:
            return pod, ""
        self.usage.recall(namespace, template=self.templates.known, claim=self.lookups.claim)
        asking = Charge(pod, amounts)
        why = self.usage.reserve(
            asked.uid, asking, lambda: refusal(quotas, asking, self.usage.counted), keep=not asked.is_dry_run
        )
        if not why and not asked.is_dry_run:
            self.usage.learn(name, template["spec"]["spec"])  # the watch may show the pod before its template
        annotations = {**objects.annotations_of(pod), ADMITTED: ",".join((*tokens(pod), asked.uid))}
        return {**pod, "metadata": {**pod["metadata"], "annotations": annotations}}, why

    def _is_extended(self, pod: Object) -> bool:
        """Whether kube-scheduler serves everything that the pod asks for by names of DeviceClasses."""
        served = {
            str(spec["extendedResourceName"])
            for one in self.lookups.classes().values()
            if (spec := objects.spec_of(one)).get("extendedResourceName")
        }
        if not served:
            return False
        notes = Notes(_called(pod))
        try:
            found = rewrite(pod, self.settings, notes)
        except InvalidInput:
            return False
        asked = found.resources
        dialect = dialect_named(found.dialect)
        standard = dialect is not None and dialect.extended_resources
        return standard and bool(asked) and asked <= served


def _called(pod: Object) -> str:
    """The pod in messages; one that gets its name later by what it begins with."""
    metadata = objects.metadata(pod)
    name = metadata.get("name") or f"{metadata.get('generateName') or ''}..."
    return f"Pod {objects.namespace(pod)}/{name}"


def _forbidden(pod: Object, why: str) -> Answer:
    name = objects.name(pod) or str(objects.metadata(pod).get("generateName") or "")
    problem = InvalidManifest(f'pods "{name}" is forbidden: {why}')
    return Answer((problem,), code=403, reason="Forbidden")
