"""Manifests that were never applied, as the API server would store them after koordra's webhook has seen
them, or in whose words they would be refused. Pure.

    with a uid                    as it is: it comes from a cluster
    ResourceClasses               the DeviceClasses that they mean
    classes, templates, claims    /mutate/claims, what the API server refuses itself, /validate
    pods                          /mutate/legacy (--legacy-pods), /mutate/pods; then the claims of their
                                  templates are made

The webhook's own handlers decide; a namespace among the manifests says by its labels which mode it is in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Final

from koordra.allocator.request.templates import applied_uid, with_template_claims
from koordra.api import objects
from koordra.api.kinds import (
    DEVICE_CLASSES,
    DEVICE_HOLDS,
    NAMESPACES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_QUOTAS,
    RESOURCE_SLICES,
    Kind,
)
from koordra.api.objects import Fields, Object
from koordra.api.resource_class import RESOURCE_CLASSES
from koordra.cel.selectors import admission_error
from koordra.compat.settings import Settings
from koordra.controller.allocation.reserved.quotas import Quotas
from koordra.controller.cache.changes import Tables, key_of, tables_of
from koordra.controller.legacy.admission import Admission
from koordra.controller.legacy.settings import IGNORE, OPT_OUT
from koordra.controller.legacy.templates import refuse_other_content
from koordra.controller.legacy.translation import Translations
from koordra.controller.quota.claim_usage import ClaimUsage
from koordra.controller.quota.held_back import HeldBack
from koordra.controller.quota.held_seats import HeldSeats
from koordra.controller.quota.published import PublishedDevices
from koordra.controller.quota.usage import QuotaUsage
from koordra.controller.quota.webhook import ClaimQuota
from koordra.controller.resource_class.expansion import with_device_classes
from koordra.controller.webhook.handlers import mutate_claims, mutate_pods, validate
from koordra.controller.webhook.lookups import KnownObjects, ReviewLookups
from koordra.controller.webhook.review import AdmissionRequest, AdmissionResponse
from koordra.errors import InvalidInput
from koordra.kube.validation.refusal import refusal

_SEEN: Final = {
    kind.kind: kind
    for kind in (
        NAMESPACES,
        RESOURCE_QUOTAS,
        DEVICE_CLASSES,
        RESOURCE_CLAIM_TEMPLATES,
        RESOURCE_CLAIMS,
        DEVICE_HOLDS,
        PODS,
    )
}
"""In the order in which they are admitted; nobody looks at the others."""
_compile: Final = partial(admission_error, list_attributes=False)
_RANKS: Final = {kind: rank for rank, kind in enumerate(_SEEN)}


@dataclass(frozen=True, slots=True)
class Refused:
    """An object that would not be stored, and why."""

    object: Object
    why: str

    def __str__(self) -> str:
        who = objects.describe(self.object)
        return f"would be refused: {self.why}" if who in self.why else f"{who} would be refused: {self.why}"


@dataclass(slots=True)
class Admitted:
    """`warnings` are what clients would show."""

    cluster: Tables
    quotas: Quotas
    refused: list[Refused] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def admitted(manifests: Sequence[Fields], settings: Settings) -> Admitted:
    """What a cluster has comes first, and claims and classes before the pods that name them, whatever the
    order in which they are given."""
    store = _Store(settings)
    with_classes, refused = with_device_classes(manifests)
    store.refused += [Refused({"kind": RESOURCE_CLASSES.kind, "metadata": {}}, str(why)) for why in refused]
    for obj in sorted(with_classes, key=_turn):
        store.take(obj)
    stored = map(_identified, store.with_made())
    return Admitted(tables_of(stored), store.quotas, store.refused, store.warnings)


def _turn(obj: Fields) -> tuple[bool, int]:
    return not objects.uid(obj), _RANKS.get(str(obj.get("kind")), -1)


class _Store:
    """What is stored so far, as the webhook looks it up."""

    def __init__(self, settings: Settings) -> None:
        self.refused: list[Refused] = []
        self.warnings: list[str] = []
        self._tables: dict[Kind, dict[str, Object]] = {kind: {} for kind in _SEEN.values()}
        self._others: list[Object] = []
        self._usage = QuotaUsage(settings, clock=lambda: 0.0)
        self._published = PublishedDevices()
        self._claims = ClaimUsage(self._usage, self._published)
        self._claim_quota = ClaimQuota(self._usage, self._claims, self._quotas, None)
        templates = _Templates(partial(self.known, RESOURCE_CLAIM_TEMPLATES), self._put)
        self._legacy = Admission(settings, self, templates, self._usage, self._quotas, Translations(settings))
        self._seats = HeldSeats(self._usage.known)
        self.quotas = HeldBack(self._usage, self._seats, self._quotas, self.known, self._claims.amounts)

    @property
    def isolations(self) -> Callable[[], frozenset[str] | None]:
        return self._published.isolations

    def all(self) -> list[Object]:
        return [*self._others, *(obj for table in self._tables.values() for obj in table.values())]

    def take(self, obj: Object) -> None:
        kind = _SEEN.get(str(obj.get("kind")))
        if kind is None:
            self._others.append(obj)
            if obj.get("kind") == RESOURCE_SLICES.kind:
                self._published.on_slice("ADDED", obj)
            return
        obj = self._named(kind, obj)
        before = self.known(kind, key_of(kind, obj))
        if objects.uid(obj):
            if before is None or objects.is_newer(
                objects.resource_version(obj), objects.resource_version(before)
            ):
                self._put(kind, obj)
        elif before is None:
            self._admit(kind, obj, _STEPS.get(kind, ()))
        elif not objects.uid(before):
            self._refuse(obj, f'{kind} "{objects.name(obj)}" already exists')
        elif kind in (PODS, RESOURCE_CLAIMS):
            self.warnings.append(
                f"{objects.describe(obj)}: is in the cluster already and counts as it is there: "
                "its spec cannot be changed, delete it before you apply this one"
            )

    def _admit(self, kind: Kind, obj: Object, steps: Sequence[_Step]) -> None:
        namespace = objects.namespace(obj)
        in_native = objects.is_native(self.known(NAMESPACES, namespace) or {}, False)
        for answer in steps:
            asked = AdmissionRequest(applied_uid(obj), "CREATE", kind.kind, namespace, obj)
            said = answer(self, asked, in_native)
            self.warnings += said.warnings
            if said.problems:
                self._refuse(obj, "; ".join(map(str, said.problems)))
                return
            obj = obj if said.object is None else said.object
        self._put(kind, obj)

    def judged_by_server(self, asked: AdmissionRequest, _in_native: bool) -> AdmissionResponse:
        """As the API server, after the webhooks that change objects and before those that judge them."""
        kind = _SEEN[asked.kind]
        left = objects.without(objects.metadata(asked.object), "ownerReferences")  # owners have no uid yet
        why = refusal(
            kind, {**asked.object, "metadata": left}, self.known(NAMESPACES, asked.namespace) or {}, _compile
        )
        return AdmissionResponse((InvalidInput(why),) if why else ())

    def _put(self, kind: Kind, obj: Object) -> None:
        self._tables[kind][key_of(kind, obj)] = obj
        if kind is PODS:
            self._usage.on_pod("ADDED", _identified(obj))
        elif kind is RESOURCE_CLAIM_TEMPLATES:
            self._usage.on_template("ADDED", obj)
        elif kind is DEVICE_CLASSES:
            self._claims.on_class("ADDED", obj)
        elif kind is RESOURCE_CLAIMS:
            self._claims.on_claim("ADDED", _identified(obj))
        elif kind is DEVICE_HOLDS:
            self._seats.on_hold("ADDED", obj)

    def claim_quota(self, asked: AdmissionRequest, _in_native: bool) -> AdmissionResponse:
        return self._claim_quota(replace(asked, object=_identified(asked.object)))

    def with_made(self) -> list[Object]:
        """All, with the claims that are made of templates; those beyond a quota are not."""
        found: list[Object] = []
        for obj in with_template_claims(self.all()):
            is_made = obj.get("kind") == RESOURCE_CLAIMS.kind and (
                self.known(RESOURCE_CLAIMS, objects.key(obj)) is None
            )
            if is_made:
                self._admit(RESOURCE_CLAIMS, dict(obj), (_Store.claim_quota,))
            else:
                found.append(dict(obj))
        return [*found, *(one for one in self._tables[RESOURCE_CLAIMS].values() if one not in found)]

    def _refuse(self, obj: Object, why: str) -> None:
        self.refused.append(Refused(obj, why))

    def _named(self, kind: Kind, obj: Object) -> Object:
        """What only says how its name begins gets a number."""
        metadata = objects.metadata(obj)
        if metadata.get("name") or not metadata.get("generateName"):
            return obj
        numbered = (
            {**obj, "metadata": {**metadata, "name": f"{metadata['generateName']}{number}"}}
            for number in count(1)
        )
        return next(one for one in numbered if self.known(kind, key_of(kind, one)) is None)

    def legacy(self, asked: AdmissionRequest, in_native: bool) -> AdmissionResponse:
        namespace = self.known(NAMESPACES, asked.namespace) or {}
        if objects.labels_of(namespace).get(OPT_OUT) == IGNORE:
            return AdmissionResponse()
        return self._legacy(asked, in_native)

    def _quotas(self, namespace: str) -> list[Object]:
        return [one for one in self._tables[RESOURCE_QUOTAS].values() if objects.namespace(one) == namespace]

    # KnownObjects

    def classes(self) -> Mapping[str, Object]:
        return self._tables[DEVICE_CLASSES]

    def known(self, kind: Kind, key: str) -> Object | None:
        return self._tables[kind].get(key)

    def ask(self, kind: Kind, namespace: str, name: str) -> Object | None:
        del kind, namespace, name
        return None

    def for_review(self) -> ReviewLookups:
        return ReviewLookups(self)


@dataclass(frozen=True, slots=True)
class _Templates:
    known: Callable[[str], Object | None]
    put: Callable[[Kind, Object], None]

    def ensure(self, template: Object) -> None:
        found = self.known(objects.key(template))
        if found is None:
            self.put(RESOURCE_CLAIM_TEMPLATES, template)
        else:
            refuse_other_content(found, template)


def _of_webhook(handler: Callable[[AdmissionRequest, KnownObjects, bool], AdmissionResponse]) -> _Step:
    return lambda store, asked, in_native: handler(asked, store, in_native)


_Step = Callable[[_Store, AdmissionRequest, bool], AdmissionResponse]


def _validated(store: _Store, asked: AdmissionRequest, in_native: bool) -> AdmissionResponse:
    return validate(asked, store, in_native, store.isolations)


_STEPS: Final[Mapping[Kind, tuple[_Step, ...]]] = {
    DEVICE_CLASSES: (_Store.judged_by_server, _validated),
    RESOURCE_CLAIM_TEMPLATES: (
        _of_webhook(mutate_claims),
        _Store.judged_by_server,
        _validated,
    ),
    RESOURCE_CLAIMS: (
        _of_webhook(mutate_claims),
        _Store.judged_by_server,
        _validated,
        _Store.claim_quota,
    ),
    PODS: (_Store.legacy, _of_webhook(mutate_pods)),
}


def _identified(obj: Fields) -> Object:
    """With the uid that it gets where it is applied: objects are told apart by it."""
    return {**obj, "metadata": {**objects.metadata(obj), "uid": applied_uid(obj)}}
