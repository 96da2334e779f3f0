"""What a ResourceSlice says about one device: attributes, capacities with their request policies, taints, counters.

All values are frozen and exact (`Decimal` amounts). Reading is strict about the fields koordra acts on and deaf to the
ones it does not know, since a newer API server may send more; an attribute of a type that is not known stays in the
value as `Attribute("", None)`, because that alone does not make the device unusable, only the selectors that read it.

Source: resource.k8s.io/v1 ResourceSlice (KEP 4381, 4815 counters, 5055 taints, 5075 consumable capacity, 5491 lists).
"""

from __future__ import annotations

import marshal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final

from koordra.errors import InvalidManifest, InvalidQuantity
from koordra.quantity import parse

SCALARS: Final = {"int": int, "bool": bool, "string": str, "version": str}
LISTS: Final = {"ints": "int", "bools": "bool", "strings": "string", "versions": "version"}

NO_SCHEDULE: Final = "NoSchedule"
NO_EXECUTE: Final = "NoExecute"


@dataclass(frozen=True, slots=True, order=True)
class DeviceID:
    """Who a device is: its name is unique within the pool, the pool within the driver."""

    driver: str
    pool: str
    device: str

    def __str__(self) -> str:
        return f"{self.driver}/{self.pool}/{self.device}"


@dataclass(frozen=True, slots=True)
class Attribute:
    """`kind` is the API's field name (`int`, `string`, `versions`, ...); lists are tuples; `""` is an unknown type."""

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

    def __str__(self) -> str:
        return f"{self.key}={self.value}:{self.effect}" if self.value else f"{self.key}:{self.effect}"


@dataclass(frozen=True, slots=True)
class NodeSelection:
    """Where something is usable: one node, the nodes of a selector, all nodes, or (None of them) nowhere known."""

    node_name: str = ""
    all_nodes: bool = False
    selector: Mapping[str, Any] | None = field(default=None, hash=False)


@dataclass(frozen=True, slots=True, eq=False)
class Device:
    """Devices that are published alike are one value (`device_from_dict`), so that what is made of it can be kept by identity."""

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


class Reader:
    """Reads typed fields of one object and names object and field when they are wrong."""

    __slots__ = ("field", "object")

    def __init__(self, *, object: str, field: str = "") -> None:
        self.object = object
        self.field = field

    def at(self, part: str) -> Reader:
        """A reader one field further in."""
        dot = "." if self.field and not part.startswith("[") else ""
        return Reader(object=self.object, field=f"{self.field}{dot}{part}")

    def wrong(self, problem: str, remedy: str = "") -> InvalidManifest:
        return InvalidManifest(problem, object=self.object, field=self.field, remedy=remedy)

    def mapping(self, value: object) -> Mapping[str, Any]:
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise self.wrong("is not an object")
        return value

    def sequence(self, value: object) -> Sequence[Any]:
        if value is None:
            return ()
        if not isinstance(value, list | tuple):
            raise self.wrong("is not a list")
        return value

    def text(self, value: object, *, required: bool = False) -> str:
        if value is None or value == "":
            if required:
                raise self.wrong("is missing", "write a name")
            return ""
        if not isinstance(value, str):
            raise self.wrong(f"{value!r} is not text", "quote it")
        return value

    def text_of(self, fields: Mapping[str, Any], name: str, *, required: bool = False) -> str:
        """A text one field further in; where it is well, as nearly always, nothing is made for its message."""
        value = fields.get(name)
        return value if value and type(value) is str else self.at(name).text(value, required=required)

    def texts(self, value: object) -> tuple[str, ...]:
        return tuple(self.text(item, required=True) for item in self.sequence(value))

    def whole(self, value: object, *, default: int = 0) -> int:
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.wrong(f"{value!r} is not a whole number")
        return value

    def flag(self, value: object) -> bool:
        if value is None:
            return False
        if not isinstance(value, bool):
            raise self.wrong(f"{value!r} is neither true nor false")
        return value

    def amount(self, value: object) -> Decimal:
        try:
            return parse(value)
        except InvalidQuantity as error:
            raise self.wrong(error.problem, error.remedy) from error


_MOST_KEPT: Final = 1 << 12
_kept: dict[bytes, Device] = {}
"""Devices by what was read: machines of one type publish the same."""


def device_from_dict(raw: object, read: Reader) -> Device:
    """One entry of `spec.devices`. `read` names the slice and the entry. Raises InvalidManifest."""
    try:
        content = marshal.dumps(raw, 0)  # type: ignore[arg-type]
    except ValueError:
        return _device(raw, read)
    found = _kept.get(content)
    if found is None:
        found = _device(raw, read)
        if len(_kept) >= _MOST_KEPT:
            _kept.clear()
        _kept[content] = found
    return found


