"""What a classic parameters object says, in the words of a v1 claim or class.

    ResourceClaimParameters   (in tree, 1.30)   one v1 request per request: selector -> CEL, vendorParameters -> its config
    ResourceClassParameters   (in tree, 1.30)   filters -> selectors, vendorParameters -> config
    koordra.io/v1alpha1 ...                     koordra's own opaque parameters, checked and embedded
    any other object          (a vendor's CRD)  the fields of the table below become standard fields; the whole object
                                                becomes the opaque configuration of the claim's driver

The table has only fields whose meaning does not depend on the vendor: a count of devices, a quantity with a unit, the name
of a scope. `spec` is looked into first, then the object itself. For koordra's driver the object cannot ride along, since
koordra decodes its parameters strictly: a field that the table lacks is refused there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from koordra.api import names, objects
from koordra.api.classic.notes import Notes
from koordra.api.classic.selectors import rewritten
from koordra.api.classic.sources import CLAIM_PARAMETERS, CLASS_PARAMETERS, GROUP, group_of
from koordra.api.devices import Reader
from koordra.api.objects import Object
from koordra.api.opaque import parameters
from koordra.errors import InvalidInput
from koordra.quantity import parse

REQUEST: Final = "default"
"""Name of the one request that a classic claim becomes."""
MOST_OPAQUE: Final = 10 * 1024

COUNT: Final = "count"
CAPACITIES: Final = {
    "memory": names.CAPACITY_MEMORY,
    "cores": names.CAPACITY_CORES,
    "bandwidth": names.CAPACITY_BANDWIDTH,
    "share": names.CAPACITY_SHARE,
}
ALIGNMENTS: Final = {
    "PCIeRoot": names.STANDARD_PCIE_ROOT,
    "SamePCIe": names.STANDARD_PCIE_ROOT,
    "NUMANode": names.STANDARD_NUMA_NODE,
}
_ALIGNMENT_FIELDS: Final = ("alignment", "requiredScope")
_UNITS: Final = ("Ki", "Mi", "Gi", "Ti", "Pi", "Ei", "k", "M", "G", "T", "P", "E")


@dataclass(slots=True)
class Wishes:
    """`requests`: (name, fields of `exactly` besides the class); constraints and config as in v1."""

    requests: list[tuple[str, Object]] = field(default_factory=lambda: [(REQUEST, {})])
    constraints: list[Object] = field(default_factory=list)
    config: list[Object] = field(default_factory=list)


def of_claim(found: Object, *, driver: str, notes: Notes) -> Wishes:
    """The requests that a claim's parameters object describes. Raises Refused or InvalidManifest."""
    if group_of(found) == GROUP and found.get("kind") == CLAIM_PARAMETERS:
        return _in_tree_claim(found, driver=driver, notes=notes)
    if found.get("apiVersion") == parameters.API_VERSION:
        return Wishes(config=[_koordra(found, driver=driver, notes=notes)])
    return _vendor(found, driver=driver, notes=notes)


def of_class(found: Object, *, driver: str, notes: Notes) -> tuple[list[Object], list[Object]]:
    """(selectors, config) of a class from its parameters object. Raises Refused or InvalidManifest."""
    if group_of(found) == GROUP and found.get("kind") == CLASS_PARAMETERS:
        return _in_tree_class(found, driver=driver, notes=notes)
    if found.get("apiVersion") == parameters.API_VERSION:
        return [], [_koordra(found, driver=driver, notes=notes)]
    if driver == names.DRIVER:
        raise notes.refuse(
            "parametersRef",
            f"{objects.describe(found)} means nothing to {driver}",
            f"refer to parameters of {parameters.API_VERSION}",
        )
    return [], [opaque(driver, _embedded(found), notes=notes, field="parametersRef")]


def opaque(driver: str, body: object, *, notes: Notes, field: str) -> Object:
    """One entry of `config`. Raises Refused where the API server would refuse the parameters."""
    if not isinstance(body, Mapping):
        raise notes.refuse(field, "parameters are not an object", "write apiVersion, kind and the fields")
    size = len(json.dumps(body, separators=(",", ":")))
    if size > MOST_OPAQUE:
        raise notes.refuse(
            field,
            f"parameters of {size} bytes do not fit into v1, which allows {MOST_OPAQUE}",
            "shorten them",
        )
    if driver == names.DRIVER:
        parameters.decode(body, object=notes.object, field=field)
    return {"opaque": {"driver": driver, "parameters": dict(body)}}


