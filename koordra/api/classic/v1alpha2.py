"""Classic DRA (resource.k8s.io v1alpha1 and v1alpha2, Kubernetes 1.26 to 1.31) to v1.

ResourceClass                 DeviceClass of the same name: a selector for its driver, its parameters as
                              config, suitableNodes as an annotation
ResourceClaim(Template)       one request for the class, or one per request of structured parameters
allocationMode Immediate      an annotation that koordra's controller obeys; no other driver can
NVIDIA's classic driver       nvidia_parameters: claims that select the same devices
ResourceClaim/ClassParameters into the claims and classes that refer to them
PodSchedulingContext, ResourceSlice of named resources, status: nothing; they are made anew

A classic claim says little by itself: its driver stands in the ResourceClass, what it requests in a
parameters object. Both are looked up among the objects of the same conversion (`Sources`), never in a
cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from koordra.api import names, objects
from koordra.api.classic import class_parameters, nvidia_parameters, suitable_nodes
from koordra.api.classic.class_parameters import (
    CLAIM_PARAMETERS,
    CLASS_PARAMETERS,
    EVERY_OBJECT,
    Requested,
    cel,
)
from koordra.api.classic.notes import Notes, fresh_metadata, is_made_anew
from koordra.api.kinds import RESOURCE_GROUP
from koordra.api.objects import Fields, Object
from koordra.api.reader import Reader

V1: Final = "resource.k8s.io/v1"
_CLASS_FIELDS: Final = ("driverName", "parametersRef", "structuredParameters", "suitableNodes")

Reference = tuple[str, str, str, str]
"""(API group, kind, namespace, name)."""


@dataclass(slots=True)
class Sources:
    """`used`: references of parameters objects that went into another object and need not be applied any
    more. `target`: whose claims those of NVIDIA's classic driver become; `tied`: templates that went
    into another claim of their pods (tied_claims.py); `to_driver`: whose claims those of v1 become."""

    classes: dict[str, Object] = field(default_factory=dict)
    claims: dict[Reference, Object] = field(default_factory=dict)
    parameters: dict[Reference, Object] = field(default_factory=dict)
    generated: dict[tuple[str, Reference], Object] = field(default_factory=dict)
    used: set[Reference] = field(default_factory=set)
    target: str = nvidia_parameters.NVIDIA
    to_driver: str = ""
    tied: set[Reference] = field(default_factory=set)

    @classmethod
    def of(cls, found: Iterable[Object], *, target: str = "") -> Sources:
        sources = cls(target=target or nvidia_parameters.NVIDIA)
        for obj in found:
            kind, ours = str(obj.get("kind")), objects.group_of(obj) == RESOURCE_GROUP
            if kind in ("ResourceClass", "DeviceClass") and ours:
                sources.classes[objects.name(obj)] = obj
            elif kind in ("ResourceClaim", "ResourceClaimTemplate") and ours:
                sources.claims[reference_to(obj)] = obj
            else:
                sources.parameters[reference_to(obj)] = obj
            origin = obj.get("generatedFrom")
            if kind in (CLAIM_PARAMETERS, CLASS_PARAMETERS) and isinstance(origin, Mapping):
                group, of, name = (str(origin.get(part) or "") for part in ("apiGroup", "kind", "name"))
                sources.generated[(kind, (group, of, objects.namespace(obj), name))] = obj
        return sources

    def parameters_object(self, reference: Reference, *, generated: str) -> Object | None:
        """What a parametersRef means: the in-tree parameters generated from it where there are some, else the
        object."""
        made = self.generated.get((generated, reference))
        found = made if made is not None else self.parameters.get(reference)
        if found is not None:
            self.used.update((reference, reference_to(found)))
        return found

    def use(self, *parameters: Object) -> None:
        self.used.update(map(reference_to, parameters))

    def driver_of_class(self, name: str) -> str:
        """The driver of a classic class among the objects, or of one that is known without, or ""."""
        found = self.classes.get(name)
        return nvidia_parameters.CLASSES.get(name, "") if found is None else _text(found, "driverName")

    def class_of_claim(self, name: str, *, kind: str, namespace: str) -> str:
        """The classic class that a claim or template of the input asks for, or ""."""
        spec = objects.spec_of(self.claims.get((RESOURCE_GROUP, kind, namespace, name)) or {})
        return _text(spec.get("spec") if kind == "ResourceClaimTemplate" else spec, "resourceClassName")


def _text(value: object, field: str) -> str:
    found = value.get(field) if isinstance(value, Mapping) else None
    return found if isinstance(found, str) else ""


def reference_to(obj: Object) -> Reference:
    return objects.group_of(obj), str(obj.get("kind")), objects.namespace(obj), objects.name(obj)


ClaimSpec = Callable[[Reader, Object, str, Sources, Notes], Object]
"""The v1 spec of a claim; what has to be an annotation is written into the metadata, which comes second."""


def v1_object(kind: str, metadata: Object, spec: Fields) -> list[Object]:
    return [{"apiVersion": V1, "kind": kind, "metadata": metadata, "spec": spec}]


def device_class(obj: Object, sources: Sources, notes: Notes) -> list[Object]:
    read = notes.read(obj)
    driver = read.required("driverName")
    if driver in nvidia_parameters.RENAMED:
        return _class_of_renamed(read, driver, sources, notes)
    read.only(*_CLASS_FIELDS, problem="is no field of this kind", ignored=EVERY_OBJECT)
    selectors: list[Object] = [cel(driver_selector(driver))]
    config: list[Object] = []
    parameters = _parameters_object(
        read, CLASS_PARAMETERS, str(read.inner("parametersRef").data.get("namespace") or "default"), sources
    )
    if parameters is not None:
        more, config = class_parameters.of_class(parameters, driver=driver, notes=notes)
        selectors += more
    metadata = fresh_metadata(obj)
    if nodes := suitable_nodes.annotation(read):
        metadata["annotations"] = {**metadata.get("annotations", {}), **nodes}
        if driver == names.DRIVER:
            notes.warn(
                "suitableNodes",
                f"v1 has no such field; it is kept as annotation {suitable_nodes.SUITABLE_NODES}, which koordra's controller obeys",
                "pods of this input that use the class get node affinity too",
            )
        else:
            notes.warn(
                "suitableNodes",
                "v1 has no such field, and no scheduler reads the annotation it is kept as",
                "pods of this input that use the class get node affinity; give it to the others yourself",
            )
    return v1_object(
        "DeviceClass", metadata, objects.without_none({"selectors": selectors, "config": config or None})
    )


def _class_of_renamed(read: Reader, driver: str, sources: Sources, notes: Notes) -> list[Object]:
    """Its claims name the class that the driver's chart, or koordra's, brings. Raises InvalidManifest."""
    if read.data.get("parametersRef"):
        raise read.wrong(
            "of this driver has no form in v1: every claim may be shared", "take it out", at="parametersRef"
        )
    now = (
        names.CLASS_GPU if sources.target == nvidia_parameters.KOORDRA else nvidia_parameters.RENAMED[driver]
    )
    notes.warn("", f"{driver} has another name now, and its claims name class {now}", "it is left out")
    return []


def _parameters_object(read: Reader, generated: str, namespace: str, sources: Sources) -> Object | None:
    """The object that `parametersRef` means, None where there is no such field. Raises InvalidManifest."""
    ref = read.optional("parametersRef")
    if ref is None:
        return None
    group, kind, name = ref.text("apiGroup"), ref.required("kind"), ref.required("name")
    found = sources.parameters_object((group, kind, namespace, name), generated=generated)
    if found is None:
        who = f"{kind}.{group}".rstrip(".")
        raise ref.wrong(f"{who} {namespace}/{name} is not among the files", "add it with -f")
    return found


def driver_selector(driver: str) -> str:
    """Which devices a class of this driver means; koordra's carry the guard against kube-scheduler's
    allocator."""
    base = f'device.driver == "{driver}"'
    if driver != names.DRIVER:
        return base
    return f'{base} && device.attributes["{names.DRIVER}"].allocator == "{names.ALLOCATOR_SCHEDULER}"'


def claim_spec(read: Reader, metadata: Object, namespace: str, sources: Sources, notes: Notes) -> Object:
    name = read.required("resourceClassName")
    read.only("resourceClassName", "parametersRef", "allocationMode", problem="is no field of this kind")
    driver = sources.driver_of_class(name)
    _allocation_mode(read, metadata, driver=driver, notes=notes)
    parameters = _parameters_object(read, CLAIM_PARAMETERS, namespace, sources)
    if driver in nvidia_parameters.RENAMED and _is_read(parameters):
        return _of_renamed(parameters, driver, sources, notes)
    if parameters is not None and not driver:
        raise read.wrong(
            f"whose driver reads these parameters is not known: ResourceClass {name} is not among the files",
            "add it with -f",
            at="parametersRef",
        )
    requested = Requested()
    if parameters is not None:
        requested = class_parameters.of_claim(parameters, driver=driver, notes=notes)
    devices: Object = {
        "requests": [
            {"name": request, "exactly": {"deviceClassName": name, **exactly}}
            for request, exactly in requested.requests
        ]
    }
    rest = {"constraints": requested.constraints, "config": requested.config}
    return {"devices": devices | {field: entries for field, entries in rest.items() if entries}}


def _is_read(parameters: Object | None) -> bool:
    return parameters is None or nvidia_parameters.is_classic(parameters)


def _of_renamed(parameters: Object | None, driver: str, sources: Sources, notes: Notes) -> Object:
    asked = nvidia_parameters.asked_of(parameters, driver=driver, target=sources.target, notes=notes)
    devices: Object = {"requests": [{"name": class_parameters.REQUEST, "exactly": asked.exactly}]}
    if asked.config:
        devices["config"] = [{"requests": [class_parameters.REQUEST], **entry} for entry in asked.config]
    return {"devices": devices}


def claim(obj: Object, sources: Sources, notes: Notes, *, spec: ClaimSpec = claim_spec) -> list[Object]:
    """A ResourceClaim; one that was made from a template for a pod is left to be made again."""
    if is_made_anew(obj, notes):
        return []
    metadata = fresh_metadata(obj)
    made = spec(
        notes.read(obj.get("spec"), "spec"),
        metadata,
        objects.namespace(obj),
        sources,
        notes,
    )
    return v1_object("ResourceClaim", metadata, made)


def template(obj: Object, sources: Sources, notes: Notes, *, spec: ClaimSpec = claim_spec) -> list[Object]:
    """A ResourceClaimTemplate: the spec stands one level deeper, under its own metadata."""
    if reference_to(obj) in sources.tied:
        notes.warn(
            "", "its device and those beside it are one claim in the pods that use it", "it is left out"
        )
        return []
    outer = notes.read(obj.get("spec"), "spec")
    metadata = dict(outer.inner("metadata").data)
    made = spec(outer.inner("spec"), metadata, objects.namespace(obj), sources, notes)
    return v1_object(
        "ResourceClaimTemplate",
        fresh_metadata(obj),
        objects.without_none({"metadata": metadata or None, "spec": made}),
    )


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
    if driver == names.DRIVER and read.field != "spec":
        notes.warn(at, "a claim that is made from a template has its pod already", "it is left out")
    elif driver == names.DRIVER:
        metadata["annotations"] = {**metadata.get("annotations", {}), names.MODE_LABEL: mode}
        notes.warn(
            at,
            f"v1 has no such field; it is kept as annotation {names.MODE_LABEL}, which koordra's controller obeys",
            "creating the claim needs the verb hold on allocations of group koordra.io",
        )
    else:
        notes.warn(at, "v1 allocates when a pod needs the claim", "nothing else can be had from this driver")


def left_out(
    _obj: Object,
    _sources: Sources,
    notes: Notes,
    *,
    problem: str = "v1 has no such object; what is needed is made anew",
) -> list[Object]:
    """Objects that controllers and drivers make anew, or that went into what refers to them."""
    notes.warn("", problem, "it is left out")
    return []