def _device(raw: object, read: Reader) -> Device:
    data = read.mapping(raw)
    # v1beta1 keeps the body under `basic`.
    body = {**data, **read.at("basic").mapping(data.get("basic"))} if "basic" in data else data
    counters = {}
    for entry in read.at("consumesCounters").sequence(body.get("consumesCounters")):
        inner = read.at("consumesCounters").mapping(entry)
        counters[str(inner.get("counterSet", ""))] = counters_from_dict(
            inner.get("counters"), read.at("consumesCounters")
        )
    return Device(
        name=read.at("name").text(data.get("name"), required=True),
        attributes={
            name: attribute_from_dict(value, read.at(f"attributes[{name}]"))
            for name, value in read.at("attributes").mapping(body.get("attributes")).items()
        },
        capacity={
            name: capacity_from_dict(value, read.at(f"capacity[{name}]"))
            for name, value in read.at("capacity").mapping(body.get("capacity")).items()
        },
        consumes_counters=counters,
        selection=selection_from_dict(body, read),
        taints=tuple(
            taint_from_dict(taint, read.at("taints")) for taint in read.sequence(body.get("taints"))
        ),
        binds_to_node=read.at("bindsToNode").flag(body.get("bindsToNode")),
        binding_conditions=read.at("bindingConditions").texts(body.get("bindingConditions")),
        binding_failure_conditions=read.at("bindingFailureConditions").texts(
            body.get("bindingFailureConditions")
        ),
        allow_multiple_allocations=read.at("allowMultipleAllocations").flag(
            body.get("allowMultipleAllocations")
        ),
    )


def attribute_from_dict(raw: object, read: Reader) -> Attribute:
    data = read.mapping(raw)
    for kind, python in SCALARS.items():
        value = data.get(kind)
        if value is not None:
            if not isinstance(value, python) or (python is int and isinstance(value, bool)):
                raise read.wrong(f"{value!r} is not of type {kind}")
            return Attribute(kind, value)
    for kind, scalar in LISTS.items():
        if data.get(kind):
            items = read.at(kind).sequence(data[kind])
            if not all(isinstance(item, SCALARS[scalar]) for item in items):
                raise read.wrong(f"{kind} holds something that is not {scalar}")
            return Attribute(kind, tuple(items))
    return Attribute("", None)


def capacity_from_dict(raw: object, read: Reader) -> Capacity:
    data = read.mapping(raw)
    value = data.get("value")
    policy = data.get("requestPolicy")
    return Capacity(
        value=read.at("value").amount(value),
        spelled=str(value),
        policy=None if policy is None else policy_from_dict(policy, read.at("requestPolicy")),
    )


def policy_from_dict(raw: object, read: Reader) -> RequestPolicy:
    data = read.mapping(raw)
    valid_range = data.get("validRange")
    bounds = read.at("validRange").mapping(valid_range)

    def amount(value: object) -> Decimal | None:
        return None if value is None else read.amount(value)

    step = amount(bounds.get("step"))
    if step is not None and step <= 0:
        raise read.at("validRange.step").wrong(f"{bounds.get('step')} is not above zero")
    return RequestPolicy(
        default=amount(data.get("default")),
        valid_values=tuple(read.amount(value) for value in read.sequence(data.get("validValues"))),
        minimum=amount(bounds.get("min")),
        maximum=amount(bounds.get("max")),
        step=step,
        has_range=valid_range is not None,
        spelled={
            **{name: str(bounds[name]) for name in ("min", "max", "step") if bounds.get(name) is not None},
            **({"default": str(data["default"])} if data.get("default") is not None else {}),
            **{str(read.amount(value)): str(value) for value in data.get("validValues") or ()},
        },
    )


def taint_from_dict(raw: object, read: Reader) -> Taint:
    data = read.mapping(raw)
    return Taint(
        key=read.at("key").text(data.get("key"), required=True),
        value=read.at("value").text(data.get("value")),
        effect=read.at("effect").text(data.get("effect"), required=True),
    )


def counters_from_dict(raw: object, read: Reader) -> dict[str, Decimal]:
    return {
        name: read.at(f"counters[{name}]").amount(read.mapping(value).get("value"))
        for name, value in read.at("counters").mapping(raw).items()
    }


def selection_from_dict(data: Mapping[str, Any], read: Reader) -> NodeSelection:
    selector = data.get("nodeSelector")
    return NodeSelection(
        node_name=read.at("nodeName").text(data.get("nodeName")),
        all_nodes=read.at("allNodes").flag(data.get("allNodes")),
        selector=None if selector is None else read.at("nodeSelector").mapping(selector),
    )
