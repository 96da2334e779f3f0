"""The fields of claims, templates and DeviceClasses, as of resource.k8s.io/v1 in Kubernetes 1.37: what else
stands in a manifest, kubectl has refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from koordra.api.field_types import parse_types, unknown_fields
from koordra.api.kinds import Kind
from koordra.api.objects import Fields

FIELD_TYPES: Final = parse_types("""
ResourceClaim: apiVersion text, kind text, metadata ObjectMeta, spec ClaimSpec, status open
ResourceClaimTemplate: apiVersion text, kind text, metadata ObjectMeta, spec TemplateSpec
DeviceClass: apiVersion text, kind text, metadata ObjectMeta, spec ClassSpec
ObjectMeta: annotations {}text, creationTimestamp text, deletionGracePeriodSeconds whole, deletionTimestamp text, finalizers []text, generateName text, generation whole, labels {}text, managedFields []open, name text, namespace text, ownerReferences []Owner, resourceVersion text, selfLink text, uid text
Owner: apiVersion text, blockOwnerDeletion truth, controller truth, kind text, name text, uid text
TemplateSpec: metadata ObjectMeta, spec ClaimSpec
ClaimSpec: devices DeviceClaim
DeviceClaim: config []ClaimConfig, constraints []Constraint, requests []Request
ClaimConfig: opaque Opaque, requests []text
Opaque: driver text, parameters open
Constraint: distinctAttribute text, matchAttribute text, requests []text
Request: exactly Exactly, firstAvailable []Alternative, name text
Exactly: adminAccess truth, allocationMode text, capacity CapacityRequests, count whole, derivedAttributes []Derived, deviceClassName text, selectors []Selector, tolerations []Toleration
Alternative: allocationMode text, capacity CapacityRequests, count whole, derivedAttributes []Derived, deviceClassName text, name text, selectors []Selector, tolerations []Toleration
CapacityRequests: requests {}amount
Derived: expression text, name text
Selector: cel Cel
Cel: expression text
Toleration: effect text, key text, operator text, tolerationSeconds whole, value text
ClassSpec: config []ClassConfig, extendedResourceName text, selectors []Selector
ClassConfig: opaque Opaque
""")
_SERVED: Final = ("resource.k8s.io/v1", "resource.k8s.io/v1beta2", "", None)
"""Versions of this form; others are converted before they are judged, or refused."""


def unknown(kind: Kind, obj: Fields) -> Iterator[str]:
    """Paths of fields that the kind does not have."""
    if obj.get("apiVersion") in _SERVED:
        yield from unknown_fields(obj, kind.kind, FIELD_TYPES)
