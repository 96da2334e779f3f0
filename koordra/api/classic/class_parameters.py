"""What a classic parameters object says, in the words of a v1 claim or class.

    ResourceClaimParameters   (in tree, 1.30)   one v1 request per request: selector -> CEL, vendorParameters
                                                -> its config
    ResourceClassParameters   (in tree, 1.30)   filters -> selectors, vendorParameters -> config
    koordra.io/v1alpha1 ...                     koordra's own opaque parameters, checked and embedded
    any other object          (a vendor's CRD)  the fields of the table below become standard fields; the
                                                whole object becomes the opaque configuration of the claim's
                                                driver

The table has only fields whose meaning does not depend on the vendor: a count of devices, a quantity with a
unit, the name of a scope. `spec` is read first, then the object itself. For koordra's driver the object
cannot be carried, since koordra decodes its parameters strictly: a field that the table lacks is refused
there.

A classic selector reads `attributes.<type>["<name>"]`, where the name is a DNS subdomain of the driver's own
choice. In v1 a device has typed attributes and capacities under a domain, so the type goes and the name finds
a domain:

    attributes.string["model"]               device.attributes["<driver>"].model
    attributes.quantity["memory"]            device.capacity["<driver>"].memory       amounts are capacities
    attributes.version["driver.example.com"] device.attributes["example.com"].driver  the rest of the name is
                                                                                      the domain
    attributes.stringslice["modes"]          device.attributes["<driver>"].modes      list attributes: a gate
                                                                                      that is off

What cannot be named in v1 (a hyphen in the identifier, longer than 32) is refused. Text inside string
literals stays.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from koordra.api import names, objects
from koordra.api.classic.notes import Notes
from koordra.api.kinds import RESOURCE_GROUP
from koordra.api.objects import Object
from koordra.api.opaque import parameters
from koordra.api.reader import Reader

CLAIM_PARAMETERS: Final = "ResourceClaimParameters"
CLASS_PARAMETERS: Final = "ResourceClassParameters"
REQUEST: Final = "default"
"""Name of the one request that a classic claim becomes."""
MOST_OPAQUE: Final = 10 * 1024

COUNT: Final = "count"
CAPACITIES: Final = (
    names.CAPACITY_MEMORY,
    names.CAPACITY_CORES,
    names.CAPACITY_BANDWIDTH,
    names.CAPACITY_SHARE,
)
ALIGNMENTS: Final = {
    "PCIeRoot": names.STANDARD_PCIE_ROOT,
    "SamePCIe": names.STANDARD_PCIE_ROOT,
    "NUMANode": names.STANDARD_NUMA_NODE,
}
_ALIGNMENT_FIELDS: Final = ("alignment", "requiredScope")
EVERY_OBJECT: Final = ("apiVersion", "kind", "metadata", "status")
_UNITS: Final = ("Ki", "Mi", "Gi", "Ti", "Pi", "Ei", "k", "M", "G", "T", "P", "E")
_PLACES: Final = {
    "quantity": "capacity",
    **dict.fromkeys(("bool", "int", "string", "version", "intslice", "stringslice"), "attributes"),
}
_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}")
_TOKEN: Final = re.compile(
    r"""(?P<read>(?<![\w.])attributes\s*\.\s*(?P<type>\w+)\s*\[\s*(?P<quote>["'])(?P<name>[^"']*)(?P=quote)\s*\])"""
    r"""|(?P<text>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')"""
    r"""|(?P<bare>(?<![\w.])attributes(?!\w))"""
)


def cel(expression: str) -> Object:
    return {"cel": {"expression": expression}}


_EVERYTHING: Final = (cel(""), cel("true"))


@dataclass(slots=True)
class Requested:
    """`requests`: (name, fields of `exactly` besides the class); constraints and config as in v1."""

    requests: list[tuple[str, Object]] = field(default_factory=lambda: [(REQUEST, {})])
    constraints: list[Object] = field(default_factory=list)
    config: list[Object] = field(default_factory=list)


def of_claim(found: Object, *, driver: str, notes: Notes) -> Requested:
    """The requests that a claim's parameters object describes. Raises Refused or InvalidManifest."""
    if objects.group_of(found) == RESOURCE_GROUP and found.get("kind") == CLAIM_PARAMETERS:
        return _in_tree_claim(found, driver=driver, notes=notes)
    if found.get("apiVersion") == parameters.API_VERSION:
        return Requested(config=[_koordra(found, driver=driver, notes=notes)])
    return _vendor(found, driver=driver, notes=notes)


def of_class(found: Object, *, driver: str, notes: Notes) -> tuple[list[Object], list[Object]]:
    """(selectors, config) of a class from its parameters object. Raises Refused or InvalidManifest."""
    if objects.group_of(found) == RESOURCE_GROUP and found.get("kind") == CLASS_PARAMETERS:
        return _in_tree_class(found, driver=driver, notes=notes)
    if found.get("apiVersion") == parameters.API_VERSION:
        return [], [_koordra(found, driver=driver, notes=notes)]
    if driver == names.DRIVER:
        raise notes.refuse(
            "parametersRef",
            f"{objects.describe(found)} means nothing to {driver}",
            f"refer to parameters of {parameters.API_VERSION}",
        )
    return [], [opaque(driver, _embedded(found), notes.read(None), "parametersRef")]


def opaque(driver: str, body: object, read: Reader, at: str = "") -> Object:
    """One entry of `config`, of what stands in a field, or of the whole. Raises InvalidInput where the API
    server would refuse the parameters."""
    wrong = partial(read.wrong, at=at)
    if not isinstance(body, Mapping):
        raise wrong("parameters are not an object", "write apiVersion, kind and the fields")
    try:
        size = len(json.dumps(body, separators=(",", ":")).encode())
    except (TypeError, ValueError) as error:
        raise wrong(f"cannot be JSON: {error}", "quote dates and keys") from error
    if size > MOST_OPAQUE:
        raise wrong(f"parameters of {size} bytes do not fit: v1 allows {MOST_OPAQUE}", "shorten them")
    if driver == names.DRIVER:
        parameters.decode(body, object=read.object, field=read.place(at))
    return {"opaque": {"driver": driver, "parameters": dict(body)}}


def _embedded(found: Object) -> Object:
    """The whole object as parameters: who it was stays, what the server wrote goes."""
    return objects.without(found, "metadata", "status") | {"metadata": {"name": objects.name(found)}}


def _koordra(found: Object, *, driver: str, notes: Notes) -> Object:
    if driver != names.DRIVER:
        raise notes.refuse(
            "parametersRef",
            f"{found.get('kind')} is koordra's, the class is of driver {driver}",
            "use a class of koordra.io",
        )
    return opaque(driver, objects.without(found, "metadata"), notes.read(None), "parametersRef")


def _in_tree_claim(found: Object, *, driver: str, notes: Notes) -> Requested:
    if found.get("shareable") is False:
        notes.warn(
            "parametersRef", "shareable: false has no v1 form", "a v1 claim may be used by up to 256 pods"
        )
    requested, about = Requested(requests=[]), notes.within(found)
    for entry in about.read(found).each("driverRequests"):
        whose = entry.text("driverName") or driver
        if whose != driver:
            raise entry.wrong(
                f"asks driver {whose}, the claim's class is of {driver}",
                f"write a claim of its own with a class of {whose}",
            )
        requested.config += _vendor_parameters(entry, driver)
        for request in entry.each("requests"):
            name = f"request-{len(requested.requests)}"
            selector = _selector(request, driver=driver, notes=about)
            requested.requests.append((name, {} if selector in _EVERYTHING else {"selectors": [selector]}))
            requested.config += [{"requests": [name], **each} for each in _vendor_parameters(request, driver)]
    called = [name for name, _ in requested.requests]
    if not called:
        raise notes.refuse(
            "parametersRef",
            f"{objects.describe(found)} asks for no device",
            "add driverRequests[].requests",
        )
    if len(called) == 1:
        notes.warn("spec", f"the request is called {called[0]!r} in v1")
    else:
        notes.warn(
            "spec",
            f"the requests are called {', '.join(called)} in v1",
            "containers may name them in resources.claims[].request",
        )
    return requested


def _vendor_parameters(read: Reader, driver: str) -> list[Object]:
    body = read.data.get("vendorParameters")
    if body is None:
        return []
    return [opaque(driver, body, read, "vendorParameters")]


def _selector(entry: Reader, *, driver: str, notes: Notes, required: bool = False) -> Object:
    named = entry.inner("namedResources")
    expression = named.required("selector") if required else named.text("selector")
    return cel(v1_selector(expression, driver=driver, notes=notes, field=named.place("selector")))


def _in_tree_class(found: Object, *, driver: str, notes: Notes) -> tuple[list[Object], list[Object]]:
    about = notes.within(found)
    read = about.read(found)
    selectors, config = [], []
    for entry in read.each("filters"):
        if (entry.data.get("driverName") or driver) != driver:
            about.warn(entry.field, f"is for driver {entry.data['driverName']} and is left out")
            continue
        selectors.append(_selector(entry, driver=driver, notes=about, required=True))
    for entry in read.each("vendorParameters"):
        whose = entry.text("driverName") or driver
        config.append(opaque(whose, entry.data.get("parameters"), entry, "parameters"))
    return selectors, config


def _vendor(found: Object, *, driver: str, notes: Notes) -> Requested:
    """A vendor's parameters object: the table's fields become standard ones, the whole object is carried as
    opaque parameters."""
    about, spec = notes.within(found), found.get("spec")
    rest = objects.without(found, *EVERY_OBJECT)
    read = about.read(spec, "spec") if isinstance(spec, Mapping) else about.read(rest)
    exactly: Object = {}
    if COUNT in read.data:
        exactly["count"] = read.between(COUNT, 1)
        if exactly["count"] is None:
            raise read.wrong("is empty", "write a whole number from 1 up, or leave it out", at=COUNT)
    requests = _capacities(read, driver=driver, notes=about)
    if requests:
        exactly["capacity"] = {"requests": requests}
    requested = Requested([(REQUEST, exactly)], _alignment(read, driver=driver, notes=about))
    left = sorted(read.data.keys() - {COUNT, *requests, *_ALIGNMENT_FIELDS})
    if left and driver == names.DRIVER:
        known = ", ".join((COUNT, *CAPACITIES, *_ALIGNMENT_FIELDS))
        raise read.wrong(
            f"has no meaning for driver {names.DRIVER}",
            f"known are {known}, or parameters of {parameters.API_VERSION}",
            at=left[0],
        )
    if left:
        requested.config.append(opaque(driver, _embedded(found), read))
        about.warn(
            read.field,
            f"{', '.join(left)}: carried as opaque parameters of {driver}",
            "check that the driver still reads this kind",
        )
    return requested


def _capacities(read: Reader, *, driver: str, notes: Notes) -> Object:
    """Share sizes. Only koordra's driver is known to have these capacities, and only a unit makes a size
    sure."""
    requests: Object = {}
    for name in CAPACITIES:
        if name not in read.data or (driver != names.DRIVER and name != names.CAPACITY_MEMORY):
            continue
        value = read.data[name]
        if name in (names.CAPACITY_MEMORY, names.CAPACITY_BANDWIDTH) and not str(value).endswith(_UNITS):
            notes.warn(
                read.place(name),
                f"{value!r} has no unit and is not turned into a capacity",
                'write it like "10Gi"',
            )
            continue
        read.amount(name)
        requests[name] = str(value)
        if driver != names.DRIVER:
            notes.warn(
                read.place(name),
                f"is asked for as capacity {name!r}",
                f"check that {driver} publishes it; without it no device fits",
            )
    return requests


def _alignment(read: Reader, *, driver: str, notes: Notes) -> list[Object]:
    constraints: list[Object] = []
    for name in _ALIGNMENT_FIELDS:
        if name not in read.data:
            continue
        scope = read.choice(name, ALIGNMENTS, problem="has no v1 constraint")
        if not scope:
            raise read.wrong("is empty", f"use one of {', '.join(ALIGNMENTS)}, or leave it out", at=name)
        constraints.append({"requests": [REQUEST], "matchAttribute": ALIGNMENTS[scope]})
        if driver != names.DRIVER:
            notes.warn(
                read.place(name),
                f"is a constraint on {ALIGNMENTS[scope]}",
                f"check that {driver} publishes this attribute",
            )
    return constraints


def v1_selector(expression: str, *, driver: str, notes: Notes, field: str) -> str:
    """The v1 form of a classic selector. Raises Refused, naming what has no v1 form."""

    def replace(found: re.Match[str]) -> str:
        if found["text"]:
            return found["text"]
        if found["bare"]:
            raise notes.refuse(
                field,
                f"attributes is read as a whole in {expression!r}",
                'read single attributes: attributes.string["name"]',
            )
        return _read(found["type"], found["name"], driver=driver, notes=notes, field=field)

    return _TOKEN.sub(replace, expression)


def _read(kind: str, name: str, *, driver: str, notes: Notes, field: str) -> str:
    place = _PLACES.get(kind)
    if place is None:
        raise notes.refuse(field, f"attributes.{kind} is no type", f"types are {', '.join(_PLACES)}")
    identifier, _, rest = name.partition(".")
    if not _IDENTIFIER.fullmatch(identifier):
        raise notes.refuse(
            field,
            f"attribute {name!r} has no name in v1",
            "find the name the driver publishes now: a C identifier of at most 32 characters",
        )
    if kind.endswith("slice"):
        notes.warn(
            field,
            f"attribute {name!r} is a list",
            "list attributes need the feature gate DRAListTypeAttributes; else read a scalar the driver publishes",
        )
    domain = rest or driver
    if rest:
        notes.warn(
            field,
            f"attribute {name!r} is taken for {identifier!r} in the domain {rest!r}",
            "check it against the driver's ResourceSlices",
        )
    return f'device.{place}["{domain}"].{identifier}'