def _embedded(found: Object) -> Object:
    """The whole object as parameters: who it was stays, what the server wrote goes."""
    kept = {name: value for name, value in found.items() if name not in ("metadata", "status")}
    return {**kept, "metadata": {"name": objects.name(found)}}


def _koordra(found: Object, *, driver: str, notes: Notes) -> Object:
    if driver != names.DRIVER:
        raise notes.refuse(
            "parametersRef",
            f"{found.get('kind')} is koordra's, the class is of driver {driver}",
            "use a class of koordra.io",
        )
    body = {name: value for name, value in found.items() if name != "metadata"}
    return opaque(driver, body, notes=notes, field="parametersRef")


def _in_tree_claim(found: Object, *, driver: str, notes: Notes) -> Wishes:
    read = Reader(object=objects.describe(found), field="driverRequests")
    if found.get("shareable") is False:
        notes.warn(
            "parametersRef", "shareable: false has no v1 form", "a v1 claim may be used by up to 256 pods"
        )
    wishes, about = Wishes(requests=[]), notes.within(found)
    for index, entry in enumerate(read.sequence(found.get("driverRequests"))):
        inner = read.at(f"[{index}]")
        data = inner.mapping(entry)
        whose = inner.at("driverName").text(data.get("driverName")) or driver
        if whose != driver:
            raise about.refuse(
                inner.field,
                f"asks driver {whose}, the claim's class is of {driver}",
                f"write a claim of its own with a class of {whose}",
            )
        if data.get("vendorParameters") is not None:
            place = f"{inner.field}.vendorParameters"
            wishes.config.append(opaque(driver, data["vendorParameters"], notes=about, field=place))
        for number, raw in enumerate(inner.at("requests").sequence(data.get("requests"))):
            _in_tree_request(raw, inner.at(f"requests[{number}]"), driver=driver, wishes=wishes, notes=about)
    if not wishes.requests:
        raise notes.refuse(
            "parametersRef", f"{read.object} asks for no device", "add driverRequests[].requests"
        )
    if len(wishes.requests) == 1:
        notes.warn("spec", f"the request is called {wishes.requests[0][0]!r} in v1")
    else:
        called = ", ".join(name for name, _ in wishes.requests)
        notes.warn(
            "spec",
            f"the requests are called {called} in v1",
            "containers may name them in resources.claims[].request",
        )
    return wishes


def _in_tree_request(raw: object, read: Reader, *, driver: str, wishes: Wishes, notes: Notes) -> None:
    data = read.mapping(raw)
    name = f"request-{len(wishes.requests)}"
    named = read.at("namedResources").mapping(data.get("namedResources"))
    expression = read.at("namedResources.selector").text(named.get("selector"))
    exactly: Object = {}
    if expression and expression != "true":
        place = f"{read.field}.namedResources.selector"
        exactly["selectors"] = [cel(rewritten(expression, driver=driver, notes=notes, field=place))]
    wishes.requests.append((name, exactly))
    if data.get("vendorParameters") is not None:
        place = f"{read.field}.vendorParameters"
        entry = opaque(driver, data["vendorParameters"], notes=notes, field=place)
        wishes.config.append({"requests": [name], **entry})


def _in_tree_class(found: Object, *, driver: str, notes: Notes) -> tuple[list[Object], list[Object]]:
    notes = notes.within(found)
    read = Reader(object=notes.object)
    selectors, config = [], []
    for index, entry in enumerate(read.at("filters").sequence(found.get("filters"))):
        inner = read.at(f"filters[{index}]")
        data = inner.mapping(entry)
        if (data.get("driverName") or driver) != driver:
            notes.warn(inner.field, f"is for driver {data['driverName']} and is left out")
            continue
        named = inner.at("namedResources").mapping(data.get("namedResources"))
        expression = inner.at("namedResources.selector").text(named.get("selector"), required=True)
        place = f"{inner.field}.namedResources.selector"
        selectors.append(cel(rewritten(expression, driver=driver, notes=notes, field=place)))
    for index, entry in enumerate(read.at("vendorParameters").sequence(found.get("vendorParameters"))):
        inner = read.at(f"vendorParameters[{index}]")
        data = inner.mapping(entry)
        whose = inner.at("driverName").text(data.get("driverName")) or driver
        config.append(opaque(whose, data.get("parameters"), notes=notes, field=f"{inner.field}.parameters"))
    return selectors, config


