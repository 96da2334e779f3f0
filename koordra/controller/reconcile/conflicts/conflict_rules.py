"""What nobody but koordra should do with koordra's devices, recognised from what is published and what is
allocated. Pure.

One writer allocates the devices of a joint node. What would break that is found here, and reported (an Event
and a metric); koordra never guesses its way around it.

    UnguardedClass       a DeviceClass that means koordra's devices and does not demand `allocator ==
                         "scheduler"`: kube-scheduler's allocator is kept from joint devices by their taint
                         alone, and on servers without device taints (1.34, 1.35) by nothing
    ForeignClass         a DeviceClass of somebody else (or one without selectors) that matches a joint device
    TwoDrivers           another driver publishes a device at the same PCI address, or with the same UUID, on
                         the same node
    ForeignPlugin        status.allocatable of a node has GPUs of another device plugin
                         (koordra.compat.detection)
    StrangeSlice         a slice in koordra's name that no plugin of koordra makes: without a node, or in a
                         pool that is not the node's
    ForeignWriter        an allocation of a joint device that another field manager wrote
    OverCommitted        a device that is given out beyond what it has, whoever did it: the node refuses what
                         is too much, and an Immediate claim that no pod uses gives its devices back
"""

from __future__ import annotations

import re
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import chain
from typing import Final

from koordra.allocator.predicates import readable_amounts, total_of
from koordra.api import names, objects
from koordra.api.objects import Fields, Object
from koordra.cel.selectors import DeviceFacts, matches
from koordra.compat.detection import offered_by_others, publishers
from koordra.controller import claims as claims_of
from koordra.controller.cache.slice_index import allocator_of, is_ours, node_name, pool_name
from koordra.controller.reconcile.conflicts.handed_over import told_of
from koordra.controller.reporting.claim_events import (
    FOREIGN_CLASS,
    FOREIGN_WRITER,
    OVER_COMMITTED,
    STRANGE_SLICE,
    UNGUARDED_CLASS,
)
from koordra.errors import InvalidInput, KoordraError
from koordra.placement import read_inventory
from koordra.quantity import canonical

_GUARD: Final = re.compile(
    r"""allocator["'\]]*\s*==\s*["']scheduler["']|["']scheduler["']\s*==\s*[^&|]*allocator"""
)
_PCI_NAMES: Final = ("pcibusid", "pciaddress", "pcibusaddress", "pci_address")
_PCI_ADDRESS: Final = re.compile(r"^(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$")


FIELD_MANAGER: Final = "koordra-controller"

Place = tuple[str, str]
"""Pool and name of a device."""


@dataclass(frozen=True, slots=True)
class DeviceConflict:
    """`about`: the objects on which it is reported; `key` distinguishes conflicts of one reason."""

    reason: str
    key: str
    about: tuple[Object, ...]
    message: str


def devices_of(entry: Object) -> Sequence[Fields]:
    return objects.spec_of(entry).get("devices") or ()


def class_conflicts(classes: Iterable[Object], probes: Collection[DeviceFacts]) -> list[DeviceConflict]:
    """Classes through which kube-scheduler's allocator could take joint devices. `probes`: such devices, of
    different types."""
    found = []
    for entry in classes:
        name, expressions = objects.name(entry), claims_of.expressions(entry)
        if claims_of.is_koordra_class(entry):
            if not any(map(_GUARD.search, expressions)):
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
    """By type, one device that the controller gives out, as selectors see it; types that are `known` are left
    out."""
    found: dict[str, DeviceFacts] = {}
    for entry in slices:
        for device in devices_of(entry) if is_ours(entry) else ():
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

    key: str
    is_gpu: bool
    entry: Object
    text: str


