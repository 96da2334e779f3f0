"""Classic DRA (resource.k8s.io v1alpha1 and v1alpha2, Kubernetes 1.26 to 1.31) to v1.

ResourceClass                 DeviceClass of the same name: a selector for its driver, its parameters as config,
                              suitableNodes as an annotation
ResourceClaim(Template)       one request for the class, or one per request of structured parameters
allocationMode Immediate      an annotation that koordra's controller obeys; no other driver can
ResourceClaim/ClassParameters into the claims and classes that refer to them
PodSchedulingContext, ResourceSlice of named resources, status: nothing; they are made anew
"""

from __future__ import annotations

from typing import Any, Final

from koordra.api import names, objects
from koordra.api.classic import class_parameters, suitable_nodes
from koordra.api.classic.class_parameters import Wishes, cel
from koordra.api.classic.notes import Notes, fresh_metadata
from koordra.api.classic.sources import (
    CLAIM_PARAMETERS,
    CLASS_PARAMETERS,
    Sources,
    read_reference,
    spelled,
)
from koordra.api.devices import Reader
from koordra.api.objects import Object

V1: Final = "resource.k8s.io/v1"
MODE: Final = "koordra.io/allocation-mode"
"""Annotation on a claim: `Immediate` as classic DRA meant it."""
_MODES: Final = ("", "WaitForFirstConsumer", "Immediate")


def device_class(obj: Object, sources: Sources, notes: Notes) -> list[Object]:
    """A ResourceClass."""
    read = Reader(object=notes.object)
    driver = read.at("driverName").text(obj.get("driverName"), required=True)
    unknown_fields(
        obj, {"driverName", "parametersRef", "suitableNodes", "structuredParameters"}, read=read, notes=notes
    )
    selectors = [cel(driver_selector(driver))]
    config: list[Object] = []
    at = read.at("parametersRef")
    place = at.mapping(obj.get("parametersRef")).get("namespace")
    reference = read_reference(obj.get("parametersRef"), at, namespace=str(place or "default"))
    if reference is not None:
        found = sources.parameters_object(reference, generated=CLASS_PARAMETERS)
        if found is None:
            raise notes.refuse(
                "parametersRef", f"{spelled(reference)} is not among the files", "add it with -f"
            )
        more, config = class_parameters.of_class(found, driver=driver, notes=notes)
        selectors += more
    metadata = fresh_metadata(obj)
    if obj.get("suitableNodes") is not None:
        selector = suitable_nodes.checked(obj["suitableNodes"], read.at("suitableNodes"))
        metadata["annotations"] = {
            **metadata.get("annotations", {}),
            suitable_nodes.SUITABLE_NODES: suitable_nodes.annotation(selector),
        }
        notes.warn("suitableNodes", *_suitable_nodes_told(driver))
    spec: Object = {"selectors": selectors}
    if config:
        spec["config"] = config
    return [{"apiVersion": V1, "kind": "DeviceClass", "metadata": metadata, "spec": spec}]


def _suitable_nodes_told(driver: str) -> tuple[str, str]:
    if driver == names.DRIVER:
        return (
            f"v1 has no such field; it is kept as annotation {suitable_nodes.SUITABLE_NODES}, which koordra's controller obeys",
            "pods of this input that use the class get node affinity too",
        )
    return (
        "v1 has no such field, and no scheduler reads the annotation it is kept as",
        "pods of this input that use the class get node affinity; give it to the others yourself",
    )


def driver_selector(driver: str) -> str:
    """Which devices a class of this driver means; koordra's carry the guard against kube-scheduler's allocator."""
    base = f'device.driver == "{driver}"'
    if driver != names.DRIVER:
        return base
    return f'{base} && device.attributes["{names.DRIVER}"].allocator == "{names.ALLOCATOR_SCHEDULER}"'


def claim(obj: Object, sources: Sources, notes: Notes) -> list[Object]:
    """A ResourceClaim; one that was made from a template for a pod is left to be made again."""
    if any(owner.get("kind") == "Pod" for owner in objects.metadata(obj).get("ownerReferences") or ()):
        notes.warn(
            "metadata.ownerReferences", "was made for a pod and is left out", "the template makes it again"
        )
        return []
    if objects.status_of(obj).get("allocation"):
        notes.warn("status.allocation", "is not carried over: the devices are allocated anew")
    metadata = fresh_metadata(obj)
    spec = _claim_spec(obj.get("spec"), Reader(object=notes.object, field="spec"), metadata, sources, notes)
    return [{"apiVersion": V1, "kind": "ResourceClaim", "metadata": metadata, "spec": spec}]


