"""v1alpha3, v1beta1 and v1beta2 of resource.k8s.io to v1: the same model in older shapes.

requests        flat in v1alpha3 and v1beta1; v1 has the body under `exactly`, alternatives under `firstAvailable`
devices         body under `basic` in v1alpha3 and v1beta1; capacities bare quantities in v1alpha3
spec.controller, class suitableNodes, podSchedulingContext    v1alpha3's bridge to classic DRA: gone
DeviceTaintRule class and CEL selectors: removed in 1.35, and a rule without them would taint more

The type of every field is checked first (`problems`). An API server checks this; a file has not been through one, and a number
where a text belongs would go into v1 unseen and be refused there, or by nobody. Every field that is wrong is reported, with its
path as it stands in the file.

    Type: field type, ...     types: text, whole, truth, amount (text or number), open (anything), Name, []Name, {}Name
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final

from koordra.api import objects
from koordra.api.classic import suitable_nodes
from koordra.api.classic.notes import Note, Notes, fresh_metadata
from koordra.api.classic.sources import Sources
from koordra.api.classic.v1alpha2 import V1
from koordra.api.devices import Reader
from koordra.api.objects import Object

_EXACT: Final = (
    "deviceClassName",
    "selectors",
    "allocationMode",
    "count",
    "adminAccess",
    "tolerations",
    "capacity",
)
_DEVICE_BODY: Final = "basic"


def claim(obj: Object, sources: Sources, notes: Notes) -> list[Object]:
    del sources
    if any(owner.get("kind") == "Pod" for owner in objects.metadata(obj).get("ownerReferences") or ()):
        notes.warn(
            "metadata.ownerReferences", "was made for a pod and is left out", "the template makes it again"
        )
        return []
    if objects.status_of(obj).get("allocation"):
        notes.warn("status.allocation", "is not carried over: the devices are allocated anew")
    spec = _claim_spec(obj.get("spec"), Reader(object=notes.object, field="spec"), notes)
    return [_made(obj, "ResourceClaim", spec)]


def template(obj: Object, sources: Sources, notes: Notes) -> list[Object]:
    del sources
    read = Reader(object=notes.object, field="spec")
    outer = read.mapping(obj.get("spec"))
    spec: Object = {}
    if outer.get("metadata"):
        spec["metadata"] = dict(read.at("metadata").mapping(outer["metadata"]))
    spec["spec"] = _claim_spec(outer.get("spec"), read.at("spec"), notes)
    return [_made(obj, "ResourceClaimTemplate", spec)]


def _claim_spec(raw: object, read: Reader, notes: Notes) -> Object:
    spec = dict(read.mapping(raw))
    if spec.pop("controller", None):
        notes.warn(
            read.at("controller").field,
            "control plane controllers are gone",
            "the claim is allocated from ResourceSlices",
        )
    devices = dict(read.at("devices").mapping(spec.get("devices")))
    at = read.at("devices.requests")
    requests = [
        _request(entry, at.at(f"[{index}]"))
        for index, entry in enumerate(at.sequence(devices.get("requests")))
    ]
    if requests:
        devices["requests"] = requests
    return {**spec, "devices": devices}


def _request(raw: object, read: Reader) -> Object:
    data = read.mapping(raw)
    if "exactly" in data or (data.get("firstAvailable") and not any(name in data for name in _EXACT)):
        return dict(data)
    if data.get("firstAvailable"):
        raise read.wrong("has both firstAvailable and the fields of one request", "keep one of them")
    read.at("deviceClassName").text(data.get("deviceClassName"), required=True)
    exactly = {name: data[name] for name in _EXACT if name in data}
    unknown = sorted(str(name) for name in set(data) - set(_EXACT) - {"name", "firstAvailable"})
    if unknown:
        raise read.at(unknown[0]).wrong("is no field of a request", f"fields are {', '.join(_EXACT)}")
    return {"name": read.at("name").text(data.get("name"), required=True), "exactly": exactly}


def device_class(obj: Object, sources: Sources, notes: Notes) -> list[Object]:
    del sources
    read = Reader(object=notes.object, field="spec")
    spec = dict(read.mapping(obj.get("spec")))
    made = _made(obj, "DeviceClass", spec)
    if spec.get("suitableNodes") is not None:
        at = read.at("suitableNodes")
        selector = suitable_nodes.checked(spec.pop("suitableNodes"), at)
        annotations = {**made["metadata"].get("annotations", {})}
        annotations[suitable_nodes.SUITABLE_NODES] = suitable_nodes.annotation(selector)
        made["metadata"]["annotations"] = annotations
        notes.warn(
            at.field,
            f"v1 has no such field; it is kept as annotation {suitable_nodes.SUITABLE_NODES}",
            "koordra's controller obeys it for its own devices; other drivers' pods need node affinity",
        )
    return [made]


def resource_slice(obj: Object, sources: Sources, notes: Notes) -> list[Object]:
    del sources
    read = Reader(object=notes.object, field="spec")
    spec = dict(read.mapping(obj.get("spec")))
    at = read.at("devices")
    devices = [
        _device(entry, at.at(f"[{index}]")) for index, entry in enumerate(at.sequence(spec.get("devices")))
    ]
    if devices:
        spec["devices"] = devices
    return [_made(obj, "ResourceSlice", spec)]


def _device(raw: object, read: Reader) -> Object:
    data = read.mapping(raw)
    device = {**data, **read.at(_DEVICE_BODY).mapping(data.get(_DEVICE_BODY))}
    device.pop(_DEVICE_BODY, None)
    at = read.at("capacity")
    capacity = {
        str(name): _capacity(value, at.at(f"[{name}]"))
        for name, value in at.mapping(device.get("capacity")).items()
    }
    if capacity:
        device["capacity"] = capacity
    return device


def _capacity(value: object, read: Reader) -> Object:
    """v1alpha3: the bare quantity; later an object with `value`."""
    if isinstance(value, Mapping):
        return dict(value)
    read.amount(value)
    return {"value": str(value)}


def taint_rule(obj: Object, sources: Sources, notes: Notes) -> list[Object]:
    del sources
    read = Reader(object=notes.object, field="spec")
    spec = dict(read.mapping(obj.get("spec")))
    at = read.at("deviceSelector")
    selector = at.mapping(spec.get("deviceSelector"))
    for name in ("deviceClassName", "selectors"):
        if selector.get(name):
            raise notes.refuse(
                at.at(name).field,
                "was removed in Kubernetes 1.35, and the rule without it would taint more devices",
                "select by driver, pool and device",
            )
    notes.warn(
        "apiVersion",
        "DeviceTaintRule is served as v1 from Kubernetes 1.37 on",
        "1.36 serves v1beta2 and v1alpha3",
    )
    return [_made(obj, "DeviceTaintRule", spec)]


def _made(obj: Object, kind: str, spec: Object) -> Object:
    return {"apiVersion": V1, "kind": kind, "metadata": fresh_metadata(obj), "spec": spec}


_TABLE: Final = """
ResourceClaim: spec ClaimSpec
ResourceClaimTemplate: spec TemplateSpec
DeviceClass: spec ClassSpec
ResourceSlice: spec SliceSpec
DeviceTaintRule: spec TaintRuleSpec
ClaimSpec: controller text, devices DeviceClaim
TemplateSpec: metadata Metadata, spec ClaimSpec
Metadata: labels {}text, annotations {}text
DeviceClaim: requests []Request, constraints []Constraint, config []ClaimConfig
Request: name text, deviceClassName text, selectors []Selector, allocationMode text, count whole, adminAccess truth, tolerations []Toleration, capacity CapacityRequests, exactly Exactly, firstAvailable []Alternative
Exactly: deviceClassName text, selectors []Selector, allocationMode text, count whole, adminAccess truth, tolerations []Toleration, capacity CapacityRequests
Alternative: name text, deviceClassName text, selectors []Selector, allocationMode text, count whole, tolerations []Toleration, capacity CapacityRequests
Selector: cel Cel
Cel: expression text
Toleration: key text, operator text, value text, effect text, tolerationSeconds whole
CapacityRequests: requests {}amount
Constraint: requests []text, matchAttribute text, distinctAttribute text
ClaimConfig: requests []text, opaque Opaque
Opaque: driver text, parameters {}open
ClassSpec: selectors []Selector, config []ClassConfig, suitableNodes {}open, extendedResourceName text
ClassConfig: opaque Opaque
SliceSpec: driver text, pool Pool, nodeName text, nodeSelector {}open, allNodes truth, perDeviceNodeSelection truth, devices []Device, sharedCounters []CounterSet
Pool: name text, generation whole, resourceSliceCount whole
Device: name text, basic DeviceBody, attributes {}Attribute, capacity {}open, consumesCounters []Consumption, taints []Taint, nodeName text, nodeSelector {}open, allNodes truth, bindsToNode truth, bindingConditions []text, bindingFailureConditions []text, allowMultipleAllocations truth
DeviceBody: attributes {}Attribute, capacity {}open, consumesCounters []Consumption, taints []Taint, nodeName text, nodeSelector {}open, allNodes truth, bindsToNode truth, bindingConditions []text, bindingFailureConditions []text, allowMultipleAllocations truth
Attribute: int whole, bool truth, string text, version text
Consumption: counterSet text, counters {}Counter
CounterSet: name text, counters {}Counter
Counter: value amount
Taint: key text, value text, effect text, timeAdded text
TaintRuleSpec: deviceSelector TaintSelector, taint Taint
TaintSelector: driver text, pool text, device text, deviceClassName text, selectors []Selector
"""
_SCALARS: Final[Mapping[str, tuple[tuple[type, ...], str]]] = {
    "text": ((str,), "a text; quote it"),
    "whole": ((int,), "a whole number without quotes"),
    "truth": ((bool,), "true or false without quotes"),
    "amount": ((str, int, float), "a quantity, like 16Gi"),
}


def problems(obj: Object) -> Iterator[Note]:
    """A refusal for every field whose value is of the wrong kind. Fields that are not in the table are not looked at."""
    where = f"{obj.get('kind')} {_called(obj)}"
    for path, problem in _of(str(obj.get("kind")), obj, ""):
        yield Note(where, path, *problem, refused=True)


def _called(obj: Object) -> str:
    head = obj.get("metadata") or {}
    return "/".join(str(head[part]) for part in ("namespace", "name") if head.get(part))


@cache
def _types() -> Mapping[str, Mapping[str, str]]:
    rows = (row.partition(": ") for row in _TABLE.strip().splitlines())
    return {
        name: {field: kind for field, _, kind in (part.partition(" ") for part in fields.split(", "))}
        for name, _, fields in rows
    }


def _of(kind: str, value: Any, path: str) -> Iterator[tuple[str, tuple[str, str]]]:
    if value is None or kind == "open":
        return
    if kind.startswith("[]"):
        if not isinstance(value, list):
            yield path, (f"{_shown(value)} is not a list", "write a list, each entry after a '-'")
            return
        for index, entry in enumerate(value):
            yield from _of(kind[2:], entry, f"{path}[{index}]")
    elif kind in _SCALARS:
        accepted, wanted = _SCALARS[kind]
        if not isinstance(value, accepted) or (isinstance(value, bool) and kind != "truth"):
            yield path, (f"{_shown(value)} is of the wrong kind", f"use {wanted}")
    elif not isinstance(value, Mapping):
        yield path, (f"{_shown(value)} is not an object", "write fields with their values")
    elif kind.startswith("{}"):
        for name, entry in value.items():
            yield from _of(kind[2:], entry, f"{path}[{name}]")
    else:
        for name, inner in _types().get(kind, {}).items():
            yield from _of(inner, value.get(name), f"{path}.{name}" if path else name)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:36]} ..."
