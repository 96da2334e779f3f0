"""`ResourceClass` of koordra.io/v1alpha1: classic DRA's class, kept alive, with koordra's policy beside it.

    driverName           koordra.io where absent
    deviceType           gpu, mig, nic or vf: which of koordra's devices are meant
    selectors            more CEL, as in a DeviceClass
    parametersRef        ResourceClassParameters (koordra.io) of any namespace, or a ConfigMap of koordra's own namespace
    suitableNodes        a NodeSelector: only these nodes serve the class
    policy               placement, gpu, rdma: the fields of PlacementPolicy, GpuConfig and RdmaConfig
    structuredParameters accepted and without meaning, so that a classic manifest needs its apiVersion changed only

It becomes a DeviceClass of the same name:

    parameters, base first ──┐
    driver and guard, type,  ├──> spec.selectors, spec.config     suitableNodes ──> an annotation
    filters, own selectors ──┘    policy last, so that it wins

Parameters may stand on others (`base` in the same namespace), so a chain has to end: a cycle is refused by naming it. Every
refusal is a `ClassRefused` with the reason that the condition `Ready` will carry and a text that says what to do.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import yaml

from koordra.api import names, objects
from koordra.api.classic import suitable_nodes
from koordra.api.classic.class_parameters import MOST_OPAQUE, cel
from koordra.api.classic.v1alpha2 import driver_selector
from koordra.api.devices import Reader
from koordra.api.kinds import Kind
from koordra.api.objects import Object
from koordra.api.opaque import parameters
from koordra.errors import InvalidInput, InvalidManifest

RESOURCE_CLASSES: Final = Kind("koordra.io", "v1alpha1", "resourceclasses", "ResourceClass", namespaced=False)
CLASS_PARAMETERS: Final = Kind(
    "koordra.io", "v1alpha1", "resourceclassparameters", "ResourceClassParameters", namespaced=True
)
CONFIG_MAPS: Final = Kind("", "v1", "configmaps", "ConfigMap", namespaced=True)

CLASS_LABEL: Final = "koordra.io/class"
"""Label on every DeviceClass of koordra's devices; the admission policies find the classes by it."""
MANAGED_BY: Final = "app.kubernetes.io/managed-by"
PARAMETERS_KEY: Final = "parameters"
"""Key of a ConfigMap under which the parameters stand, as YAML or JSON documents."""

LONGEST_CHAIN: Final = 8
MOST_SELECTORS: Final = 32
MOST_CONFIG: Final = 32
DEVICE_TYPES: Final = (names.TYPE_GPU, names.TYPE_MIG, names.TYPE_NIC, names.TYPE_VF)
POLICIES: Final = {"placement": "PlacementPolicy", "gpu": "GpuConfig", "rdma": "RdmaConfig"}
"""Field of `policy` -> kind of koordra's opaque parameters."""


class ClassRefused(InvalidManifest):
    """A ResourceClass that cannot become a DeviceClass; `reason` is the condition's."""

    def __init__(
        self, reason: str, problem: str, *, object: str = "", field: str = "", remedy: str = ""
    ) -> None:
        self.reason = reason
        super().__init__(problem, object=object, field=field, remedy=remedy)


Lookup = Callable[[Kind, str, str], Object | None]
"""(kind, namespace, name) -> the parameters object, None where there is none."""


def device_class(obj: Object, *, lookup: Lookup, own_namespace: str) -> Object:
    """The DeviceClass that a ResourceClass means. Raises ClassRefused."""
    about = objects.describe(obj)
    try:
        return _device_class(obj, lookup=lookup, own_namespace=own_namespace)
    except ClassRefused:
        raise
    except InvalidInput as error:
        reason = "InvalidClass" if error.object in ("", about) else "InvalidParameters"
        raise ClassRefused(
            reason, error.problem, object=error.object, field=error.field, remedy=error.remedy
        ) from error


def driver_of(obj: Mapping[str, Any]) -> str:
    read = Reader(object=objects.describe(obj), field="driverName")
    return read.text(obj.get("driverName")) or names.DRIVER