def template(obj: Object, sources: Sources, notes: Notes) -> list[Object]:
    """A ResourceClaimTemplate: the spec stands one level deeper, under its own metadata."""
    read = Reader(object=notes.object, field="spec")
    outer = read.mapping(obj.get("spec"))
    inner = dict(read.at("metadata").mapping(outer.get("metadata")))
    inner["namespace"] = objects.namespace(obj)
    spec = _claim_spec(outer.get("spec"), read.at("spec"), inner, sources, notes)
    del inner["namespace"]
    made: Object = {"spec": spec}
    if inner:
        made = {"metadata": inner, **made}
    return [
        {"apiVersion": V1, "kind": "ResourceClaimTemplate", "metadata": fresh_metadata(obj), "spec": made}
    ]


def _claim_spec(raw: object, read: Reader, metadata: Object, sources: Sources, notes: Notes) -> Object:
    """The v1 spec; an Immediate claim's annotation is written into `metadata`."""
    spec = read.mapping(raw)
    name = read.at("resourceClassName").text(spec.get("resourceClassName"), required=True)
    unknown_fields(
        spec, {"resourceClassName", "parametersRef", "allocationMode"}, read=read, notes=notes, top=False
    )
    driver = sources.driver_of_class(name)
    _allocation_mode(spec, read, metadata, driver=driver, notes=notes)
    namespace = str(metadata.get("namespace") or "default")
    reference = read_reference(spec.get("parametersRef"), read.at("parametersRef"), namespace=namespace)
    if reference is None:
        wishes = Wishes()
    else:
        found = sources.parameters_object(reference, generated=CLAIM_PARAMETERS)
        at = read.at("parametersRef").field
        if found is None:
            raise notes.refuse(at, f"{spelled(reference)} is not among the files", "add it with -f")
        if not driver:
            raise notes.refuse(
                at,
                f"whose driver reads these parameters is not known: ResourceClass {name} is not among the files",
                "add it with -f",
            )
        wishes = class_parameters.of_claim(found, driver=driver, notes=notes)
    return {"devices": _devices(name, wishes)}


def _devices(class_name: str, wishes: Wishes) -> Object:
    devices: Object = {
        "requests": [
            {"name": name, "exactly": {"deviceClassName": class_name, **exactly}}
            for name, exactly in wishes.requests
        ]
    }
    if wishes.constraints:
        devices["constraints"] = wishes.constraints
    if wishes.config:
        devices["config"] = wishes.config
    return devices


def _allocation_mode(spec: Any, read: Reader, metadata: Object, *, driver: str, notes: Notes) -> None:
    at = read.at("allocationMode")
    mode = at.text(spec.get("allocationMode"))
    if mode not in _MODES:
        raise notes.refuse(at.field, f"{mode!r} is no mode", "write WaitForFirstConsumer or Immediate")
    if mode != "Immediate":
        return
    if driver == names.DRIVER:
        metadata["annotations"] = {**metadata.get("annotations", {}), MODE: mode}
        notes.warn(
            at.field,
            f"v1 has no such field; it is kept as annotation {MODE}, which koordra's controller obeys",
        )
    else:
        notes.warn(
            at.field, "v1 allocates when a pod needs the claim", "nothing else can be had from this driver"
        )


def parameters(obj: Object, sources: Sources, notes: Notes) -> list[Object]:
    """ResourceClaimParameters or ResourceClassParameters: gone into what refers to them, or not needed."""
    del obj, sources
    notes.warn("", "nothing in the files refers to it; v1 has no such object", "it is left out")
    return []


def left_out(obj: Object, sources: Sources, notes: Notes) -> list[Object]:
    """Objects that controllers and drivers make anew."""
    del obj, sources
    notes.warn("", "v1 has no such object; what is needed is made anew", "it is left out")
    return []


def unknown_fields(spec: Any, known: set[str], *, read: Reader, notes: Notes, top: bool = True) -> None:
    """A field that classic DRA never had is refused by name rather than lost."""
    always = {"apiVersion", "kind", "metadata", "status"} if top else set()
    for name in sorted(str(name) for name in set(spec) - known - always):
        raise notes.refuse(
            read.at(name).field, "is no field of this kind", f"fields are {', '.join(sorted(known))}"
        )
