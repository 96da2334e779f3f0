"""What nobody but koordra should do with koordra's devices, recognised from what is published. Pure.

One writer allocates the devices of a joint node. What would break that is found here, and in what is allocated
(allocation_audit.py), and reported (an Event and a metric); koordra never guesses its way around it.

    UnguardedClass       a DeviceClass that means koordra's devices and does not demand `allocator == "scheduler"`:
                         kube-scheduler's allocator is kept from joint devices by their taint alone, and on servers
                         without device taints (1.34, 1.35) by nothing
    ForeignClass         a DeviceClass of somebody else (or one without selectors) that matches a joint device
    TwoDrivers           another driver publishes a device at the same PCI address, or with the same UUID, on the same node
    ForeignPlugin        another device plugin offers GPUs of the same node (conflicts/foreign_drivers.py)
    StrangeSlice         a slice in koordra's name that no plugin of koordra makes: without a node, or in a pool that
                         is not the node's
"""

from __future__ import annotations

import re
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from koordra.api import names, objects
from koordra.api.objects import Object
from koordra.cel.selectors import DeviceFacts, matches
from koordra.controller import claims as claims_of
from koordra.controller.cache.slice_index import allocator_of
from koordra.controller.reporting.claim_events import (
    FOREIGN_CLASS,
    STRANGE_SLICE,
    TWO_DRIVERS,
    UNGUARDED_CLASS,
)
from koordra.errors import InvalidInput, KoordraError
from koordra.placement import read_inventory

_GUARD: Final = re.compile(
    r"""allocator["'\]]*\s*==\s*["']scheduler["']|["']scheduler["']\s*==\s*[^&|]*allocator"""
)
_PCI_NAMES: Final = ("pcibusid", "pciaddress", "pcibusaddress", "pci_address")
_PCI_ADDRESS: Final = re.compile(r"^(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$")


@dataclass(frozen=True, slots=True)
class DeviceConflict:
    """`about`: the objects on which it is reported; `key` distinguishes conflicts of one reason."""

    reason: str
    key: str
    about: tuple[Object, ...]
    message: str


def set_or_drop(table: dict[Any, Any], key: object, value: object) -> None:
    """Store the value, or drop the key where there is nothing to store."""
    if value:
        table[key] = value
    else:
        table.pop(key, None)


def class_conflicts(classes: Iterable[Object], probes: Collection[DeviceFacts]) -> list[DeviceConflict]:
    """Classes through which kube-scheduler's allocator could take joint devices. `probes`: such devices, of different types."""
    found = []
    for entry in classes:
        name, expressions = objects.name(entry), _expressions(entry)
        if claims_of.is_koordra_class(entry):
            if not any(_GUARD.search(expression) for expression in expressions):
                text = (
                    f"DeviceClass {name} means koordra's devices and does not keep kube-scheduler's own allocator away "
                    'from them; add the selector device.attributes["koordra.io"].allocator == "scheduler" '
                    "(koordra's controller sees through it)"
                )
                found.append(DeviceConflict(UNGUARDED_CLASS, name, (entry,), text))
        elif any(_selects(expressions, device) for device in probes):
            text = (
                f"DeviceClass {name} is not koordra's and matches devices of koordra that the controller gives out; "
                'add a selector for the driver that it is meant for, for example device.driver == "..."'
            )
            found.append(DeviceConflict(FOREIGN_CLASS, name, (entry,), text))
    return found


def joint_devices(slices: Iterable[Object], known: Container[str] = ()) -> dict[str, DeviceFacts]:
    """By type, one device that the controller gives out, as selectors see it; types that are `known` are left out."""
    found: dict[str, DeviceFacts] = {}
    for entry in slices:
        spec = objects.spec_of(entry)
        if spec.get("driver") != names.DRIVER:
            continue
        for device in spec.get("devices") or ():
            kind = str(_attribute(device, "type"))
            if kind in known or kind in found or allocator_of(device) != names.ALLOCATOR_CONTROLLER:
                continue
            facts = _facts(entry, device)
            if facts is not None:
                found[kind] = facts
    return found


@dataclass(frozen=True, slots=True)
class Contest:
    """One of koordra's devices that another driver publishes too; `entry` is that driver's slice."""

    node: str
    device: str
    is_gpu: bool
    identity: str
    entry: Object
    driver: str
    other: str

    @property
    def text(self) -> str:
        return (
            f"{self.identity} is published by koordra.io ({self.device}) and by {self.driver} ({self.other}); "
            "both would give it out. Leave the device to one driver"
        )