def cel(expression: str) -> Object:
    return {"cel": {"expression": expression}}


def _vendor(found: Object, *, driver: str, notes: Notes) -> Wishes:
    """A vendor's parameters object: the table's fields become standard ones, the rest rides along."""
    spec = found.get("spec")
    body: Mapping[str, Any] = (
        spec
        if isinstance(spec, Mapping)
        else {
            name: value
            for name, value in found.items()
            if name not in ("apiVersion", "kind", "metadata", "status")
        }
    )
    base = "spec." if isinstance(spec, Mapping) else ""
    wishes = Wishes()
    exactly: Object = {}
    left = dict(body)
    about = notes.within(found)
    if COUNT in body:
        exactly["count"] = _count(left.pop(COUNT), field=f"{base}{COUNT}", notes=about)
    requests = _capacities(left, base=base, driver=driver, notes=about)
    if requests:
        exactly["capacity"] = {"requests": requests}
    _alignment(left, base=base, driver=driver, wishes=wishes, notes=about)
    wishes.requests = [(REQUEST, exactly)]
    if driver == names.DRIVER:
        _refuse_rest(left, base=base, notes=about)
    elif left:
        wishes.config.append(opaque(driver, _embedded(found), notes=about, field=base.rstrip(".")))
        about.warn(
            base.rstrip("."),
            f"{', '.join(sorted(left))}: carried as opaque parameters of {driver}",
            "check that the driver still reads this kind",
        )
    return wishes


def _count(value: object, *, field: str, notes: Notes) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise notes.refuse(field, f"{value!r} is not a count of devices", "write a whole number from 1 up")
    return value


def _capacities(left: Object, *, base: str, driver: str, notes: Notes) -> Object:
    """Share sizes. Only koordra's driver is known to have these capacities, and only a unit makes a size sure."""
    requests: Object = {}
    for name, capacity in CAPACITIES.items():
        if name not in left or (driver != names.DRIVER and name != names.CAPACITY_MEMORY):
            continue
        value = left[name]
        if name in ("memory", "bandwidth") and not str(value).endswith(_UNITS):
            notes.warn(
                f"{base}{name}",
                f"{value!r} has no unit and is not turned into a capacity",
                'write it like "10Gi"',
            )
            continue
        try:
            parse(value)
        except InvalidInput as error:
            raise notes.refuse(f"{base}{name}", error.problem, error.remedy) from error
        requests[capacity] = str(left.pop(name))
        if driver != names.DRIVER:
            notes.warn(
                f"{base}{name}",
                f"is asked for as capacity {capacity!r}",
                f"check that {driver} publishes it; without it no device fits",
            )
    return requests


def _alignment(left: Object, *, base: str, driver: str, wishes: Wishes, notes: Notes) -> None:
    for name in _ALIGNMENT_FIELDS:
        if name not in left:
            continue
        attribute = ALIGNMENTS.get(str(left[name]))
        if attribute is None:
            raise notes.refuse(
                f"{base}{name}", f"{left[name]!r} has no v1 constraint", f"use one of {', '.join(ALIGNMENTS)}"
            )
        left.pop(name)
        wishes.constraints.append({"requests": [REQUEST], "matchAttribute": attribute})
        if driver != names.DRIVER:
            notes.warn(
                f"{base}{name}",
                f"is a constraint on {attribute}",
                f"check that {driver} publishes this attribute",
            )


def _refuse_rest(left: Object, *, base: str, notes: Notes) -> None:
    for name in sorted(left):
        raise notes.refuse(
            f"{base}{name}",
            f"has no meaning for driver {names.DRIVER}",
            f"known are {', '.join((COUNT, *CAPACITIES, *_ALIGNMENT_FIELDS))}, or parameters of {parameters.API_VERSION}",
        )
