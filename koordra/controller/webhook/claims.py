"""What koordra's opaque parameters must be for a claim, a template or a DeviceClass to be stored. Pure.

Besides each document by itself (koordra.api.opaque.parameters: kind, fields, values) what they say together:

    the requests that an entry names exist
    no two entries of one kind give a field two values for the same requests; an entry for all requests and
      one for some are no contradiction (the later one wins), and there may be several JointAllocations
    selectors compile, within the limits of the API server (length, depth, cost)
    the isolation that a claim asks for is one that the classes of its requests allow: the operator's word
      stands above the claim's

Nodes have a policy too. It is found where a claim waits for one that allows what it asks for (reason
BackendUnavailable). In native mode, where kube-scheduler reads no policies, a selector says it: devices whose
node does not allow the isolation do not match.

Every problem is reported at once, each with object, field and remedy. What else requests and classes say the
API server checks.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

from koordra.api import names
from koordra.api.objects import Fields, Object
from koordra.api.opaque import parameters
from koordra.api.opaque.isolation import IsolationPolicy, asked_isolation, attribute
from koordra.api.opaque.parameters import NO_ISOLATION, GpuConfig, Parameters
from koordra.api.reader import Reader
from koordra.cel.selectors import admission_error
from koordra.errors import InvalidInput, InvalidParameters

_MANY: Final = "JointAllocation"
"""The kind of which a claim may have several: GPUs near NICs, and near each other."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A configuration for koordra's driver. `requests` are those it names, none where it is for all; `value`
    is what its parameters decode to, or why they do not, or may not stand in a claim."""

    read: Reader
    requests: tuple[str, ...]
    value: Parameters | InvalidInput

    @property
    def parameters(self) -> Reader:
        """As written. Raises InvalidParameters for what is no object."""
        return self.read.inner("opaque").inner("parameters")

    def covers(self, name: str) -> bool:
        """Whether it is about the request, or alternative, that results call by this name."""
        return not self.requests or bool({name, name.partition("/")[0]} & set(self.requests))


def alternatives(devices: Reader) -> Iterator[tuple[str, Reader]]:
    """(name that results have, body) of every request, and of every alternative of one."""
    for request in devices.each("requests"):
        name = request.text("name")
        if request.data.get("exactly") is not None:
            yield name, request.inner("exactly")
        for each in request.each("firstAvailable"):
            yield f"{name}/{each.text('name')}", each


def request_names(devices: Reader) -> set[str]:
    """Names of requests, and `request/subrequest` of alternatives."""
    return {each.text("name") for each in devices.each("requests")} | {
        name for name, _ in alternatives(devices)
    }


@dataclass(frozen=True, slots=True)
class AskedDevices:
    """What a claim or template says of devices, or a DeviceClass in its spec: as written, and the
    configurations for koordra's driver."""

    read: Reader
    entries: tuple[Entry, ...]
    is_class: bool

    @classmethod
    def of(cls, obj: Fields) -> AskedDevices:
        """Raises InvalidParameters naming object and field where something has another shape than the API
        server stores."""
        read, kind = Reader.of(obj, error=InvalidParameters).inner("spec"), obj.get("kind")
        if kind == "ResourceClaimTemplate":
            read = read.inner("spec")
        if kind != "DeviceClass":
            read = read.inner("devices")
        is_class = kind == "DeviceClass"
        entries = [
            Entry(each, each.texts("requests"), _value(each.inner("opaque"), is_class))
            for each in read.each("config")
            if each.inner("opaque").text("driver") == names.DRIVER
        ]
        return cls(read, tuple(entries), is_class)

    def problems(self) -> list[InvalidInput]:
        """Everything that is wrong with the parameters of koordra's, and with selectors."""
        known, found = request_names(self.read), list[InvalidInput]()
        for entry in self.entries:
            unknown = [(n, name) for n, name in enumerate(entry.requests) if name not in known]
            for index, name in unknown if not self.is_class else ():
                remedy = f"requests are {', '.join(sorted(known)) or 'none'}"
                found.append(
                    entry.read.wrong(f"there is no request {name!r}", remedy, at=f"requests[{index}]")
                )
            if isinstance(entry.value, InvalidInput):
                found.append(entry.value)
        return [*found, *self._contradictions(), *self._bad_selectors()]

    def warnings(self) -> list[str]:
        """The fields that are accepted and have no effect."""
        return [
            f"{entry.parameters.place(name)} {parameters.NO_EFFECT[name]}"
            for entry in self.entries
            if not isinstance(entry.value, InvalidInput)
            for name in sorted(parameters.NO_EFFECT.keys() & entry.parameters.data.keys())
        ]

    def _bad_selectors(self) -> Iterator[InvalidInput]:
        """Of a class, or of every request and alternative."""
        for owner in (self.read, *(body for _, body in alternatives(self.read))):
            for each in owner.each("selectors"):
                expression = each.inner("cel").text("expression")
                why = admission_error(expression) if expression else None
                if why is not None:
                    yield each.wrong(why, "correct or shorten the expression", at="cel.expression")

    def _contradictions(self) -> Iterator[InvalidInput]:
        """Two entries of one kind over the same requests that give one field two values."""
        decoded = [
            (entry, entry.parameters) for entry in self.entries if not isinstance(entry.value, InvalidInput)
        ]
        for number, (entry, one) in enumerate(decoded):
            for earlier, other in decoded[:number]:
                kind = one.data["kind"]
                if (
                    set(entry.requests) != set(earlier.requests)
                    or kind != other.data["kind"]
                    or kind == _MANY
                ):
                    continue
                both = one.data.keys() & other.data.keys()
                for name in sorted(name for name in both if one.data[name] != other.data[name]):
                    yield one.wrong(
                        f"is {one.data[name]!r} here and {other.data[name]!r} in {earlier.read.field}",
                        "say it once, or name different requests",
                        at=name,
                    )

    def isolation_answers(self, classes: Mapping[str, Object]) -> tuple[list[InvalidInput], list[str]]:
        """Problems where the class of a request does not allow what the claim asks for, and warnings where
        the class's own word stands above the claim's."""
        found: list[InvalidInput] = []
        overruled: list[str] = []
        of_claim = [(entry, entry.value) for entry in self.entries if isinstance(entry.value, GpuConfig)]
        for name, request in alternatives(self.read) if of_claim else ():
            own = [(entry, value) for entry, value in of_claim if entry.covers(name)]
            values = [value for _, value in own]
            wanted = asked_isolation((), values).word
            device_class = classes.get(request.text("deviceClassName"))
            if wanted is None or device_class is None:
                continue
            place = next(entry.parameters for entry, value in own if value.isolation == wanted)
            of_class = [
                entry.value for entry in AskedDevices.of({"kind": "DeviceClass", **device_class}).entries
            ]
            asked = asked_isolation(of_class, values)
            if asked.word != wanted:
                text = f"{wanted} is not what request {name} gets: its class says {asked.word}"
                overruled.append(f"{place.place('isolation')}: {text}")
            configs = [*(value for value in of_class if isinstance(value, GpuConfig)), *values]
            why = asked.refusal(IsolationPolicy(), share=_may_share(request, configs))
            if why is not None:
                remedy = f"use one of {', '.join(asked.policy.allowed or ())}, or another class"
                found.append(place.wrong(f"request {name}: {why}", remedy, at="isolation"))
        return found, overruled

    def selecting(self) -> Reader:
        """A copy, where requests of GPUs for which the claim names a backend have a selector on what nodes
        publish."""
        changed = self.read.over(copy.deepcopy(dict(self.read.data)))
        for name, request in alternatives(changed):
            own = [
                entry.value
                for entry in self.entries
                if entry.covers(name) and isinstance(entry.value, GpuConfig)
            ]
            word = asked_isolation((), own).word
            if word is None or (word == NO_ISOLATION and not _may_share(request, own)):
                continue
            selector = {"cel": {"expression": _ALLOWED.format(attribute(word).partition("/")[2])}}
            before = request.sequence("selectors")
            if selector not in before:
                cast("Object", request.data)["selectors"] = [*before, selector]
        return changed


def _value(opaque: Reader, is_class: bool) -> Parameters | InvalidInput:
    field = opaque.place("parameters")
    try:
        return parameters.decode(
            opaque.data.get("parameters"), object=opaque.object, field=field, in_claim=not is_class
        )
    except InvalidInput as error:
        return error


_ALLOWED: Final = (
    f'!("isolationNone" in device.attributes["{names.DRIVER}"]) || ("{{0}}" in device.attributes["{names.DRIVER}"] && '
    f'device.attributes["{names.DRIVER}"].{{0}})'
)
"""True of a device that is no GPU, or whose node publishes no policy, too."""


def _may_share(request: Reader, configs: Sequence[GpuConfig]) -> bool:
    """Whether the request may be met by a part of a card."""
    asked = request.inner("capacity").inner("requests").data
    part = any(str(name).rpartition("/")[2] == names.CAPACITY_MEMORY for name in asked)
    part = part or any(value.memory_percent not in (None, 100) for value in configs)
    return part and not any(value.exclusive for value in configs)
