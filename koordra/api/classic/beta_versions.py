"""v1alpha3, v1beta1 and v1beta2 of resource.k8s.io to v1: the same model in older shapes.

requests        flat in v1alpha3 and v1beta1; v1 has the body under `exactly`, alternatives under
                `firstAvailable`
devices         body under `basic` in v1alpha3 and v1beta1; capacities bare quantities in v1alpha3
spec.controller, class suitableNodes, podSchedulingContext    v1alpha3's bridge to classic DRA: gone
DeviceTaintRule class and CEL selectors: removed in 1.35, and a rule without them would taint more
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from koordra.api import objects
from koordra.api.classic import suitable_nodes
from koordra.api.classic.notes import Notes, fresh_metadata
from koordra.api.classic.v1alpha2 import Sources, v1_object
from koordra.api.field_types import parse_types
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


def claim_spec(read: Reader, _metadata: Object, _namespace: str, _sources: Sources, notes: Notes) -> Object:
    spec = dict(read.data)
    if spec.pop("controller", None):
        notes.warn(
            read.place("controller"),
            "control plane controllers are gone",
            "the claim is allocated from ResourceSlices",
        )
    devices = read.inner("devices")
    requests = [_request(each) for each in devices.each("requests")]
    return {**spec, "devices": {**devices.data, "requests": requests} if requests else devices.data}


def _request(read: Reader) -> Object:
    data = read.data
    if "exactly" in data or (data.get("firstAvailable") and not any(name in data for name in _EXACT)):
        return dict(data)
    if data.get("firstAvailable"):
        raise read.wrong("has both firstAvailable and the fields of one request", "keep one of them")
    read.required("deviceClassName")
    read.only(*_EXACT, problem="is no field of a request", ignored=("name", "firstAvailable"))
    return {
        "name": read.required("name"),
        "exactly": {name: data[name] for name in _EXACT if name in data},
    }


def device_class(obj: Object, _sources: Sources, notes: Notes) -> list[Object]:
    read = notes.read(obj.get("spec"), "spec")
    metadata = fresh_metadata(obj)
    if nodes := suitable_nodes.annotation(read):
        metadata["annotations"] = {**metadata.get("annotations", {}), **nodes}
        notes.warn(
            read.place("suitableNodes"),
            f"v1 has no such field; it is kept as annotation {suitable_nodes.SUITABLE_NODES}",
            "koordra's controller obeys it for its own devices; other drivers' pods need node affinity",
        )
    return v1_object("DeviceClass", metadata, objects.without(read.data, "suitableNodes"))


def resource_slice(obj: Object, _sources: Sources, notes: Notes) -> list[Object]:
    read = notes.read(obj.get("spec"), "spec")
    devices = [_device(each) for each in read.each("devices")]
    return v1_object(
        "ResourceSlice", fresh_metadata(obj), {**read.data, "devices": devices} if devices else read.data
    )


def _device(read: Reader) -> Object:
    """The body stands under `basic`; a capacity of v1alpha3 is the bare quantity, later an object with
    `value`."""
    device = {**objects.without(read.data, "basic"), **read.inner("basic").data}
    body = read.over(device)
    capacity = {str(name): value for name, value in body.inner("capacity").data.items()}
    for name, value in capacity.items():
        if not isinstance(value, Mapping):
            body.quantity(value, at=f"capacity[{name}]")
            capacity[name] = {"value": str(value)}
    return device | ({"capacity": capacity} if capacity else {})


def taint_rule(obj: Object, _sources: Sources, notes: Notes) -> list[Object]:
    read = notes.read(obj.get("spec"), "spec")
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
    return v1_object("DeviceTaintRule", fresh_metadata(obj), dict(read.data))


FIELD_TYPES: Final = parse_types("""
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
""")
"""What each kind holds; a field that is of another type is refused before the conversion."""
