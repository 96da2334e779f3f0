"""ResourceSlices: which devices a driver publishes, for which nodes, in which generation of which pool."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from koordra.api import objects
from koordra.api.devices import (
    Device,
    NodeSelection,
    Reader,
    Taint,
    counters_from_dict,
    device_from_dict,
    selection_from_dict,
    taint_from_dict,
)


@dataclass(frozen=True, slots=True)
class ResourceSlice:
    """`shared_counters` maps counter set to counter to amount; `duplicate_counter_sets` are names that came twice."""

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
    def from_dict(cls, obj: Mapping[str, Any]) -> ResourceSlice:
        """Raises InvalidManifest naming slice and field."""
        read = Reader(object=objects.describe(obj), field="spec")
        spec = read.mapping(obj.get("spec"))
        pool = read.at("pool").mapping(spec.get("pool"))
        sets: dict[str, Mapping[str, Decimal]] = {}
        twice: list[str] = []
        for index, entry in enumerate(read.at("sharedCounters").sequence(spec.get("sharedCounters"))):
            inner = read.at(f"sharedCounters[{index}]")
            name = inner.at("name").text(inner.mapping(entry).get("name"), required=True)
            if name in sets:
                twice.append(name)
            sets[name] = counters_from_dict(entry.get("counters"), inner)
        return cls(
            name=objects.name(obj),
            driver=read.at("driver").text(spec.get("driver")),
            pool=read.at("pool.name").text(pool.get("name"), required=True),
            generation=read.at("pool.generation").whole(pool.get("generation")),
            slice_count=read.at("pool.resourceSliceCount").whole(pool.get("resourceSliceCount"), default=1),
            selection=selection_from_dict(spec, read),
            per_device_selection=read.at("perDeviceNodeSelection").flag(spec.get("perDeviceNodeSelection")),
            devices=tuple(
                device_from_dict(device, read.at(f"devices[{index}]"))
                for index, device in enumerate(read.at("devices").sequence(spec.get("devices")))
            ),
            shared_counters=sets,
            duplicate_counter_sets=tuple(twice),
        )


@dataclass(frozen=True, slots=True)
class DeviceTaintRule:
    """A taint that an administrator puts on every device the selector names; empty selector fields match all."""

    taint: Taint
    driver: str = ""
    pool: str = ""
    device: str = ""

    @classmethod
    def from_dict(cls, obj: Mapping[str, Any]) -> DeviceTaintRule:
        """Raises InvalidManifest naming rule and field."""
        read = Reader(object=objects.describe(obj), field="spec")
        spec = read.mapping(obj.get("spec"))
        selector = read.at("deviceSelector").mapping(spec.get("deviceSelector"))
        return cls(
            taint=taint_from_dict(spec.get("taint"), read.at("taint")),
            driver=read.at("deviceSelector.driver").text(selector.get("driver")),
            pool=read.at("deviceSelector.pool").text(selector.get("pool")),
            device=read.at("deviceSelector.device").text(selector.get("device")),
        )

    def selects(self, *, driver: str, pool: str, device: str) -> bool:
        return self.driver in ("", driver) and self.pool in ("", pool) and self.device in ("", device)
