"""One device as a ResourceSlice writes it, and the parts of cards: MIG instances and virtual functions.

**A device** has typed attributes, capacities with their policies, and taints. Unknown values, and strings longer than an attribute
may be (64 bytes), are left out. Source: resource.k8s.io/v1 Device.

**Parts** of a card exclude each other by counters. A counter set stands for one card, under the card's name. An allocated device consumes its counters, so that a
card and its parts, or two parts that overlap, are never given out at once:

====  ===============================================  ====================================================
set   counters                                         consumed by
====  ===============================================  ====================================================
GPU   memory-slice-0 .. n, one each; compute-slices,   the card (its first share): all of them;
      copy-engines, decoders, encoders, jpeg-engines,  a MIG instance: its memory slices by place, the rest
      ofa-engines                                      by number
PF    functions, one for each virtual function         the PF, shared or not: all; a virtual function: one
====  ===============================================  ====================================================

NVML does not report how many engines a card has. A profile of which a card holds n instances at once shows
that it has at least n times the profile's, and the largest such number is taken.

A GPU is offered whole or in parts as its current MIG mode says. A MIG instance is allocated whole; of its
capacities, ``memory`` is its own and ``cores`` its part of the card in percent, so that a request with an
amount matches a share or an instance alike. A virtual function is allocated whole and has no capacity: it
shares its port's bandwidth.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from koordra.api import names
from koordra.quantity import canonical
from koordra.topology.machine import Device, Gpu, Location, Machine, Nic
from koordra.topology.partitions import MigInstance, MigProfile, mig_name
from koordra.topology.product_names import semver

Mode = Literal["joint", "native"]

_LONGEST_STRING = 64
_LONGEST_TAINT_VALUE = 63


def document(
    name: str,
    *,
    mode: Mode,
    attributes: Mapping[str, Any],
    capacity: Mapping[str, Any],
    shared: bool,
    reason: str | None,
    consumes: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """An entry of ``spec.devices``. ``shared`` devices may be allocated several times; ``reason`` is why the
    device is not healthy; ``consumes`` is its entry of ``consumesCounters``."""
    joint = mode == names.MODE_JOINT
    allocator = names.ALLOCATOR_CONTROLLER if joint else names.ALLOCATOR_SCHEDULER
    taints = [{"key": names.JOINT_TAINT, "effect": "NoSchedule"}] if joint else []
    if reason:
        taints.append({"key": names.UNHEALTHY_TAINT, "value": reason, "effect": "NoSchedule"})
    built: dict[str, Any] = {
        "name": name,
        "allowMultipleAllocations": shared,
        "attributes": typed({**attributes, names.ATTR_ALLOCATOR: allocator}),
        "capacity": dict(capacity),
        "consumesCounters": [dict(consumes)] if consumes else [],
        "taints": taints,
    }
    return {field: value for field, value in built.items() if value}


def unhealthy(device: Device) -> str | None:
    """The value of the device's unhealthy taint; None for a healthy device."""
    if isinstance(device, Gpu):
        # A taint's value is a label value.
        faults = re.sub(r"[^0-9A-Za-z.-]", "", ".".join(device.faults))
        return faults[:_LONGEST_TAINT_VALUE].strip(".-") or None
    if isinstance(device, Nic) and not any(port.active for port in device.ports):
        return "LinkDown" if any(port.active is not None for port in device.ports) else "LinkStateUnknown"
    return None


class Version(str):
    """A string that is published as a version."""


def version(text: str | None) -> Version | None:
    normal = semver(text) if text else None
    return Version(normal) if normal else None


def location_attributes(location: Location) -> dict[str, Any]:
    return {
        names.ATTR_NUMA_NODE: location.numa,
        names.ATTR_SOCKET: location.socket,
        names.ATTR_PCIE_SWITCH: location.switches[0] if location.switches else None,
        names.ATTR_PCIE_PATH: _pcie_path(location.switches),
        names.STANDARD_PCIE_ROOT: location.root,
        names.STANDARD_PCI_BUS_ID: location.bus_id,
    }


def _pcie_path(switches: tuple[str, ...]) -> str | None:
    """The chain of upstream ports where switches are nested; of a chain that is too long its lower end, which
    identifies the place as well."""
    if len(switches) < 2:
        return None
    path = "/".join(switches)
    while len(path) > _LONGEST_STRING:
        path = path.partition("/")[2]
    return path


