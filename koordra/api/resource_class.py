"""`ResourceClass` of koordra.io/v1alpha1: classic DRA's class, kept alive, with koordra's policy beside it.

    driverName           koordra.io where absent
    deviceType           gpu, mig, nic or vf: which of koordra's devices are meant
    selectors            more CEL, as in a DeviceClass
    parametersRef        ResourceClassParameters (koordra.io) of any namespace, or a ConfigMap of koordra's
                         own namespace
    suitableNodes        a NodeSelector: only these nodes serve the class
    allocationMode       Immediate: claims of it get their devices before a pod needs them, without any
                         privilege of who makes them
    policy               placement, gpu, rdma: the fields of PlacementPolicy, GpuConfig and RdmaConfig
    structuredParameters accepted and without meaning, so that a classic manifest needs only its apiVersion
                         changed

It becomes a DeviceClass of the same name:

    parameters, base first ──┐
    driver and guard, type,  ├──> spec.selectors, spec.config     suitableNodes ──> an annotation
    filters, own selectors ──┘    policy last, so that it wins

Parameters may stand on others (`base` in the same namespace), so a chain has to end: a cycle is refused by
naming it. Every refusal is a `ClassRefused` with the reason that the condition `Ready` will carry and a text
that says what to do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from koordra.api import names, objects
from koordra.api.classic import suitable_nodes
from koordra.api.classic.class_parameters import cel, opaque
from koordra.api.classic.v1alpha2 import driver_selector
from koordra.api.kinds import DEVICE_CLASSES, Kind
from koordra.api.objects import Fields, Object
from koordra.api.opaque import parameters
from koordra.api.reader import Reader
from koordra.errors import InvalidInput, InvalidManifest
from koordra.yaml_text import read_yaml

RESOURCE_CLASSES: Final = Kind("koordra.io", "v1alpha1", "resourceclasses", "ResourceClass", namespaced=False)
CLASS_PARAMETERS: Final = Kind("koordra.io", "v1alpha1", "resourceclassparameters", "ResourceClassParameters")
CONFIG_MAPS: Final = Kind("", "v1", "configmaps", "ConfigMap")

CLASS_LABEL: Final = "koordra.io/class"
"""Label on every DeviceClass of koordra's devices; the admission policies find the classes by it."""
MANAGED_BY: Final = "app.kubernetes.io/managed-by"
PARAMETERS_KEY: Final = "parameters"
"""Key of a ConfigMap under which the parameters stand, as YAML or JSON documents."""

LONGEST_CHAIN: Final = 8
MOST_ENTRIES: Final = 32
"""Of selectors, and of configurations, that a DeviceClass holds."""
DEVICE_TYPES: Final = (names.TYPE_GPU, names.TYPE_MIG, names.TYPE_NIC, names.TYPE_VF)
POLICIES: Final = {"placement": "PlacementPolicy", "gpu": "GpuConfig", "rdma": "RdmaConfig"}
"""Field of `policy` -> kind of koordra's opaque parameters."""


class ClassRefused(InvalidManifest):
    """A class, or claim of a class, that cannot be served; `reason` is the condition's."""

    def __init__(
        self, reason: str, problem: str, *, object: str = "", field: str = "", remedy: str = ""
    ) -> None:
        self.reason = reason
        super().__init__(problem, object=object, field=field, remedy=remedy)

    @classmethod
    def because(cls, reason: str, error: InvalidInput) -> ClassRefused:
        """The same error with a reason; a refusal keeps its own."""
        if isinstance(error, ClassRefused):
            return error
        return cls(reason, error.problem, object=error.object, field=error.field, remedy=error.remedy)


Lookup = Callable[[Kind, str, str], Object | None]
"""(kind, namespace, name) -> the parameters object, None where there is none."""


def device_class(obj: Object, *, lookup: Lookup, own_namespace: str) -> Object:
    """The DeviceClass that a ResourceClass means. Raises ClassRefused."""
    read = Reader.of(obj)
    try:
        driver = driver_of(obj)
        selectors = [cel(_driver_clause(read, driver))]
        config: list[Object] = []
        for found in _parameters(read, lookup=lookup, own_namespace=own_namespace):
            more, settings = _of_parameters(found, driver=driver)
            selectors += more
            config += settings
        selectors += [cel(each.inner("cel").required("expression")) for each in read.each("selectors")]
        config += _policy(read, driver)
        for what, entries in (("selectors", selectors), ("config", config)):
            if len(entries) > MOST_ENTRIES:
                raise read.wrong(
                    f"{len(entries)} entries with those of the parameters; at most {MOST_ENTRIES} fit",
                    "join some",
                    at=what,
                )
        marks = {**suitable_nodes.annotation(read), **_allocation_mode(read, driver)}
        for name in (names.CLASS_NAMESPACES, names.APPLY_RECOMMENDATION):
            marks |= _of(objects.annotations_of(obj), name)
        metadata = {
            "name": objects.name(obj),
            "labels": {MANAGED_BY: names.FIELD_COMPONENT}
            | ({CLASS_LABEL: "true"} if driver == names.DRIVER else {})
            | _of(objects.labels_of(obj), names.RESTRICTED_LABEL),
            "ownerReferences": [owner_reference(obj, RESOURCE_CLASSES)],
            "annotations": marks or None,
        }
        return {
            **DEVICE_CLASSES.type_meta,
            "metadata": objects.without_none(metadata),
            "spec": objects.without_none({"selectors": selectors, "config": config or None}),
        }
    except InvalidInput as error:
        reason = "InvalidClass" if error.object in ("", read.object) else "InvalidParameters"
        raise ClassRefused.because(reason, error) from None


