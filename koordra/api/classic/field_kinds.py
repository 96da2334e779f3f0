"""What kind of value each field of v1alpha3, v1beta1 and v1beta2 objects is. Pure.

An API server checks this; a file has not been through one, and a number where a text belongs would go into v1 unseen and be
refused there, or by nobody. Every field that is wrong is told, with its path as it stands in the file.

    Type: field kind, ...     kinds: text, whole, truth, amount (text or number), open (anything), Name, []Name, {}Name
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final

from koordra.api.classic.notes import Note
from koordra.api.objects import Object

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
