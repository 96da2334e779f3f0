"""What is to be done for one ElasticGPUClaim, and what its status says. Pure.

    class missing, foreign or broken        NoSuchClass, ForeignProvisioner, ...     nothing is made
    claim broken                            InvalidClaim
    no ResourceClaim of the name            make it; NoSuchElasticGPU where the claim names one to take over
    one of somebody else's                  NameTaken: left alone
    one of an earlier claim, retained       Retained: freed by deleting its ElasticGPU, taken over by naming that
    ours, made from another spec            made anew while it has no devices; otherwise SpecChanged
    ours, changed by hand                   marks put back
    ours                                    Pending or Bound; Lost where its device is not published any more

A ResourceClaim whose ElasticGPUClaim is gone goes too, unless it is retained with devices. One that is being deleted while
koordra's finalizer holds it is freed once no pod has it reserved.
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
from koordra.api.objects import Object
from koordra.api.resource_class import MANAGED_BY, ClassRefused, owner_reference
from koordra.controller import claims as claims_of
from koordra.controller.elastic import labels

PENDING: Final = "Pending"
BOUND: Final = "Bound"
LOST: Final = "Lost"

Classes = Mapping[str, ElasticClass | ClassRefused]
"""Every ElasticGPUClass by name, as it could be read."""
Place = tuple[str, str]
"""Pool and device."""


class Act(StrEnum):
    NOTHING = "nothing"
    MAKE = "make"
    CORRECT = "correct"
    REMOVE = "remove"
    FREE = "free"
    """Take the allocation off a claim that is being deleted, then the finalizer."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """`body`: the ResourceClaim to make, or its metadata as they should be."""

    phase: str
    ready: bool
    reason: str
    message: str
    act: Act = Act.NOTHING
    body: Object | None = None


def evaluate(claim: Object, *, classes: Classes, current: Object | None, published: Set[Place]) -> Verdict:
    """`current`: the ResourceClaim of the claim's name; `published`: the devices that nodes offer."""
    ours = current is not None and labels.claim_uid(current) == objects.uid(claim)
    try:
        cls = _as_made(_class(claim, classes), current if ours else None)
        amount = requested(claim, cls)
        wanted = resource_claim(claim, cls, claim_spec(amount, cls))
    except ClassRefused as refused:
        if ours and current is not None and claims_of.is_allocated(current):
            return _bound(current, published, warnings=(str(refused),))
        return Verdict(PENDING, False, refused.reason, str(refused))
    if current is None and (named := objects.spec_of(claim).get("elasticGPUName")):
        text = f"there is no ElasticGPU {named} that a claim of this name left; leave spec.elasticGPUName out for new devices"
        return Verdict(PENDING, False, "NoSuchElasticGPU", text)
    if current is None:
        return Verdict(PENDING, False, "BeingMade", "its ResourceClaim is being made", Act.MAKE, wanted)
    if not ours:
        return _of_somebody_else(claim, current, wanted)
    if objects.is_deleting(current):
        text = "its ResourceClaim was deleted; another is made once no pod uses it"
        return Verdict(PENDING, False, "BeingDeleted", text)
    ignored = f"parameters {', '.join(cls.ignored)} of the class mean nothing to koordra"
    warnings = (*amount.lost, *((ignored,) if cls.ignored else ()))
    if objects.annotations_of(current).get(labels.SPEC) != objects.annotations_of(wanted)[labels.SPEC]:
        return _changed(current, published)
    correct = corrected(current, wanted)
    found = (
        _bound(current, published, warnings) if claims_of.is_allocated(current) else _waiting(cls, warnings)
    )
    if correct is None:
        return found
    return Verdict(found.phase, found.ready, found.reason, found.message, Act.CORRECT, correct)


def resource_claim(claim: Object, cls: ElasticClass, spec: Object) -> Object:
    """The ResourceClaim that an ElasticGPUClaim means."""
    annotations = {
        labels.SPEC: digest(spec),
        labels.POLICY: RETAIN if cls.retain else DELETE,
        labels.CLASS: cls.name,
        labels.BINDING: IMMEDIATE if cls.immediate else WAIT,
        labels.UNIT: str(cls.unit),
    }
    if cls.immediate:
        annotations[names.MODE_LABEL] = "Immediate"
    metadata: Object = {
        "name": objects.name(claim),
        "namespace": objects.namespace(claim),
        "labels": {MANAGED_BY: names.FIELD_COMPONENT, labels.CLAIM_LABEL: objects.uid(claim)},
        "annotations": annotations,
    }
    if cls.retain:
        metadata["finalizers"] = [names.RETAIN_FINALIZER]
    else:
        metadata["ownerReferences"] = [owner_reference(claim, ELASTIC_CLAIMS)]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": metadata,
        "spec": spec,
    }


