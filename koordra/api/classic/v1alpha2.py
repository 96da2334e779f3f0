"""Classic DRA (resource.k8s.io v1alpha1 and v1alpha2, Kubernetes 1.26 to 1.31) to v1.

ResourceClass                 DeviceClass of the same name: a selector for its driver, its parameters as config,
                              suitableNodes as an annotation
ResourceClaim(Template)       one request for the class, or one per request of structured parameters
allocationMode Immediate      an annotation that koordra's controller obeys; no other driver can
ResourceClaim/ClassParameters into the claims and classes that refer to them
PodSchedulingContext, ResourceSlice of named resources, status: nothing; they are made anew
"""

from __future__ import annotations

from typing import Final

from koordra.api import names, objects
from koordra.api.classic import class_parameters, suitable_nodes
from koordra.api.classic.class_parameters import Requested, cel
from koordra.api.classic.notes import Notes, fresh_metadata, is_made_anew
from koordra.api.classic.sources import (
    CLAIM_PARAMETERS,
    CLASS_PARAMETERS,
    Reference,
    Sources,
    read_reference,
    spelled,
)
from koordra.api.objects import Object
from koordra.api.reader import Reader

V1: Final = "resource.k8s.io/v1"
MODE: Final = "koordra.io/allocation-mode"
"""Annotation on a claim: `Immediate` as classic DRA meant it."""
_CLASS_FIELDS: Final = ("driverName", "parametersRef", "structuredParameters", "suitableNodes")
_ALWAYS: Final = ("apiVersion", "kind", "metadata", "status")


def device_class(obj: Object, sources: Sources, notes: Notes) -> list[Object]:
    """A ResourceClass."""
    read = Reader(obj, object=notes.object)
    driver = read.text("driverName", required=True)
    read.only(*_CLASS_FIELDS, problem="is no field of this kind", ignored=_ALWAYS)
    selectors = [cel(driver_selector(driver))]
    config: list[Object] = []
    place = read.inner("parametersRef").data.get("namespace")
    reference = read_reference(read, namespace=str(place or "default"))
    if reference is not None:
        found = _parameters_object(reference, CLASS_PARAMETERS, read, sources)
        more, config = class_parameters.of_class(found, driver=driver, notes=notes)
        selectors += more
    metadata = fresh_metadata(obj)
    if obj.get("suitableNodes") is not None:
        selector = suitable_nodes.checked(read.inner("suitableNodes"))
        metadata["annotations"] = {**metadata.get("annotations", {}), **suitable_nodes.annotation(selector)}
        notes.warn("suitableNodes", *_suitable_nodes_told(driver))
    spec: Object = {"selectors": selectors, **({"config": config} if config else {})}
    return [{"apiVersion": V1, "kind": "DeviceClass", "metadata": metadata, "spec": spec}]


def _parameters_object(reference: Reference, generated: str, read: Reader, sources: Sources) -> Object:
    found = sources.parameters_object(reference, generated=generated)
    if found is None:
        raise read.wrong(f"{spelled(reference)} is not among the files", "add it with -f", at="parametersRef")
    return found


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
    if is_made_anew(obj, notes):
        return []
    metadata = fresh_metadata(obj)
    read = Reader(obj.get("spec"), object=notes.object, field="spec")
    spec = _claim_spec(read, metadata, objects.namespace(obj), sources, notes)
    return [{"apiVersion": V1, "kind": "ResourceClaim", "metadata": metadata, "spec": spec}]


def template(obj: Object, sources: Sources, notes: Notes) -> list[Object]:
    """A ResourceClaimTemplate: the spec stands one level deeper, under its own metadata."""
    outer = Reader(obj.get("spec"), object=notes.object, field="spec")
    inner = dict(outer.inner("metadata").data)
    made: Object = {"spec": _claim_spec(outer.inner("spec"), inner, objects.namespace(obj), sources, notes)}
    if inner:
        made = {"metadata": inner, **made}
    return [
        {"apiVersion": V1, "kind": "ResourceClaimTemplate", "metadata": fresh_metadata(obj), "spec": made}
    ]


def _claim_spec(read: Reader, metadata: Object, namespace: str, sources: Sources, notes: Notes) -> Object:
    """The v1 spec; an Immediate claim's annotation is written into `metadata`."""
    name = read.text("resourceClassName", required=True)
    read.only("resourceClassName", "parametersRef", "allocationMode", problem="is no field of this kind")
    driver = sources.driver_of_class(name)
    _allocation_mode(read, metadata, driver=driver, notes=notes)
    reference = read_reference(read, namespace=namespace)
    if reference is None:
        return {"devices": _devices(name, Requested())}
    found = _parameters_object(reference, CLAIM_PARAMETERS, read, sources)
    if not driver:
        raise read.wrong(
            f"whose driver reads these parameters is not known: ResourceClass {name} is not among the files",
            "add it with -f",
            at="parametersRef",
        )
    return {"devices": _devices(name, class_parameters.of_claim(found, driver=driver, notes=notes))}


def _devices(class_name: str, requested: Requested) -> Object:
    devices: Object = {
        "requests": [
            {"name": name, "exactly": {"deviceClassName": class_name, **exactly}}
            for name, exactly in requested.requests
        ]
    }
    if requested.constraints:
        devices["constraints"] = requested.constraints
    if requested.config:
        devices["config"] = requested.config
    return devices


def _allocation_mode(read: Reader, metadata: Object, *, driver: str, notes: Notes) -> None:
    mode = read.choice(
        "allocationMode",
        ("WaitForFirstConsumer", "Immediate"),
        problem="is no mode",
        remedy="write WaitForFirstConsumer or Immediate",
    )
    at = read.place("allocationMode")
    if mode != "Immediate":
        return
    if driver == names.DRIVER:
        metadata["annotations"] = {**metadata.get("annotations", {}), MODE: mode}
        notes.warn(
            at, f"v1 has no such field; it is kept as annotation {MODE}, which koordra's controller obeys"
        )
    else:
        notes.warn(at, "v1 allocates when a pod needs the claim", "nothing else can be had from this driver")


def parameters(_obj: Object, _sources: Sources, notes: Notes) -> list[Object]:
    """ResourceClaimParameters or ResourceClassParameters: gone into what refers to them, or not needed."""
    notes.warn("", "nothing in the files refers to it; v1 has no such object", "it is left out")
    return []


def left_out(_obj: Object, _sources: Sources, notes: Notes) -> list[Object]:
    """Objects that controllers and drivers make anew."""
    notes.warn("", "v1 has no such object; what is needed is made anew", "it is left out")
    return []