def _of(marks: Mapping[str, str], name: str) -> dict[str, str]:
    return {name: marks[name]} if name in marks else {}


def driver_of(obj: Fields) -> str:
    return Reader.of(obj).text("driverName") or names.DRIVER


def owner_reference(obj: Object, kind: Kind) -> Object:
    """By which an object goes when its class or claim is deleted."""
    return {
        **kind.type_meta,
        "name": objects.name(obj),
        "uid": objects.uid(obj),
        "controller": True,
    }


def _driver_clause(read: Reader, driver: str) -> str:
    clause = driver_selector(driver)
    if not read.text("deviceType"):
        return clause
    if driver != names.DRIVER:
        raise read.wrong(f"means nothing to driver {driver}", "use selectors", at="deviceType")
    device_type = read.choice("deviceType", DEVICE_TYPES, problem="is no type")
    return f'{clause} && device.attributes["{names.DRIVER}"].type == "{device_type}"'


def _allocation_mode(read: Reader, driver: str) -> dict[str, str]:
    """The annotation of the DeviceClass by which the controller knows it."""
    mode = read.choice("allocationMode", ("WaitForFirstConsumer", names.IMMEDIATE), problem="is no mode")
    if mode != names.IMMEDIATE:
        return {}
    if driver != names.DRIVER:
        raise read.wrong(f"means nothing to driver {driver}", "leave it out", at="allocationMode")
    return {names.MODE_LABEL: mode}


def _parameters(read: Reader, *, lookup: Lookup, own_namespace: str) -> list[Object]:
    """The chain of parameters objects, the one that everything stands on first."""
    reference = read.optional("parametersRef")
    if reference is None:
        return []

    def refused(reason: str, problem: str, remedy: str) -> ClassRefused:
        return ClassRefused(reason, problem, object=read.object, field=reference.field, remedy=remedy)

    group, kind_name = reference.text("apiGroup"), reference.required("kind")
    name = reference.required("name")
    namespace = reference.text("namespace") or own_namespace
    kinds = {(kind.group, kind.kind): kind for kind in (CONFIG_MAPS, CLASS_PARAMETERS)}
    kind = kinds.get((group, kind_name))
    if kind is None:
        raise refused(
            "UnsupportedParameters",
            f"parameters of kind {kind_name} in group {group or 'core'} cannot be read",
            f"use {CLASS_PARAMETERS.kind} (apiGroup {CLASS_PARAMETERS.group}) or ConfigMap; koordra convert embeds others",
        )
    if kind == CONFIG_MAPS and namespace != own_namespace:
        raise refused(
            "UnsupportedParameters",
            f"ConfigMaps are read in namespace {own_namespace} only, not in {namespace}",
            f"move it there, or use kind {CLASS_PARAMETERS.kind}",
        )
    chain: dict[str, Object] = {}
    while name:
        if name in chain or len(chain) == LONGEST_CHAIN:
            way = " -> ".join([*chain, name])
            problem = (
                f"the parameters stand on each other without end: {way}"
                if name in chain
                else f"the chain of parameters is longer than {LONGEST_CHAIN}: {way}"
            )
            raise refused("ParametersCycle", problem, "take `base` out of one of them")
        found = lookup(kind, namespace, name)
        if found is None:
            problem = f"there is no {kind.kind} {namespace}/{name}"
            raise refused("ParametersNotFound", problem, "create it, or correct the reference")
        if kind == CONFIG_MAPS:
            return [_of_config_map(found)]
        chain[name] = found
        name = Reader.of(found).inner("base").text("name")
    return list(reversed(chain.values()))


def _of_config_map(found: Object) -> Object:
    """A ConfigMap as if it were ResourceClassParameters."""
    data, at = Reader.of(found).inner("data"), f"[{PARAMETERS_KEY}]"
    text = data.text(PARAMETERS_KEY)
    if not text:
        raise data.wrong("is missing", "write the parameters there, as YAML or JSON", at=at)
    documents = [entry for entry in read_yaml(text, source=f"{data.object}: data{at}") if entry is not None]
    return {
        "kind": found.get("kind"),
        "metadata": found.get("metadata"),
        "vendorParameters": [{"parameters": entry} for entry in documents],
    }


def _of_parameters(found: Object, *, driver: str) -> tuple[list[Object], list[Object]]:
    """(selectors, config) of one parameters object; entries for another driver do not concern the class."""
    read = Reader.of(found)
    filters, vendor = (
        [each for each in read.each(name) if (each.text("driverName") or driver) == driver]
        for name in ("filters", "vendorParameters")
    )
    return [cel(each.required("expression")) for each in filters], [
        opaque(driver, each.data.get("parameters"), each, "parameters") for each in vendor
    ]


def _policy(read: Reader, driver: str) -> list[Object]:
    policy = read.inner("policy")
    if policy.data and driver != names.DRIVER:
        raise policy.wrong(f"means nothing to driver {driver}", f"leave it out, or use driver {names.DRIVER}")
    policy.only(*POLICIES, problem="is no policy")
    bodies = {kind: policy.inner(name) for name, kind in POLICIES.items()}
    return [
        opaque(driver, {"apiVersion": parameters.API_VERSION, "kind": kind, **body.data}, body)
        for kind, body in bodies.items()
        if body.data
    ]
