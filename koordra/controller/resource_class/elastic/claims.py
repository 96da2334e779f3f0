"""What is to be done for one ElasticGPUClaim, and what its status says; the labels, annotations, finalizers
and names by which the objects that koordra makes are recognised. Pure.

    class missing, foreign or broken        NoSuchClass, ForeignProvisioner, ...     nothing is made
    claim broken                            InvalidClaim
    no ResourceClaim of the name            make it; NoSuchElasticGPU where the claim names one to take over
    one of somebody else's                  NameTaken: left alone
    one of an earlier claim, retained       Retained: freed by deleting its ElasticGPU, taken over by naming
                                            that
    ours, made from another spec            made anew while it has no devices; otherwise SpecChanged
    ours, changed by hand                   marks put back
    ours                                    Pending or Bound; Lost where its device is not published any more

A ResourceClaim whose ElasticGPUClaim is gone goes too, unless it is retained with devices. One that is being
deleted while koordra's finalizer holds it is freed once no pod has it reserved.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from koordra.api import names, objects
from koordra.api.elastic.elastic_gpu import (
    DELETE,
    ELASTIC_CLAIMS,
    IMMEDIATE,
    RETAIN,
    UNITS,
    WAIT,
    ElasticClass,
    claim_spec,
    class_name,
    digest,
    requested,
)
from koordra.api.kinds import RESOURCE_CLAIMS
from koordra.api.objects import Fields, Object
from koordra.api.resource_class import MANAGED_BY, ClassRefused, owner_reference
from koordra.controller import claims as claims_of

CLAIM_LABEL: Final = "koordra.io/elastic-claim"
"""Label on a ResourceClaim: uid of the ElasticGPUClaim it was made for."""
SPEC: Final = "koordra.io/elastic-spec"
"""Annotation on a ResourceClaim: digest of the spec it was made with."""
POLICY: Final = "koordra.io/elastic-reclaim-policy"
"""Annotation on a ResourceClaim: what its class said when it was made, like the next three; a class that
changes later changes new claims only."""
CLASS: Final = "koordra.io/elastic-class"
"""Annotation on a ResourceClaim: its class."""
BINDING: Final = "koordra.io/elastic-binding-mode"
"""Annotation on a ResourceClaim: when it gets its devices."""
UNIT: Final = "koordra.io/elastic-memory-unit"
"""Annotation on a ResourceClaim: in which unit memory was asked for."""
CARD: Final = "koordra.io/elastic-gpu"
"""Finalizer on an ElasticGPU whose deletion frees its devices."""


def managed(obj: Fields) -> bool:
    """Whether koordra made the ElasticGPU or GPU: by its label, or, where somebody took that off, by its
    finalizer."""
    return objects.labels_of(obj).get(MANAGED_BY) == names.FIELD_COMPONENT or CARD in objects.finalizers_of(
        obj
    )


def claim_uid(resource_claim: Fields) -> str:
    """The ElasticGPUClaim that a ResourceClaim was made for, empty where it is none of ours."""
    return objects.labels_of(resource_claim).get(CLAIM_LABEL, "")


def is_retained(resource_claim: Fields) -> bool:
    return objects.annotations_of(resource_claim).get(POLICY) == RETAIN


def is_held(resource_claim: Fields) -> bool:
    return names.RETAIN_FINALIZER in objects.finalizers_of(resource_claim)


def binding_name(resource_claim: Fields) -> str:
    """The ElasticGPU of a ResourceClaim, as a PersistentVolume is named after its claim's uid."""
    return f"egpu-{objects.uid(resource_claim)}"


PENDING: Final = "Pending"
BOUND: Final = "Bound"
LOST: Final = "Lost"

Classes = Mapping[str, ElasticClass | ClassRefused]
"""Every ElasticGPUClass by name, as it could be read."""
Place = tuple[str, str]
"""Pool and device."""


def place_of(result: Fields) -> Place:
    return str(result.get("pool")), str(result.get("device"))


