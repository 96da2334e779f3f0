"""The objects that a conversion was given, found by what refers to them.

A classic claim says little by itself: its driver stands in the ResourceClass, what it requests in a parameters object. Both are
looked up among the objects of the same conversion, never in a cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from koordra.api import objects
from koordra.api.objects import Object
from koordra.api.reader import Reader

GROUP: Final = "resource.k8s.io"
CLAIM_PARAMETERS: Final = "ResourceClaimParameters"
CLASS_PARAMETERS: Final = "ResourceClassParameters"

Reference = tuple[str, str, str, str]
"""(API group, kind, namespace or "", name)."""


@dataclass(slots=True)
class Sources:
    """`used`: references of parameters objects that went into another object and need not be applied any more."""

    classes: dict[str, Object] = field(default_factory=dict)
    claims: dict[Reference, Object] = field(default_factory=dict)
    parameters: dict[Reference, Object] = field(default_factory=dict)
    generated: dict[tuple[str, Reference], Object] = field(default_factory=dict)
    used: set[Reference] = field(default_factory=set)

    @classmethod
    def of(cls, found: Iterable[Object]) -> Sources:
        sources = cls()
        for obj in found:
            sources._add(obj)
        return sources

    def _add(self, obj: Object) -> None:
        kind, group = str(obj.get("kind")), group_of(obj)
        if kind in ("ResourceClass", "DeviceClass") and group == GROUP:
            self.classes[objects.name(obj)] = obj
        elif kind in ("ResourceClaim", "ResourceClaimTemplate") and group == GROUP:
            self.claims[reference_to(obj)] = obj
        else:
            self.parameters[reference_to(obj)] = obj
        if kind in (CLAIM_PARAMETERS, CLASS_PARAMETERS) and isinstance(obj.get("generatedFrom"), Mapping):
            source = reference_in(obj["generatedFrom"], namespace=objects.namespace(obj))
            self.generated[(kind, source)] = obj

    def parameters_object(self, reference: Reference, *, generated: str) -> Object | None:
        """What a parametersRef means: the in-tree parameters generated from it where there are some, else the object."""
        made = self.generated.get((generated, reference))
        found = made if made is not None else self.parameters.get(reference)
        if found is not None:
            self.used.update((reference, reference_to(found)))
        return found

    def driver_of_class(self, name: str) -> str:
        """The driver of a classic class among the objects, or ""."""
        found = self.classes.get(name)
        driver = found.get("driverName") if found is not None else None
        return driver if isinstance(driver, str) else ""

    def class_of_claim(self, name: str, *, kind: str, namespace: str) -> str:
        """The classic class that a claim or template of the input asks for, or ""."""
        claim = self.claims.get((GROUP, kind, namespace, name))
        spec = objects.spec_of(claim) if claim is not None else {}
        inner = spec.get("spec") if kind == "ResourceClaimTemplate" else spec
        found = inner.get("resourceClassName") if isinstance(inner, Mapping) else None
        return found if isinstance(found, str) else ""


def group_of(obj: Mapping[str, Any]) -> str:
    """`resource.k8s.io` of `resource.k8s.io/v1`; "" for the core group."""
    version = str(obj.get("apiVersion") or "")
    return version.rpartition("/")[0]


def reference_to(obj: Object) -> Reference:
    return group_of(obj), str(obj.get("kind")), objects.namespace(obj), objects.name(obj)


def reference_in(raw: Mapping[str, Any], *, namespace: str) -> Reference:
    return str(raw.get("apiGroup") or ""), str(raw.get("kind") or ""), namespace, str(raw.get("name") or "")


def read_reference(read: Reader, *, namespace: str) -> Reference | None:
    """The parametersRef of an object, None where it has none. Raises InvalidManifest."""
    if read.data.get("parametersRef") is None:
        return None
    found = read.inner("parametersRef")
    return (
        found.text("apiGroup"),
        found.text("kind", required=True),
        namespace,
        found.text("name", required=True),
    )


def spelled(reference: Reference) -> str:
    """`ResourceClaimParameters.resource.k8s.io team-a/big` for messages."""
    group, kind, namespace, name = reference
    return f"{kind}.{group} {namespace}/{name}".replace(". ", " ").replace(" /", " ")
