"""What koordra's opaque parameters must be for a claim, a template or a DeviceClass to be stored. Pure.

Besides each document by itself (koordra.api.opaque.parameters: kind, fields, values) what they say together:

    the requests that an entry names exist
    no two entries of one kind give a field two values for the same requests; an entry for all requests and one for some
      are no contradiction (the later one wins), and there may be several JointAllocations

    selectors compile, within the limits of the API server (length, depth, cost)

Everything wrong is told at once, each with object, field and remedy. What else requests and classes say the API server checks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from koordra.api import names, objects
from koordra.api.opaque import parameters
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


def problems(obj: Mapping[str, Any]) -> list[InvalidInput]:
    """Everything that is wrong with the parameters of koordra's in the object."""
    about = objects.describe(obj)
    path, devices = devices_of(obj)
    known = request_names(devices) if obj.get("kind") != "DeviceClass" else None
    found: list[InvalidInput] = []
    decoded: list[tuple[str, frozenset[str], Mapping[str, Any]]] = []
    for place, entry in our_config(devices, path):
        requests = tuple(str(name) for name in entry.get("requests") or ())
        if known is not None:
            found += _unknown_requests(requests, known, about=about, place=place)
        body = entry["opaque"].get("parameters")
        try:
            value = parameters.decode(body, object=about, field=f"{place}.opaque.parameters")
            if known is not None:
                parameters.require_claims_own(value, object=about, field=f"{place}.opaque.parameters")
        except InvalidInput as error:
            found.append(error)
        else:
            decoded.append((place, frozenset(requests), body))
    return [*found, *_contradictions(decoded, about=about), *_bad_selectors(devices, path, about=about)]


def warnings(obj: Mapping[str, Any]) -> tuple[str, ...]:
    """The fields in the object that are accepted and have no effect."""
    path, devices = devices_of(obj)
    return tuple(
        f"{place}.opaque.parameters.{name} {parameters.NO_EFFECT[name]}"
        for place, entry in our_config(devices, path)
        if isinstance(body := entry["opaque"].get("parameters"), Mapping)
        for name in sorted(parameters.NO_EFFECT.keys() & body.keys())
    )


def our_config(devices: Mapping[str, Any], path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(where, entry) of every configuration for koordra's driver."""
    config = devices.get("config")
    for index, entry in enumerate(config if isinstance(config, list) else ()):
        opaque = entry.get("opaque") if isinstance(entry, Mapping) else None
        if isinstance(opaque, Mapping) and opaque.get("driver") == names.DRIVER:
            yield f"{path}.config[{index}]", entry


def request_names(devices: Mapping[str, Any]) -> set[str]:
    """Names of requests, and `request/subrequest` of alternatives."""
    found = set()
    for request in devices.get("requests") or ():
        if isinstance(request, Mapping):
            found.add(str(request.get("name")))
            for alternative in request.get("firstAvailable") or ():
                if isinstance(alternative, Mapping):
                    found.add(f"{request.get('name')}/{alternative.get('name')}")
    return found


def _bad_selectors(devices: Mapping[str, Any], path: str, *, about: str) -> Iterator[InvalidInput]:
    for place, expression in _selectors(devices, path):
        why = admission_error(expression)
        if why is not None:
            yield InvalidParameters(
                why, object=about, field=place, remedy="correct or shorten the expression"
            )


def _selectors(devices: Mapping[str, Any], path: str) -> Iterator[tuple[str, str]]:
    """(where, expression) of a class, or of every request and alternative."""
    owners = [(path, devices)]
    for index, request in enumerate(_listed(devices.get("requests"))):
        place = f"{path}.requests[{index}]"
        owners.append((f"{place}.exactly", _mapping(request.get("exactly"))))
        for number, alternative in enumerate(_listed(request.get("firstAvailable"))):
            owners.append((f"{place}.firstAvailable[{number}]", alternative))
    for place, owner in owners:
        for index, selector in enumerate(_listed(owner.get("selectors"))):
            expression = _mapping(selector.get("cel")).get("expression")
            if isinstance(expression, str) and expression:
                yield f"{place}.selectors[{index}].cel.expression", expression


def _unknown_requests(
    requests: Sequence[str], known: set[str], *, about: str, place: str
) -> Iterator[InvalidInput]:
    for index, name in enumerate(requests):
        if name not in known:
            yield InvalidParameters(
                f"there is no request {name!r}",
                object=about,
                field=f"{place}.requests[{index}]",
                remedy=f"requests are {', '.join(sorted(known)) or 'none'}",
            )


def _contradictions(
    decoded: Sequence[tuple[str, frozenset[str], Mapping[str, Any]]], *, about: str
) -> Iterator[InvalidInput]:
    """Two entries of one kind over the same requests that give one field two values."""
    for number, (place, requests, body) in enumerate(decoded):
        for other_place, other_requests, other in decoded[:number]:
            if requests != other_requests or body["kind"] != other["kind"] or body["kind"] == _MANY:
                continue
            for name in sorted(name for name in body.keys() & other.keys() if body[name] != other[name]):
                yield InvalidParameters(
                    f"is {body[name]!r} here and {other[name]!r} in {other_place}",
                    object=about,
                    field=f"{place}.opaque.parameters.{name}",
                    remedy="say it once, or name different requests",
                )


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _listed(value: object) -> list[Mapping[str, Any]]:
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []
