"""One device as a ResourceSlice writes it, and the parts of cards: MIG instances and virtual functions.

**A device** has typed attributes, capacities with their policies, and taints. Unknown values, and strings
longer than an attribute may be (64 bytes), are left out. Source: resource.k8s.io/v1 Device.

**Parts** of a card exclude each other by counters. A counter set stands for one card, under the card's name.
An allocated device consumes its counters, so that a card and its parts, or two parts that overlap, are never
given out at once:

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

A GPU is offered whole or in parts as its current MIG mode says. Of a card in MIG mode its instances are
offered, and on a node that makes them on demand every place that a profile has, with or without an instance;
what is published does not change as those come and go. A MIG instance is allocated whole; of its
capacities, ``memory`` is its own and ``cores`` its part of the card in percent, so that a request with an
amount matches a share or an instance alike. A virtual function is allocated whole and has no capacity: it
shares its port's bandwidth.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Literal

from koordra.api import names
from koordra.api.objects import Fields, Object
from koordra.kubelet_plugin.publish.drain_policy import DrainPolicy
from koordra.quantity import canonical
from koordra.topology.location import LONGEST_STRING
from koordra.topology.machine import Device, Gpu, Machine, Nic
from koordra.topology.partitions import MigInstance, MigProfile, mig_name
from koordra.topology.product_names import semver

Mode = Literal["joint", "native"]
WITHOUT_DRAIN: Final = DrainPolicy()
Counters = Mapping[str, int]
AbsentDevices = Mapping[str, tuple[str, ...]]
"""Devices that claims hold and that cannot be offered, and their faults."""
NO_ABSENT_DEVICES: Final[AbsentDevices] = MappingProxyType({})

MIB = 1 << 20
FUNCTIONS = "functions"
_MOST_COUNTERS = 32
_PART = re.compile(r"(?P<whole>.+)-(?:mig|vf)-.+")
_LONGEST_TAINT_VALUE = 63


_SWITCH_NEEDED: Final = {
    "key": names.MIG_MODE_TAINT,
    "value": names.MIG_MODE_NEEDED,
    "effect": "NoSchedule",
}


@dataclass(frozen=True, slots=True)
class DeviceEntry:
    """``device`` is what can be unhealthy, of a MIG instance its card, None for IMEX channels. ``shared``
    devices may be allocated several times. ``consumes``: a counter set, and what of it goes with the
    device. Without ``is_now`` the MIG mode of the card has to be switched for it."""

    name: str
    device: Gpu | Nic | None
    attributes: Fields
    consumes: tuple[str, Counters]
    capacity: Fields = field(default_factory=dict)
    shared: bool = False
    is_now: bool = True


def document(published: DeviceEntry, *, mode: Mode, drain: DrainPolicy = WITHOUT_DRAIN) -> Object:
    """An entry of ``spec.devices``."""
    counter_set, counters = published.consumes
    built: Object = {
        "name": published.name,
        "allowMultipleAllocations": published.shared,
        "attributes": typed({**published.attributes, names.ATTR_ALLOCATOR: _allocator(mode)}),
        "capacity": dict(published.capacity),
        "consumesCounters": [{"counterSet": counter_set, "counters": written(counters)}] if counters else [],
        "taints": [
            *_taints(faults_of(published.device), mode=mode, drain=drain),
            *([] if published.is_now else [_SWITCH_NEEDED]),
        ],
    }
    return {field: value for field, value in built.items() if value}


def _allocator(mode: Mode) -> str:
    return names.ALLOCATOR_CONTROLLER if mode == names.MODE_JOINT else names.ALLOCATOR_SCHEDULER


def _taints(faults: tuple[str, ...], *, mode: Mode, drain: DrainPolicy) -> list[Object]:
    taints = [{"key": names.JOINT_TAINT, "effect": "NoSchedule"}] if mode == names.MODE_JOINT else []
    if value := _taint_value(faults):
        effect = "NoExecute" if drain.ends_pods(faults) else "NoSchedule"
        taints.append({"key": names.UNHEALTHY_TAINT, "value": value, "effect": effect})
    return taints


def absent_device(
    name: str, faults: tuple[str, ...], *, mode: Mode, drain: DrainPolicy = WITHOUT_DRAIN
) -> Object:
    """The entry of a GPU or MIG instance that claims hold and that cannot be offered: nobody is to get it,
    and who holds it is to see why, or to end by the operator's policy."""
    whole = whole_of(name)
    attributes = {names.ATTR_TYPE: names.TYPE_GPU, names.ATTR_ALLOCATOR: _allocator(mode)}
    if whole != name:
        attributes |= {names.ATTR_TYPE: names.TYPE_MIG, names.ATTR_PARENT: whole}
    return {
        "name": name,
        **({"allowMultipleAllocations": True} if whole == name else {}),
        "attributes": typed(attributes),
        "taints": _taints(faults, mode=mode, drain=drain),
    }


def unhealthy(device: Device) -> str | None:
    """The value of the device's unhealthy taint; None for a healthy device."""
    return _taint_value(faults_of(device))


def _taint_value(faults: tuple[str, ...]) -> str | None:
    # A taint's value is a label value.
    value = re.sub(r"[^0-9A-Za-z.-]", "", ".".join(faults))
    if len(value) > _LONGEST_TAINT_VALUE:  # whole words: Xid154 is not to read Xid15
        value = value[: _LONGEST_TAINT_VALUE + 1].rpartition(".")[0]
    return value.strip(".-") or None