class Act(StrEnum):
    NOTHING = "nothing"
    MAKE = "make"
    CORRECT = "correct"
    REMOVE = "remove"
    FREE = "free"
    """Take the allocation off a claim that is being deleted, then the finalizer."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """`body`: the ResourceClaim to make, or its metadata as they should be."""

    reason: str
    message: str
    phase: str = PENDING
    ready: bool = False
    act: Act = Act.NOTHING
    body: Object | None = None


def evaluate(claim: Object, *, classes: Classes, current: Object | None, published: Set[Place]) -> Evaluation:
    """`current`: the ResourceClaim of the claim's name; `published`: the devices that nodes offer."""
    ours = current is not None and claim_uid(current) == objects.uid(claim)
    try:
        cls = _as_made(_class(claim, classes), current if ours else None)
        amount = requested(claim, cls)
        wanted = resource_claim(claim, cls, claim_spec(amount, cls))
    except ClassRefused as refused:
        if ours and current is not None and claims_of.is_allocated(current):
            return _bound(current, published, warnings=(str(refused),))
        return Evaluation(refused.reason, str(refused))
    if current is None:
        if named := objects.spec_of(claim).get("elasticGPUName"):
            text = f"there is no ElasticGPU {named} that a claim of this name left"
            return Evaluation("NoSuchElasticGPU", f"{text}; leave spec.elasticGPUName out for new devices")
        return Evaluation("BeingMade", "its ResourceClaim is being made", act=Act.MAKE, body=wanted)
    if not ours:
        return _of_somebody_else(claim, current, wanted)
    if objects.is_deleting(current):
        return Evaluation(
            "BeingDeleted", "its ResourceClaim was deleted; another is made once no pod uses it"
        )
    if not _has_spec(current, wanted):
        return _changed(current, published)
    ignored = f"parameters {', '.join(cls.ignored)} of the class mean nothing to koordra"
    warnings = (*amount.lost, *((ignored,) if cls.ignored else ()))
    is_allocated = claims_of.is_allocated(current)
    found = _bound(current, published, warnings) if is_allocated else _waiting(cls, warnings)
    correct = corrected(current, wanted)
    return found if correct is None else replace(found, act=Act.CORRECT, body=correct)


def resource_claim(claim: Object, cls: ElasticClass, spec: Object) -> Object:
    annotations = {
        SPEC: digest(spec),
        POLICY: RETAIN if cls.retain else DELETE,
        CLASS: cls.name,
        BINDING: IMMEDIATE if cls.immediate else WAIT,
        UNIT: str(cls.unit),
        names.MODE_LABEL: IMMEDIATE if cls.immediate else WAIT,
    }
    metadata: Object = {
        "name": objects.name(claim),
        "namespace": objects.namespace(claim),
        "labels": {MANAGED_BY: names.FIELD_COMPONENT, CLAIM_LABEL: objects.uid(claim)},
        "annotations": annotations,
    }
    if cls.retain:
        metadata["finalizers"] = [names.RETAIN_FINALIZER]
    else:
        metadata["ownerReferences"] = [owner_reference(claim, ELASTIC_CLAIMS)]
    return {**RESOURCE_CLAIMS.type_meta, "metadata": metadata, "spec": spec}


def corrected(current: Object, wanted: Object) -> Object | None:
    """The marks of a ResourceClaim of ours as they should be, None where they are; the policy stays as it was
    made.

    A retained claim that pods have used keeps its devices from then on (`Immediate` means that to the
    allocator).
    """
    retained = is_held(current) or is_retained(current)
    marks = {**objects.annotations_of(wanted), POLICY: RETAIN if retained else DELETE}
    if claims_of.is_immediate(current) or (retained and claims_of.reserved_for(current)):
        marks[names.MODE_LABEL] = IMMEDIATE
    changed: Object = {}
    for part, ours in (("annotations", marks), ("labels", objects.labels_of(wanted))):
        there = dict(objects.metadata(current).get(part) or {})
        if not ours.items() <= there.items():
            changed[part] = {**there, **ours}
    if retained and not is_held(current):
        changed["finalizers"] = [*objects.finalizers_of(current), names.RETAIN_FINALIZER]
    if not retained:
        owners = list(objects.metadata(current).get("ownerReferences") or ())
        known = {owner.get("uid") for owner in owners}
        missing = objects.metadata(wanted).get("ownerReferences") or ()
        missing = [owner for owner in missing if owner["uid"] not in known]
        if missing:
            changed["ownerReferences"] = [*owners, *missing]
    return {**identity(current), **changed} if changed else None


def identity(obj: Object) -> Object:
    """Of this very version of an object: what a write of it is conditional on."""
    return {"uid": objects.uid(obj), "resourceVersion": objects.resource_version(obj)}