def contests(node: str, slices: Collection[Object]) -> list[Contest]:
    """The devices of a node that two drivers publish, told apart by PCI address and UUID; each once for a
    driver."""
    if all(map(is_ours, slices)):
        return []
    ours: dict[str, Fields] = {}
    theirs: dict[tuple[str, str], tuple[Object, str]] = {}
    for entry in slices:
        for device in devices_of(entry):
            for identity in identities(device):
                if is_ours(entry):
                    ours[identity] = device
                else:
                    driver = str(objects.spec_of(entry).get("driver"))
                    theirs.setdefault((identity, driver), (entry, str(device.get("name"))))
    found: dict[str, Contest] = {}
    for identity, driver in sorted(theirs.keys()):
        if (mine := ours.get(identity)) is not None:
            entry, other = theirs[identity, driver]
            key = f"{node}/{mine.get('name')}/{driver}"
            text = (
                f"{identity} is published by koordra.io ({mine.get('name')}) and by {driver} ({other}); "
                "both would give it out. Leave the device to one driver"
            )
            found.setdefault(key, Contest(key, is_gpu(mine), entry, text))
    return list(found.values())


def identities(device: Fields) -> list[str]:
    """By what a device is known, whatever its driver and whatever that calls the attribute: `PCI device
    0000:1f:00.0`, `UUID gpu-...`."""
    found = []
    for name, value in ((device.get("basic") or device).get("attributes") or {}).items():
        kind, text = str(name).rpartition("/")[2].lower(), str(value.get("string") or "").strip().lower()
        if kind.replace("-", "") in _PCI_NAMES and _PCI_ADDRESS.match(text):
            domain, _, rest = text.partition(":") if text.count(":") == 2 else ("0000", "", text)
            found.append(f"PCI device {domain[-4:]}:{rest}")
        elif kind == "uuid" and text:
            found.append(f"UUID {text}")
    return found


def is_gpu(device: Fields) -> bool:
    return _attribute(device, "type") in (names.TYPE_GPU, names.TYPE_MIG)


def strange_slices(slices: Iterable[Object]) -> list[DeviceConflict]:
    found = []
    for entry in slices:
        node, pool = node_name(entry), pool_name(entry)
        if is_ours(entry) and pool != node:
            what = f"is for node {node} and in pool {pool}" if node else f"names no node (pool {pool})"
            text = (
                f"ResourceSlice {objects.name(entry)} has driver koordra.io and {what}; koordra's plugins publish one pool "
                "per node, named after it. Delete the slice, and find out who wrote it"
            )
            found.append(DeviceConflict(STRANGE_SLICE, objects.name(entry), (entry,), text))
    return found


def foreign_plugin(node: Object, slices: Iterable[Object], pods: Mapping[str, str]) -> str:
    """What is wrong where another device plugin offers GPUs of a node on which koordra publishes GPUs, or
    `pods` still have some of it (pod -> the resource)."""
    resources = offered_by_others(node)
    pods = {pod: resource for pod, resource in pods.items() if has_known_resource(node, (resource,))}
    devices = chain.from_iterable(devices_of(entry) for entry in slices if is_ours(entry))
    if not (resources or pods) or not any(map(is_gpu, devices)):
        return ""
    if not resources:
        return told_of(pods)
    return (
        f"{publishers(resources)} gives out the same cards ({', '.join(resources)} in status.allocatable of node "
        f"{objects.name(node)}); koordra gives none of them out. Take its DaemonSet off the node; amounts that stay behind "
        "although it is gone are set to 0 in the Node's status, and removed once its pods have ended"
    )


def has_known_resource(node: Object, resources: Iterable[str]) -> bool:
    """Whether the Node has one of them, if only 0 of it. Nobody gave a resource that it lacks altogether: the
    kubelet starts pods that were bound to it by hand without such a resource."""
    status = objects.status_of(node)
    known = {*objects.fields(status.get("capacity")), *objects.fields(status.get("allocatable"))}
    return not known.isdisjoint(resources)


def _selects(expressions: Sequence[str], device: DeviceFacts) -> bool:
    """As kube-scheduler would judge it; what fails on the device does not select it."""
    try:
        return all(matches(expression, device) for expression in expressions)
    except InvalidInput:
        return False


def _attribute(device: Fields, name: str) -> object:
    attributes = device.get("attributes") or {}
    return (attributes.get(names.DOMAIN + name) or attributes.get(name) or {}).get("string")


