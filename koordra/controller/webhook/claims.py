"""What koordra's opaque parameters must be for a claim, a template or a DeviceClass to be stored. Pure.

Besides each document by itself (koordra.api.opaque.parameters: kind, fields, values) what they say together:

    the requests that an entry names exist
    no two entries of one kind give a field two values for the same requests; an entry for all requests and one for some
      are no contradiction (the later one wins), and there may be several JointAllocations
    selectors compile, within the limits of the API server (length, depth, cost)
    the isolation that a claim asks for is one that the classes of its requests allow: the operator's word stands above the claim's

Nodes have a policy too. It is found where a claim waits for one that allows what it asks for (reason BackendUnavailable). In native
mode, where kube-scheduler reads no policies, a selector says it: devices whose node does not allow the isolation do not match.

Every problem is reported at once, each with object, field and remedy. What else requests and classes say the API server checks.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from koordra.api import names, objects
from koordra.api.objects import Object
from koordra.api.opaque import parameters
from koordra.api.opaque.isolation import IsolationPolicy, asked_isolation, attribute
from koordra.api.opaque.parameters import NO_ISOLATION, GpuConfig, Parameters
from koordra.cel.selectors import admission_error
from koordra.errors import InvalidInput, InvalidParameters

_MANY: Final = "JointAllocation"
"""The kind of which a claim may have several: GPUs near NICs, and near each other."""


def devices_of(obj: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """(path, `devices`) of a claim or template; for a DeviceClass its spec."""
    spec = objects.spec_of(obj)
    kind = obj.get("kind")
    if kind == "DeviceClass":
        return "spec", spec
    if kind == "ResourceClaimTemplate":
        inner = spec.get("spec")
        spec = inner if isinstance(inner, Mapping) else {}
        return "spec.spec.devices", _mapping(spec.get("devices"))
    return "spec.devices", _mapping(spec.get("devices"))


@dataclass(frozen=True, slots=True)
class Entry:
    """A configuration for koordra's driver. `requests` are those it names, none where it is for all; `value` is what its parameters
    decode to, or why they do not, or may not stand in a claim."""

    place: str
    raw: Mapping[str, Any]
    requests: tuple[str, ...]
    value: Parameters | InvalidInput

    @property
    def field(self) -> str:
        return f"{self.place}.opaque.parameters"

    @property
    def body(self) -> Mapping[str, Any]:
        """The parameters as written, {} for what is no object."""
        return _mapping(self.raw["opaque"].get("parameters"))

    def covers(self, name: str) -> bool:
        """Whether it is about the request, or alternative, that results call by this name."""
        return not self.requests or bool({name, name.partition("/")[0]} & set(self.requests))


def entries_of(obj: Mapping[str, Any]) -> list[Entry]:
    """Every configuration for koordra's driver in a claim, template or class."""
    path, devices = devices_of(obj)
    config, found = devices.get("config"), []
    for index, raw in enumerate(config if isinstance(config, list) else ()):
        opaque = _mapping(_mapping(raw).get("opaque"))
        if opaque.get("driver") == names.DRIVER:
            place, requests = f"{path}.config[{index}]", raw.get("requests")
            about, field = objects.describe(obj), f"{place}.opaque.parameters"
            value: Parameters | InvalidInput
            try:
                value = parameters.decode(
                    opaque.get("parameters"),
                    object=about,
                    field=field,
                )
                if obj.get("kind") != "DeviceClass":
                    parameters.reject_operator_fields(value, object=about, field=field)
            except InvalidInput as error:
                value = error
            found.append(
                Entry(place, raw, tuple(map(str, requests)) if isinstance(requests, list) else (), value)
            )
    return found


def alternatives(devices: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str, Object]]:
    """(where, name that results have, body) of every request, and of every alternative of one."""
    for index, request in enumerate(_listed(devices.get("requests"))):
        place, name = f"{path}.requests[{index}]", str(request.get("name"))
        if isinstance(request.get("exactly"), dict):
            yield f"{place}.exactly", name, request["exactly"]
        for number, alternative in enumerate(_listed(request.get("firstAvailable"))):
            yield f"{place}.firstAvailable[{number}]", f"{name}/{alternative.get('name')}", alternative


def request_names(devices: Mapping[str, Any]) -> set[str]:
    """Names of requests, and `request/subrequest` of alternatives."""
    listed = _listed(devices.get("requests"))
    return {str(request.get("name")) for request in listed} | {name for _, name, _ in alternatives(devices)}


def problems(obj: Mapping[str, Any]) -> list[InvalidInput]:
    """Everything that is wrong with the parameters of koordra's in the object, and with selectors."""
    about = objects.describe(obj)
    path, devices = devices_of(obj)
    entries = entries_of(obj)
    found: list[InvalidInput] = []
    known = request_names(devices)
    for entry in entries:
        if obj.get("kind") != "DeviceClass":
            found += _unknown_requests(entry, known, about=about)
        if isinstance(entry.value, InvalidInput):
            found.append(entry.value)
    return [*found, *_contradictions(entries, about=about), *_bad_selectors(devices, path, about=about)]


def warnings(obj: Mapping[str, Any]) -> tuple[str, ...]:
    """The fields in the object that are accepted and have no effect."""
    return tuple(
        f"{entry.field}.{name} {parameters.NO_EFFECT[name]}"
        for entry in entries_of(obj)
        for name in sorted(parameters.NO_EFFECT.keys() & entry.body.keys())
    )


