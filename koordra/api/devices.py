"""ResourceSlices: which devices a driver publishes, for which nodes, in which generation of which pool; and
of each device its attributes, capacities with their request policies, taints, counters. DeviceTaintRules.

All values are frozen and exact (`Decimal` amounts). Reading is strict about the fields koordra acts on and
ignores those it does not know, since a newer API server may send more; an attribute of a type that is not
known stays in the value as `Attribute("", None)`, because that alone does not make the device unusable, only
the selectors that read it.

Source: resource.k8s.io/v1 ResourceSlice (KEP 4381, 4815 counters, 5055 taints, 5075 consumable capacity, 5491
lists).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final, NamedTuple

from koordra.api import names, objects
from koordra.api.objects import Fields
from koordra.api.reader import Reader
from koordra.api.tables import SizedCache

SCALARS: Final = {"int": int, "bool": bool, "string": str, "version": str}
LISTS: Final = {"ints": "int", "bools": "bool", "strings": "string", "versions": "version"}

NO_SCHEDULE: Final = "NoSchedule"
NO_EXECUTE: Final = "NoExecute"


class DeviceID(NamedTuple):
    """Who a device is: its name is unique within the pool, the pool within the driver."""

    driver: str
    pool: str
    device: str

    def __str__(self) -> str:
        return f"{self.driver}/{self.pool}/{self.device}"


@dataclass(frozen=True, slots=True)
class Attribute:
    """`kind` is the API's field name (`int`, `string`, `versions`, ...); lists are tuples; `""` is an unknown
    type."""

    kind: str
    value: Any

    @property
    def is_list(self) -> bool:
        return self.kind in LISTS

    @property
    def elements(self) -> frozenset[tuple[str, Any]]:
        """The value as a set of typed scalars; a scalar is a set of one."""
        if self.is_list:
            return frozenset((LISTS[self.kind], item) for item in self.value)
        return frozenset({(self.kind, self.value)}) if self.kind else frozenset()

    def __str__(self) -> str:
        return ", ".join(str(item) for item in self.value) if self.is_list else str(self.value)


@dataclass(frozen=True, slots=True)
class RequestPolicy:
    """How an amount asked of one capacity becomes the amount consumed."""

    default: Decimal | None = None
    valid_values: tuple[Decimal, ...] = ()
    minimum: Decimal | None = None
    maximum: Decimal | None = None
    step: Decimal | None = None
    has_range: bool = False
    spelled: Mapping[str, str] = field(default_factory=dict, compare=False, hash=False)


@dataclass(frozen=True, slots=True)
class Capacity:
    """`spelled` is the quantity as published; it decides the form in which consumed amounts are written."""

    value: Decimal
    spelled: str
    policy: RequestPolicy | None = None


@dataclass(frozen=True, slots=True)
class Taint:
    key: str
    value: str = ""
    effect: str = NO_SCHEDULE

    @property
    def keeps_out(self) -> bool:
        """Whether it keeps requests away that do not tolerate it."""
        return self.effect in (NO_SCHEDULE, NO_EXECUTE)

    @property
    def is_other_mode(self) -> bool:
        """Whether it is of what a card has in the MIG mode that it is not in."""
        return (self.key, self.value) == (names.MIG_MODE_TAINT, names.MIG_MODE_NEEDED)

    def __str__(self) -> str:
        return f"{self.key}={self.value}:{self.effect}" if self.value else f"{self.key}:{self.effect}"


@dataclass(frozen=True, slots=True)
class NodeSelection:
    """Where something is usable: one node, the nodes of a selector, all nodes, or (None of them) nowhere
    known."""

    node_name: str = ""
    all_nodes: bool = False
    selector: Fields | None = field(default=None, hash=False)


@dataclass(frozen=True, slots=True, eq=False)
class Device:
    """Devices that are published alike are one value (`read_device`), so that what is made of it can be kept
    by identity. `alike`: of one with a `koordra.io/uuid` the same without it, which is one value for the
    devices at a place of all machines of a type."""

    name: str
    attributes: Mapping[str, Attribute] = field(default_factory=dict, hash=False)
    capacity: Mapping[str, Capacity] = field(default_factory=dict, hash=False)
    consumes_counters: Mapping[str, Mapping[str, Decimal]] = field(default_factory=dict, hash=False)
    selection: NodeSelection = NodeSelection()
    taints: tuple[Taint, ...] = ()
    binds_to_node: bool = False
    binding_conditions: tuple[str, ...] = ()
    binding_failure_conditions: tuple[str, ...] = ()
    allow_multiple_allocations: bool = False
    alike: Device | None = None

    @property
    def counters(self) -> dict[tuple[str, str], Decimal]:
        """What the device takes of its pool's counters, by set and counter."""
        return {
            (name, counter): amount
            for name, counters in self.consumes_counters.items()
            for counter, amount in counters.items()
        }


_kept: Final = SizedCache[bytes, Device](16 << 20)
"""Devices by what was read: machines of one type publish the same."""


def read_device(read: Reader) -> Device:
    """One entry of `spec.devices`. Raises InvalidManifest.

    What is published alike is read once, but for the UUID, by which no two devices are.
    """
    attributes = objects.fields(read.data.get("attributes"))
    if names.ATTR_UUID in attributes:
        return _with_uuid(read, attributes)
    content = read.content
    found = _kept.get(content)
    if found is None:
        found = _device(read)
        if content:
            _kept.keep(content, found, len(content))
    return found


