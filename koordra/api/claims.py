"""ResourceClaims as they are asked for: requests, constraints, tolerations, configuration; and the
DeviceClass.

A request is exact (`exactly`) or a list of alternatives in order of preference (`firstAvailable`); both end
up as `DeviceRequest.alternatives`, one entry for an exact request. Fields that the API server fills in
(namespace, uid, allocationMode, count) may be absent. v1beta1's flat request form is read too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final

from koordra.api import objects
from koordra.api.devices import NO_EXECUTE, NO_SCHEDULE, Taint
from koordra.api.objects import Fields
from koordra.api.reader import Reader
from koordra.api.tables import SizedCache
from koordra.nesting import is_deeper

EXACT_COUNT: Final = "ExactCount"
ALL: Final = "All"

MAX_RESULTS: Final = 32
"""Devices that fit into one claim's allocation (resource.k8s.io AllocationResultsMaxSize)."""
MOST_LEVELS: Final = 100
"""To which opaque parameters may be nested: more cannot be encoded again, or compared, on every Python."""


@dataclass(frozen=True, slots=True)
class Toleration:
    """`raw` is the toleration as written: results carry it unchanged."""

    key: str
    operator: str
    value: str
    effect: str
    raw: Fields = field(compare=False, hash=False, default_factory=dict)

    def tolerates(self, taint: Taint) -> bool:
        """Source of the rule: k8s.io/dynamic-resource-allocation resourceclaim.ToleratesTaint."""
        if self.effect and self.effect != taint.effect:
            return False
        if self.key and self.key != taint.key:
            return False
        return self.operator == "Exists" or (self.operator in ("", "Equal") and self.value == taint.value)


@dataclass(frozen=True, slots=True)
class Alternative:
    """What is asked for: an exact request, or one entry of `firstAvailable` (then `name` is the
    subrequest's)."""

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
    """`prioritized`: the alternatives come from `firstAvailable`, and results are named
    `request/subrequest`."""

    name: str
    alternatives: tuple[Alternative, ...]
    prioritized: bool = False


@dataclass(frozen=True, slots=True)
class Constraint:
    """Over the devices of `requests` (all of the claim when empty); exactly one attribute is set, else it is
    unknown."""

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
    """One entry of `config`, at `where`; `raw` is the entry without `requests`, copied into the allocation
    unchanged."""

    requests: tuple[str, ...]
    raw: Fields = field(hash=False)
    driver: str = ""
    parameters: Any = field(default=None, hash=False)
    where: str = ""


@dataclass(frozen=True, slots=True)
class DeviceClass:
    name: str
    selectors: tuple[str, ...] = ()
    config: tuple[Configuration, ...] = ()

    @classmethod
    def from_dict(cls, obj: Fields) -> DeviceClass:
        """Raises InvalidManifest naming class and field."""
        read = Reader.of(obj).inner("spec")
        return cls(name=objects.name(obj), selectors=_selectors(read), config=_config(read))


@dataclass(frozen=True, slots=True)
class ResourceClaim:
    """A claim's spec. `key` is `namespace/name`; `uid` is empty for a manifest that was never applied.

    `content` is equal for claims whose requests, constraints and configuration are written alike: those of
    one template are read once.
    """

    namespace: str
    name: str
    uid: str
    requests: tuple[DeviceRequest, ...] = ()
    constraints: tuple[Constraint, ...] = ()
    config: tuple[Configuration, ...] = ()
    immediate: bool = False
    created: str = ""
    content: bytes = field(default=b"", compare=False)

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    def __str__(self) -> str:
        return f"ResourceClaim {self.key}"

    @classmethod
    def from_dict(cls, obj: Fields) -> ResourceClaim:
        """Raises InvalidManifest naming claim and field."""
        spec = Reader(obj, object=f"ResourceClaim {objects.key(obj)}").inner("spec")
        devices = spec.inner("devices")
        content = devices.content
        found = _kept.get(content)
        if found is None:
            found = _asked(devices)
            if content:
                _kept.keep(content, found, len(content))
        requests, constraints, config = found
        return cls(
            namespace=objects.namespace(obj),
            name=objects.name(obj),
            uid=objects.uid(obj),
            requests=requests,
            constraints=constraints,
            config=config,
            # classic DRA's allocationMode, as the field it was or as an annotation
            immediate=objects.annotations_of(obj).get(
                "koordra.io/allocation-mode", spec.data.get("allocationMode")
            )
            == "Immediate",
            created=str(objects.metadata(obj).get("creationTimestamp") or ""),
            content=content,
        )