def typed(values: Mapping[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, value in sorted(values.items()):
        match value:
            case Version():
                made[name] = {"version": str(value)}
            case str():
                if 0 < len(value.encode()) <= _LONGEST_STRING:
                    made[name] = {"string": value}
            case bool():
                made[name] = {"bool": value}
            case int():
                made[name] = {"int": value}
    return made


def capacity(value: str, *, default: str, least: str, step: str) -> dict[str, Any]:
    return {"value": value, "requestPolicy": {"default": default, "validRange": {"min": least, "step": step}}}


_MIB = 1 << 20
_MOST_COUNTERS = 32
FUNCTIONS = "functions"

Counters = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class MigDevice:
    """A MIG instance as it is published; ``instance`` is None for a placement without an instance."""

    gpu: Gpu
    profile: MigProfile
    start: int
    size: int
    instance: MigInstance | None

    @property
    def name(self) -> str:
        return mig_name(self.gpu.name, self.profile.name, self.start)

    @property
    def counters(self) -> dict[str, int]:
        return {
            **{f"memory-slice-{place}": 1 for place in range(self.start, self.start + self.size)},
            **{name: count for name, count in _engines(self.profile).items() if count},
        }

    @property
    def cores(self) -> int:
        """Percent of the card's compute slices, rounded down."""
        return 100 * self.profile.compute_slices // max(1, gpu_counters(self.gpu).get("compute-slices", 1))

    @property
    def capacity(self) -> dict[str, Any]:
        return {
            names.CAPACITY_MEMORY: {"value": canonical(self.profile.memory_bytes // _MIB * _MIB)},
            names.CAPACITY_CORES: {"value": str(self.cores)},
        }


def _engines(profile: MigProfile) -> dict[str, int]:
    return {
        "compute-slices": profile.compute_slices,
        "copy-engines": profile.copy_engines,
        "decoders": profile.decoders,
        "encoders": profile.encoders,
        "jpeg-engines": profile.jpeg_engines,
        "ofa-engines": profile.ofa_engines,
    }


def gpu_counters(gpu: Gpu) -> dict[str, int]:
    """The card's counters in total; empty if it has no profiles, or more counters than a set may hold."""
    places = [start + size for profile in gpu.mig_profiles for start, size in profile.placements]
    totals = {f"memory-slice-{place}": 1 for place in range(min(max(places, default=0), _MOST_COUNTERS + 1))}
    for profile in gpu.mig_profiles:
        for name, count in _engines(profile).items():
            if count * profile.most:
                totals[name] = max(totals.get(name, 0), count * profile.most)
    return totals if len(totals) <= _MOST_COUNTERS else {}


def mig_devices(gpu: Gpu, *, placements: bool = False) -> Iterator[MigDevice]:
    """The card's publishable instances; with ``placements`` also every legal placement that no instance
    overlaps.

    By place, then by size, larger first.
    """
    totals = gpu_counters(gpu)
    if not (gpu.certain and gpu.mig_enabled and totals):
        return
    profiles = {profile.id: profile for profile in gpu.mig_profiles}
    found = [
        MigDevice(gpu, profiles[each.profile_id], each.start, each.size, each)
        for each in gpu.mig_instances
        if each.publishable and each.profile_id in profiles
    ]
    if placements:
        taken = {place for each in gpu.mig_instances for place in range(each.start, each.start + each.size)}
        found += [
            MigDevice(gpu, profile, start, size, None)
            for profile in gpu.mig_profiles
            for start, size in profile.placements
            if taken.isdisjoint(range(start, start + size))
        ]
    for device in sorted(found, key=lambda each: (each.start, -each.size, each.profile.id)):
        if all(count <= totals.get(name, 0) for name, count in device.counters.items()):
            yield device


def function_counts(machine: Machine) -> dict[str, int]:
    """Bus id of each PF that has virtual functions -> how many."""
    listed = Counter(vf.parent for vf in machine.vfs)
    return {
        nic.location.bus_id: max(nic.sriov_active, listed[nic.location.bus_id])
        for nic in machine.nics
        if nic.sriov_active or nic.location.bus_id in listed
    }


def virtual_functions(machine: Machine) -> Iterator[tuple[Nic, Nic]]:
    """Each virtual function that is certain, with its PF, by PF and number."""
    children: dict[str | None, list[tuple[int, Nic]]] = {}
    for vf in machine.vfs:
        if vf.publishable and vf.vf_index is not None:
            children.setdefault(vf.parent, []).append((vf.vf_index, vf))
    for nic in machine.nics:
        for _, vf in sorted(children.get(nic.location.bus_id, ()), key=lambda numbered: numbered[0]):
            yield vf, nic


def consumption(counter_set: str, counters: Counters) -> dict[str, Any]:
    return {"counterSet": counter_set, "counters": _written(counters)}


def counter_sets(sets: Iterable[tuple[str, Counters]]) -> list[dict[str, Any]]:
    """Entries of ``sharedCounters``."""
    return [{"name": name, "counters": _written(counters)} for name, counters in sets if counters]


def _written(counters: Counters) -> dict[str, Any]:
    return {name: {"value": str(counters[name])} for name in sorted(counters)}