def faults_of(device: Device | None) -> tuple[str, ...]:
    if device is None:
        return ()
    if isinstance(device, Gpu) or any(port.active for port in device.ports):
        return device.faults
    down = any(port.active is not None for port in device.ports)
    return ("LinkDown" if down else "LinkStateUnknown", *device.faults)


class Version(str):
    """A string that is published as a version."""


def version(text: str | None) -> Version | None:
    normal = semver(text) if text else None
    return Version(normal) if normal else None


def typed(values: Fields) -> Object:
    made: Object = {}
    for name, value in sorted(values.items()):
        match value:
            case Version():
                made[name] = {"version": str(value)}
            case str():
                if 0 < len(value.encode()) <= LONGEST_STRING:
                    made[name] = {"string": value}
            case bool():
                made[name] = {"bool": value}
            case int():
                made[name] = {"int": value}
    return made


def capacity(value: str, *, default: str, least: str, step: str) -> Object:
    return {"value": value, "requestPolicy": {"default": default, "validRange": {"min": least, "step": step}}}


@dataclass(frozen=True, slots=True)
class MigDevice:
    """A MIG instance as it is published, or, without ``instance``, a place where one can be made."""

    gpu: Gpu
    profile: MigProfile
    start: int
    size: int
    instance: MigInstance | None = None

    @property
    def name(self) -> str:
        return mig_name(self.gpu.name, self.profile.name, self.start)

    @property
    def identity(self) -> str:
        """What stays when the instance is made again after a reset or a reboot: card, profile, placement.
        Its own UUID and the GPU instance's id do not."""
        return f"{self.gpu.uuid}/{self.profile.name}/{self.start}:{self.size}"

    @property
    def slices(self) -> frozenset[int]:
        return frozenset(range(self.start, self.start + self.size))

    @property
    def counters(self) -> dict[str, int]:
        return {
            **{f"memory-slice-{place}": 1 for place in self.slices},
            **{name: count for name, count in _engines(self.profile).items() if count},
        }

    @property
    def cores(self) -> int:
        """Percent of the card's multiprocessors, rounded down: an H100 has 132, of which 1g.20gb has 26 and
        seven 1g.10gb together 112. Where either number is not known, of its compute slices."""
        if self.profile.multiprocessors and self.gpu.multiprocessors:
            return 100 * self.profile.multiprocessors // self.gpu.multiprocessors
        return 100 * self.profile.compute_slices // max(1, gpu_counters(self.gpu).get("compute-slices", 1))

    @property
    def capacity(self) -> Object:
        return {
            names.CAPACITY_MEMORY: {"value": canonical(self.profile.memory_bytes // MIB * MIB)},
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


def mig_devices(
    gpu: Gpu, *, on_demand: bool = False, own: Collection[str] | None = None
) -> Iterator[MigDevice]:
    """The card's publishable instances, the smallest first: of places that leave the same the first is taken,
    and kube-scheduler takes the first that does.

    `on_demand`: also all places where one can be made, whether an instance of koordra's is in the way or not:
    counters keep two that overlap from being given out. `own` are the identities of koordra's instances
    (None: all that there are); where another's is, no place is offered.
    """
    totals = gpu_counters(gpu)
    if not (gpu.certain and gpu.mig_enabled and totals):
        return
    made = {(each.profile_id, each.start, each.size): each for each in gpu.mig_instances}
    others: frozenset[int] = frozenset()
    found = [
        MigDevice(gpu, profile, start, size, made.get((profile.id, start, size)))
        for profile in gpu.mig_profiles
        for start, size in _places(profile, made)
    ]
    if on_demand and gpu.mig_halves is None:
        on_demand = False
    if own is not None:
        occupied = {*made, *(gpu.mig_halves or ())}
        mine = {(device.profile.id, device.start, device.size) for device in found if device.identity in own}
        others = frozenset(
            place for _, start, size in occupied - mine for place in range(start, start + size)
        )
    for device in sorted(found, key=_takes):
        if device.instance is not None:
            offered = device.instance.publishable or (on_demand and others.isdisjoint(device.slices))
        else:
            offered = on_demand and others.isdisjoint(device.slices)
        if offered and all(count <= totals.get(name, 0) for name, count in device.counters.items()):
            yield device


def _takes(device: MigDevice) -> tuple[int, ...]:
    """How much of the card: memory slices, compute slices, engines; then the place."""
    return device.size, device.profile.compute_slices, sum(device.counters.values()), device.start


def _places(profile: MigProfile, made: Mapping[tuple[int, int, int], MigInstance]) -> list[tuple[int, int]]:
    """The legal ones, and those where an instance is although nobody says that they are."""
    return sorted({*profile.placements, *(place[1:] for place in made if place[0] == profile.id)})


def function_counts(machine: Machine) -> dict[str, int]:
    """Bus id of each PF that has virtual functions -> how many."""
    listed = Counter(vf.parent for vf in machine.vfs)
    return {
        nic.location.bus_id: max(nic.sriov_active, listed[nic.location.bus_id])
        for nic in machine.nics
        if nic.sriov_active or nic.location.bus_id in listed
    }


def whole_of(name: str) -> str:
    """The card that a part is of, by its name (``mig_name``, ``Nic.name``), so also for one that is gone; of
    a card the card."""
    part = _PART.fullmatch(name)
    return part["whole"] if part else name


def written(counters: Counters) -> Object:
    return {name: {"value": str(counters[name])} for name in sorted(counters)}