def _device_class(obj: Object, *, lookup: Lookup, own_namespace: str) -> Object:
    read = Reader(object=objects.describe(obj))
    driver = driver_of(obj)
    chain = _parameters(obj, read, lookup=lookup, own_namespace=own_namespace)
    selectors = [cel(_driver_clause(obj, read, driver))]
    config: list[Object] = []
    for found in chain:
        more, settings = _of_parameters(found, driver=driver)
        selectors += more
        config += settings
    selectors += _selectors(obj.get("selectors"), read.at("selectors"))
    config += _policy(obj, read, driver)
    _check_sizes(selectors, config, read)
    spec: Object = {"selectors": selectors}
    if config:
        spec["config"] = config
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": _metadata(obj, read, driver),
        "spec": spec,
    }


def _metadata(obj: Object, read: Reader, driver: str) -> Object:
    metadata: Object = {
        "name": objects.name(obj),
        "labels": {
            MANAGED_BY: names.FIELD_COMPONENT,
            **({CLASS_LABEL: "true"} if driver == names.DRIVER else {}),
        },
        "ownerReferences": [
            {
                "apiVersion": RESOURCE_CLASSES.api_version,
                "kind": RESOURCE_CLASSES.kind,
                "name": objects.name(obj),
                "uid": objects.uid(obj),
                "controller": True,
            }
        ],
    }
    if obj.get("suitableNodes") is not None:
        selector = suitable_nodes.checked(obj["suitableNodes"], read.at("suitableNodes"))
        metadata["annotations"] = {suitable_nodes.SUITABLE_NODES: suitable_nodes.annotation(selector)}
    return metadata


def _driver_clause(obj: Object, read: Reader, driver: str) -> str:
    clause = driver_selector(driver)
    at = read.at("deviceType")
    device_type = at.text(obj.get("deviceType"))
    if not device_type:
        return clause
    if driver != names.DRIVER:
        raise at.wrong(f"means nothing to driver {driver}", "use selectors")
    if device_type not in DEVICE_TYPES:
        raise at.wrong(f"{device_type!r} is no type", f"use one of {', '.join(DEVICE_TYPES)}")
    return f'{clause} && device.attributes["{names.DRIVER}"].type == "{device_type}"'


def _parameters(obj: Object, read: Reader, *, lookup: Lookup, own_namespace: str) -> list[Object]:
    """The chain of parameters objects, the one that everything stands on first."""
    at = read.at("parametersRef")
    raw = obj.get("parametersRef")
    if raw is None:
        return []
    data = at.mapping(raw)
    kind = _parameters_kind(data, at)
    name = at.at("name").text(data.get("name"), required=True)
    namespace = at.at("namespace").text(data.get("namespace")) or own_namespace
    if kind == CONFIG_MAPS:
        if namespace != own_namespace:
            raise ClassRefused(
                "UnsupportedParameters",
                f"ConfigMaps are read in namespace {own_namespace} only, not in {namespace}",
                object=read.object,
                field=at.field,
                remedy=f"move it there, or use kind {CLASS_PARAMETERS.kind}",
            )
        return _of_config_map(_found(CONFIG_MAPS, namespace, name, lookup, at))
    chain: list[Object] = []
    passed: list[str] = []
    while name:
        if name in passed or len(passed) == LONGEST_CHAIN:
            way = " -> ".join([*passed, name])
            raise ClassRefused(
                "ParametersCycle",
                f"the parameters stand on each other without end: {way}"
                if name in passed
                else f"the chain of parameters is longer than {LONGEST_CHAIN}: {way}",
                object=read.object,
                field=at.field,
                remedy="take `base` out of one of them",
            )
        passed.append(name)
        found = _found(CLASS_PARAMETERS, namespace, name, lookup, at)
        chain.insert(0, found)
        inner = Reader(object=objects.describe(found), field="base")
        name = inner.at("name").text(inner.mapping(found.get("base")).get("name"))
    return chain


def _parameters_kind(data: Mapping[str, Any], at: Reader) -> Kind:
    group, kind = (
        at.at("apiGroup").text(data.get("apiGroup")),
        at.at("kind").text(data.get("kind"), required=True),
    )
    for known in (CONFIG_MAPS, CLASS_PARAMETERS):
        if (group, kind) == (known.group, known.kind):
            return known
    raise ClassRefused(
        "UnsupportedParameters",
        f"parameters of kind {kind} in group {group or 'core'} cannot be read",
        object=at.object,
        field=at.field,
        remedy=f"use {CLASS_PARAMETERS.kind} (apiGroup {CLASS_PARAMETERS.group}) or ConfigMap; koordra convert embeds others",
    )