_Asked = tuple[tuple[DeviceRequest, ...], tuple[Constraint, ...], tuple[Configuration, ...]]
_kept: Final = SizedCache[bytes, _Asked](1 << 20)


def _asked(devices: Reader) -> _Asked:
    return (
        tuple(_request(request) for request in devices.each("requests")),
        tuple(
            Constraint(each.texts("requests"), each.text("matchAttribute"), each.text("distinctAttribute"))
            for each in devices.each("constraints")
        ),
        _config(devices),
    )


def _request(read: Reader) -> DeviceRequest:
    name = read.required("name")
    if read.sequence("firstAvailable"):
        if read.data.get("exactly") is not None:
            raise read.wrong("has both exactly and firstAvailable", "keep one of them")
        return DeviceRequest(
            name,
            tuple(_alternative(each, each.required("name")) for each in read.each("firstAvailable")),
            prioritized=True,
        )
    return DeviceRequest(name, (_alternative(read.optional("exactly") or read, name),))


def _alternative(read: Reader, name: str) -> Alternative:
    capacity = read.optional("capacity")
    return Alternative(
        name=name,
        device_class=read.text("deviceClassName"),
        mode=read.text("allocationMode") or EXACT_COUNT,
        count=_count(read),
        selectors=_selectors(read),
        admin_access=read.flag("adminAccess"),
        tolerations=tuple(
            Toleration(
                key=each.text("key"),
                operator=each.choice(
                    "operator",
                    ("Exists", "Equal"),
                    problem="is not an operator",
                    remedy="use Exists or Equal",
                ),
                value=each.text("value"),
                effect=each.choice("effect", (NO_SCHEDULE, NO_EXECUTE, "None"), problem="is not an effect"),
                raw=dict(each.data),
            )
            for each in read.each("tolerations")
        ),
        capacity=None if capacity is None else capacity.amounts("requests"),
        capacity_spelled={}
        if capacity is None
        else {key: str(value) for key, value in capacity.inner("requests").data.items()},
    )


def _count(read: Reader) -> int:
    """An absent count, and 0 under ExactCount, is the API's default of one; below zero cannot be meant."""
    count = read.whole("count")
    if count < 0:
        raise read.wrong(f"{count} devices cannot be asked for", "use a count of 1 or more", at="count")
    return count or 1


def _selectors(read: Reader) -> tuple[str, ...]:
    """CEL expressions; an entry that is not CEL becomes "", which the allocator refuses as upstream does."""
    return tuple(each.inner("cel").text("expression") for each in read.each("selectors"))


def _config(read: Reader) -> tuple[Configuration, ...]:
    return tuple(map(_configuration, read.each("config")))


def _configuration(read: Reader) -> Configuration:
    """Of any driver: an allocation has copies of all."""
    opaque = read.inner("opaque")
    parameters = opaque.data.get("parameters")
    if is_deeper(parameters, MOST_LEVELS):
        raise opaque.wrong(f"is nested deeper than {MOST_LEVELS} levels", "write it flatter", at="parameters")
    return Configuration(
        requests=read.texts("requests"),
        raw=objects.without(read.data, "requests"),
        driver=opaque.text("driver"),
        parameters=parameters,
        where=read.field,
    )