def _facts(entry: Object, device: Fields) -> DeviceFacts | None:
    """The device as the allocator reads it."""
    spec = objects.spec_of(entry)
    pool = {**(spec.get("pool") or {}), "resourceSliceCount": 1}
    alone = {**spec, "pool": pool, "devices": [{**device, "consumesCounters": []}]}
    node = {"metadata": {"name": str(spec.get("nodeName"))}}
    try:
        pools = read_inventory([{**entry, "kind": "ResourceSlice", "spec": alone}]).pools(node)
    except KoordraError:
        return None
    return next((offered.facts for found in pools for offered in found.devices), None)


# what is allocated


def joint_places(slices: Iterable[Object]) -> set[Place]:
    return {
        (pool_name(entry), str(device.get("name")))
        for entry in slices
        if is_ours(entry)
        for device in devices_of(entry)
        if allocator_of(device) == names.ALLOCATOR_CONTROLLER
    }


def writer_conflicts(claim: Object, joint: Container[Place]) -> list[DeviceConflict]:
    """An allocation of joint devices (`joint`: pool and name) which the API server ascribes to others."""
    taken = [
        str(result.get("device"))
        for result in claims_of.results(claim)
        if result.get("driver") == names.DRIVER
        and (str(result.get("pool")), str(result.get("device"))) in joint
    ]
    manager = foreign_manager(claim) if taken else ""
    if not manager:
        return []
    text = (
        f"claim {objects.name(claim)}: {', '.join(taken)} was allocated by {manager}, not by koordra's controller; "
        "devices of a joint node have one writer. Take the right to write resourceclaims/binding from it, or put "
        "the node into native mode"
    )
    return [DeviceConflict(FOREIGN_WRITER, objects.uid(claim), (claim,), text)]


def foreign_manager(claim: Object) -> str:
    """The field manager that owns status.allocation; empty where that is koordra's, or the server does not
    tell."""
    for entry in objects.metadata(claim).get("managedFields") or ():
        status = (entry.get("fieldsV1") or {}).get("f:status")
        if isinstance(status, Mapping) and "f:allocation" in status:
            manager = str(entry.get("manager") or "")
            return "" if manager.startswith(FIELD_MANAGER) else manager
    return ""


def overcommitments(place: Place, slices: Iterable[Object], claims: Iterable[Object]) -> list[DeviceConflict]:
    """Whether more of a device is given out than it has. `claims`: all that hold it; `slices`: koordra's of
    its pool."""
    used = [
        (claim, result) for claim in claims for result in claims_of.results(claim) if _takes(result, place)
    ]
    too_much = _too_much([result for _, result in used], slices, place[1]) if len(used) > 1 else ""
    if not too_much:
        return []
    holders = {objects.uid(claim): claim for claim, _ in used}
    about = tuple(holders[uid] for uid in sorted(holders))
    text = (
        f"device {place[1]} of pool {place[0]} {too_much} {', '.join(sorted(map(objects.key, about)))}; "
        "the node will refuse to prepare what is too much; delete one of the pods"
    )
    return [DeviceConflict(OVER_COMMITTED, "/".join(place), about, text)]


def _takes(result: Fields, place: Place) -> bool:
    """Whether a result of an allocation takes of the device. Admin access takes nothing."""
    driver, pool, device = result.get("driver"), result.get("pool"), result.get("device")
    return driver == names.DRIVER and (pool, device) == place and not result.get("adminAccess")


def _too_much(results: Sequence[Fields], slices: Iterable[Object], device: str) -> str:
    """What is wrong with a device that has several holders, up to their names; empty where nothing is."""
    if not all(result.get("shareID") for result in results):
        return "is allocated as a whole to more than one claim:"
    asked = total_of(_amounts(claims_of.consumed(result)) for result in results)
    for published in chain.from_iterable(map(devices_of, slices)):
        if published.get("name") == device:
            values = (published.get("capacity") or {}).items()
            for name, total in _amounts({name: value.get("value") for name, value in values}).items():
                if name in asked and asked[name] > total:
                    return f"has {name} {canonical(total)} and {canonical(asked[name])} is allocated, to"
    return ""


def _amounts(quantities: Fields) -> dict[str, Decimal]:
    """By capacity; what cannot be read is left out (the allocator says so elsewhere)."""
    return {name.removeprefix(names.DOMAIN): amount for name, amount in readable_amounts(quantities).items()}
