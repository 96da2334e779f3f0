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
    Taint,
    read_counters,
    read_device,
    read_selection,
    read_taint,
)
from koordra.api.reader import Reader


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
        read = Reader.of(obj).inner("spec")
        pool = read.inner("pool")
        sets: dict[str, Mapping[str, Decimal]] = {}
        twice: list[str] = []
        for each in read.each("sharedCounters"):
            name = each.text("name", required=True)
            if name in sets:
                twice.append(name)
            sets[name] = read_counters(each)
        return cls(
            name=objects.name(obj),
            driver=read.text("driver"),
            pool=pool.text("name", required=True),
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
    """A taint that an administrator puts on every device the selector names; empty selector fields match all."""

    taint: Taint
    driver: str = ""
    pool: str = ""
    device: str = ""

    @classmethod
    def from_dict(cls, obj: Mapping[str, Any]) -> DeviceTaintRule:
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
