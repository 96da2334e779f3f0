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

from koordra.api.classic import suitable_nodes
from koordra.api.classic.notes import Note, Notes, fresh_metadata, is_made_anew
from koordra.api.classic.sources import Sources
from koordra.api.classic.v1alpha2 import V1
from koordra.api.objects import Object
from koordra.api.reader import Reader

_EXACT: Final = (
    "deviceClassName",
    "selectors",
    "allocationMode",
    "count",
    "adminAccess",
    "tolerations",
    "capacity",
)


def claim(obj: Object, _sources: Sources, notes: Notes) -> list[Object]:
    if is_made_anew(obj, notes):
        return []
    return [_made(obj, _claim_spec(_spec(obj, notes), notes))]


def template(obj: Object, _sources: Sources, notes: Notes) -> list[Object]:
    outer = _spec(obj, notes)
    metadata = dict(outer.inner("metadata").data)
    spec: Object = {"metadata": metadata} if metadata else {}
    spec["spec"] = _claim_spec(outer.inner("spec"), notes)
    return [_made(obj, spec)]


def _spec(obj: Object, notes: Notes) -> Reader:
    return Reader(obj.get("spec"), object=notes.object, field="spec")


def _claim_spec(read: Reader, notes: Notes) -> Object:
    spec = dict(read.data)
    if spec.pop("controller", None):
        notes.warn(
            read.place("controller"),
            "control plane controllers are gone",
            "the claim is allocated from ResourceSlices",
        )
    devices = read.inner("devices")
    requests = [_request(each) for each in devices.each("requests")]
    return {**spec, "devices": {**devices.data, **({"requests": requests} if requests else {})}}


def _request(read: Reader) -> Object:
    data = read.data
    if "exactly" in data or (data.get("firstAvailable") and not any(name in data for name in _EXACT)):
        return dict(data)
    if data.get("firstAvailable"):
        raise read.wrong("has both firstAvailable and the fields of one request", "keep one of them")
    read.text("deviceClassName", required=True)
    read.only(*_EXACT, problem="is no field of a request", ignored=("name", "firstAvailable"))
    exactly = {name: data[name] for name in _EXACT if name in data}
    return {"name": read.text("name", required=True), "exactly": exactly}


def device_class(obj: Object, _sources: Sources, notes: Notes) -> list[Object]:
    read = _spec(obj, notes)
    spec = {name: value for name, value in read.data.items() if name != "suitableNodes"}
    made = _made(obj, spec)
    if read.data.get("suitableNodes") is not None:
        selector = suitable_nodes.checked(read.inner("suitableNodes"))
        annotations = made["metadata"].get("annotations", {})
        made["metadata"]["annotations"] = {**annotations, **suitable_nodes.annotation(selector)}
        notes.warn(
            read.place("suitableNodes"),
            f"v1 has no such field; it is kept as annotation {suitable_nodes.SUITABLE_NODES}",
            "koordra's controller obeys it for its own devices; other drivers' pods need node affinity",
        )
    return [made]


def resource_slice(obj: Object, _sources: Sources, notes: Notes) -> list[Object]:
    read = _spec(obj, notes)
    devices = [_device(each) for each in read.each("devices")]
    return [_made(obj, {**read.data, **({"devices": devices} if devices else {})})]


def _device(read: Reader) -> Object:
    """The body stands under `basic`; a capacity of v1alpha3 is the bare quantity, later an object with `value`."""
    device = {**read.data, **read.inner("basic").data}
    device.pop("basic", None)
    body = Reader(device, object=read.object, field=read.field)
    capacity = {str(name): value for name, value in body.inner("capacity").data.items()}
    for name, value in capacity.items():
        if not isinstance(value, Mapping):
            body.quantity(value, at=f"capacity[{name}]")
            capacity[name] = {"value": str(value)}
    return {**device, **({"capacity": capacity} if capacity else {})}


def taint_rule(obj: Object, _sources: Sources, notes: Notes) -> list[Object]:
    read = _spec(obj, notes)
    selector = read.inner("deviceSelector")
    for name in ("deviceClassName", "selectors"):
        if selector.data.get(name):
            raise selector.wrong(
                "was removed in Kubernetes 1.35, and the rule without it would taint more devices",
                "select by driver, pool and device",
                at=name,
            )
    notes.warn(
        "apiVersion",
        "DeviceTaintRule is served as v1 from Kubernetes 1.37 on",
        "1.36 serves v1beta2 and v1alpha3",
    )
    return [_made(obj, dict(read.data))]


def _made(obj: Object, spec: Object) -> Object:
    return {"apiVersion": V1, "kind": obj.get("kind"), "metadata": fresh_metadata(obj), "spec": spec}


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