def without_claim(current: Object) -> Act:
    """What becomes of a ResourceClaim whose ElasticGPUClaim is gone (and of its deletion's rest)."""
    if objects.is_deleting(current):
        return Act.FREE if is_held(current) and not claims_of.reserved_for(current) else Act.NOTHING
    return Act.NOTHING if is_retained(current) and claims_of.is_allocated(current) else Act.REMOVE


def lost(current: Object, published: Set[Place]) -> list[str]:
    """The devices of an allocation that no node publishes any more."""
    return [
        f"{result.get('device')} of {result.get('pool')}"
        for result in claims_of.results(current)
        if place_of(result) not in published
    ]


def _as_made(cls: ElasticClass, current: Object | None) -> ElasticClass:
    """The class as it was when the claim's ResourceClaim was made, where that says so and it is still that
    class."""
    made = {} if current is None else objects.annotations_of(current)
    if made.get(CLASS) != cls.name:
        return cls
    immediate = made.get(BINDING, IMMEDIATE if cls.immediate else WAIT) == IMMEDIATE
    unit = next((unit for unit in UNITS.values() if str(unit) == made.get(UNIT)), cls.unit)
    return replace(cls, immediate=immediate, unit=unit)


def _class(claim: Object, classes: Classes) -> ElasticClass:
    name = class_name(claim)
    found = classes.get(name)
    if isinstance(found, ElasticClass):
        return found
    about = objects.describe(claim)
    field = "spec.elasticGPUClassName"
    if found is None:
        raise ClassRefused(
            "NoSuchClass",
            f"there is no ElasticGPUClass {name}",
            object=about,
            field=field,
            remedy="create it, or name another",
        )
    reason = found.reason if found.reason == "ForeignProvisioner" else "ClassNotReady"
    raise ClassRefused(reason, f"its class cannot be served: {found}", object=about, field=field)


def _of_somebody_else(claim: Object, current: Object, wanted: Object) -> Evaluation:
    name, binding = objects.name(current), binding_name(current)
    if not claim_uid(current):
        return Evaluation(
            "NameTaken",
            f"there is a ResourceClaim {name} that koordra did not make; "
            "delete it, or give the ElasticGPUClaim another name",
        )
    if not (is_retained(current) and claims_of.is_allocated(current) and not objects.is_deleting(current)):
        return Evaluation(
            "EarlierClaim", f"ResourceClaim {name} of an earlier claim of this name has not ended yet"
        )
    same = _has_spec(current, wanted)
    if objects.spec_of(claim).get("elasticGPUName") == binding and same:
        return Evaluation(
            "BeingMade", f"takes over ElasticGPU {binding}", act=Act.CORRECT, body=corrected(current, wanted)
        )
    return Evaluation(
        "Retained",
        f"ElasticGPU {binding} is retained for an earlier claim of this name; delete it to free its devices"
        + (f", or write spec.elasticGPUName: {binding} to take it over" if same else ""),
    )


def _has_spec(current: Object, wanted: Object) -> bool:
    return objects.annotations_of(current).get(SPEC) == objects.annotations_of(wanted)[SPEC]


def _changed(current: Object, published: Set[Place]) -> Evaluation:
    if claims_of.is_allocated(current) or claims_of.reserved_for(current):
        return Evaluation(
            "SpecChanged",
            "spec has changed; what the claim has stays as it was. Delete the claim and make it anew",
            LOST if lost(current, published) else BOUND,
        )
    return Evaluation("BeingMade", "spec has changed; its ResourceClaim is made anew", act=Act.REMOVE)


def _bound(current: Object, published: Set[Place], warnings: tuple[str, ...] = ()) -> Evaluation:
    if gone := lost(current, published):
        text = f"{', '.join(gone)} is not published any more; the claim waits for it to come back"
        return Evaluation("DeviceGone", "; ".join((text, *warnings)), LOST)
    devices = ", ".join(str(result.get("device")) for result in claims_of.results(current))
    text = f"{devices} on node {claims_of.node_of(current) or 'any'}, as ElasticGPU {binding_name(current)}"
    return Evaluation("Bound", "; ".join((text, *warnings)), BOUND, ready=True)


def _waiting(cls: ElasticClass, warnings: tuple[str, ...]) -> Evaluation:
    reason, text = "WaitForFirstConsumer", "waits for a pod that uses it"
    if cls.immediate:
        reason = "WaitForDevices"
        text = "waits for devices; why, is told in the Events of the ResourceClaim of this name"
    return Evaluation(reason, "; ".join((text, *warnings)))