def _with_uuid(read: Reader, attributes: Fields) -> Device:
    rest = {name: value for name, value in attributes.items() if name != names.ATTR_UUID}
    alike = read_device(read.over({**read.data, "attributes": rest}))
    only = read.over({"attributes": {names.ATTR_UUID: attributes[names.ATTR_UUID]}})
    uuid = {name: read_attribute(each) for name, each in only.entries("attributes")}
    return Device(
        alike.name,
        {**alike.attributes, **uuid},
        alike.capacity,
        alike.consumes_counters,
        alike.selection,
        alike.taints,
        alike.binds_to_node,
        alike.binding_conditions,
        alike.binding_failure_conditions,
        alike.allow_multiple_allocations,
        alike,
    )


def _device(read: Reader) -> Device:
    name = read.required("name")
    if "basic" in read.data:  # where v1beta1 keeps the body
        read = read.over({**read.data, **read.inner("basic").data})
    return Device(
        name=name,
        attributes={key: read_attribute(each) for key, each in read.entries("attributes")},
        capacity={key: read_capacity(each) for key, each in read.entries("capacity")},
        consumes_counters={
            str(each.data.get("counterSet", "")): read_counters(each)
            for each in read.each("consumesCounters")
        },
        selection=read_selection(read),
        taints=tuple(read_taint(each) for each in read.each("taints")),
        binds_to_node=read.flag("bindsToNode"),
        binding_conditions=read.texts("bindingConditions"),
        binding_failure_conditions=read.texts("bindingFailureConditions"),
        allow_multiple_allocations=read.flag("allowMultipleAllocations"),
    )


def read_attribute(read: Reader) -> Attribute:
    for kind, python in SCALARS.items():
        value = read.data.get(kind)
        if value is not None:
            if not isinstance(value, python) or (python is int and isinstance(value, bool)):
                raise read.wrong(f"{value!r} is not of type {kind}")
            return Attribute(kind, value)
    for kind, scalar in LISTS.items():
        if items := read.sequence(kind):
            if not all(isinstance(item, SCALARS[scalar]) for item in items):
                raise read.wrong(f"{kind} holds something that is not {scalar}")
            return Attribute(kind, tuple(items))
    return Attribute("", None)


def read_capacity(read: Reader) -> Capacity:
    policy = read.optional("requestPolicy")
    return Capacity(read.amount("value"), str(read.data.get("value")), _policy(policy) if policy else None)


def _policy(read: Reader) -> RequestPolicy:
    bounds = read.inner("validRange")
    step = bounds.amount_or_none("step")
    if step is not None and step <= 0:
        raise bounds.wrong(f"{bounds.data['step']} is not above zero", at="step")
    valid = {
        value: read.quantity(value, at=f"validValues[{index}]")
        for index, value in enumerate(read.sequence("validValues"))
    }
    spelled = {"default": read.data.get("default"), **bounds.data}
    spelled |= {str(amount): value for value, amount in valid.items()}
    return RequestPolicy(
        default=read.amount_or_none("default"),
        valid_values=tuple(valid.values()),
        minimum=bounds.amount_or_none("min"),
        maximum=bounds.amount_or_none("max"),
        step=step,
        has_range=read.data.get("validRange") is not None,
        spelled={name: str(value) for name, value in spelled.items() if value is not None},
    )


def read_taint(read: Reader) -> Taint:
    return Taint(read.required("key"), read.text("value"), read.required("effect"))


def read_counters(read: Reader) -> dict[str, Decimal]:
    return {name: each.amount("value") for name, each in read.entries("counters")}


def read_selection(read: Reader) -> NodeSelection:
    return NodeSelection(
        read.text("nodeName"),
        read.flag("allNodes"),
        selector.data if (selector := read.optional("nodeSelector")) else None,
    )


@dataclass(frozen=True, slots=True)
class ResourceSlice:
    """`shared_counters` maps counter set to counter to amount; `duplicate_counter_sets` are names that came
    twice."""

    name: str
    driver: str
    pool: str
    generation: int
    slice_count: int
    selection: NodeSelection
    per_device_selection: bool = False
    devices: tuple[Device, ...] = ()
    shared_counters: Mapping[str, Mapping[str, Decimal]] = field(default_factory=dict, hash=False)
    duplicate_counter_sets: tuple[str, ...] = ()

    @classmethod
    def from_dict(cls, obj: Fields) -> ResourceSlice:
        """Raises InvalidManifest naming slice and field."""
        read = Reader.of(obj).inner("spec")
        pool = read.inner("pool")
        sets: dict[str, Mapping[str, Decimal]] = {}
        twice: list[str] = []
        for each in read.each("sharedCounters"):
            name = each.required("name")
            if name in sets:
                twice.append(name)
            sets[name] = read_counters(each)
        return cls(
            name=objects.name(obj),
            driver=read.text("driver"),
            pool=pool.required("name"),
            generation=pool.whole("generation"),
            slice_count=pool.whole("resourceSliceCount", default=1),
            selection=read_selection(read),
            per_device_selection=read.flag("perDeviceNodeSelection"),
            devices=tuple(read_device(device) for device in read.each("devices")),
            shared_counters=sets,
            duplicate_counter_sets=tuple(twice),
        )


@dataclass(frozen=True, slots=True)
class DeviceTaintRule:
    """A taint that an administrator puts on devices by a selector; empty selector fields match all."""

    taint: Taint
    driver: str = ""
    pool: str = ""
    device: str = ""

    @classmethod
    def from_dict(cls, obj: Fields) -> DeviceTaintRule:
        """Raises InvalidManifest naming rule and field."""
        read = Reader.of(obj).inner("spec")
        selector = read.inner("deviceSelector")
        return cls(
            taint=read_taint(read.inner("taint")),
            driver=selector.text("driver"),
            pool=selector.text("pool"),
            device=selector.text("device"),
        )

    def selects(self, *, driver: str, pool: str, device: str) -> bool:
        return self.driver in ("", driver) and self.pool in ("", pool) and self.device in ("", device)