def _found(kind: Kind, namespace: str, name: str, lookup: Lookup, at: Reader) -> Object:
    found = lookup(kind, namespace, name)
    if found is None:
        raise ClassRefused(
            "ParametersNotFound",
            f"there is no {kind.kind} {namespace}/{name}",
            object=at.object,
            field=at.field,
            remedy="create it, or correct the reference",
        )
    return found


def _of_config_map(found: Object) -> list[Object]:
    """A ConfigMap as if it were ResourceClassParameters."""
    read = Reader(object=objects.describe(found), field=f"data[{PARAMETERS_KEY}]")
    data = read.mapping(found.get("data"))
    text = read.text(data.get(PARAMETERS_KEY))
    if not text:
        raise read.wrong("is missing", "write the parameters there, as YAML or JSON")
    try:
        documents = [entry for entry in yaml.safe_load_all(text) if entry is not None]
    except yaml.YAMLError as error:
        raise read.wrong(f"is not YAML: {' '.join(str(error).split())}", "correct it") from error
    vendor = [{"parameters": entry} for entry in documents]
    return [{"kind": found.get("kind"), "metadata": found.get("metadata"), "vendorParameters": vendor}]


def _of_parameters(found: Object, *, driver: str) -> tuple[list[Object], list[Object]]:
    """(selectors, config) of one parameters object; entries for another driver do not concern the class."""
    read = Reader(object=objects.describe(found))
    selectors: list[Object] = []
    config: list[Object] = []
    at = read.at("filters")
    for index, entry in enumerate(at.sequence(found.get("filters"))):
        inner = at.at(f"[{index}]")
        data = inner.mapping(entry)
        if (inner.at("driverName").text(data.get("driverName")) or driver) == driver:
            selectors.append(cel(inner.at("expression").text(data.get("expression"), required=True)))
    at = read.at("vendorParameters")
    for index, entry in enumerate(at.sequence(found.get("vendorParameters"))):
        inner = at.at(f"[{index}]")
        data = inner.mapping(entry)
        if (inner.at("driverName").text(data.get("driverName")) or driver) == driver:
            config.append(_opaque(data.get("parameters"), inner.at("parameters"), driver))
    return selectors, config


def _opaque(body: object, at: Reader, driver: str) -> Object:
    if not isinstance(body, Mapping):
        raise at.wrong("is not an object", "write apiVersion, kind and the fields")
    try:
        size = len(json.dumps(body, separators=(",", ":")).encode())
    except (TypeError, ValueError) as error:
        raise at.wrong(f"cannot be JSON: {error}", "quote dates and keys") from error
    if size > MOST_OPAQUE:
        raise at.wrong(f"{size} bytes; a DeviceClass holds {MOST_OPAQUE}", "shorten it")
    if driver == names.DRIVER:
        parameters.decode(body, object=at.object, field=at.field)
    return {"opaque": {"driver": driver, "parameters": dict(body)}}


def _selectors(raw: object, at: Reader) -> list[Object]:
    found = []
    for index, entry in enumerate(at.sequence(raw)):
        inner = at.at(f"[{index}].cel")
        data = inner.mapping(inner.mapping(entry).get("cel"))
        found.append(cel(inner.at("expression").text(data.get("expression"), required=True)))
    return found


def _policy(obj: Object, read: Reader, driver: str) -> list[Object]:
    at = read.at("policy")
    data = at.mapping(obj.get("policy"))
    if data and driver != names.DRIVER:
        raise at.wrong(f"means nothing to driver {driver}", f"leave it out, or use driver {names.DRIVER}")
    unknown = sorted(set(data) - set(POLICIES))
    if unknown:
        raise at.at(unknown[0]).wrong("is no policy", f"policies are {', '.join(POLICIES)}")
    found = []
    for name, kind in POLICIES.items():
        fields = at.at(name).mapping(data.get(name))
        if fields:
            body = {"apiVersion": parameters.API_VERSION, "kind": kind, **fields}
            parameters.decode(body, object=read.object, field=at.at(name).field)
            found.append({"opaque": {"driver": driver, "parameters": body}})
    return found


def _check_sizes(selectors: Sequence[Object], config: Sequence[Object], read: Reader) -> None:
    for what, number, most in (
        ("selectors", len(selectors), MOST_SELECTORS),
        ("config", len(config), MOST_CONFIG),
    ):
        if number > most:
            raise read.at(what).wrong(
                f"{number} entries with those of the parameters; at most {most} fit", "join some"
            )