def _bad_selectors(devices: Mapping[str, Any], path: str, *, about: str) -> Iterator[InvalidInput]:
    """Of a class, or of every request and alternative."""
    owners = [(path, devices), *((place, body) for place, _, body in alternatives(devices, path))]
    for place, owner in owners:
        for index, selector in enumerate(_listed(owner.get("selectors"))):
            expression = _mapping(selector.get("cel")).get("expression")
            why = admission_error(expression) if isinstance(expression, str) and expression else None
            if why is not None:
                field = f"{place}.selectors[{index}].cel.expression"
                yield InvalidParameters(
                    why, object=about, field=field, remedy="correct or shorten the expression"
                )


def _unknown_requests(entry: Entry, known: set[str], *, about: str) -> Iterator[InvalidInput]:
    for index, name in enumerate(entry.requests):
        if name not in known:
            yield InvalidParameters(
                f"there is no request {name!r}",
                object=about,
                field=f"{entry.place}.requests[{index}]",
                remedy=f"requests are {', '.join(sorted(known)) or 'none'}",
            )


def _contradictions(entries: Sequence[Entry], *, about: str) -> Iterator[InvalidInput]:
    """Two entries of one kind over the same requests that give one field two values."""
    decoded = [entry for entry in entries if not isinstance(entry.value, InvalidInput)]
    for number, one in enumerate(decoded):
        for other in decoded[:number]:
            kind = one.body["kind"]
            if set(one.requests) != set(other.requests) or kind != other.body["kind"] or kind == _MANY:
                continue
            both = one.body.keys() & other.body.keys()
            for name in sorted(name for name in both if one.body[name] != other.body[name]):
                yield InvalidParameters(
                    f"is {one.body[name]!r} here and {other.body[name]!r} in {other.place}",
                    object=about,
                    field=f"{one.field}.{name}",
                    remedy="say it once, or name different requests",
                )


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _listed(value: object) -> list[Object]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def isolation_answers(
    obj: Mapping[str, Any], classes: Mapping[str, Mapping[str, Any]]
) -> tuple[list[InvalidInput], list[str]]:
    """Problems where the class of a request does not allow what the claim asks for, and warnings where the class's own word
    stands above the claim's."""
    about = objects.describe(obj)
    found: list[InvalidInput] = []
    overruled: list[str] = []
    of_claim = [(entry, entry.value) for entry in entries_of(obj) if isinstance(entry.value, GpuConfig)]
    for _, name, request in alternatives(devices_of(obj)[1]) if of_claim else ():
        own = [(entry, value) for entry, value in of_claim if entry.covers(name)]
        values = [value for _, value in own]
        wanted = asked_isolation((), values).word
        device_class = classes.get(str(request.get("deviceClassName")))
        if wanted is None or device_class is None:
            continue
        field = next(f"{entry.field}.isolation" for entry, value in own if value.isolation == wanted)
        of_class = [entry.value for entry in entries_of({"kind": "DeviceClass", **device_class})]
        asked = asked_isolation(of_class, values)
        if asked.word != wanted:
            text = f"{wanted} is not what request {name} gets: its class says {asked.word}"
            overruled.append(f"{field}: {text}")
        configs = [*(value for value in of_class if isinstance(value, GpuConfig)), *values]
        why = asked.refusal(IsolationPolicy(), share=_may_share(request, configs))
        if why is not None:
            problem = f"request {name}: {why}"
            found.append(
                InvalidParameters(
                    problem,
                    object=about,
                    field=field,
                    remedy=f"use one of {', '.join(asked.policy.allowed or ())}, or another class",
                )
            )
    return found, overruled


def selecting(devices: Mapping[str, Any], entries: Sequence[Entry]) -> Object:
    """A copy, where requests of GPUs for which the claim names a backend have a selector on what nodes publish."""
    changed: Object = copy.deepcopy(dict(devices))
    for _, name, request in alternatives(changed):
        own = [entry.value for entry in entries if entry.covers(name) and isinstance(entry.value, GpuConfig)]
        word = asked_isolation((), own).word
        if word is None or (word == NO_ISOLATION and not _may_share(request, own)):
            continue
        selector = {"cel": {"expression": _ALLOWED.format(attribute(word).partition("/")[2])}}
        before = request.get("selectors") or []
        request["selectors"] = before if selector in before else [*before, selector]
    return changed


_ALLOWED: Final = (
    f'!("isolationNone" in device.attributes["{names.DRIVER}"]) || ("{{0}}" in device.attributes["{names.DRIVER}"] && '
    f'device.attributes["{names.DRIVER}"].{{0}})'
)
"""True of a device that is no GPU, or whose node publishes no policy, too."""


def _may_share(request: Mapping[str, Any], configs: Sequence[GpuConfig]) -> bool:
    """Whether the request may be met by a part of a card."""
    asked = _mapping(_mapping(request.get("capacity")).get("requests"))
    part = any(str(name).rpartition("/")[2] == names.CAPACITY_MEMORY for name in asked)
    part = part or any(value.memory_percent not in (None, 100) for value in configs)
    return part and not any(value.exclusive for value in configs)
