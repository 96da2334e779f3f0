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
from dataclasses import dataclass
from typing import Any, Final

from koordra.api import names, objects
from koordra.api.opaque import parameters
from koordra.api.opaque.parameters import Parameters
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
    decode to, or why they do not."""

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
    config = devices.get("config")
    return [
        _entry(raw, f"{path}.config[{index}]", objects.describe(obj))
        for index, raw in enumerate(config if isinstance(config, list) else ())
        if _mapping(_mapping(raw).get("opaque")).get("driver") == names.DRIVER
    ]


def _entry(raw: Mapping[str, Any], place: str, about: str) -> Entry:
    requests = raw.get("requests")
    named = tuple(map(str, requests)) if isinstance(requests, list) else ()
    body = raw["opaque"].get("parameters")
    try:
        value = parameters.decode(body, object=about, field=f"{place}.opaque.parameters")
    except InvalidInput as error:
        return Entry(place, raw, named, error)
    return Entry(place, raw, named, value)


def alternatives(devices: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """(where, name that results have, body) of every request, and of every alternative of one."""
    for index, request in enumerate(_listed(devices.get("requests"))):
        place, name = f"{path}.requests[{index}]", str(request.get("name"))
        if isinstance(request.get("exactly"), Mapping):
            yield f"{place}.exactly", name, request["exactly"]
        for number, alternative in enumerate(_listed(request.get("firstAvailable"))):
            yield f"{place}.firstAvailable[{number}]", f"{name}/{alternative.get('name')}", alternative


def request_names(devices: Mapping[str, Any]) -> set[str]:
    """Names of requests, and `request/subrequest` of alternatives."""
    own = {str(request.get("name")) for request in _listed(devices.get("requests"))}
    return own | {name for _, name, _ in alternatives(devices)}


def problems(obj: Mapping[str, Any]) -> list[InvalidInput]:
    """Everything that is wrong with the parameters of koordra's in the object, and with selectors."""
    about = objects.describe(obj)
    path, devices = devices_of(obj)
    entries = entries_of(obj)
    found: list[InvalidInput] = []
    known = request_names(devices)
    for entry in entries:
        of_claim = obj.get("kind") != "DeviceClass"
        if of_claim:
            found += _unknown_requests(entry, known, about=about)
        if isinstance(entry.value, InvalidInput):
            found.append(entry.value)
        elif of_claim:
            try:
                parameters.require_claims_own(entry.value, object=about, field=entry.field)
            except InvalidInput as error:
                found.append(error)
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
                remedy = "correct or shorten the expression"
                yield InvalidParameters(why, object=about, field=field, remedy=remedy)


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


def _listed(value: object) -> list[Mapping[str, Any]]:
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []
