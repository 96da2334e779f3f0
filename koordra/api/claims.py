"""ResourceClaims as they are asked for: requests, constraints, tolerations, configuration; and the DeviceClass.

A request is exact (`exactly`) or a list of alternatives in order of preference (`firstAvailable`); both end up as
`DeviceRequest.alternatives`, one entry for an exact request. Fields that the API server fills in (namespace, uid,
allocationMode, count) may be absent. v1beta1's flat request form is read too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final

from koordra.api import objects
from koordra.api.devices import NO_EXECUTE, NO_SCHEDULE, Reader, Taint

EXACT_COUNT: Final = "ExactCount"
ALL: Final = "All"

MAX_RESULTS: Final = 32
"""Devices that fit into one claim's allocation (resource.k8s.io AllocationResultsMaxSize)."""


@dataclass(frozen=True, slots=True)
class Toleration:
    """`raw` is the toleration as written: results carry it unchanged."""

    key: str
    operator: str
    value: str
    effect: str
    raw: Mapping[str, Any] = field(compare=False, hash=False, default_factory=dict)

    def tolerates(self, taint: Taint) -> bool:
        """Source of the rule: k8s.io/dynamic-resource-allocation resourceclaim.ToleratesTaint."""
        if self.effect and self.effect != taint.effect:
            return False
        if self.key and self.key != taint.key:
            return False
        return self.operator == "Exists" or (self.operator in ("", "Equal") and self.value == taint.value)


@dataclass(frozen=True, slots=True)
class Alternative:
    """What is asked for: an exact request, or one entry of `firstAvailable` (then `name` is the subrequest's)."""

    name: str
    device_class: str
    mode: str = EXACT_COUNT
    count: int = 1
    selectors: tuple[str, ...] = ()
    admin_access: bool = False
    tolerations: tuple[Toleration, ...] = ()
    capacity: Mapping[str, Decimal] | None = field(default=None, hash=False)
    capacity_spelled: Mapping[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """`prioritized`: the alternatives come from `firstAvailable`, and results are named `request/subrequest`."""

    name: str
    alternatives: tuple[Alternative, ...]
    prioritized: bool = False


@dataclass(frozen=True, slots=True)
class Constraint:
    """Over the devices of `requests` (all of the claim when empty); exactly one attribute is set, else it is unknown."""

    requests: tuple[str, ...] = ()
    match_attribute: str = ""
    distinct_attribute: str = ""

    def covers(self, request: str, subrequest: str = "") -> bool:
        if not self.requests or request in self.requests:
            return True
        return bool(subrequest) and f"{request}/{subrequest}" in self.requests

    def __str__(self) -> str:
        if self.match_attribute:
            return f"matchAttribute {self.match_attribute}"
        return f"distinctAttribute {self.distinct_attribute}"


@dataclass(frozen=True, slots=True)
class Configuration:
    """One entry of `config`, at `where`; `raw` is the entry without `requests`, copied into the allocation unchanged."""

    requests: tuple[str, ...]
    raw: Mapping[str, Any] = field(hash=False)
    driver: str = ""
    parameters: Any = field(default=None, hash=False)
    where: str = ""


@dataclass(frozen=True, slots=True)
class DeviceClass:
    name: str
    selectors: tuple[str, ...] = ()
    config: tuple[Configuration, ...] = ()

    @classmethod
    def from_dict(cls, obj: Mapping[str, Any]) -> DeviceClass:
        """Raises InvalidManifest naming class and field."""
        read = Reader(object=objects.describe(obj), field="spec")
        spec = read.mapping(obj.get("spec"))
        return cls(
            name=objects.name(obj),
            selectors=_selectors(spec.get("selectors"), read.at("selectors")),
            config=_config(spec.get("config"), read.at("config")),
        )


@dataclass(frozen=True, slots=True)
class ResourceClaim:
    """A claim's spec. `key` is `namespace/name`; `uid` is empty for a manifest that was never applied."""

    namespace: str
    name: str
    uid: str
    requests: tuple[DeviceRequest, ...] = ()
    constraints: tuple[Constraint, ...] = ()
    config: tuple[Configuration, ...] = ()
    immediate: bool = False
    created: str = ""

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    def __str__(self) -> str:
        return f"ResourceClaim {self.key}"

    @classmethod
    def from_dict(cls, obj: Mapping[str, Any]) -> ResourceClaim:
        """Raises InvalidManifest naming claim and field."""
        read = Reader(object=f"ResourceClaim {objects.key(obj)}", field="spec.devices")
        spec = Reader(object=read.object, field="spec").mapping(obj.get("spec"))
        devices = read.mapping(spec.get("devices"))
        requests = tuple(
            _request(request, read.at(f"requests[{index}]"))
            for index, request in enumerate(read.at("requests").sequence(devices.get("requests")))
        )
        return cls(
            namespace=objects.namespace(obj),
            name=objects.name(obj),
            uid=objects.uid(obj),
            requests=requests,
            constraints=tuple(
                _constraint(constraint, read.at(f"constraints[{index}]"))
                for index, constraint in enumerate(
                    read.at("constraints").sequence(devices.get("constraints"))
                )
            ),
            config=_config(devices.get("config"), read.at("config")),
            immediate=_is_immediate(obj, spec),
            created=str(objects.metadata(obj).get("creationTimestamp") or ""),
        )


def _is_immediate(obj: Mapping[str, Any], spec: Mapping[str, Any]) -> bool:
    """Classic DRA's `allocationMode: Immediate`, as the field it was or as an annotation."""
    mark = objects.annotations_of(obj).get("koordra.io/allocation-mode", spec.get("allocationMode"))
    return mark == "Immediate"


def _request(raw: object, read: Reader) -> DeviceRequest:
    data = read.mapping(raw)
    name = read.at("name").text(data.get("name"), required=True)
    alternatives = read.at("firstAvailable").sequence(data.get("firstAvailable"))
    if alternatives:
        if data.get("exactly") is not None:
            raise read.wrong("has both exactly and firstAvailable", "keep one of them")
        return DeviceRequest(
            name=name,
            alternatives=tuple(
                _alternative(entry, read.at(f"firstAvailable[{index}]"), name="")
                for index, entry in enumerate(alternatives)
            ),
            prioritized=True,
        )
    exact = data.get("exactly")
    body = data if exact is None else read.at("exactly").mapping(exact)
    return DeviceRequest(
        name, (_alternative(body, read.at("exactly") if exact is not None else read, name=name),)
    )


def _alternative(raw: object, read: Reader, *, name: str) -> Alternative:
    data = read.mapping(raw)
    capacity = data.get("capacity")
    asked = (
        None
        if capacity is None
        else read.at("capacity.requests").mapping(read.mapping(capacity).get("requests"))
    )
    return Alternative(
        name=name or read.at("name").text(data.get("name"), required=True),
        device_class=read.at("deviceClassName").text(data.get("deviceClassName")),
        mode=read.at("allocationMode").text(data.get("allocationMode")) or EXACT_COUNT,
        count=_count(data, read),
        selectors=_selectors(data.get("selectors"), read.at("selectors")),
        admin_access=read.at("adminAccess").flag(data.get("adminAccess")),
        tolerations=tuple(
            _toleration(entry, read.at(f"tolerations[{index}]"))
            for index, entry in enumerate(read.at("tolerations").sequence(data.get("tolerations")))
        ),
        capacity=None
        if asked is None
        else {key: read.at(f"capacity.requests[{key}]").amount(value) for key, value in asked.items()},
        capacity_spelled={} if asked is None else {key: str(value) for key, value in asked.items()},
    )


def _count(data: Mapping[str, Any], read: Reader) -> int:
    """An absent count, and 0 under ExactCount, is the API's default of one; below zero cannot be meant."""
    count = read.at("count").whole(data.get("count"))
    if count < 0:
        raise read.at("count").wrong(f"{count} devices cannot be asked for", "use a count of 1 or more")
    return count or 1


def _selectors(raw: object, read: Reader) -> tuple[str, ...]:
    """CEL expressions; an entry that is not CEL becomes "", which the allocator refuses as upstream does."""
    found = []
    for index, entry in enumerate(read.sequence(raw)):
        inner = read.at(f"[{index}]")
        found.append(inner.text(inner.mapping(inner.mapping(entry).get("cel")).get("expression")))
    return tuple(found)


def _toleration(raw: object, read: Reader) -> Toleration:
    data = read.mapping(raw)
    operator = read.at("operator").text(data.get("operator"))
    if operator not in ("", "Exists", "Equal"):
        raise read.at("operator").wrong(f"{operator!r} is not an operator", "use Exists or Equal")
    effect = read.at("effect").text(data.get("effect"))
    if effect not in ("", "None", NO_SCHEDULE, NO_EXECUTE):
        raise read.at("effect").wrong(f"{effect!r} is not an effect", f"use {NO_SCHEDULE} or {NO_EXECUTE}")
    return Toleration(
        key=read.at("key").text(data.get("key")),
        operator=operator,
        value=read.at("value").text(data.get("value")),
        effect=effect,
        raw=dict(data),
    )


def _constraint(raw: object, read: Reader) -> Constraint:
    data = read.mapping(raw)
    return Constraint(
        requests=read.at("requests").texts(data.get("requests")),
        match_attribute=read.at("matchAttribute").text(data.get("matchAttribute")),
        distinct_attribute=read.at("distinctAttribute").text(data.get("distinctAttribute")),
    )


def _config(raw: object, read: Reader) -> tuple[Configuration, ...]:
    found = []
    for index, entry in enumerate(read.sequence(raw)):
        inner = read.at(f"[{index}]")
        data = inner.mapping(entry)
        opaque = inner.at("opaque").mapping(data.get("opaque"))
        found.append(
            Configuration(
                requests=inner.at("requests").texts(data.get("requests")),
                raw={key: value for key, value in data.items() if key != "requests"},
                driver=inner.at("opaque.driver").text(opaque.get("driver")),
                parameters=opaque.get("parameters"),
                where=inner.field,
            )
        )
    return tuple(found)