def contests(slices: Collection[Object]) -> list[Contest]:
    """The devices that two drivers publish, told apart by PCI address and UUID; each once for a driver."""
    if all(objects.spec_of(entry).get("driver") == names.DRIVER for entry in slices):
        return []
    ours: dict[tuple[str, str], Mapping[str, Any]] = {}
    theirs: dict[tuple[str, str, str], tuple[Object, str]] = {}
    for entry in slices:
        spec = objects.spec_of(entry)
        node, driver = str(spec.get("nodeName") or ""), str(spec.get("driver"))
        for device in spec.get("devices") or () if node else ():
            for identity in identities(device):
                if driver == names.DRIVER:
                    ours[node, identity] = device
                else:
                    theirs.setdefault((node, identity, driver), (entry, str(device.get("name"))))
    found: dict[tuple[str, str, str], Contest] = {}
    for (node, identity, driver), (entry, other) in sorted(theirs.items(), key=lambda item: item[0]):
        mine = ours.get((node, identity))
        if mine is not None:
            name = str(mine.get("name"))
            is_gpu = str(_attribute(mine, "type")) in (names.TYPE_GPU, names.TYPE_MIG)
            contest = Contest(node, name, is_gpu, identity, entry, driver, other)
            found.setdefault((node, name, driver), contest)
    return list(found.values())


def identities(device: Mapping[str, Any]) -> list[str]:
    """By what a device is known whatever its driver: `PCI device 0000:1f:00.0`, `UUID gpu-...`."""
    address = pci_address(device)
    found = [f"PCI device {address}"] if address else []
    body = device.get("basic") or device
    for name, value in (body.get("attributes") or {}).items():
        text = str(value.get("string") or "").strip().lower()
        if str(name).rpartition("/")[2].lower() == "uuid" and text:
            found.append(f"UUID {text}")
    return found


def publishes_gpus(slices: Iterable[Object]) -> bool:
    """Whether koordra publishes GPUs in these slices."""
    return any(
        str(_attribute(device, "type")) in (names.TYPE_GPU, names.TYPE_MIG)
        for entry in slices
        if objects.spec_of(entry).get("driver") == names.DRIVER
        for device in objects.spec_of(entry).get("devices") or ()
    )


def slice_conflicts(slices: Collection[Object], nodes: Mapping[str, Object]) -> list[DeviceConflict]:
    """Slices in our name that are not ours, and devices that two drivers publish."""
    found = []
    for entry in slices:
        spec = objects.spec_of(entry)
        node = str(spec.get("nodeName") or "")
        if spec.get("driver") == names.DRIVER:
            pool = str((spec.get("pool") or {}).get("name"))
            if pool != node:
                found.append(_strange(entry, node, pool))
    for one in contests(slices):
        about = (one.entry, nodes[one.node]) if one.node in nodes else (one.entry,)
        key = f"{one.node}/{one.device}/{one.driver}"
        found.append(DeviceConflict(TWO_DRIVERS, key, about, f"node {one.node}: {one.text}"))
    return found


def _strange(entry: Object, node: str, pool: str) -> DeviceConflict:
    what = f"is for node {node} and in pool {pool}" if node else f"names no node (pool {pool})"
    text = (
        f"ResourceSlice {objects.name(entry)} has driver koordra.io and {what}; koordra's plugins publish one pool "
        "per node, named after it. Delete the slice, and find out who wrote it"
    )
    return DeviceConflict(STRANGE_SLICE, objects.name(entry), (entry,), text)


def pci_address(device: Mapping[str, Any]) -> str:
    """`0000:1f:00.0` of a device, whatever its driver calls the attribute; empty where it tells none."""
    body = device.get("basic") or device
    for name, value in (body.get("attributes") or {}).items():
        if str(name).rpartition("/")[2].lower().replace("-", "") in _PCI_NAMES:
            text = str(value.get("string") or "").strip().lower()
            if _PCI_ADDRESS.match(text):
                domain, _, rest = text.partition(":") if text.count(":") == 2 else ("0000", "", text)
                return f"{domain[-4:]}:{rest}"
    return ""


def _expressions(device_class: Object) -> list[str]:
    selectors = objects.spec_of(device_class).get("selectors") or ()
    return [str((entry.get("cel") or {}).get("expression") or "") for entry in selectors]


def _selects(expressions: Sequence[str], device: DeviceFacts) -> bool:
    """As kube-scheduler would judge it; what fails on the device does not select it."""
    try:
        return all(matches(expression, device) for expression in expressions)
    except InvalidInput:
        return False


def _attribute(device: Mapping[str, Any], name: str) -> object:
    attributes = device.get("attributes") or {}
    value = attributes.get(names.DOMAIN + name) or attributes.get(name) or {}
    return value.get("string")


def _facts(entry: Object, device: Mapping[str, Any]) -> DeviceFacts | None:
    """The device as the allocator reads it."""
    pool = {**(objects.spec_of(entry).get("pool") or {}), "resourceSliceCount": 1}
    alone = {
        **entry,
        "spec": {**objects.spec_of(entry), "pool": pool, "devices": [{**device, "consumesCounters": []}]},
    }
    node = {"metadata": {"name": str(objects.spec_of(entry).get("nodeName"))}}
    try:
        pools = read_inventory([{**alone, "kind": "ResourceSlice"}]).pools(node)
    except KoordraError:
        return None
    return next((offered.facts for found in pools for offered in found.devices), None)