def corrected(current: Object, wanted: Object) -> Object | None:
    """The marks of a ResourceClaim of ours as they should be, None where they are; the policy stays as it was made.

    A retained claim that pods have used keeps its devices from then on (`Immediate` means that to the allocator).
    """
    before = objects.metadata(current)
    annotations, marked = dict(objects.annotations_of(current)), dict(objects.labels_of(current))
    annotations |= objects.annotations_of(wanted)
    policy = objects.annotations_of(current).get(labels.POLICY)
    retained = labels.is_held(current) or policy == RETAIN
    annotations[labels.POLICY] = RETAIN if retained else DELETE
    used = retained and claims_of.reserved_for(current)
    if objects.annotations_of(current).get(names.MODE_LABEL) == "Immediate" or used:
        annotations[names.MODE_LABEL] = "Immediate"
    marked |= objects.labels_of(wanted)
    finalizers = labels.finalizers(current)
    if retained and names.RETAIN_FINALIZER not in finalizers:
        finalizers = [*finalizers, names.RETAIN_FINALIZER]
    owners = list(before.get("ownerReferences") or ())
    if not retained:
        known = {owner.get("uid") for owner in owners}
        owners += [
            one for one in objects.metadata(wanted).get("ownerReferences") or () if one["uid"] not in known
        ]
    if (annotations, marked, finalizers, owners) == (
        dict(objects.annotations_of(current)),
        dict(objects.labels_of(current)),
        labels.finalizers(current),
        list(before.get("ownerReferences") or ()),
    ):
        return None
    return {
        "uid": before.get("uid"),
        "resourceVersion": before.get("resourceVersion"),
        "annotations": annotations,
        "labels": marked,
        "finalizers": finalizers,
        "ownerReferences": owners,
    }


def without_claim(current: Object) -> Act:
    """What becomes of a ResourceClaim whose ElasticGPUClaim is gone (and of its deletion's rest)."""
    if objects.is_deleting(current):
        free = labels.is_held(current) and not claims_of.reserved_for(current)
        return Act.FREE if free else Act.NOTHING
    if labels.is_retained(current) and claims_of.is_allocated(current):
        return Act.NOTHING
    return Act.REMOVE


def lost(current: Object, published: Set[Place]) -> list[str]:
    """The devices of an allocation that no node publishes any more."""
    return [
        f"{result.get('device')} of {result.get('pool')}"
        for result in claims_of.results(current)
        if (str(result.get("pool")), str(result.get("device"))) not in published
    ]


def _as_made(cls: ElasticClass, current: Object | None) -> ElasticClass:
    """The class as it was when the claim's ResourceClaim was made, where that says so and it is still that class."""
    made = {} if current is None else objects.annotations_of(current)
    if made.get(labels.CLASS) != cls.name:
        return cls
    immediate = made.get(labels.BINDING, IMMEDIATE if cls.immediate else WAIT) == IMMEDIATE
    unit = next((unit for unit in UNITS.values() if str(unit) == made.get(labels.UNIT)), cls.unit)
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


def _of_somebody_else(claim: Object, current: Object, wanted: Object) -> Verdict:
    name = objects.name(current)
    other = labels.claim_uid(current)
    if not other:
        text = (
            f"there is a ResourceClaim {name} that koordra did not make; "
            "delete it, or give the ElasticGPUClaim another name"
        )
        return Verdict(PENDING, False, "NameTaken", text)
    binding = labels.binding_name(current)
    kept = (
        labels.is_retained(current) and claims_of.is_allocated(current) and not objects.is_deleting(current)
    )
    if not kept:
        text = f"ResourceClaim {name} of an earlier claim of this name has not ended yet"
        return Verdict(PENDING, False, "EarlierClaim", text)
    same = objects.annotations_of(current).get(labels.SPEC) == objects.annotations_of(wanted)[labels.SPEC]
    if objects.spec_of(claim).get("elasticGPUName") == binding and same:
        text = f"takes over ElasticGPU {binding}"
        return Verdict(PENDING, False, "BeingMade", text, Act.CORRECT, corrected(current, wanted))
    text = (
        f"ElasticGPU {binding} is retained for an earlier claim of this name; delete it to free its devices"
        + (f", or write spec.elasticGPUName: {binding} to take it over" if same else "")
    )
    return Verdict(PENDING, False, "Retained", text)


def _changed(current: Object, published: Set[Place]) -> Verdict:
    if claims_of.is_allocated(current) or claims_of.reserved_for(current):
        text = "spec has changed; what the claim has stays as it was. Delete the claim and make it anew"
        phase = LOST if lost(current, published) else BOUND
        return Verdict(phase, False, "SpecChanged", text)
    text = "spec has changed; its ResourceClaim is made anew"
    return Verdict(PENDING, False, "BeingMade", text, Act.REMOVE)


def _bound(current: Object, published: Set[Place], warnings: tuple[str, ...] = ()) -> Verdict:
    gone = lost(current, published)
    if gone:
        text = f"{', '.join(gone)} is not published any more; the claim waits for it to come back"
        return Verdict(LOST, False, "DeviceGone", _with(text, warnings))
    devices = ", ".join(str(result.get("device")) for result in claims_of.results(current))
    text = f"{devices} on node {claims_of.node_of(current) or 'any'}, as ElasticGPU {labels.binding_name(current)}"
    return Verdict(BOUND, True, "Bound", _with(text, warnings))


def _waiting(cls: ElasticClass, warnings: tuple[str, ...]) -> Verdict:
    if cls.immediate:
        text = "waits for devices; why, is told in the Events of the ResourceClaim of this name"
        return Verdict(PENDING, False, "WaitForDevices", _with(text, warnings))
    return Verdict(PENDING, False, "WaitForFirstConsumer", _with("waits for a pod that uses it", warnings))


def _with(text: str, warnings: tuple[str, ...]) -> str:
    return "; ".join((text, *warnings))
